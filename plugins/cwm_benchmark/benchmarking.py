"""Search with every strategy, model and seed in many environments, and compare the results.

`benchmark` implements `cwm benchmark`. Its observer receives the `BenchmarkWork`, whose `standings`
are the states of all jobs, and a `TaskEvent` for each start and end of a task.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cwm_benchmark.configuration import (
    START_OPTION,
    BenchmarkAccess,
    BenchmarkConfig,
    BenchmarkHeader,
    BenchmarkTask,
    BenchmarkTerms,
    Trial,
    environments_of,
    shift_of,
    sizes_of,
)
from cwm_benchmark.folder import TaskRecord, TasksLeft
from cwm_benchmark.results import NOTHING, TrialGroup, TrialRow, groups_of, rows_of
from cwm_benchmark.run import BenchmarkRun
from cwm_benchmark.standings import (
    FAILED,
    FINISHED,
    TO_PLAY,
    WAITING,
    WORKING,
    Running,
    StandingCounts,
    Standings,
    TaskTimes,
    TrialStanding,
    left_seconds,
)
from cwm_benchmark.worker import TaskWork
from cwm_cli.bench.estimate import Ask, CostEstimate, SearchesToCome, agreed, estimated
from cwm_cli.bench.executor import (
    LOST,
    Command,
    Ended,
    Executor,
    Idle,
    Postponed,
    Started,
    carried_out,
    chosen_executor,
    seconds_between_reads,
    stopping_words,
)
from cwm_cli.commands.choices import backend_of, choose_backend, uncached
from cwm_cli.registry import default, find
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Measures, Observer
from cwm_cli.runs.report import RunReport
from cwm_cli.runs.searches import JournalTail
from cwm_cli.runs.storage import StorageError, placed
from cwm_cli.runs.store import fresh_folder

ENVIRONMENT_TASKS = {
    "prepare": "transitions of {}",
    "write": "a program of {} to start from",
    "ceiling": "the ceiling of {}",
    "oracle": "the oracle in {}",
}
"""Descriptions of the tasks for an environment that several jobs share, by kind of task."""


@dataclass(frozen=True)
class BenchmarkResult(Result):
    """The result of a benchmark: a row per job, means over groups of jobs, tables and notes."""

    run: Path
    rows: Sequence[TrialRow]
    groups: Sequence[TrialGroup]
    report: RunReport

    @property
    def failure_reason(self) -> str | None:
        """The reason of the first job if no job has a result, else None."""
        failed = all(row.state == "failed" or row.reason == NOTHING for row in self.rows)
        return self.rows[0].reason or "unknown" if failed else None

    def as_json(self) -> dict[str, Any]:
        """Return the object that `cwm benchmark --json` prints."""
        return self.report.as_json()


def benchmark(
    suite: str = "cwmb",
    *,
    envs: Sequence[str] = (),
    strategies: Sequence[str] = (),
    models: Sequence[str] = (),
    backend: str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    start: Path | str | None = None,
    seeds: int = 1,
    budget: int = 10,
    parallel: int = 1,
    workers: int | None = None,
    plan: bool = False,
    episodes: int | None = None,
    max_steps: int | None = None,
    ceilings: bool = False,
    metric: str = "accuracy",
    max_cost: float | None = None,
    cache: bool = False,
    shift: int | None = None,
    hide: Sequence[str] = (),
    noise: Mapping[str, float] | None = None,
    data_seed: int = 0,
    rows: Sequence[int] = (),
    api_base: str | None = None,
    temperature: float | None = None,
    tools: Iterable[str] = (),
    allow_gap: Iterable[str] = (),
    run: Path | str | None = None,
    new: bool = False,
    executor: str = "local",
    ask: Ask | None = None,
    observer: Observer = SILENT,
) -> BenchmarkResult:
    """Search with every strategy, model and seed in many environments, and compare the results.

    Arguments and defaults are the same as in `cwm benchmark`. Every job has its own process and run
    folder. A failed job is counted, left out of the means, and retried when the same call
    continues. A shifted suite, or `shift`, changes constants and rules of environments, `hide`
    removes parts of observations, and `noise` disturbs environments. With several numbers of
    `rows`, each number has its own jobs, which get the first train rows of one recording.

    Searches with a language model start without a program unless `start` names one, so that no
    model gets credit for the work of another backend; `induction` has its own row. The estimated
    cost of language models is reported first. If `ask` is given, it receives the `CostEstimate`,
    and the benchmark starts only if it returns True.

    Raises:
        CwmError: For mistakes of the user.
    """
    answers = choose_backend(backend, models)
    jobs, pairs = chosen_executor(executor, workers, options)
    asks_models = find("backend", answers.backend).is_language_model
    if start is not None:
        pairs = [*pairs, f"{START_OPTION}{start}"]
    elif asks_models and not any(pair.startswith((START_OPTION, "start=")) for pair in pairs):
        pairs = [*pairs, f"{START_OPTION}none"]
    config = BenchmarkConfig(
        environments=environments_of(suite, envs),
        strategies=tuple(dict.fromkeys(strategies)) or (default("strategy"),),
        models=answers.models,
        backend=answers.backend,
        baseline=default("backend") if asks_models else "",
        seeds=seeds,
        options=tuple(pairs),
        temperature=temperature,
        tools=tuple(sorted(set(tools))),
        metric=metric,
        data_seed=data_seed,
        rows=sizes_of(rows),
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
    access = BenchmarkAccess(
        api_base=api_base,
        accepted=tuple(allow_gap),
        cache=cache,
        private={k: pair for k, pair in zip(config.options, pairs, strict=True) if k != pair},
    )
    config.check(access, max_cost)
    chosen = find("backend", config.backend)
    header = BenchmarkHeader(config=config, terms=terms, caveat=chosen.caveat, remedy=chosen.remedy)
    opened = _open_run(header, None if run is None else placed(run), new=new)
    alike = ""
    if chosen.from_data and len(config.strategies) > 1:
        alike = (
            "without a language model strategies do not differ: compare them with "
            "--model PROVIDER/NAME or --backend simulated"
        )
    notes = (answers.note, alike, uncached(config.backend) if cache else "")
    for words in filter(None, notes):
        observer.note(words)
    verb = "continues" if opened.is_continued else "started"
    with opened:
        if chosen.is_language_model:
            agreed(_estimate_cost(opened.folder, header, access, jobs.workers), ask, observer)
        opened.update(opened.header.model_copy(update={"terms": terms}))
        observer.note(f"{opened.place} {verb}", "Run")
        opened.report_repair(observer)
        _run_work(BenchmarkWork(opened, access, jobs, observer.note), observer)
        report = BenchmarkRun.report([opened])
        report.save(opened.folder)
    jobs_done = rows_of(opened)
    return BenchmarkResult(opened.folder, jobs_done, groups_of(jobs_done), report)


class TaskEvent(NamedTuple):
    """The start or the end of a task.

    Attributes:
        task: The task.
        over: Whether the task has ended.
        reason: Why the task failed, None if it did not fail.
        is_again: Whether the task will start again, because it was lost or another process does it.
        changed: The jobs whose state has changed.
    """

    task: BenchmarkTask
    over: bool = False
    reason: str | None = None
    is_again: bool = False
    changed: tuple[TrialStanding, ...] = ()


class RunningEnvironmentTask(NamedTuple):
    """A running task for an environment, such as its ceiling, and its seconds so far."""

    task: BenchmarkTask
    seconds: float


class _RunningTask(NamedTuple):
    """A running task, the time of its start, and its job's completions at that time."""

    task: BenchmarkTask
    started_at: float
    completions: int


@dataclass
class BenchmarkWork:
    """The work on a benchmark. If a job fails, the other jobs continue.

    `failed` contains the reason for each failed task by its key; tasks that failed in an earlier
    session are retried. When Ctrl-C is pressed, `is_stopping` becomes true, no further task starts,
    and `report` receives a line. The cost of an event does not grow with the number of jobs.
    """

    run: BenchmarkRun
    access: BenchmarkAccess
    executor: Executor
    report: Callable[[str], None] = lambda words: None
    failed: dict[str, str] = field(default_factory=dict, init=False)
    is_stopping: bool = field(default=False, init=False)
    _started: dict[str, BenchmarkTask] = field(default_factory=dict, init=False)
    _running: dict[str, _RunningTask] = field(default_factory=dict, init=False)
    _tails: dict[int, JournalTail] = field(default_factory=dict, init=False)
    _machines: dict[int, str] = field(default_factory=dict, init=False)
    _times: TaskTimes = field(default_factory=TaskTimes, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def __post_init__(self) -> None:
        self._left = TasksLeft(self.run)
        self._standings = Standings(self.run.header.terms.budget)
        self._last_scan, self._scan_seconds, self._read_at = time.monotonic(), 0.0, 0.0
        for place in range(len(self._left.trials)):
            self._update_job(place, read=True)

    def events(self) -> Generator[TaskEvent]:
        """Do all remaining tasks; yield starts and ends.

        The first Ctrl-C lets running tasks finish, then raises `KeyboardInterrupt`.
        """
        try:
            with closing(
                carried_out(self.executor, self._commands(), stopping=self._stopping)
            ) as command_events:
                for event in command_events:
                    if not isinstance(event, Idle):
                        yield self._handle(event)
        finally:
            with self._lock:
                self._running = {}

    def measures(self) -> Measures:
        """Return the measures for a tracker: finished jobs, their mean score and the total cost."""
        counts = self.counts()
        numbers = {
            "jobs": counts.over,
            "failed": counts.states.get(FAILED, 0),
            "best": counts.best,
            "completions": counts.completions,
            "cost": counts.cost,
            "seconds": self.run.elapsed,
        }
        return Measures(counts.over, numbers)

    def standings(self) -> list[TrialStanding]:
        """Return the states of all jobs, including the progress of running searches.

        Like the methods below, it may be called from the thread of a view.
        """
        with self._lock:
            self._read()
            return self._standings.listed()

    def counts(self) -> StandingCounts:
        """Return the totals of all jobs so far."""
        with self._lock:
            self._read()
            return self._standings.counts()

    def shown(self, room: int) -> list[TrialStanding]:
        """Return at most `room` jobs to show."""
        with self._lock:
            return self._standings.shown(room)

    def working(self) -> list[TrialStanding]:
        """Return the states of the running searches and plays."""
        with self._lock:
            self._read()
            tasks = [each.task for each in self._running.values() if each.task.kind in JOBS]
            return [self._standings.at(self._left.place_of(task.name)) for task in tasks]

    def environment_tasks(self) -> list[RunningEnvironmentTask]:
        """Return the running tasks for environments."""
        now = time.monotonic()
        with self._lock:
            running = list(self._running.values())
        return [
            RunningEnvironmentTask(task, now - started_at)
            for task, started_at, _ in running
            if task.kind in ENVIRONMENT_TASKS
        ]

    @property
    def environment_tasks_left(self) -> int:
        """The number of tasks for environments that are ready to start."""
        return self._left.environment_tasks_left

    def left_seconds(self) -> float | None:
        """Estimate the time left, from finished and running tasks, in seconds."""
        with self._lock:
            counts, now = self._standings.counts(), time.monotonic()
            running = [
                Running(task.kind, now - started_at, self._left_of(task))
                for task, started_at, _ in self._running.values()
            ]
            # jobs that wait for a running task of their environment
            collecting = sum(counts.states.get(WORKING[kind], 0) for kind in ("prepare", "write"))
            plays = counts.states.get(TO_PLAY, 0)
            if self.run.header.terms.plan:
                plays += counts.states.get(WAITING, 0) + counts.states.get(WORKING["search"], 0)
            return left_seconds(
                self._times,
                running,
                searches=counts.to_search + collecting,
                plays=plays,
                environment_tasks=self.environment_tasks_left,
                workers=self.executor.workers or len(running),
            )

    def _left_of(self, task: BenchmarkTask) -> float | None:
        """Estimate the seconds left of a search from its rate."""
        if task.kind != "search":
            return None
        return self._standings.at(self._left.place_of(task.name)).left_seconds

    def _commands(self) -> Iterator[Command | None]:
        """Yield the tasks that can start, None while the next task depends on running tasks."""
        while True:
            self._rescan_if_due()
            task = self._left.take()
            if task is not None:
                self._started[task.key] = task
                yield TaskWork(self.run, task, self.access).command()
            elif self._started:
                yield None
            else:
                return

    def _handle(self, event: Started | Postponed | Ended) -> TaskEvent:
        """Update the state of the task that an event is about."""
        if isinstance(event, Started):
            return self._start(self._started[event.command.name])
        if isinstance(event, Ended):
            return self._end(self._started.pop(event.name), event)
        task = self._started[event.command.name]
        with self._lock:
            self._running.pop(task.key, None)
        return TaskEvent(task, reason=event.reason, is_again=True, changed=self._update_jobs(task))

    def _start(self, task: BenchmarkTask) -> TaskEvent:
        """Record that a process works on a task."""
        completions = 0
        with self._lock:
            if task.kind in JOBS:
                tail = self._tail(self._left.place_of(task.name))
                tail.read()
                completions = tail.completions
            self._running[task.key] = _RunningTask(task, time.monotonic(), completions)
        return TaskEvent(task, changed=self._update_jobs(task))

    def _end(self, task: BenchmarkTask, ended: Ended) -> TaskEvent:
        """Record the end of a task."""
        self.run.bring(task)
        with self._lock:
            at_work = self._running.pop(task.key)
            is_done = self._left.record_end(task)
        reason = ended.reason or (None if is_done else LOST)
        if task.kind in JOBS and ended.place:
            self._machines[self._left.place_of(task.name)] = ended.place
        self.run.append(
            TaskRecord(
                task=task.key,
                reason=reason,
                peak_memory=ended.peak_memory,
                place=ended.place,
                cpu_seconds=ended.cpu_seconds,
            )
        )
        if reason:
            self.failed[task.key] = reason
        else:
            self._times.record(task.kind, time.monotonic() - at_work.started_at)
        return TaskEvent(task, over=True, reason=reason, changed=self._update_jobs(task))

    def _stopping(self, running: int) -> None:
        """Report that no further task starts."""
        self.is_stopping = True
        self.report(stopping_words(running))

    def _rescan_if_due(self) -> None:
        """Scan the whole folder from time to time, because other processes may work on it."""
        now = time.monotonic()
        # minimum time between scans of the whole folder, which other processes may change too
        rescan_seconds = 60.0
        # maximum share of the time spent on these scans, for any number of jobs
        rescan_share = 0.02
        if now - self._last_scan < max(rescan_seconds, self._scan_seconds / rescan_share):
            return
        self.rescan()

    def rescan(self) -> None:
        """Read the state of all unfinished jobs from the folder."""
        began = time.monotonic()
        with self._lock:
            self._left.rescan()
            for place in range(len(self._left.trials)):
                if not self._standings.at(place).is_over:
                    self._update_job(place, read=True)
        self._last_scan = time.monotonic()
        self._scan_seconds = self._last_scan - began

    def _update_jobs(self, task: BenchmarkTask) -> tuple[TrialStanding, ...]:
        """Update the jobs that a task is for; return the jobs whose state changed."""
        if task.kind in JOBS:
            places: Sequence[int] = (self._left.place_of(task.name),)
        elif task.kind in ("prepare", "write"):
            places = self._left.places_at(task.name)
        else:
            places = ()
        with self._lock:
            return tuple(
                self._standings.at(place)
                for place in places
                if self._update_job(place, read=task.kind in JOBS)
            )

    def _update_job(self, place: int, *, read: bool = False) -> bool:
        """Update a job, with its journal if `read`; return whether its state changed."""
        trial, state, tail = self._left.trials[place], self._state(place), self._tail(place)
        if read:
            tail.read()
        at_work = self._running.get(BenchmarkTask("search", trial.name).key)
        left = None
        if at_work is not None and tail.completions > at_work.completions:
            rest = max(0, self.run.header.terms.budget - tail.completions)
            taken = time.monotonic() - at_work.started_at
            left = rest * taken / (tail.completions - at_work.completions)
        reason = self._reason(trial) if state == FAILED else None
        standing = TrialStanding(
            trial,
            state,
            tail.completions,
            tail.best,
            tail.cost,
            left,
            reason,
            tail.reused,
            self._machines.get(place, ""),
        )
        before = self._standings.update(place, standing)
        return before is None or before.state != state

    def _read(self) -> None:
        """Read the journals of running searches, unless the last reading is recent."""
        now = time.monotonic()
        if now - self._read_at < seconds_between_reads(self.run.folder):
            return
        self._read_at = now
        for task, _, _ in self._running.values():
            if task.kind == "search":
                with suppress(StorageError):  # only the display of progress needs it
                    self.run.bring(task)
                self._update_job(self._left.place_of(task.name), read=True)

    def _tail(self, place: int) -> JournalTail:
        """Return the journal reader of a job."""
        if place not in self._tails:
            self._tails[place] = JournalTail(self.run.trial_folder(self._left.trials[place]))
        return self._tails[place]

    def _state(self, place: int) -> str:
        """Return the state of a job."""
        trial = self._left.trials[place]
        for task in _tasks(trial):
            if task.key in self._running:
                return WORKING[task.kind]
        if self._reason(trial):
            return FAILED
        if self._left.is_waiting(place):
            return WAITING
        play_failed = BenchmarkTask("play", trial.name).key in self.failed
        return TO_PLAY if self._left.is_to_play(place) and not play_failed else FINISHED

    def _reason(self, trial: Trial) -> str | None:
        """Return the reason why a job failed, None if it did not fail."""
        keys = (task.key for task in _tasks(trial) if task.kind != "play")
        return next((self.failed[key] for key in keys if key in self.failed), None)


JOBS = ("search", "play")
"""The kinds of tasks of a job."""


def _tasks(trial: Trial) -> tuple[BenchmarkTask, ...]:
    """Return the tasks of a job and the tasks that it waits for."""
    return (
        BenchmarkTask("search", trial.name),
        BenchmarkTask("play", trial.name),
        BenchmarkTask("prepare", trial.environment),
        BenchmarkTask("write", trial.environment),
    )


def _open_run(header: BenchmarkHeader, named: Path | None, *, new: bool) -> BenchmarkRun:
    """Return the named benchmark, the newest unfinished one with equal choices, or a new one."""
    if named is None and not new:
        for known in BenchmarkRun.find_equal(header.config):
            if BenchmarkRun(known.folder, header).left():
                named = known.folder
                break
    folder = (named or fresh_folder("benchmark")).absolute()
    return BenchmarkRun.begin(folder, header)


def _estimate_cost(
    folder: Path, header: BenchmarkHeader, access: BenchmarkAccess, workers: int
) -> CostEstimate:
    """Estimate the cost of the remaining jobs, without the completions that exist."""
    run, config, terms = BenchmarkRun(folder, header), header.config, header.terms
    jobs, left, spent = Counter[str](), Counter[str](), 0.0
    for trial in config.trials:
        tail = JournalTail(run.trial_folder(trial))
        tail.read()
        spent += tail.known_cost
        rest = max(0, terms.budget - tail.completions)
        if trial.model in config.models and rest and not run.is_settled(run.trial_result(trial)):
            jobs[trial.model] += 1
            left[trial.model] += rest
    searches = [
        SearchesToCome(
            model,
            backend_of(config.choices(config.strategies[0], model, terms, access)),
            jobs[model],
            left[model],
        )
        for model in config.models
    ]
    return estimated(
        searches,
        in_flight=min(workers, sum(jobs.values())) * terms.parallel,
        left=None if terms.max_cost is None else terms.max_cost - spent,
        folders=[run.trial_folder(trial) for trial in config.trials],
    )


def _run_work(work: BenchmarkWork, observer: Observer) -> None:
    """Do the remaining tasks and report their progress. Results are kept if an error ends it."""
    work.run.begin_spending()
    observer.begins(work)
    try:
        with closing(work.events()) as events:
            for event in events:
                observer.advanced(event)
    except KeyboardInterrupt:
        folder = work.run.place
        raise KeyboardInterrupt(
            f"interrupted: the same command continues {folder}; "
            f"`cwm runs report {folder}` shows the results so far"
        ) from None
    finally:
        observer.ends()
    if stopped := work.run.out_of_money():
        most, jobs = work.run.header.terms.max_cost, len(work.run.config.trials)
        observer.note(
            f"{len(stopped)} of {jobs} jobs stopped at --max-cost {most:g}: "
            "the same command with a higher limit continues"
        )
