"""What the process of a program does when it is timed: take as many steps as it is asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from struct import Struct
from typing import Any, ClassVar

import numpy as np

from cwm_cli.planning.model import Batch, Unbatched, copied
from cwm_cli.sandbox.deciding import formed, rows_of
from cwm_cli.sandbox.handlers import ConfinedProgram, Handler
from cwm_cli.sandbox.job import ModelJob
from cwm_cli.translation import Form

LONGEST_NOTE = 400

QUESTION = Struct("<BQ")
"""The place of a form in `PACED`, and how many steps to take."""

REPLY = Struct(f"<Q{LONGEST_NOTE}s")
"""How many transitions that were, and if there were none why there is no such form."""

PACED = ("scalar", "arithmetic", "batched")
"""Forms that are timed: the program itself, its plain arithmetic, all rows at once."""

Walk = Callable[[int], int]
"""Takes so many steps and returns how many transitions those were."""


@dataclass(frozen=True, kw_only=True)
class TimingJob(ModelJob):
    """A program that takes as many steps from its rows, in a form, as it is asked for."""

    handler: ClassVar[str] = "cwm_cli.sandbox.pacing:TimingHandler"


class TimingHandler(Handler[TimingJob]):
    """Takes steps on request; every transition counts as progress."""

    job_class = TimingJob

    def run(self, program: ConfinedProgram) -> None:
        """Answer questions until nobody asks any more."""
        job, counter = self.job, program.counter
        environment = program.load()
        form = formed(environment, job, "auto", counter)
        walks = {"scalar": _scalar(environment, job, counter)}
        if form.model is not form.program:
            walks["arithmetic"] = _modelled(form, job)
        if form.model.batch is not None:
            walks["batched"] = _batched(form.model.batch, job, counter)
        while question := program.read(QUESTION.size):
            place, steps = QUESTION.unpack(question)
            name = PACED[place]
            found = _taken(walks[name], steps) if name in walks else (0, _why(form, name))
            transitions, reason = found
            program.write(REPLY.pack(transitions, reason.encode("utf-8", "replace")))


def _taken(walk: Walk, steps: int) -> tuple[int, str]:
    """Take steps, or say why that cannot be."""
    try:
        return walk(steps), ""
    except Unbatched as error:
        return 0, str(error)


def _why(form: Form, name: str) -> str:
    """Say why there is no form of a name."""
    notes, prefix = form.program.notes, f"not {name}: "
    own = [note.removeprefix(prefix) for note in notes if note.startswith(prefix)]
    return "; ".join(own or notes)


def _scalar(environment: Any, job: ModelJob, counter: Any) -> Walk:
    """Return what stands at one row after the other and steps from there."""
    pairs, set_state, step = _pairs(job), environment.set_state, environment.step

    def walk(steps: int) -> int:
        for observation, action in islice(pairs, steps):
            set_state(copied(observation))
            step(action)
            counter[0] += 1
        return steps

    return walk


def _modelled(form: Form, job: ModelJob) -> Walk:
    """Return what does the same with the form of plain arithmetic."""
    pairs, stand, step = _pairs(job), form.model.stand, form.model.step

    def walk(steps: int) -> int:
        for observation, action in islice(pairs, steps):
            stand(observation)
            step(action)
        return steps

    return walk


def _batched(batch: Batch, job: ModelJob, counter: Any) -> Walk:
    """Return what stands at all rows at once and steps from there."""
    rows = rows_of(job)
    lanes = len(rows.observations)
    observations, actions = (
        np.stack([np.asarray(value) for value in values], -1)
        for values in (rows.observations, rows.actions)
    )

    def walk(steps: int) -> int:
        for _ in range(steps):
            batch.stand(observations)
            batch.step(actions)
            counter[0] += lanes
        return steps * lanes

    return walk


def _pairs(job: ModelJob) -> Iterator[tuple[Any, Any]]:
    """Yield observations and actions, round and round."""
    rows = rows_of(job)
    return cycle(zip(rows.observations, rows.actions, strict=True))
