"""The folder of a benchmark: its files, their contents, and the remaining tasks."""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict

from cwm_benchmark.configuration import (
    BenchmarkConfig,
    BenchmarkHeader,
    BenchmarkTask,
    Group,
    Trial,
    slug,
)
from cwm_cli.data.reading import UnreadableError, read_bytes
from cwm_cli.evaluation import Score
from cwm_cli.runs.files import read_found, write_object
from cwm_cli.runs.report import RunSummary
from cwm_cli.runs.searches import JournalTail
from cwm_cli.runs.storage import bring, placed, send, storage_of
from cwm_cli.runs.store import RESULT, Run
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.spending import open_spending

AUTOMATIC = "auto"
"""The first planner of the oracle. If a model's planner differs, the oracle plays again."""


class TaskRecord(BaseModel):
    """A line of the journal: a task that has ended.

    Attributes:
        task: Key of the task.
        reason: Why the task failed, None if it did not fail.
        peak_memory: Peak memory in bytes, as measured by the executor.
        place: Machine that ran the task.
        cpu_seconds: Processor time, as measured by the executor.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    reason: str | None = None
    peak_memory: int | None = None
    place: str = ""
    cpu_seconds: float | None = None


class PreparedFacts(BaseModel):
    """The facts about an environment that the benchmark needs."""

    model_config = ConfigDict(frozen=True)

    group: Group


class CeilingFacts(BaseModel):
    """Scores of the true environment on its own data, None if they cannot be computed.

    With memory, the environment continues from its own state along an episode.
    """

    model_config = ConfigDict(frozen=True)

    train: Score | None = None
    test: Score | None = None
    train_with_memory: Score | None = None
    test_with_memory: Score | None = None


class PlayFacts(BaseModel):
    """Results of the played episodes, and the hash of their program (`program_digest`).

    `usual_episodes` is the number of episodes by their length, None if fewer than ten were played.
    Benchmarks of earlier versions lack it and `idle_returns`.
    """

    model_config = ConfigDict(frozen=True)

    returns: list[float]
    random_returns: list[float]
    idle_returns: list[float] | None = None
    usual_episodes: int | None = None
    unverified: list[int] = []
    refuted: bool = False
    planner: str | None = None
    note: str | None = None
    decisions: int
    failures: int
    program_digest: str = ""


class SearchFacts(CeilingFacts):
    """The result of a search, reduced to the fields that the benchmark needs."""

    program: str | None = None
    failure: Failure | None = None
    solved: bool
    finished: bool = False
    settled: bool = False
    given_up: bool = False
    completions: int
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    max_cost: float | None = None
    out_of_money: bool = False


class BenchmarkFolder(Run[BenchmarkHeader, TaskRecord]):
    """The folder of a benchmark, with a run folder for each trial.

    It also contains the recorded `data`, the `outcomes` of tasks, the `logs` of their processes,
    and the journal of ended tasks with their failures.
    """

    kind = "benchmark"
    header_type = BenchmarkHeader
    record_type = TaskRecord
    patience: ClassVar[float] = 10.0
    """Seconds to wait for the lock: processes of a killed benchmark end when they notice it."""

    @property
    def config(self) -> BenchmarkConfig:
        """The choices of this benchmark."""
        return self.header.config

    def trial_folder(self, trial: Trial) -> Path:
        """Return the folder of the run of a trial."""
        return self.folder / trial.name

    def program_folder(self, environment: str) -> Path:
        """Return the folder of the run that writes the program of an environment."""
        return self.folder / "programs" / slug(environment)

    def data_file(self, environment: str) -> Path:
        """Return the file with the transitions of an environment."""
        return self.folder / "data" / f"{slug(environment)}.npz"

    @property
    def spending_file(self) -> Path:
        """The file that limits the cost of all jobs together (`cwm_cli.search.spending`)."""
        return self.folder / "spending.json"

    def begin_spending(self) -> None:
        """Set the cost limit of all jobs. Earlier costs count."""
        open_spending(self.spending_file, self.header.terms.max_cost, self._recorded_cost)

    def _recorded_cost(self) -> float:
        """Return the total cost in the journals of all jobs."""
        tails = [JournalTail(self.trial_folder(trial)) for trial in self.config.trials]
        for tail in tails:
            tail.read()
        return sum(tail.known_cost for tail in tails)

    def out_of_money(self) -> list[Trial]:
        """Return the trials that stopped at the cost limit and would continue with a higher one."""
        results = ((trial, self.trial_result(trial)) for trial in self.config.trials)
        limit = self.header.terms.max_cost
        return [t for t, r in results if r and r.out_of_money and r.max_cost == limit]

    def log_file(self, task: BenchmarkTask) -> Path:
        """Return the log file of the process of a task."""
        return self.folder / "logs" / f"{task.key}.txt"

    def prepared(self, environment: str) -> PreparedFacts | None:
        """Read the facts about an environment, None if they are missing or damaged."""
        return read_found(self._outcome_file(BenchmarkTask("prepare", environment)), PreparedFacts)

    def ceiling_of(self, environment: str) -> CeilingFacts | None:
        """Read the scores of the true environment."""
        return read_found(self._outcome_file(BenchmarkTask("ceiling", environment)), CeilingFacts)

    def _outcome_file(self, task: BenchmarkTask) -> Path:
        """Return the file with the outcome of a task. Searches have a run folder instead."""
        return self.folder / "outcomes" / f"{task.key}.json"

    def keep(self, task: BenchmarkTask, found: Mapping[str, Any]) -> None:
        """Save the outcome of a task."""
        write_object(self._outcome_file(task), found)
        send(self._outcome_file(task))

    def bring(self, task: BenchmarkTask) -> None:
        """Download the progress of a task if the benchmark is on an object store."""
        searched = self._search_folder(task)
        if searched is None:
            bring(self._outcome_file(task))
        elif storage := storage_of(searched):
            storage.bring(light=True)

    def bring_for(self, task: BenchmarkTask) -> None:
        """Download the files that a task needs on this machine, and its results so far."""
        if storage_of(self.folder) is None:
            return
        environments = {trial.name: trial.environment for trial in self.config.trials}
        environment = environments.get(task.name, task.name)
        searched = self.folder / task.name if task.kind == "play" else self._search_folder(task)
        if searched is not None:
            placed(searched)
        if task.kind in ("search", "write", "ceiling"):
            bring(self.data_file(environment))
        if task.kind == "search" and self.config.needs_programs:
            placed(self.program_folder(environment))

    def _search_folder(self, task: BenchmarkTask) -> Path | None:
        """Return the folder of the search run of a task, None if it has none."""
        if task.kind == "search":
            return self.folder / task.name
        return self.program_folder(task.name) if task.kind == "write" else None

    def last_records(self) -> dict[str, TaskRecord]:
        """Return the last record of each task by its key."""
        return {record.task: record for record in self.records()}

    def failures(self) -> dict[str, str]:
        """Return the failure reasons of tasks by their keys. A later success removes a failure."""
        last = self.last_records().items()
        return {task: record.reason for task, record in last if record.reason is not None}

    def trial_result(self, trial: Trial) -> SearchFacts | None:
        """Read the result of a trial."""
        return read_found(self.trial_folder(trial) / RESULT, SearchFacts)

    def program_result(self, environment: str) -> SearchFacts | None:
        """Read the result of the search that wrote a program of an environment."""
        return read_found(self.program_folder(environment) / RESULT, SearchFacts)

    def digest(self, trial: Trial) -> str:
        """Return the hash of the program of a trial, empty if there is none."""
        try:
            return sha256(read_bytes(self.trial_folder(trial) / "best.py")).hexdigest()
        except UnreadableError:
            return ""

    def is_settled(self, result: SearchFacts | None) -> bool:
        """Return whether a search is over: finished, given up, or without budget or money."""
        if result is None:
            return False
        terms = self.header.terms
        spent = result.out_of_money and result.max_cost == terms.max_cost
        ended = result.solved or result.finished or result.given_up or spent
        return ended or result.completions >= terms.budget

    def play_of(self, trial: Trial) -> PlayFacts | None:
        """Return the play of a trial's current program, None if episodes are missing."""
        found = self.played(BenchmarkTask("play", trial.name))
        return found if found and found.program_digest == self.digest(trial) else None

    def oracle_of(self, environment: str, planner: str | None) -> PlayFacts | None:
        """Return the result of the oracle with a model's planner, or with the automatic planner."""
        tasks = (BenchmarkTask("oracle", environment, p) for p in (planner, AUTOMATIC) if p)
        return next(filter(None, map(self.played, tasks)), None)

    def played(self, task: BenchmarkTask) -> PlayFacts | None:
        """Read the result of a played task, None if it has fewer episodes than wanted."""
        found = read_found(self._outcome_file(task), PlayFacts)
        if found is None:
            return None
        fewest, wanted = min(len(found.returns), len(found.random_returns)), self.wanted(found)
        return found if wanted is not None and fewest >= wanted else None

    def wanted(self, found: PlayFacts) -> int | None:
        """Return the number of episodes that the benchmark plays, None if it is unknown yet."""
        return self.header.terms.episodes or found.usual_episodes

    def left(self) -> list[BenchmarkTask]:
        """Return the tasks that can start, the most urgent first.

        Searches are first; tasks for environments only use idle processes.
        """
        return TasksLeft(self).listed()

    def summary(self) -> RunSummary:
        """Summarize the compared choices and the number of finished jobs."""
        config = self.config
        results = [self.trial_result(trial) for trial in config.trials]
        over = [result for result in results if result and self.is_settled(result)]
        settled = sum(result.settled for result in over)
        stopped = f", {settled} stopped without improvement" if settled else ""
        answers = ", ".join(filter(None, config.models)) or config.backend
        return RunSummary(
            self.place,
            self.kind,
            environment=_some(config.environments),
            strategy=_some(config.strategies),
            answers=answers,
            completions=sum(result.completions for result in results if result),
            done=f"{len(over)}/{len(results)} jobs",
            result=f"{sum(result.solved for result in over)} solved{stopped}",
            created=self.header.created,
        )


@dataclass
class _EnvironmentFacts:
    """The state of an environment in the folder; `oracles` contains results by planner."""

    is_prepared: bool = False
    is_written: bool = False
    has_ceiling: bool = False
    oracles: dict[str, PlayFacts] = field(default_factory=dict)


class _TrialFacts(NamedTuple):
    """The state of a trial in the folder, as needed to choose its next task."""

    is_settled: bool = False
    has_program: bool = False
    is_played: bool = False
    planner: str | None = None


class _Ready(NamedTuple):
    """A task that can start. The smallest one is the most urgent."""

    rank: int
    place: int
    number: int
    task: BenchmarkTask


FOR_TRIAL, FOR_ENVIRONMENT = 0, 1
"""The ranks of tasks: tasks that a trial waits for precede optional tasks for environments."""


class TasksLeft:
    """The remaining tasks of a benchmark.

    The folder is read once. After a task, only the files that it may have changed are read again,
    so that the cost of an event does not grow with the number of jobs. `rescan` reads everything
    that other processes may have changed.
    """

    def __init__(self, run: BenchmarkFolder) -> None:
        self.run = run
        self.trials = run.config.trials
        self.environment_tasks_left = 0
        """Number of tasks for environments that are ready and that no trial waits for."""
        self._places = {trial.name: place for place, trial in enumerate(self.trials)}
        self._at: defaultdict[str, list[int]] = defaultdict(list)
        for place, trial in enumerate(self.trials):
            self._at[trial.environment].append(place)
        self._environments = {name: _EnvironmentFacts() for name in self._at}
        self._facts = [_TrialFacts()] * len(self.trials)
        self._ready: list[_Ready] = []
        self._offered: set[str] = set()
        self.rescan()

    def listed(self) -> list[BenchmarkTask]:
        """Return all tasks that can start now, the most urgent first."""
        return [ready.task for ready in sorted(self._ready)]

    def take(self) -> BenchmarkTask | None:
        """Return the most urgent remaining task. It will not be returned again."""
        while self._ready:
            ready = heapq.heappop(self._ready)
            self.environment_tasks_left -= ready.rank == FOR_ENVIRONMENT
            self._read_task(ready.task)
            if not self.is_done(ready.task):
                return ready.task
            self._queue_after(ready.task)
        return None

    def record_end(self, task: BenchmarkTask) -> bool:
        """Read the results of an ended task; return whether it was done."""
        self._read_task(task)
        self._queue_after(task)
        return self.is_done(task)

    def rescan(self) -> None:
        """Read everything that is not finished."""
        for environment in self._environments:
            self._read_task(BenchmarkTask("prepare", environment))
        for place, facts in enumerate(self._facts):
            if not self._is_finished(facts):
                self._read_trial(place)
        for place in range(len(self.trials)):
            self._queue(place)

    def is_done(self, task: BenchmarkTask) -> bool:
        """Return whether a task was done when the folder was last read."""
        if task.kind in ("search", "play"):
            facts = self._facts[self._places[task.name]]
            return facts.is_settled if task.kind == "search" else facts.is_played
        known = self._environments[task.name]
        return {
            "prepare": known.is_prepared,
            "write": known.is_written,
            "ceiling": known.has_ceiling,
            "oracle": task.planner in known.oracles,
        }[task.kind]

    def place_of(self, name: str) -> int:
        """Return the position of the trial with a name."""
        return self._places[name]

    def places_at(self, environment: str) -> Sequence[int]:
        """Return the positions of the trials in an environment."""
        return self._at[environment]

    def is_waiting(self, place: int) -> bool:
        """Return whether the search of a trial is unfinished."""
        return not self._facts[place].is_settled

    def is_to_play(self, place: int) -> bool:
        """Return whether playing with the program of a trial is still to be done."""
        facts = self._facts[place]
        return facts.is_settled and not self._is_finished(facts)

    def _is_finished(self, facts: _TrialFacts) -> bool:
        """Return whether a trial has no remaining task of its own."""
        if not facts.is_settled:
            return False
        return facts.is_played or not (self.run.header.terms.plan and facts.has_program)

    def _read_task(self, task: BenchmarkTask) -> None:
        """Read the files that a task may have changed."""
        if task.kind in ("search", "play"):
            self._read_trial(self._places[task.name])
            return
        run, name, known = self.run, task.name, self._environments[task.name]
        terms = run.header.terms
        known.is_prepared = run.prepared(name) is not None
        if known.is_prepared and run.config.needs_programs:
            known.is_written = run.program_result(name) is not None
        if terms.ceilings:
            known.has_ceiling = run.ceiling_of(name) is not None
        if terms.plan:
            planner = task.planner or AUTOMATIC
            found = run.played(BenchmarkTask("oracle", name, planner))
            if found is not None:
                known.oracles[planner] = found

    def _read_trial(self, place: int) -> None:
        """Read the state of a trial."""
        trial = self.trials[place]
        result = self.run.trial_result(trial)
        is_settled = self.run.is_settled(result)
        has_program = bool(result and result.program)
        wanted = self.run.header.terms.plan and is_settled and has_program
        play = self.run.play_of(trial) if wanted else None
        self._facts[place] = _TrialFacts(
            is_settled, has_program, play is not None, play.planner if play else None
        )

    def _queue_after(self, task: BenchmarkTask) -> None:
        """Queue the tasks that can start after a task."""
        if task.kind in ("search", "play"):
            self._queue(self._places[task.name])
        elif task.kind != "ceiling" and task.planner in ("", AUTOMATIC):
            for place in self._at[task.name]:
                self._queue(place)

    def _queue(self, place: int) -> None:
        """Queue the tasks that can start for a trial and were not queued before."""
        for rank, task in self._tasks(place):
            if task.key in self._offered or self.is_done(task):
                continue
            self._offered.add(task.key)
            if task.kind == "oracle":  # there may be one per planner
                self._read_task(task)
            if not self.is_done(task):
                self.environment_tasks_left += rank == FOR_ENVIRONMENT
                heapq.heappush(self._ready, _Ready(rank, place, len(self._offered), task))

    def _tasks(self, place: int) -> Iterator[tuple[int, BenchmarkTask]]:
        """Yield the next task of a trial, and the optional tasks for its environment."""
        trial, facts = self.trials[place], self._facts[place]
        name, terms = trial.environment, self.run.header.terms
        known = self._environments[name]
        if not known.is_prepared:
            yield FOR_TRIAL, BenchmarkTask("prepare", name)
            return
        if self.run.config.needs_programs and not known.is_written:
            yield FOR_TRIAL, BenchmarkTask("write", name)
        elif not facts.is_settled:
            yield FOR_TRIAL, BenchmarkTask("search", trial.name)
        elif not self._is_finished(facts):
            yield FOR_TRIAL, BenchmarkTask("play", trial.name)
        if terms.ceilings:
            yield FOR_ENVIRONMENT, BenchmarkTask("ceiling", name)
        if not terms.plan:
            return
        usual = known.oracles.get(AUTOMATIC)
        if usual is None:
            yield FOR_ENVIRONMENT, BenchmarkTask("oracle", name, AUTOMATIC)
        elif facts.planner not in (None, usual.planner) and (
            f"not {facts.planner}: " not in (usual.note or "")
        ):  # if the model's planner failed in the oracle, the automatic oracle replaces it
            yield FOR_ENVIRONMENT, BenchmarkTask("oracle", name, facts.planner or "")


def _some(names: Sequence[str]) -> str:
    """Return the first name and the number of further names."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
