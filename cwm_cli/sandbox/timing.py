"""The trusted side of timing: a program takes steps on request, by a clock out of its reach."""

import time
from typing import NamedTuple, Self

from cwm_cli.data.dataset import Dataset
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.failures import Failure, printable
from cwm_cli.sandbox.pacing import LONGEST_NOTE, PACED, QUESTION, REPLY, TimingJob

FORGED = Failure(
    kind="wrong_output",
    message="the program meddled with its process, which counts other steps than were asked for",
)


class Walked(NamedTuple):
    """Transitions that were predicted, and in how many seconds; none in a form there is not."""

    transitions: int
    seconds: float


class Broke(Exception):
    """The program ended or failed while it was timed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Timer:
    """A program in a confined process, which stands at rows of a dataset and steps from there.

    To be closed, as by `with`. Every call of `walk` is under the limits of a decision.
    """

    def __init__(self, sandbox: Sandbox, program: str, rows: Dataset, *, seed: int = 0) -> None:
        job = TimingJob(
            program=program,
            seed=seed,
            observation_space=rows.observation_space,
            action_space=rows.action_space,
            columns=rows.select("observations", "actions"),
            valid=rows.has_valid_actions,
        )
        self._lanes = len(rows)
        self._conversation = sandbox.converse(job)
        self.notes: dict[str, str] = {}

    def walk(self, form: str, steps: int) -> Walked:
        """Take steps in one of the `PACED` forms; in the batched one each is of all rows.

        Where there is no such form `notes` say why. `Broke` when the program fails.
        """
        question = QUESTION.pack(PACED.index(form), steps)
        try:
            started = time.perf_counter()
            self._conversation.send(question)
            reply = self._conversation.receive(REPLY.size)
            seconds = time.perf_counter() - started
        except EOFError:
            raise Broke(self._conversation.failure()) from None
        self._conversation.rest()
        transitions, note = REPLY.unpack(reply)
        if transitions not in (0, steps * (self._lanes if form == "batched" else 1)):
            raise Broke(FORGED)
        if not transitions:
            text = note.rstrip(b"\0").decode("utf-8", "replace")
            self.notes[form] = printable(text, LONGEST_NOTE)
        return Walked(transitions, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._conversation.close()
