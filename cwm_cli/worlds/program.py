"""A program as a world model, outside the sandbox; `confined` runs in the program's process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import read_text
from cwm_cli.data.spaces import Columns, Space, refuse_pictures
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task, random_action
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import FORMS, EpisodeHistory
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.conversation import Conversation
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure, printable
from cwm_cli.sandbox.job import Abilities, abilities_of
from cwm_cli.sandbox.pool import WorkerLost
from cwm_cli.sandbox.prediction import ProgramAnswers
from cwm_cli.worlds.confirming import SHARE, Confirmer, Decision
from cwm_cli.worlds.imagining import FollowedEpisodes, Imagination, SteppedEpisodes
from cwm_cli.worlds.messages import (
    MAX_NOTE_BYTES,
    SIZE,
    Codec,
    PlanningJob,
    PlanningReply,
    SteppingJob,
    decode_reply,
    encode_question,
    max_reply_bytes,
    states_of,
)
from cwm_cli.worlds.model import (
    Confirmation,
    ImaginedEpisodes,
    Plan,
    PlannedWith,
    Planning,
    PlanningSession,
    Predictions,
    Stuck,
    WorldModel,
)
from cwm_cli.worlds.remote import NO_PLAN, ProgramFailed, RemoteModel

if TYPE_CHECKING:
    import gymnasium as gym

ROWS = 509
"""Maximum number of recorded rows that compare a program with its translated forms.

It is a prime, so that no axis of an observation has the same length as the axis of the rows.
"""


@dataclass(frozen=True)
class ProgramModel(WorldModel):
    """A program with the methods of its contract; only the sandbox runs it.

    Args:
        text: The text of the program.
        sandbox: The sandbox that runs it.
        name: The name for messages, usually the path.
        share: Probability that a window of decisions is confirmed as a whole. 0 confirms nothing.
        examples: (rows, components) recorded observations in whose range to plan, or None.
    """

    kind: ClassVar[str] = "program"

    text: str
    sandbox: Sandbox
    name: str = "the program"
    share: float = SHARE
    examples: np.ndarray | None = field(default=None, repr=False, compare=False)
    _recorded: dict[Task, tuple[tuple[Space, Space], Columns]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _idle: list[Imagination] = field(default_factory=list, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The SHA-256 hash of the text."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def abilities(self) -> Abilities:
        """The optional methods that the program defines."""
        return abilities_of(self.text)

    @property
    def remembers(self) -> bool:
        """Whether the program has memory, so that it must see whole episodes."""
        return self.abilities.remembers

    def describe(self) -> str:
        """Return the name of the program."""
        return self.name

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Run the program on every row, with the methods that it defines."""
        refuse_pictures(rows.observation_space)
        return Predictions(*self.sandbox.ask(self.text, rows, seed=seed, draws=draws))

    def audit(self, rows: Dataset, predictions: Predictions, *, seed: int = 0) -> Predictions:
        """Repeat predictions in new processes, where the program cannot look up its answers."""
        shape, chances = predictions.shape, predictions.probabilities
        answers = ProgramAnswers(predictions.columns, None, shape, chances)
        failure = self.sandbox.audit(self.text, rows, answers, seed=seed)
        return Predictions({}, failure) if failure else predictions

    def unroll(
        self, starts: Sequence[EpisodeHistory], plans: Sequence[Sequence[Any]], rows: Dataset
    ) -> Iterator[list[Any]]:
        """Yield the predicted observations of each rollout, until the program fails."""
        with closing(self.step_remotely(rows)) as model, suppress(ProgramFailed, WorkerLost):
            for start, actions in zip(starts, plans, strict=True):
                model.stand(start)
                yield [model.step(action).observation for action in actions]

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Continue episodes inside the program; later calls may reuse its process."""
        if self.remembers:
            model = self.step_remotely(rows)
            return FollowedEpisodes(model, starts, rows.observation_space, seed)
        if self._idle:
            process = self._idle.pop()
        else:
            known = rows[np.arange(min(len(rows), ROWS))]
            process = Imagination(self.sandbox, self.text, known)
        return SteppedEpisodes(process, starts, rows, seed, self._idle)

    def step_remotely(self, rows: Dataset) -> RemoteModel:
        """Start a process that steps the program; `rows` give the spaces."""
        self.sandbox.prepare(SteppingJob.handler)
        return RemoteModel(self.sandbox, SteppingJob.of(self.text, rows))

    def open(self, planners: Sequence[Planning], task: Task) -> ProgramSession:
        """Start planning with the program, in a confined process of its own."""
        # Recording takes seconds, and several sessions plan the same task.
        if task not in self._recorded:
            with closing(task.make()) as env:
                spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
            refuse_pictures(spaces[0])
            self._recorded[task] = spaces, random_rows(task, spaces)
        (observations, actions), rows = self._recorded[task]
        # workers import these modules before they are confined
        addresses = [planner.address for planner in planners if planner.address]
        self.sandbox.prepare(PlanningJob.handler, SteppingJob.handler, *addresses)
        job = PlanningJob(
            program=self.text,
            seed=task.seed,
            observation_space=observations,
            action_space=actions,
            columns=rows,
            planners=[(planner.lookup_name, planner.options) for planner in planners],
            valid=task.valid is not None,
            turn=task.turn,
            examples=self.examples,
        )
        names = [planner.name for planner in planners]
        return ProgramSession(self.sandbox, job, names, share=self.share)

    def planned_within(self, rows: Dataset) -> Self:
        """Return the same program, planned with in the range of recorded observations."""
        if not (len(rows) and rows.observation_space.is_float and rows.observation_space.size):
            return self
        column = rows.columns["observations"].reshape(len(rows), -1)
        some = np.linspace(0, len(column) - 1, 1000).astype(int)
        ends = [column.argmin(axis=0), column.argmax(axis=0)]  # with the ends of each range
        return replace(self, examples=column[np.unique(np.concatenate([some, *ends]))])

    def save(self, path: Path) -> None:
        """Write the program to a file."""
        path.write_text(self.text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path, *, sandbox: Sandbox | None = None) -> Self:
        """Read a program from a file; `sandbox` is required."""
        if sandbox is None:
            raise CwmError("a program needs a sandbox: pass `sandbox`")
        return cls(read_text(path), sandbox, str(path))


class ProgramSession(PlanningSession):
    """Plans with a program in a confined process, which is replaced if it fails.

    The session occupies a worker from the first call of `plan` until `close`.

    Args:
        sandbox: The sandbox. Its limits hold for each call of `plan`, including the time to load
            the program.
        job: The program, its spaces and the planners.
        names: The names of the planners for reports, by default the names in the job.
        share: Probability that a window of decisions is confirmed as a whole.
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
        self._remembers = abilities_of(job.program).remembers
        self._states, self._actions = states_of(job), Codec(job.action_space, "actions")

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return the last observation, or the whole history for a program with memory."""
        return history if self._remembers else super().state(env, history)

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return plans for moments of different episodes: together, or singly if that fails.

        Raises:
            Unsuited: If no planner can plan with the program.
            Stuck: If three decisions in a row exceed the limits.
        """
        # One failing episode ends the process of all, so each episode is then planned again alone.
        plans = self._plan(moments) if len(moments) > 1 else []
        if plans:
            self._timeouts = 0
        return plans or [self._plan_single(moment) for moment in moments]

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Repeat some decisions of each episode; raise `TamperingError` if one differs."""
        return self._confirmer.confirm(seconds)

    def close(self) -> None:
        """End the processes of the program."""
        self._confirmer.close()
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _plan_single(self, moment: Moment) -> Plan:
        max_timeouts = 3  # each takes as long as the limits allow
        if plans := self._plan([moment]):
            self._timeouts = 0
            return plans[0]
        failure = self._failure
        assert failure is not None
        self._timeouts = self._timeouts + 1 if failure.kind.startswith("timeout") else 0
        if self._timeouts == max_timeouts:
            last = printable(failure.message.splitlines()[0], MAX_NOTE_BYTES)
            raise Stuck(
                f"{max_timeouts} decisions in a row exceeded their limits; the last: {last}"
            )
        return Plan([], failure)

    def _plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Plan for moments together; return no plans, and set `_failure`, if that fails."""
        reply = self._sandbox.insist(lambda: self._ask(moments))
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
            printable(reply.note, MAX_NOTE_BYTES),
        )
        return [Plan(plan, None) for plan in reply.plans]

    def _ask(self, moments: Sequence[Moment]) -> PlanningReply | Literal[False]:
        """Send the question to the current or a new process; return False if it fails."""
        if self._process is None:
            self._process = self._sandbox.converse(self._job)
            # A new process knows no histories, and its planner has no memory.
            self._states = states_of(self._job)
            self._life += 1
        process = self._process
        try:
            question = encode_question(moments, self._states)
        except ValueError as error:
            raise CwmError(f"the environment does not match its spaces: {error}") from error
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
            raise Unsuited(printable(reply.note, MAX_NOTE_BYTES))
        return reply

    def _read(self, process: Conversation, moments: Sequence[Moment]) -> PlanningReply:
        """Return the reply of the process; raise ValueError if it is malformed."""
        [size] = SIZE.unpack(process.receive(SIZE.size))
        if size > max_reply_bytes(moments, self._actions):
            raise ValueError(f"a reply of {size} bytes")
        reply = decode_reply(process.receive(size), moments, self._actions)
        if reply.planner >= len(self._job.planners):
            raise ValueError(f"the planner {reply.planner}")
        process.rest()
        plans, space = reply.plans, self._job.action_space
        columns = space.pack("actions", [action for plan in plans for action in plan])
        for name, leaf in space.leaves("actions"):
            low, high = (np.reshape(bound, leaf.shape) for bound in (leaf.low, leaf.high))
            if not ((low <= columns[name]) & (columns[name] <= high)).all():
                raise ValueError("the planned value is not an action")
        plans = [[space.cast(action) for action in plan] for plan in plans]
        for plan, moment in zip(plans, moments, strict=bool(plans)):
            if moment.valid is not None and plan[0] not in moment.valid:
                raise ValueError(f"{plan[0]} is not allowed")
        return reply._replace(plans=plans)


def random_rows(task: Task, spaces: tuple[Space, Space]) -> Columns:
    """Record up to `ROWS` observations and random actions, for at most about two seconds."""
    pairs = list(islice(_pairs(task), ROWS))
    columns: Columns = {}
    for name, space, values in zip(
        ("observations", "actions"), spaces, zip(*pairs, strict=True), strict=True
    ):
        columns |= space.pack(name, values)
    return columns


def _pairs(task: Task) -> Iterator[tuple[Any, Any]]:
    """Yield observations and random actions of many episodes, for two seconds."""
    deadline = time.monotonic() + 2.0
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
