"""A program as a world model: it predicts, is planned with, and timed, inside the sandbox.

This is the trusted side; what happens in the process of the program is in `confined`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self
from weakref import finalize

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import read_text
from cwm_cli.data.spaces import Columns, Space, refuse_pictures
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task, random_action
from cwm_cli.errors import CwmError
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import FORMS, EpisodeHistory
from cwm_cli.sandbox.abilities import Abilities, abilities_of
from cwm_cli.sandbox.client import Sandbox
from cwm_cli.sandbox.conversation import Conversation
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure, printable
from cwm_cli.sandbox.job import slot_type
from cwm_cli.sandbox.pool import WorkerLost
from cwm_cli.sandbox.prediction import ProgramAnswers
from cwm_cli.worlds.confirming import SHARE, Confirmer, Decision
from cwm_cli.worlds.imagining import Imagination, SteppedEpisodes
from cwm_cli.worlds.messages import (
    KEY_SIZE,
    LONGEST_NOTE,
    PACED,
    PASSED,
    READY,
    ROUND,
    SIZE,
    Codec,
    PlanningJob,
    PlanningReply,
    SteppingJob,
    TimedInputs,
    TimingJob,
    decode_reply,
    encode_question,
    most_bytes,
    states_of,
    summed,
)
from cwm_cli.worlds.model import (
    Confirmation,
    ImaginedEpisodes,
    ImaginedStep,
    Plan,
    PlannedWith,
    Planning,
    PlanningSession,
    Predictions,
    Stuck,
    WorldModel,
)
from cwm_cli.worlds.remote import NO_PLAN, Broke, RemoteModel

if TYPE_CHECKING:
    import gymnasium as gym


ROWS = 509
"""Real rows on which faster forms of a program are compared with it.

A prime, so that no axis of an observation is mistaken for that of the rows.
"""

SECONDS = 2.0
"""How long recording them may take: in slow environments fewer have to do."""


MOST_TIMEOUTS = 3
"""Decisions one after the other that may reach the limits, each of which takes as long as those."""

OWN_FRACTION = 0.1
"""Share of each blending fraction that every number draws for itself.

With 0 all observations between two recorded ones are on a line, and a program could interpolate
along it. Larger shares violate constraints between numbers (such as sine and cosine) more.
"""

CHECKED_PASSES = 6
"""Passes of each form that are predicted again; errors in half of all passes are found with
probability 0.98."""

EXACT, TRANSLATED = 1e-9, 1e-6
"""By how much sums may differ, of the sums of absolute values: for the program, and for forms."""

BETWEEN = "failed on the inputs of the timing, which are interpolated between recorded observations"

OTHERWISE = Failure(
    kind="wrong_output",
    message="the program tampered with its process: its predictions differ while it is timed",
)


@dataclass(frozen=True)
class ProgramModel(WorldModel):
    """A program that defines what its contract asks for; only the sandbox ever runs it."""

    kind: ClassVar[str] = "program"

    text: str
    sandbox: Sandbox
    name: str = "the program"
    share: float = SHARE
    """Probability that a window of decisions is confirmed as a whole; 0 confirms nothing."""
    _recorded: dict[Task, tuple[tuple[Space, Space], Columns]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _kept: list[Imagination] = field(default_factory=list, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The hash of its text."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def abilities(self) -> Abilities:
        """What it can be asked beyond one row at a time."""
        return abilities_of(self.text)

    @property
    def remembers(self) -> bool:
        """Whether it is asked along whole episodes."""
        return self.abilities.remembers

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return self.name

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Ask the program for every row, in the way that its text says it can be asked."""
        refuse_pictures(rows.observation_space, "a program")
        return Predictions(*self.sandbox.ask(self.text, rows, seed=seed, draws=draws))

    def audit(self, rows: Dataset, predictions: Predictions, *, seed: int = 0) -> Predictions:
        """Ask the program again, where there is nothing to look answers up in."""
        shape, chances = predictions.shape, predictions.probabilities
        answers = ProgramAnswers(predictions.columns, None, shape, chances)
        failure = self.sandbox.audit(self.text, rows, answers, seed=seed)
        return Predictions({}, failure) if failure else predictions

    def unroll(
        self, starts: Sequence[EpisodeHistory], plans: Sequence[Sequence[Any]], rows: Dataset
    ) -> Iterator[list[Any]]:
        """Have the program follow each history, and take steps on its own from there."""
        with closing(self._stepped(rows)) as model, suppress(Broke, WorkerLost):
            for start, actions in zip(starts, plans, strict=True):
                model.stand(start)
                yield [model.step(action).observation for action in actions]

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Go on with episodes inside the program, in a process that is kept for the next ones."""
        if not self.remembers:
            known = rows[np.arange(min(len(rows), ROWS))]
            kept = self._kept.pop() if self._kept else Imagination(self.sandbox, self.text, known)
            return SteppedEpisodes(kept, starts, rows, seed, self._kept)
        return FollowedEpisodes(self._stepped(rows), starts, rows.observation_space, seed)

    def _stepped(self, rows: Dataset) -> RemoteModel:
        """Return the program in a process of its own, which is asked for every step."""
        self.sandbox.prepare(SteppingJob.handler)
        job = SteppingJob(
            program=self.text,
            observation_space=rows.observation_space,
            action_space=rows.action_space,
            valid=rows.has_valid_actions,
        )
        return RemoteModel(self.sandbox, job)

    def open(self, planners: Sequence[Planning], task: Task) -> ProgramSession:
        """Begin to plan with the program, in a confined process of its own."""
        if task not in self._recorded:
            with closing(task.make()) as env:
                spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
            refuse_pictures(spaces[0], "a program")
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
            planners=[(planner.lookup_name, planner.options) for planner in planners],
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
            raise CwmError("a program needs a sandbox: pass `sandbox`")
        return cls(read_text(path), sandbox, str(path))


class FollowedEpisodes(ImaginedEpisodes):
    """Episodes in a program that remembers: it follows each history, and goes on by itself.

    One process steps them one after the other, each from the place where it was before.
    """

    def __init__(
        self, model: RemoteModel, starts: Sequence[EpisodeHistory], space: Space, seed: int
    ) -> None:
        self.count = len(starts)
        self._model, self._places, self._space = model, list[Any](starts), space
        self._seed, self._steps = seed, 0
        self._end = finalize(self, model.close)  # also of what nobody closes

    def step(self, actions: Columns) -> ImaginedStep:
        """Take an action in each of them."""
        model, space, found = self._model, self._model.action_space, []
        try:
            for number, place in enumerate(self._places):
                if not model.deterministic:
                    model.draw_from([self._seed, self._steps, number])
                model.stand(place)
                found.append(model.step(space.unpack("actions", actions, number)))
                self._places[number] = model.here()
        except (Broke, WorkerLost) as error:
            raise CwmError(f"the program failed: {printable(str(error), LONGEST_NOTE)}") from error
        model.told.clear()
        self._steps += 1
        valid = None
        if any(step.valid is not None for step in found):
            every = np.ones(space.count, np.bool_)
            masks = (every if step.valid is None else space.mask(step.valid) for step in found)
            valid = np.array(list(masks))
        return ImaginedStep(
            self._space.pack("observations", [step.observation for step in found]),
            np.array([step.reward for step in found], float),
            np.array([step.terminated for step in found], np.bool_),
            valid,
        )

    def keep(self, places: np.ndarray) -> None:
        """Go on with the episodes at some places only, in that order."""
        self._places = [self._places[place] for place in np.asarray(places).tolist()]
        self.count = len(self._places)

    def close(self) -> None:
        """End the process."""
        self._end()


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
        self._remembers = abilities_of(job.program).remembers
        self._states, self._actions = states_of(job), Codec(job.action_space, "actions")

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return the last observation; for a program with memory all that happened."""
        return history if self._remembers else super().state(env, history)

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return what to do at each of some moments of different episodes.

        Where planning for all of them fails they are planned for one by one.
        `Unsuited` when no planner can plan with the program, `Stuck` when it only reaches limits.
        """
        plans = self._plan(moments) if len(moments) > 1 else []
        if plans:
            self._timeouts = 0
        return plans or [plan for moment in moments for plan in self._alone(moment)]

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Make some decisions of each episode again; raise `Forged` if one differs."""
        return self._confirmer.confirm(seconds)

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
            words = f"{MOST_TIMEOUTS} decisions in a row exceeded their limits"
            raise Stuck(
                f"{words}; the last: {printable(failure.message.splitlines()[0], LONGEST_NOTE)}"
            )
        return [Plan([], failure)]

    def _plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Plan for moments together; none where that fails."""
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
            printable(reply.note, LONGEST_NOTE),
        )
        return [Plan(plan, None) for plan in reply.plans]

    def _ask(self, moments: Sequence[Moment]) -> PlanningReply | Literal[False]:
        """Ask the process, a new one unless there is one; False when that fails."""
        if self._process is None:
            self._process = self._sandbox.converse(self._job)
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


class _Pass(NamedTuple):
    """Inputs of a timed pass, the weights of its sums, and the sums that the program returned."""

    inputs: TimedInputs
    weights: np.ndarray
    sums: np.ndarray


class _Blend(NamedTuple):
    """A leaf before and after each recorded row, and its `parts` that are no whole numbers."""

    before: np.ndarray
    after: np.ndarray
    parts: np.ndarray

    @classmethod
    def of(cls, rows: Dataset, name: str) -> Self:
        """Return the values of a leaf of the observations."""
        before, after = rows.columns[name], rows.columns[f"next_{name}"]
        return cls(before.astype(float), after.astype(float), np.any(before % 1, axis=0))

    @property
    def changing(self) -> np.ndarray:
        """Mask of the rows that have other observations between `before` and `after`."""
        changed = self.parts & (self.before != self.after)
        return np.asarray(changed.reshape(len(changed), -1).any(axis=1))

    def between(self, rows: np.ndarray, common: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw values between `before` and `after` at fractions close to `common`."""
        before = self.before[rows]
        own = rng.random(before.shape)
        common = common.reshape(*common.shape, *[1] * self.parts.ndim)
        with np.errstate(over="ignore", invalid="ignore"):
            blends = (self.after[rows] - before) * (common + OWN_FRACTION * (own - common)) + before
        return np.asarray(np.where(self.parts & np.isfinite(blends), blends, before))


class Timer:
    """A program in a confined process, which stands at rows of a dataset and steps from there.

    The clock runs here. Each round has inputs that no process of the program has received before:
    observations between a recorded one and the next, drawn after the answer of the round before.
    Only whole numbers repeat. The answers of a round are returned as sums with weights that are
    drawn for it. `check` has other processes predict some passes. Every call of `walk` is under
    the limits of a decision. To be closed, as by `with`.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        program: str,
        rows: Dataset,
        notes: dict[str, str] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        leaves = list(rows.observation_space.leaves("observations"))
        self._blends = {
            leaf.name: blend
            for leaf in leaves
            if leaf.space.is_float and (blend := _Blend.of(rows, leaf.name)).parts.any()
        }
        changing = [blend.changing for blend in self._blends.values()]
        changes = np.any(changing, axis=0) if changing else np.ones(len(rows), bool)
        self._drawable = np.flatnonzero(changes if changes.any() else ~changes)
        self._job = TimingJob(
            program=program,
            seed=seed,
            observation_space=rows.observation_space,
            action_space=rows.action_space,
            columns=rows.select("observations", "actions"),
            valid=rows.has_valid_actions,
            fresh=[leaf.name in self._blends for leaf in leaves],
        )
        self._rows, self._sandbox = rows, sandbox
        self._rng = np.random.default_rng(secrets.randbits(128))
        self._numbers = 2 + sum(
            leaf.space.size
            if leaf.space.kind != "text"
            else np.dtype(slot_type(leaf.space)).itemsize
            for leaf in leaves
        )
        self._passes: dict[str, list[_Pass]] = {}
        self._conversation = sandbox.converse(self._job)
        self.notes = {} if notes is None else notes

    def walk(self, form: str, steps: int) -> Walked:
        """Take steps in one of the `PACED` forms; in the batched one each is of all rows.

        Where there is no such form `notes` say why. `Broke` when the program fails.
        """
        count = len(self._rows) if form == "batched" else min(steps, len(self._rows))
        passes = steps if form == "batched" else -(-steps // count)
        inputs = self._draw(passes, count)
        sent = [np.moveaxis(leaf, 1, -1) for leaf in inputs.leaves] if form == "batched" else None
        key, weights = secrets.token_bytes(KEY_SIZE), self._rng.standard_normal(count)
        sealed = inputs._replace(leaves=sent or inputs.leaves).seal(key)
        conversation, sums = self._conversation, b""
        try:
            conversation.send(ROUND.pack(PACED.index(form), passes, count) + sealed)
            conversation.receive(len(READY))
            conversation.rest()
            started = time.perf_counter()
            conversation.send(key + weights.astype("<f8").tobytes())
            found, note = PASSED.unpack(conversation.receive(PASSED.size))
            if found:
                sums = conversation.receive(8 * passes * self._numbers)
            seconds = time.perf_counter() - started
        except EOFError:
            if self._blends:
                self.notes[form] = BETWEEN
            raise Broke(conversation.failure()) from None
        conversation.rest()
        if not found and form == "scalar":  # the program itself, so there is such a form
            raise Broke(OTHERWISE)
        if not found:
            self.notes[form] = printable(
                note.rstrip(b"\0").decode("utf-8", "replace"), LONGEST_NOTE
            )
            return Walked(0, seconds)
        place = int(self._rng.integers(passes))
        one = TimedInputs(inputs.rows[place], [leaf[place] for leaf in inputs.leaves])
        table = np.frombuffer(sums, "<f8").reshape(passes, self._numbers)
        self._passes.setdefault(form, []).append(_Pass(one, weights, table[place]))
        return Walked(passes * count, seconds)

    def _draw(self, passes: int, count: int) -> TimedInputs:
        """Draw inputs (passes, count, ...) that no process has received before."""
        rows = self._rng.choice(self._drawable, (passes, count))
        common = self._rng.random((passes, count))
        return TimedInputs(
            rows, [b.between(rows, common, self._rng) for b in self._blends.values()]
        )

    def check(self) -> None:
        """Have a pass of some rounds of every form predicted; `Broke` where that is otherwise.

        What a program draws at random is not compared.
        """
        for form, passes in self._passes.items():
            chosen = self._rng.permutation(len(passes))[:CHECKED_PASSES]
            for each in (passes[place] for place in chosen):
                with np.errstate(over="ignore", invalid="ignore"):
                    expected, sizes = self._expected(each)
                room = (EXACT if form == "scalar" else TRANSLATED) * sizes
                if not (np.abs(each.sums - expected) <= room).all():
                    raise Broke(OTHERWISE)

    def _expected(self, asked: _Pass) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of what is predicted for a pass, and of its absolute numbers.

        The latter is endless where chance has a part.
        """
        rows = self._rows[asked.inputs.rows]
        fresh = dict(zip(self._blends, asked.inputs.leaves, strict=True))
        rows = replace(rows, columns={**rows.columns, **fresh})
        answers = [self._predicted(rows, seed) for seed in range(1 + self._job.draws)]
        expected = [summed(columns, asked.weights) for columns in answers]
        sizes = summed(
            [np.abs(c) if c.dtype.kind != "S" else c for c in answers[0]], abs(asked.weights)
        )
        drawn = np.abs(expected[0] - expected[-1]) > EXACT * sizes
        return expected[0], np.where(drawn, np.inf, sizes + 1)

    def _predicted(self, rows: Dataset, seed: int) -> list[np.ndarray]:
        """Return the columns of what the program predicts; `Broke` when it fails."""
        columns, failure = self._sandbox.predict(self._job.program, rows, seed=seed)
        if failure is not None:
            raise Broke(failure)
        leaves = rows.observation_space.leaves("next_observations")
        texts = {leaf.name: slot_type(leaf.space) for leaf in leaves if leaf.space.kind == "text"}
        names = [leaf.name for leaf in rows.observation_space.leaves("next_observations")]
        return [
            np.char.encode(columns[name], "utf-8").astype(texts[name])
            if name in texts
            else columns[name]
            for name in (*names, "rewards", "terminations")
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._conversation.close()


def _admitted(plans: list[list[Any]], space: Space) -> list[list[Any]]:
    """Return actions in the type of their environment; ValueError when one is out of bounds."""
    values = np.array([action for plan in plans for action in plan]).reshape(-1, space.size)
    if not ((np.asarray(space.low) <= values) & (values <= np.asarray(space.high))).all():
        raise ValueError("the planned value is not an action")
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
