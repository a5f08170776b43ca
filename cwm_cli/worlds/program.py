"""A program as a world model: it predicts, is planned with, and timed, inside the sandbox.

This is the trusted side; what happens in the process of the program is in `confined`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import read_text
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task, random_action
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import FORMS
from cwm_cli.sandbox.client import Conversation, Sandbox
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure, printable
from cwm_cli.sandbox.pool import WorkerLost
from cwm_cli.worlds.confirming import SHARE, Broke, Confirmer, Decision
from cwm_cli.worlds.messages import (
    LONGEST_NOTE,
    PACED,
    SIZE,
    STEPS_REPLY,
    STEPS_REQUEST,
    Codec,
    PlanningJob,
    PlanningReply,
    SteppingJob,
    TimingJob,
    decode_reply,
    encode_question,
    most_bytes,
)
from cwm_cli.worlds.model import (
    Plan,
    PlannedWith,
    Planning,
    PlanningSession,
    Predictions,
    Stuck,
    WorldModel,
)

if TYPE_CHECKING:
    from cwm_cli.testing.conftest import Material

ROWS = 509
"""Real rows on which faster forms of a program are compared with it.

A prime, so that no axis of an observation is mistaken for that of the rows.
"""

SECONDS = 2.0
"""How long recording them may take: in slow environments fewer have to do."""


MOST_TIMEOUTS = 3
"""Decisions one after the other that may reach the limits, each of which takes as long as those."""

NO_PLAN = Failure(
    kind="wrong_output",
    message="the program meddled with its process, which answered with no plan",
)

OTHER_STEPS = Failure(
    kind="wrong_output",
    message="the program meddled with its process, which counts other steps than were asked for",
)


@dataclass(frozen=True)
class ProgramModel(WorldModel):
    """A program that defines what its contract asks for; only the sandbox ever runs it."""

    kind: ClassVar[str] = "program"

    text: str
    sandbox: Sandbox
    name: str = "the program"
    share: float = SHARE
    """Of the time of planning, that decisions are made again for; 0 is for trials of that."""
    _recorded: dict[Task, tuple[tuple[Space, Space], Columns]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def example(cls, material: Material) -> Self:
        """Make one that says that nothing changes, for the tests of what plugs in."""
        return cls(
            "class Environment:\n"
            "    def set_state(self, observation):\n"
            "        self.observation = observation\n"
            "    def step(self, action):\n"
            "        return self.observation, 1.0, False\n",
            material.sandbox,
        )

    @property
    def digest(self) -> str:
        """The hash of its text."""
        return sha256(self.text.encode()).hexdigest()

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return self.name

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Ask the program for every row; it says one thing for each, or fails."""
        columns, failure = self.sandbox.predict(self.text, rows, seed=seed)
        return Predictions(columns, failure)

    def audit(self, rows: Dataset, predictions: Predictions, *, seed: int = 0) -> Predictions:
        """Ask the program again, where there is nothing to look answers up in."""
        failure = self.sandbox.audit(self.text, rows, predictions.columns, seed=seed)
        return Predictions({}, failure) if failure else predictions

    def open(self, planners: Sequence[Planning], task: Task) -> ProgramSession:
        """Begin to plan with the program, in a confined process of its own."""
        if task not in self._recorded:
            with closing(task.make()) as env:
                spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
            self._recorded[task] = spaces, random_rows(task, spaces)
        (observations, actions), rows = self._recorded[task]
        strangers = [planner.address for planner in planners if planner.address]
        self.sandbox.prepare(
            PlanningJob.handler, SteppingJob.handler, *strangers
        )  # where they can be imported
        job = PlanningJob(
            program=self.text,
            seed=task.seed,
            observation_space=observations,
            action_space=actions,
            columns=rows,
            planners=[(planner.sought, planner.options) for planner in planners],
            valid=task.valid is not None,
        )
        names = [planner.name for planner in planners]
        return ProgramSession(self.sandbox, job, names, share=self.share)

    def save(self, path: Path) -> None:
        """Write the program to a file."""
        path.write_text(self.text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path, *, sandbox: Sandbox | None = None) -> Self:
        """Read a program from a file."""
        if sandbox is None:
            raise CwmError("a program runs in the sandbox only: name one")
        return cls(read_text(path), sandbox, str(path))


class ProgramSession(PlanningSession):
    """Plans with a program, from observations.

    The program lives in one confined process, which is replaced after it
    failed. The limits hold for each call of `plan`, loading the program included.
    Between the first call and `close` a worker is taken. `names` are those of the planners,
    where they are not the ones in the job.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        job: PlanningJob,
        names: Sequence[str] | None = None,
        *,
        share: float = SHARE,
    ) -> None:
        self._sandbox = sandbox
        self._job = job
        self._names = names or [name for name, _ in job.planners]
        self._failure: Failure | None = None
        self._process: Conversation | None = None
        self._life = self._timeouts = 0
        self._confirmer = Confirmer(sandbox, job, share)
        self._observations, self._actions = (
            Codec(job.observation_space, "observations"),
            Codec(job.action_space, "actions"),
        )

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return what to do at each of some moments of different episodes.

        Where planning for all of them fails they are planned for one by one.
        `Unsuited` when no planner can plan with the program, `Stuck` when it only reaches limits.
        """
        plans = self._plan(moments) if len(moments) > 1 else []
        if plans:
            self._timeouts = 0
        return plans or [plan for moment in moments for plan in self._alone(moment)]

    def confirm(self, episode: int, seconds: float) -> int:
        """Make some of its decisions again, and say how many; `Forged` when one is another one."""
        return self._confirmer.confirm(episode, seconds)

    def close(self) -> None:
        """End the processes of the program."""
        self._confirmer.close()
        self._end()

    def _end(self) -> None:
        """End the process that plans."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _alone(self, moment: Moment) -> list[Plan]:
        """Plan for one moment; `Stuck` where that reached the limits again and again."""
        if plans := self._plan([moment]):
            self._timeouts = 0
            return plans
        failure = self._failure
        assert failure is not None
        self._timeouts = self._timeouts + 1 if failure.kind.startswith("timeout") else 0
        if self._timeouts == MOST_TIMEOUTS:
            words = f"{MOST_TIMEOUTS} decisions one after the other reached the limits"
            raise Stuck(
                f"{words}, the last: {printable(failure.message.splitlines()[0], LONGEST_NOTE)}"
            )
        return [Plan([], failure)]

    def _plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Plan for moments together; none where that fails."""
        try:
            question = encode_question(moments, self._observations)
        except ValueError as error:
            raise CwmError(f"the environment breaks its own rules: {error}") from error
        reply = self._sandbox.insist(lambda: self._ask(question, moments))
        if reply is None:
            self._failure = KILLED_WORKERS
        if not reply:
            return []
        self.steps += sum(reply.steps)
        for moment, plan, steps in zip(moments, reply.plans, reply.steps, strict=True):
            self._confirmer.add(Decision(moment, plan, reply.planner, steps, self._life))
        self.report = PlannedWith(
            self._names[reply.planner],
            tuple(form for bit, form in enumerate(FORMS) if reply.forms >> bit & 1),
            printable(reply.note, LONGEST_NOTE),
        )
        return [Plan(plan, None) for plan in reply.plans]

    def _ask(self, question: bytes, moments: Sequence[Moment]) -> PlanningReply | Literal[False]:
        """Ask the process, a new one unless there is one; False when that fails."""
        if self._process is None:
            self._process = self._sandbox.converse(self._job)
            self._life += 1
        process = self._process
        try:
            process.send(SIZE.pack(len(question)) + question)
            reply = self._read(process, moments)
        except EOFError:
            self._process = None
            self._failure = process.failure()
            return False
        except ValueError:
            self._end()
            self._failure = NO_PLAN
            return False
        except WorkerLost:
            self._end()
            raise
        if not reply.plans:
            self._end()
            raise Unsuited(printable(reply.note, LONGEST_NOTE))
        return reply

    def _read(self, process: Conversation, moments: Sequence[Moment]) -> PlanningReply:
        """Return what the process answers; ValueError when it makes no sense."""
        [size] = SIZE.unpack(process.receive(SIZE.size))
        if size > most_bytes(moments, self._actions):
            raise ValueError(f"a reply of {size} bytes")
        reply = decode_reply(process.receive(size), moments, self._actions)
        if reply.planner >= len(self._job.planners):
            raise ValueError(f"the planner {reply.planner}")
        process.rest()
        plans = _admitted(reply.plans, self._job.action_space)
        for plan, moment in zip(plans, moments, strict=bool(plans)):
            if moment.valid is not None and plan[0] not in moment.valid:
                raise ValueError(f"{plan[0]} is not allowed")
        return reply._replace(plans=plans)


class Walked(NamedTuple):
    """Transitions that were predicted, and in how many seconds; none in a form there is not."""

    transitions: int
    seconds: float


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
        question = STEPS_REQUEST.pack(PACED.index(form), steps)
        try:
            started = time.perf_counter()
            self._conversation.send(question)
            reply = self._conversation.receive(STEPS_REPLY.size)
            seconds = time.perf_counter() - started
        except EOFError:
            raise Broke(self._conversation.failure()) from None
        self._conversation.rest()
        transitions, note = STEPS_REPLY.unpack(reply)
        if transitions not in (0, steps * (self._lanes if form == "batched" else 1)):
            raise Broke(OTHER_STEPS)
        if not transitions:
            text = note.rstrip(b"\0").decode("utf-8", "replace")
            self.notes[form] = printable(text, LONGEST_NOTE)
        return Walked(transitions, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._conversation.close()


def _admitted(plans: list[list[Any]], space: Space) -> list[list[Any]]:
    """Return actions in the type of their environment; ValueError when one is out of bounds."""
    values = np.array([action for plan in plans for action in plan]).reshape(-1, space.size)
    if not ((np.asarray(space.low) <= values) & (values <= np.asarray(space.high))).all():
        raise ValueError("what is planned is no action")
    if space.kind == "discrete":
        return plans
    return [[np.asarray(action, dtype=space.dtype) for action in plan] for plan in plans]


def random_rows(task: Task, spaces: tuple[Space, Space]) -> Columns:
    """Record up to `ROWS` observations and random actions; slow environments give fewer."""
    pairs = list(islice(_pairs(task), ROWS))
    columns: Columns = {}
    for name, space, values in zip(
        ("observations", "actions"), spaces, zip(*pairs, strict=True), strict=True
    ):
        columns |= space.pack(name, values)
    return columns


def _pairs(task: Task) -> Iterator[tuple[Any, Any]]:
    """Yield observations and random actions of many episodes, for a while."""
    deadline = time.monotonic() + SECONDS
    with closing(task.make()) as env:
        space = deepcopy(env.action_space)
        space.seed(task.seed)
        for number in count():
            observation, _ = env.reset(seed=task.seed + number)
            for _ in range(task.limit):
                action = random_action(space, task.allowed(env))
                yield deepcopy(observation), action
                if time.monotonic() > deadline:
                    return
                observation, _, terminated, truncated, _ = env.step(deepcopy(action))
                if terminated or truncated:
                    break
