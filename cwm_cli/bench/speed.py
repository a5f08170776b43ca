"""Seconds per transition of a world model, the true environment and a language model.

This is the comparison of appendix C of Dainese et al. (2024). In addition, all three are scored on
the same rows. `bench_speed` is the function of `cwm bench-speed`.
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

from cwm_cli.bench.asking import Asked, LanguageModelPredictor, PromptWriter
from cwm_cli.commands.choices import MODEL_VARIABLE, check_flags, choose_backend
from cwm_cli.commands.collect import recorded_args
from cwm_cli.commands.subjects import ProgramSource, RunSource, Subject, find_subject, protected
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
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure
from cwm_cli.sandbox.job import abilities_of
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
"""Forms of the program: one transition after the other, or all rows in one batch."""

ALONE, MANY = "environment", "environments"
"""Forms of the environment: a single copy, or many copies in parallel if it supports them."""

LANES, STEPS = 1000, 10
"""Number of parallel plans in many copies of an environment, and steps per plan."""

Walk = Callable[[int], tuple[int, float]]
"""Takes a number of steps; returns the number of transitions and the seconds that they took."""


class Pace(NamedTuple):
    """Seconds per transition: the median of all rounds, and the 5 % and 95 % quantiles.

    `warm_up` are the seconds of the very first transition, which belongs to no round.
    """

    median: float
    low: float
    high: float
    rounds: int
    transitions: int
    warm_up: float

    @classmethod
    def of(cls, seconds: Sequence[float], transitions: int, warm_up: float) -> Self:
        """Compute the pace from the seconds per transition of each round."""
        low, high = np.quantile(seconds, (0.05, 0.95)).tolist()
        return cls(float(np.median(seconds)), low, high, len(seconds), transitions, warm_up)


class SpeedProgress(NamedTuple):
    """The current activity of `bench_speed`, for its observer."""

    words: str


class SpeedRatio(NamedTuple):
    """Speed of the world model divided by the speed of the environment or language model."""

    times: float

    @property
    def orders(self) -> float:
        """The ratio in orders of magnitude: 3 for a ratio of 1,000."""
        return log10(self.times)

    def as_json(self) -> dict[str, float]:
        """Return the ratio as JSON data."""
        return {"ratio": self.times, "orders": self.orders}

    @classmethod
    def of(cls, ours: Pace | None, theirs: Pace | None) -> "SpeedRatio | None":
        """Return the ratio of two paces, or None if one is missing."""
        return cls(theirs.median / ours.median) if ours and theirs else None


class TimedSides(NamedTuple):
    """The paces of the program and the environment.

    Attributes:
        rows: Number of rows in a batch. The program is timed on random inputs between this number
            of recorded ones.
        paces: The paces by form.
        notes: Why the program has no pace, by form.
        failure: The failure of the program, or None.
    """

    rows: int
    paces: dict[str, Pace]
    notes: dict[str, str]
    failure: Failure | None = None


@dataclass(frozen=True)
class SpeedResult(Result):
    """Speed and accuracy of a world model, the true environment and a language model.

    Attributes:
        world_model: The score of the world model.
        environment: The score of the environment, or None if its state cannot be set from an
            observation. It is below 1 if the environment is stochastic or partially observed.
        timed: The paces of the world model and the environment.
        language_model: The predictions of the language model, or None if none was chosen.
        name: The name of the language model, or "".
    """

    world_model: Score
    environment: Score | None
    timed: TimedSides
    language_model: Asked | None = None
    name: str = ""

    @property
    def paces(self) -> dict[str, Pace]:
        """The paces of the program and the environment, by form."""
        return self.timed.paces

    @property
    def answering(self) -> Pace | None:
        """The pace of the language model, including the waits before retries."""
        usages = self.language_model.usages if self.language_model else []
        seconds = [usage.seconds for usage in usages]
        return Pace.of(seconds, len(seconds), seconds[0]) if seconds else None

    def speedups(self) -> dict[str, dict[str, SpeedRatio | None]]:
        """Return how many times faster the world model is, by other side and by form.

        The batched form is compared with the fastest form of the other side.
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
        """Return the output of `cwm bench-speed --json`."""
        speedups = {
            side: {form: ratio and ratio.as_json() for form, ratio in ratios.items()}
            for side, ratios in self.speedups().items()
        }
        rows, paces, notes, failure = self.timed
        forms = {
            form: {
                "median_seconds": pace.median,
                "low_seconds": pace.low,
                "high_seconds": pace.high,
                "warm_up_seconds": pace.warm_up,
                "rounds": pace.rounds,
                "transitions": pace.transitions,
            }
            for form in TIMED_FORMS
            if (pace := paces.get(form))
        }
        return {
            "world_model": {
                **_side_json(paces.get(SCALAR), paces.get(BATCHED), self.world_model),
                "rows_timed": rows,
                "forms": forms,
                "notes": notes,
                "failure": asdict(failure) if failure else None,
            },
            "environment": _side_json(paces.get(ALONE), paces.get(MANY), self.environment),
            "language_model": self._language_model_json(),
            "speedup": {"language_model": None} | speedups,
        }

    def _language_model_json(self) -> dict[str, Any] | None:
        asked = self.language_model
        if asked is None:
            return None
        unread = [
            {"row": row, "reason": reason, "answer": asked.answers[row]}
            for row, reason in asked.unread.items()
        ]
        return {
            **_side_json(self.answering, None, asked.score),
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
    """Measure the seconds per transition of a world model, its environment and a language model.

    All three predict the same rows. The world model and the environment are timed on more rows, in
    rounds after a warm-up. The language model receives one request per row. If the program or the
    language model fails, the result reports the failure and contains the other measurements.
    Ctrl-C during the requests ends only them; `language_model.stopped` then reports it.

    `cwm bench-speed` has the same arguments and defaults. The observer receives a
    `SpeedProgress` for each new activity.

    Raises:
        CwmError: The world model cannot be timed, because it has no program or its program is
            stochastic or has memory, or an argument is invalid.
    """
    subject = find_subject(
        run,
        program=program,
        env=env,
        env_args=env_args,
        dataset=dataset,
        options=options,
        observer=observer,
    )
    if subject.model is not None and not subject.model.can_be_timed:
        raise CwmError(
            f"{subject.name} has no program, only rules in words: bench-speed cannot time it"
        )
    flags = {"api_base": api_base, "temperature": temperature}
    if not abilities_of(subject.text or "").is_plain:
        raise CwmError(
            f"bench-speed needs a deterministic program without memory; {subject.name} is "
            "stochastic or has memory: `cwm plan` reports the seconds per decision"
        )
    check_access(tools, allow_gap)
    choice = _BackendChoice.parse(backend, model, subject.options, flags)
    if choice.factory is not None:
        choice.factory(model=choice.name, **choice.options).ready(max_cost)
    data = subject.transitions(dataset, observer)
    subject = subject._replace(env_args=recorded_args(data, subject.env_args))
    metric, sample = AccuracyMetric.of(data.train), _sample_rows(data, rows, seed)
    with ExitStack() as stack:
        sandbox = None
        if subject.model is None:
            guarded = protected(
                Limits.chosen({**subject.limits, **choice.sandbox}),
                tools=sorted({*subject.tools, *tools}),
                accepted=allow_gap,
                handlers=[TimingJob.handler],
                observer=observer,
            )
            sandbox = stack.enter_context(guarded)
        observer.begins(SpeedProgress("timing world model and environment"))
        try:
            found = measure(
                subject, sandbox, metric, asked=sample.asked, timed=sample.timed, seed=seed
            )
            if choice.factory is None:
                return found
            with closing(subject.spec.make(**subject.env_args)) as made:
                description = subject.spec.describe(made)
            prompts = PromptWriter(description, sample.train, examples, seed)
            answers = choice.predict(prompts, sample.asked, metric, max_cost, observer)
            return replace(found, language_model=answers, name=choice.name)
        finally:
            observer.ends()


class _RowSample(NamedTuple):
    """Rows to predict (held out if possible), rows to time, and the other train rows."""

    asked: Dataset
    timed: Dataset
    train: Dataset


def _sample_rows(data: Dataset, count: int, seed: int) -> _RowSample:
    rng = np.random.default_rng(seed)
    held_out = np.flatnonzero(data.columns["split"] == 1)
    candidates = held_out if len(held_out) else np.arange(len(data))
    asked = np.sort(rng.permutation(candidates)[:count])
    timed = rng.permutation(len(data))[:1000]  # also the batch size
    is_train = data.columns["split"] == 0
    is_train[asked] = False
    return _RowSample(data[asked], data[timed], data[is_train])


class _BackendChoice(NamedTuple):
    """The chosen language model and backend; `factory` is None if none was chosen."""

    name: str
    factory: Any
    options: dict[str, Any]
    sandbox: dict[str, Any]

    @classmethod
    def parse(
        cls,
        backend: str | None,
        model: str | None,
        options: Sequence[str] | Mapping[str, Any],
        flags: Mapping[str, Any],
    ) -> "_BackendChoice":
        """Parse the user's choice, and reject invalid options before the measurements."""
        owners = [Owner("sandbox", Limits)]
        if not (backend or model or os.environ.get(MODEL_VARIABLE)):
            return cls("", None, {}, read_options(options, owners)["sandbox"])
        choice = choose_backend(backend or default("model"), [model or ""])
        owners.append(Owner("backend", find("backend", choice.backend)))
        chosen = read_options(options, owners)
        given = {flag: value for flag, value in flags.items() if value is not None}
        check_flags(choice.backend, given)
        # Temperature 0 for the most likely prediction.
        defaults = {"temperature": 0.0} if "temperature" in owners[1].options else {}
        name = one_model(choice.model) or choice.backend
        backend_options = defaults | chosen["backend"] | given
        return cls(name, owners[1].factory, backend_options, chosen["sandbox"])

    def predict(
        self,
        prompts: PromptWriter,
        rows: Dataset,
        metric: Metric,
        max_cost: float | None,
        observer: Observer,
    ) -> Asked:
        """Predict rows; an error of the backend is returned as the reason for the stop."""

        def report(count: int) -> None:
            words = f"asking {self.name}: {count} of {len(rows)} answered"
            observer.advanced(SpeedProgress(words))

        observer.advanced(SpeedProgress(f"asking {self.name}"))
        try:
            backend = self.factory(model=self.name, **self.options)
        except CwmError as error:
            return Asked(stopped=str(error))
        return LanguageModelPredictor(backend, prompts, metric, max_cost).predict(rows, report)


def measure(
    subject: Subject,
    sandbox: Sandbox | None,
    metric: Metric,
    *,
    asked: Dataset,
    timed: Dataset,
    seed: int = 0,
) -> SpeedResult:
    """Score and time a world model and its environment.

    Args:
        subject: The world model and its environment.
        sandbox: The sandbox for a program; None for a trained model.
        metric: The metric of the scores.
        asked: The rows for the scores.
        timed: The rows for the paces.
        seed: Seed of the score and of the episodes.

    Returns:
        The result without a language model. A program that fails has a failure instead of paces.
        If it already fails on the rows `asked`, its score is 0.
    """
    spec, text = subject.spec, subject.text or ""
    model = ProgramModel(text, sandbox) if sandbox is not None else subject.model
    assert model is not None
    found = evaluate(model, asked, metric, seed=seed)
    with closing(spec.make(**subject.env_args)) as env:
        setting = Setting(subject.env, subject.env_args, seed, step_limit(env))
        acts = spec.has_simulator(subject.env_args)
        walks = walks_of(spec, env, setting.task(spec), timed) if acts else {}
        if found.failure:
            sides = TimedSides(len(timed), paces(walks), {}, found.failure)
        elif sandbox is None:
            # 64 episodes in parallel: the batch size of the published training.
            starts = timed[np.arange(min(len(timed), 64))]
            imagined = {
                SCALAR: walk_model(model, starts[np.arange(1)], seed),
                BATCHED: walk_model(model, starts, seed),
            }
            sides = TimedSides(len(starts), paces({**imagined, **walks}), {})
        else:
            sides = _time_program(text, timed, sandbox, walks, seed=seed)
    truth = EnvironmentModel(spec, subject.env_args)
    return SpeedResult(found.score, metric.ceiling(truth, asked, seed=seed), sides)


def walk_model(model: WorldModel, starts: Dataset, seed: int) -> Walk:
    """Return a walk in parallel imagined episodes; setting their initial states is not timed."""
    histories = [EpisodeHistory((row.observation,)) for row in starts]
    actions = starts.select("actions")

    def step_seconds() -> Iterator[float]:
        for number in count():
            episodes = model.imagine(histories, starts, seed=seed + number)
            for _ in range(STEPS):
                started = perf_counter()
                episodes.step(actions)
                yield perf_counter() - started

    durations = step_seconds()

    def walk(steps: int) -> tuple[int, float]:
        return steps * len(starts), sum(next(durations) for _ in range(steps))

    return walk


def _time_program(
    program: str, rows: Dataset, sandbox: Sandbox, others: Mapping[str, Walk], *, seed: int = 0
) -> TimedSides:
    """Time each form of a program in turn with other walks, or only these if the program fails."""
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
    """Time several walks in turn, round by round.

    Because of the turns, other load on the machine slows all walks alike. A warm-up determines the
    number of steps per round. The result omits walks without transitions.
    """
    timed = {name: _Rounds(walk) for name, walk in walks.items()}
    unfinished = [rounds for rounds in timed.values() if rounds.warm_up()]
    while unfinished:
        for rounds in unfinished:
            rounds.time_round()
        unfinished = [rounds for rounds in unfinished if not rounds.is_done]
    return {name: rounds.pace for name, rounds in timed.items() if rounds.seconds}


class _Rounds:
    def __init__(self, walk: Walk) -> None:
        self.seconds: list[float] = []
        self._walk = walk
        self._steps = 1
        self._first, self._taken, self._transitions = 0.0, 0.0, 0

    def warm_up(self) -> bool:
        """Determine the number of steps per round; return whether there are any transitions."""
        transitions, self._first = self._walk(1)
        seconds = 0.0
        # Minimum seconds per round, so that the overhead of the clock and of a call is negligible.
        round_seconds = 0.01
        while transitions and seconds < round_seconds:
            _, seconds = self._walk(self._steps)
            # Measure again, because another process may have interrupted the first time.
            if seconds >= round_seconds:
                seconds = min(seconds, self._walk(self._steps)[1])
            self._steps *= 1 if seconds >= round_seconds else 2
        return transitions > 0

    def time_round(self) -> None:
        transitions, seconds = self._walk(self._steps)
        self.seconds.append(seconds / transitions)
        self._transitions += transitions
        self._taken += seconds

    @property
    def is_done(self) -> bool:
        count = len(self.seconds)
        # A slow walk stops after 2 seconds, but a median needs at least 3 rounds.
        return count >= 40 or (count >= 3 and self._taken >= 2.0)

    @property
    def pace(self) -> Pace:
        return Pace.of(self.seconds, self._transitions, self._first)


def walks_of(
    spec: EnvironmentSpec, env: "gym.Env[Any, Any]", task: Task, rows: Dataset
) -> dict[str, Walk]:
    """Return walks in an environment: in one copy and, if it supports them, in many copies.

    A single copy takes the actions of the rows, one episode after the other. Resets and wrappers
    are not timed.
    """
    durations = _step_seconds(env, task, rows)

    def walk(steps: int) -> tuple[int, float]:
        return steps, sum(next(durations) for _ in range(steps))

    walks: dict[str, Walk] = {ALONE: walk}
    if (rewinder := spec.rewinder(env) if spec.rewinder else None) is not None:
        walks[MANY] = _walk_copies(env, rewinder, task.seed)
    return walks


def _step_seconds(env: "gym.Env[Any, Any]", task: Task, rows: Dataset) -> Iterator[float]:
    """Yield the seconds of each step; the first allowed action replaces a disallowed one."""
    actions = cycle([row.action for row in rows])
    # Without wrappers: only the environment itself is timed.
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


def _walk_copies(env: "gym.Env[Any, Any]", rewinder: Rewinder, seed: int) -> Walk:
    """Return a walk by random plans in many copies, from the initial state of an episode."""
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


def _side_json(pace: Pace | None, batched: Pace | None, score: Score | None) -> dict[str, Any]:
    """Return the fields that all three sides share."""
    return {
        "median_seconds": pace.median if pace else None,
        "low_seconds": pace.low if pace else None,
        "high_seconds": pace.high if pace else None,
        "batched_median_seconds": batched.median if batched else None,
        "accuracy": score.accuracy if score else None,
        "score": score.model_dump() if score else None,
    }
