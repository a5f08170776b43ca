"""How long a transition takes: predicted by a world model, by a language model, or taken for real.

The comparison of appendix C of Dainese et al. (2024), each side also scored on the same rows.
`bench_speed` is what `cwm bench-speed` does.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, cycle
from math import log10
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from cwm_cli.bench.asking import Asked, Inquiry, Questioner
from cwm_cli.commands.collect import recorded_args
from cwm_cli.commands.subjects import ProgramSource, RunSource, Subject, find_subject, protected
from cwm_cli.commands.synthesize import MODEL_VARIABLE, check_flags, choose_backend
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec, Rewinder
from cwm_cli.envs.tasks import Setting, Task, seeds_of, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, Metric, Score, evaluate
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.registry import Owner, default, find, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure
from cwm_cli.sandbox.protection import check_access
from cwm_cli.search.models import one_model
from cwm_cli.worlds import EnvironmentModel, ProgramModel
from cwm_cli.worlds.confined_timing import TIMED_FORMS, TimingJob
from cwm_cli.worlds.model import WorldModel
from cwm_cli.worlds.remote import ProgramFailed
from cwm_cli.worlds.timing import Timer

if TYPE_CHECKING:
    import gymnasium as gym

SCALAR, BATCHED = "scalar", "batched"
"""Forms of the program that are compared: one transition after the other, all rows at once."""

ALONE, MANY = "environment", "environments"
"""What is timed of the environment: one, and where it can many copies at once."""

IMAGINED = 64
"""Episodes that a trained model imagines side by side: a batch of the published training."""

LANES, STEPS = 1000, 10
"""Plans that are played side by side, and their steps, where an environment can do that."""

TIMED = 1000
"""Transitions on which the world model and the environment are timed, all at once if they can."""

TEMPERATURE = 0.0
"""Of a language model that is to predict: what it holds likeliest."""


ROUND_SECONDS = 0.01
"""How long a round takes at least: the clock and whatever is around a round count for nothing."""

ROUNDS = 40
FEWEST_ROUNDS = 3
MOST_SECONDS = 2.0
"""After so long there are enough rounds, even if they are few."""

QUANTILES = (0.05, 0.95)

Walk = Callable[[int], tuple[int, float]]
"""Takes so many steps; returns how many transitions those were, and how many seconds they took."""


class Pace(NamedTuple):
    """Seconds per transition: the median of rounds, and their quantiles of 5 and 95 %.

    `warm_up` is what the very first transition took, which counts for nothing.
    """

    median: float
    low: float
    high: float
    rounds: int
    transitions: int
    warm_up: float

    @classmethod
    def of(cls, seconds: Sequence[float], transitions: int, warm_up: float) -> Self:
        """Summarise rounds by their seconds per transition."""
        low, high = np.quantile(seconds, QUANTILES).tolist()
        return cls(float(np.median(seconds)), low, high, len(seconds), transitions, warm_up)


class SpeedProgress(NamedTuple):
    """What is being done; what an observer of `bench_speed` is told."""

    words: str


class SpeedRatio(NamedTuple):
    """How many transitions of the world model fit into one of something else."""

    times: float

    @property
    def orders(self) -> float:
        """The ratio in orders of magnitude: 1,000 times are 3."""
        return log10(self.times)

    def as_json(self) -> dict[str, float]:
        """Return the ratio as plain data."""
        return {"ratio": self.times, "orders": self.orders}

    @classmethod
    def of(cls, ours: Pace | None, theirs: Pace | None) -> "SpeedRatio | None":
        """Compare two paces, if there are both."""
        return cls(theirs.median / ours.median) if ours and theirs else None


class TimedSides(NamedTuple):
    """Paces of program and environment by name, and why the program has none in some form.

    The program was timed on inputs that were drawn between `rows` recorded ones; a batch has as
    many. `failure` is why the program failed, if it did.
    """

    rows: int
    paces: dict[str, Pace]
    notes: dict[str, str]
    failure: Failure | None = None


@dataclass(frozen=True)
class SpeedResult(Result):
    """A world model, the true environment, and a language model (by `name`) if one was asked.

    The environment has no score where it cannot be stood at observations, and one below 1
    where chance decides or observations hide something.
    """

    world_model: Score
    environment: Score | None
    timed: TimedSides
    language_model: Asked | None = None
    name: str = ""

    @property
    def paces(self) -> dict[str, Pace]:
        """Paces of the forms of the program and of the environment, by name."""
        return self.timed.paces

    @property
    def answering(self) -> Pace | None:
        """How long answers of the language model take, waits after failed attempts included."""
        usages = self.language_model.usages if self.language_model else []
        seconds = [usage.seconds for usage in usages]
        return Pace.of(seconds, len(seconds), seconds[0]) if seconds else None

    def speedups(self) -> dict[str, dict[str, SpeedRatio | None]]:
        """Return how many times faster the world model is, one by one and all rows at once.

        All at once it is compared with the fastest that the other side can do.
        """
        one, many = self.paces.get(ALONE), self.paces.get(MANY)
        sides = {"environment": (one, many or one)}
        if self.language_model:
            sides["language_model"] = (self.answering, self.answering)
        return {
            name: {
                SCALAR: SpeedRatio.of(self.paces.get(SCALAR), alone),
                BATCHED: SpeedRatio.of(self.paces.get(BATCHED), fastest),
            }
            for name, (alone, fastest) in sides.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm bench-speed --json` prints."""
        speedups = {
            side: {
                form: ratio and {"ratio": ratio.times, "orders": ratio.orders}
                for form, ratio in ratios.items()
            }
            for side, ratios in self.speedups().items()
        }
        paces = self.paces
        return {
            "world_model": self._world_model(),
            "environment": _side(paces.get(ALONE), paces.get(MANY), self.environment),
            "language_model": self._language_model(),
            "speedup": {"language_model": None} | speedups,
        }

    def _world_model(self) -> dict[str, Any]:
        """Return what there is of the world model."""
        rows, paces, notes, failure = self.timed
        return {
            **_side(paces.get(SCALAR), paces.get(BATCHED), self.world_model),
            "rows_timed": rows,
            "forms": {form: _pace(paces[form]) for form in TIMED_FORMS if form in paces},
            "notes": notes,
            "failure": asdict(failure) if failure else None,
        }

    def _language_model(self) -> dict[str, Any] | None:
        """Return what there is of the language model."""
        asked = self.language_model
        if asked is None:
            return None
        unread = [
            {"row": row, "reason": reason, "answer": asked.answers[row]}
            for row, reason in asked.unread.items()
        ]
        return {
            **_side(self.answering, None, asked.score),
            "answered": len(asked.answers),
            "unread": unread,
            "refused": [{"row": row, "reason": why} for row, why in asked.refused.items()],
            "stopped": asked.stopped or None,
            "tokens": asked.spent.tokens,
            "cost": asked.spent.cost,
        }


def bench_speed(
    run: RunSource | None = None,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    program: ProgramSource | None = None,
    model: str | None = None,
    rows: int = 10,
    examples: int = 3,
    dataset: Dataset | Path | str | None = None,
    backend: str | None = None,
    api_base: str | None = None,
    temperature: float | None = None,
    max_cost: float | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    observer: Observer = SILENT,
) -> SpeedResult:
    """Time a transition: in a world model, in the true environment, by a language model.

    Arguments and defaults are those of `cwm bench-speed`. All three predict the same `rows`;
    the world model and the environment are timed on more, warm, in rounds, and a language
    model is asked once per row. What fails is reported, and the rest is measured. The
    observer is told a `SpeedProgress` when something else begins. An interruption ends the
    asking only, and is told in `language_model.stopped`.
    """
    subject = find_subject(
        run, program=program, env=env, env_args=env_args, options=options, observer=observer
    )
    if subject.model is not None and not subject.model.can_be_timed:
        raise CwmError(
            f"{subject.name} has no program, only rules in words: bench-speed cannot time it"
        )
    flags = {"api_base": api_base, "temperature": temperature}
    if not abilities_of(subject.text or "").is_plain:
        told = "is stochastic or has memory: `cwm plan` reports the seconds per decision"
        raise CwmError(
            f"bench-speed needs a deterministic program without memory; {subject.name} {told}"
        )
    check_access(tools, allow_gap)
    asks = _Predictor.named(backend, model, subject.options, flags)
    if asks.factory is not None:
        asks.factory(model=asks.name, **asks.options).ready(max_cost)
    data = subject.transitions(dataset, observer)
    subject = subject._replace(env_args=recorded_args(data, subject.env_args))
    metric, drawn = AccuracyMetric.of(data.train), _draw(data, rows, seed)
    with ExitStack() as stack:
        sandbox = None
        if subject.model is None:
            guarded = protected(
                Limits.chosen({**subject.limits, **asks.sandbox}),
                tools=sorted({*subject.tools, *tools}),
                accepted=allow_gap,
                handlers=[TimingJob.handler],
                observer=observer,
            )
            sandbox = stack.enter_context(guarded)
        observer.begins(SpeedProgress("timing world model and environment"))
        try:
            found = measure(
                subject, sandbox, metric, asked=drawn.asked, timed=drawn.timed, seed=seed
            )
            if asks.factory is None:
                return found
            with closing(subject.spec.make(**subject.env_args)) as made:
                description = subject.spec.describe(made)
            questioner = Questioner(description, drawn.train, examples, seed)
            answers = asks.ask(questioner, drawn.asked, metric, max_cost, observer)
            return replace(found, language_model=answers, name=asks.name)
        finally:
            observer.ends()


class _Drawn(NamedTuple):
    """Rows to predict, held out ones if there are any, rows to time, and train rows beside."""

    asked: Dataset
    timed: Dataset
    train: Dataset


def _draw(data: Dataset, count: int, seed: int) -> _Drawn:
    """Draw rows at random."""
    rng = np.random.default_rng(seed)
    held_out = np.flatnonzero(data.columns["split"] == 1)
    candidates = held_out if len(held_out) else np.arange(len(data))
    asked = np.sort(rng.permutation(candidates)[:count])
    timed = rng.permutation(len(data))[:TIMED]
    is_train = data.columns["split"] == 0
    is_train[asked] = False
    return _Drawn(data[asked], data[timed], data[is_train])


class _Predictor(NamedTuple):
    """The language model to ask, and what asks it; nobody where none was named."""

    name: str
    factory: Any
    options: dict[str, Any]
    sandbox: dict[str, Any]

    @classmethod
    def named(
        cls,
        backend: str | None,
        model: str | None,
        options: Sequence[str] | Mapping[str, Any],
        flags: Mapping[str, Any],
    ) -> "_Predictor":
        """Read what a user chose; what cannot be is refused before anything is measured."""
        owners = [Owner("sandbox", Limits)]
        if not (backend or model or os.environ.get(MODEL_VARIABLE)):
            return cls("", None, {}, read_options(options, owners)["sandbox"])
        answers = choose_backend(backend or default("model"), [model or ""])
        owners.append(Owner("backend", find("backend", answers.backend)))
        chosen = read_options(options, owners)
        given = {flag: value for flag, value in flags.items() if value is not None}
        check_flags(answers.backend, given)
        usual = {"temperature": TEMPERATURE} if "temperature" in owners[1].options else {}
        name = one_model(answers.model) or answers.backend
        of_backend = usual | chosen["backend"] | given
        return cls(name, owners[1].factory, of_backend, chosen["sandbox"])

    def ask(
        self,
        questioner: Questioner,
        rows: Dataset,
        metric: Metric,
        max_cost: float | None,
        observer: Observer,
    ) -> Asked:
        """Ask for rows; a language model that cannot be asked is reported."""

        def heard(count: int) -> None:
            told = f"asking {self.name}: {count} of {len(rows)} answered"
            observer.advanced(SpeedProgress(told))

        observer.advanced(SpeedProgress(f"asking {self.name}"))
        try:
            backend = self.factory(model=self.name, **self.options)
        except CwmError as error:
            return Asked(stopped=str(error))
        return Inquiry(backend, questioner, metric, max_cost).ask(rows, heard)


def measure(
    subject: Subject,
    sandbox: Sandbox | None,
    metric: Metric,
    *,
    asked: Dataset,
    timed: Dataset,
    seed: int = 0,
) -> SpeedResult:
    """Score model and environment on the rows `asked`, and time both, in turn, on those `timed`.

    A program, which takes the sandbox, scores 0 if it fails, and has a failure instead of paces.
    """
    spec, text = subject.spec, subject.text or ""
    model = ProgramModel(text, sandbox) if sandbox is not None else subject.model
    assert model is not None
    found = evaluate(model, asked, metric, seed=seed)
    with closing(spec.make(**subject.env_args)) as env:
        setting = Setting(subject.env, subject.env_args, seed, step_limit(env))
        walks = walks_of(spec, env, setting.task(spec), timed)
        if found.failure:
            sides = TimedSides(len(timed), paces(walks), {}, found.failure)
        elif sandbox is None:
            starts = timed[np.arange(min(len(timed), IMAGINED))]
            own = {
                SCALAR: _imagining(model, starts[np.arange(1)], seed),
                BATCHED: _imagining(model, starts, seed),
            }
            sides = TimedSides(len(starts), paces({**own, **walks}), {})
        else:
            sides = _time(text, timed, sandbox, walks, seed=seed)
    truth = EnvironmentModel(spec, subject.env_args)
    return SpeedResult(found.score, metric.ceiling(truth, asked, seed=seed), sides)


def _imagining(model: WorldModel, starts: Dataset, seed: int) -> Walk:
    """Return what takes steps in episodes that a model imagines, side by side from given rows.

    How it comes to stand where they begin is not timed.
    """
    histories = [EpisodeHistory((row.observation,)) for row in starts]
    actions = starts.select("actions")

    def stepping() -> Iterator[float]:
        for number in count():
            episodes = model.imagine(histories, starts, seed=seed + number)
            for _ in range(STEPS):
                started = perf_counter()
                episodes.step(actions)
                yield perf_counter() - started

    steps_on = stepping()

    def walk(steps: int) -> tuple[int, float]:
        return steps * len(starts), sum(next(steps_on) for _ in range(steps))

    return walk


def _time(
    program: str, rows: Dataset, sandbox: Sandbox, others: Mapping[str, Walk], *, seed: int = 0
) -> TimedSides:
    """Time a program in each of its forms, in turn with other walks.

    If it fails the others are timed alone.
    """
    notes: dict[str, str] = {}

    def attempt() -> TimedSides:
        with Timer(sandbox, program, rows, notes, seed=seed) as timer:
            forms = {form: partial(timer.walk, form) for form in TIMED_FORMS}
            found = paces({**forms, **others})
            timer.check()
            return TimedSides(len(rows), found, notes)

    try:
        found, failure = sandbox.insist(attempt), KILLED_WORKERS
    except ProgramFailed as error:
        found, failure = None, error.failure
    return found or TimedSides(len(rows), paces(others), notes, failure)


def paces(walks: Mapping[str, Walk]) -> dict[str, Pace]:
    """Time rounds of several walks in turn, so that what slows the machine down slows them all.

    A first walk finds how many steps make a round. Those without any transition are left out.
    """
    timed = {name: _Rounds(walk) for name, walk in walks.items()}
    at_work = [rounds for rounds in timed.values() if rounds.warm_up()]
    while at_work:
        for rounds in at_work:
            rounds.turn()
        at_work = [rounds for rounds in at_work if not rounds.is_done]
    return {name: rounds.pace for name, rounds in timed.items() if rounds.seconds}


class _Rounds:
    """Times a walk, round by round."""

    def __init__(self, walk: Walk) -> None:
        self.seconds: list[float] = []
        self._walk = walk
        self._steps = 1
        self._first, self._taken, self._transitions = 0.0, 0.0, 0

    def warm_up(self) -> bool:
        """Find how many steps make a round; say whether there are any transitions at all."""
        transitions, self._first = self._walk(1)
        seconds = 0.0
        while transitions and seconds < ROUND_SECONDS:
            _, seconds = self._walk(self._steps)
            if seconds >= ROUND_SECONDS:  # and not only because something else came between
                seconds = min(seconds, self._walk(self._steps)[1])
            self._steps *= 1 if seconds >= ROUND_SECONDS else 2
        return transitions > 0

    def turn(self) -> None:
        """Time a round."""
        transitions, seconds = self._walk(self._steps)
        self.seconds.append(seconds / transitions)
        self._transitions += transitions
        self._taken += seconds

    @property
    def is_done(self) -> bool:
        """Whether there are rounds enough."""
        count = len(self.seconds)
        return count >= ROUNDS or (count >= FEWEST_ROUNDS and self._taken >= MOST_SECONDS)

    @property
    def pace(self) -> Pace:
        """What the rounds come to."""
        return Pace.of(self.seconds, self._transitions, self._first)


def walks_of(
    spec: EnvironmentSpec, env: "gym.Env[Any, Any]", task: Task, rows: Dataset
) -> dict[str, Walk]:
    """Return what steps an environment, one by one and, where it can, many copies at once.

    It takes the actions of the rows, from one episode to the next; neither
    resets nor what wrappers do is timed.
    """
    walks = {ALONE: _stepping(env, task, rows)}
    if (rewinder := spec.rewinder(env) if spec.rewinder else None) is not None:
        walks[MANY] = _batched(env, rewinder, task.seed)
    return walks


def _stepping(env: "gym.Env[Any, Any]", task: Task, rows: Dataset) -> Walk:
    """Return what takes steps, from one episode to the next."""
    acts = _acts(env, task, rows)

    def walk(steps: int) -> tuple[int, float]:
        return steps, sum(next(acts) for _ in range(steps))

    return walk


def _acts(env: "gym.Env[Any, Any]", task: Task, rows: Dataset) -> Iterator[float]:
    """Yield the seconds of one step after the other; an action that is not allowed is replaced."""
    actions = cycle([row.action for row in rows])
    bare, episode = env.unwrapped, 0
    while True:
        env.reset(seed=seeds_of(task.seed, episode)[0])
        episode += 1
        for _ in range(task.limit):
            action, allowed = next(actions), task.allowed(env)
            if allowed is not None and action not in allowed:
                action = allowed[0]
            started = perf_counter()
            _, _, terminated, truncated, _ = bare.step(action)
            yield perf_counter() - started
            if terminated or truncated:
                break


def _batched(env: "gym.Env[Any, Any]", rewinder: Rewinder, seed: int) -> Walk:
    """Return what plays random plans in many copies at once, from where an episode begins."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    actions = np.array([env.action_space.sample() for _ in range(LANES * STEPS)])
    state, plans = rewinder.save(), actions.reshape(1, LANES, STEPS, *actions.shape[1:])

    def walk(steps: int) -> tuple[int, float]:
        transitions, started = 0, perf_counter()
        for _ in range(steps):
            played = rewinder.returns([state], plans)
            transitions += played[1] if played else 0
        return transitions, perf_counter() - started

    return walk


def _side(pace: Pace | None, batched: Pace | None, score: Score | None) -> dict[str, Any]:
    """Return what all sides have."""
    return {
        "median_seconds": pace.median if pace else None,
        "low_seconds": pace.low if pace else None,
        "high_seconds": pace.high if pace else None,
        "batched_median_seconds": batched.median if batched else None,
        "accuracy": score.accuracy if score else None,
        "score": score.model_dump() if score else None,
    }


def _pace(pace: Pace) -> dict[str, Any]:
    """Return a pace."""
    names = ("median", "low", "high", "warm_up")
    counts = {"rounds": pace.rounds, "transitions": pace.transitions}
    return {f"{name}_seconds": getattr(pace, name) for name in names} | counts
