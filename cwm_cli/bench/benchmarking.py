"""Search with every strategy, model and seed in many environments, and compare.

`benchmark` is what `cwm benchmark` does. Its observer is told the `BenchmarkWork`, whose
`standings` say how far every job is, and a `TaskEvent` for all that begins or is over.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.agents.synthesizing import choose_backend
from cwm_cli.agents.tracking import Measures
from cwm_cli.bench.configuration import (
    BenchmarkAccess,
    BenchmarkConfig,
    BenchmarkHeader,
    BenchmarkTask,
    BenchmarkTerms,
    Trial,
    environments_of,
    shift_of,
)
from cwm_cli.bench.executor import Executor, chosen_executor
from cwm_cli.bench.results import TrialGroup, TrialRow, groups_of, rows_of
from cwm_cli.bench.run import BenchmarkRun, TaskRecord
from cwm_cli.bench.worker import TaskWork
from cwm_cli.registry import default, find
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.report import RunReport
from cwm_cli.runs.searches import JournalTail
from cwm_cli.runs.store import fresh_folder

LOST = "its process ended without a result"

WORKING = {
    "search": "searching",
    "play": "playing",
    "prepare": "collecting",
    "write": "writing",
}
"""What a job is doing, by the kind of the task that is at work for it."""

ERRANDS = {
    "prepare": "transitions of {}",
    "write": "a program of {} to start from",
    "ceiling": "the ceiling of {}",
    "oracle": "the oracle in {}",
}
"""What is done for an environment and not for one of its jobs, by kind of task."""

FINISHED, FAILED, WAITING, TO_PLAY = "finished", "failed", "waiting", "to play"


@dataclass(frozen=True)
class BenchmarkResult:
    """What a benchmark came to: a row per job, means over groups of them, tables and notes."""

    run: Path
    rows: Sequence[TrialRow]
    groups: Sequence[TrialGroup]
    report: RunReport

    @property
    def why_nothing(self) -> str | None:
        """Why the first job failed, where every job did."""
        failed = all(row.state == "failed" for row in self.rows)
        return self.rows[0].reason or "unknown" if failed else None

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm benchmark --json` prints."""
        return self.report.as_json()


def benchmark(
    suite: str = "cwmb",
    *,
    envs: Sequence[str] = (),
    strategies: Sequence[str] = (),
    models: Sequence[str] = (),
    backend: str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    seeds: int = 1,
    budget: int = 10,
    parallel: int = 1,
    workers: int | None = None,
    plan: bool = False,
    episodes: int = 10,
    max_steps: int | None = None,
    ceilings: bool = False,
    metric: str = "accuracy",
    max_cost: float | None = None,
    shift: int | None = None,
    hide: Sequence[str] = (),
    noise: Mapping[str, float] | None = None,
    data_seed: int = 0,
    api_base: str | None = None,
    temperature: float | None = None,
    tools: Iterable[str] = (),
    allow_gap: Iterable[str] = (),
    run: Path | str | None = None,
    new: bool = False,
    executor: str = "local",
    observer: Observer = SILENT,
) -> BenchmarkResult:
    """Search with every strategy, model and seed in many environments, and compare.

    Arguments and defaults are those of `cwm benchmark`. Every job is a run folder of its
    own, made by a process of its own: one that fails is left out of the means, counted, and
    tried again when the same call continues. A shifted suite, or `shift`, gives environments
    other constants and rules, `hide` leaves out a part of what they show, and `noise` disturbs
    them. Raises `CwmError` for what the user can mend.
    """
    answers = choose_backend(backend, models)
    pairs = [f"{k}={v}" for k, v in options.items()] if isinstance(options, Mapping) else options
    jobs, pairs = chosen_executor(executor, workers, pairs)
    config = BenchmarkConfig(
        environments=environments_of(suite, envs),
        strategies=tuple(dict.fromkeys(strategies)) or (default("strategy"),),
        models=answers.models,
        backend=answers.backend,
        seeds=seeds,
        options=tuple(pairs),
        temperature=temperature,
        tools=tuple(sorted(set(tools))),
        metric=metric,
        data_seed=data_seed,
        max_steps=max_steps,
        shift=shift_of(suite, envs, shift),
        hide=tuple(hide),
        noise=dict(noise or {}),
    )
    terms = BenchmarkTerms(
        budget=budget,
        parallel=parallel,
        max_cost=max_cost,
        plan=plan,
        episodes=episodes,
        ceilings=ceilings,
    )
    access = BenchmarkAccess(api_base=api_base, accepted=tuple(allow_gap))
    config.check(access, max_cost)
    header = BenchmarkHeader(
        config=config, terms=terms, caveat=find("backend", config.backend).caveat
    )
    opened = _opened(header, None if run is None else Path(run), new=new)
    if answers.note:
        observer.note(answers.note)
    verb = "continues" if opened.is_continued else "started"
    with opened:
        opened.update(opened.header.model_copy(update={"terms": terms}))
        observer.note(f"{opened.folder} {verb}", "Run")
        opened.tell(observer)
        _work_observed(BenchmarkWork(opened, access, jobs), observer)
        report = BenchmarkRun.report([opened])
        report.save(opened.folder)
    rows = rows_of(opened)
    return BenchmarkResult(opened.folder, rows, groups_of(rows), report)


class TaskEvent(NamedTuple):
    """A task that was begun, or one that is over; `reason` says why it failed."""

    task: BenchmarkTask
    over: bool = False
    reason: str | None = None


class Errand(NamedTuple):
    """A task at work for an environment, such as its ceiling, and for how many seconds."""

    task: BenchmarkTask
    seconds: float


class TrialStanding(NamedTuple):
    """How far a job is; `left_seconds` is what its search may still take at the present pace."""

    trial: Trial
    state: str
    completions: int
    best: float | None
    cost: float | None
    left_seconds: float | None
    reason: str | None

    @property
    def is_working(self) -> bool:
        """Whether a process works on it."""
        return self.state in WORKING.values()

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.state == FINISHED

    @property
    def is_over(self) -> bool:
        """Whether it was finished or failed."""
        return self.state in (FINISHED, FAILED)


class _Known(NamedTuple):
    """What is known of a job between two events: its state, and its completions when it began."""

    state: str
    begun: int


@dataclass
class BenchmarkWork:
    """A benchmark at work; whatever fails, the other jobs go on.

    `running` says when tasks were started and `failed` why they failed, by their keys.
    What failed before is tried again. `to_come` counts what is still to be begun for
    environments.
    """

    run: BenchmarkRun
    access: BenchmarkAccess
    executor: Executor
    running: dict[str, float] = field(default_factory=dict, init=False)
    failed: dict[str, str] = field(default_factory=dict, init=False)
    to_come: int = field(default=0, init=False)
    _tried: dict[str, BenchmarkTask] = field(default_factory=dict, init=False)
    _known: dict[Trial, _Known] = field(default_factory=dict, init=False)
    _tails: dict[Trial, JournalTail] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        trials = self.run.config.trials
        self._tails = {trial: JournalTail(self.run.trial_folder(trial)) for trial in trials}
        self._look()

    def events(self) -> Iterator[TaskEvent]:
        """Do all that is left to do; yield what begins and what is over."""
        try:
            while True:
                for event in self._begin():
                    self._look()
                    yield event
                if not self.running:
                    return
                for ended in self.executor.wait():
                    self.running = {k: v for k, v in self.running.items() if k != ended.name}
                    event = self._over(self._tried[ended.name], ended.reason)
                    self._look()
                    yield event
        finally:
            self.executor.close()
            self.running = {}

    def measured(self) -> Measures:
        """Return what a tracker keeps: jobs that are over, their mean score and the cost of all."""
        standings = self.standings()
        over = [each for each in standings if each.is_over]
        scores = [each.best for each in over if each.best is not None]
        numbers = {
            "jobs": len(over),
            "failed": len(over) - sum(each.is_finished for each in over),
            "best": sum(scores) / len(scores) if scores else None,
            "completions": sum(each.completions for each in standings),
            "cost": sum(each.cost or 0.0 for each in standings),
            "seconds": self.run.elapsed,
        }
        return Measures(len(over), numbers)

    def standings(self) -> list[TrialStanding]:
        """Return how far every job is; the journals of searches are read while they grow.

        A view may ask in a thread of its own.
        """
        with self._lock:
            return [self._standing(trial) for trial in self.run.config.trials]

    def errands(self) -> list[Errand]:
        """Return the tasks at work that are for an environment."""
        now = time.monotonic()
        tasks = ((self._tried[key], now - begun) for key, begun in self.running.items())
        return [Errand(task, seconds) for task, seconds in tasks if task.kind in ERRANDS]

    def _begin(self) -> Iterator[TaskEvent]:
        """Start commands as long as there is room and something to do."""
        for task in self.run.left({*self.failed, *self.running}):
            if not self.executor.has_room():
                return
            if task.key in self._tried:
                yield self._over(task, LOST)
                continue
            self._tried[task.key] = task
            self.executor.start(TaskWork(self.run, task, self.access).command())
            self.running = self.running | {task.key: time.monotonic()}
            yield TaskEvent(task)

    def _over(self, task: BenchmarkTask, reason: str | None) -> TaskEvent:
        """Write down that a task is over."""
        self.run.append(TaskRecord(task=task.key, reason=reason))
        if reason:
            self.failed = self.failed | {task.key: reason}
        return TaskEvent(task, over=True, reason=reason)

    def _look(self) -> None:
        """Find out what every job is doing now, and how much is to come beside them."""
        left = self.run.left({*self.failed, *self.running})
        self.to_come = sum(task.kind in ERRANDS for task in left)
        with self._lock:
            for trial, tail in self._tails.items():
                state, known = self._state(trial), self._known.get(trial)
                if known is None or known.state != state:
                    tail.read()
                    self._known[trial] = _Known(state, tail.completions)

    def _standing(self, trial: Trial) -> TrialStanding:
        """Return how far a job is."""
        (state, begun), tail = self._known[trial], self._tails[trial]
        if state == WORKING["search"]:
            tail.read()
        reason = self._reason(trial) if state == FAILED else None
        left_seconds = None
        started = self.running.get(BenchmarkTask("search", trial.name).key)
        if started is not None and tail.completions > begun:
            rest = max(0, self.run.header.terms.budget - tail.completions)
            left_seconds = rest * (time.monotonic() - started) / (tail.completions - begun)
        return TrialStanding(
            trial, state, tail.completions, tail.best, tail.cost, left_seconds, reason
        )

    def _state(self, trial: Trial) -> str:
        """Say what a job is doing."""
        for task in _tasks(trial):
            if task.key in self.running:
                return WORKING[task.kind]
        if self._reason(trial):
            return FAILED
        result = self.run.trial_result(trial)
        if result is None or not self.run.is_settled(result):
            return WAITING
        unplayed = self.run.header.terms.plan and self.run.play_of(trial) is None
        play_failed = BenchmarkTask("play", trial.name).key in self.failed
        return TO_PLAY if unplayed and result.program and not play_failed else FINISHED

    def _reason(self, trial: Trial) -> str | None:
        """Say why a job failed, None if it did not."""
        keys = (task.key for task in _tasks(trial) if task.kind != "play")
        return next((self.failed[key] for key in keys if key in self.failed), None)


def _tasks(trial: Trial) -> tuple[BenchmarkTask, ...]:
    """Return the tasks that a job consists of or waits for."""
    return (
        BenchmarkTask("search", trial.name),
        BenchmarkTask("play", trial.name),
        BenchmarkTask("prepare", trial.environment),
        BenchmarkTask("write", trial.environment),
    )


def _opened(header: BenchmarkHeader, named: Path | None, *, new: bool) -> BenchmarkRun:
    """Return the named benchmark, the newest unfinished one of equal choices, or a new one."""
    if named is None and not new:
        for known in BenchmarkRun.alike(header.config):
            if BenchmarkRun(known.folder, header).left():
                named = known.folder
                break
    folder = (named or fresh_folder("benchmark")).absolute()
    return BenchmarkRun.begin(folder, header)


def _work_observed(work: BenchmarkWork, observer: Observer) -> None:
    """Do what is left to do; whatever ends it, what was found is kept."""
    observer.begins(work)
    try:
        for event in work.events():
            observer.advanced(event)
    except KeyboardInterrupt:
        folder = work.run.folder
        raise KeyboardInterrupt(
            f"interrupted: the same command continues {folder}; "
            f"`cwm runs report {folder}` shows what there is"
        ) from None
    finally:
        observer.ends()
