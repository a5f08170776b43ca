"""The folder of a benchmark: its files, their contents, and the remaining tasks."""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
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
"""With this planner the oracle plays, and again with that of a model where they differ."""


class TaskRecord(BaseModel):
    """A line of the journal: a task that is over, and why it failed, if it did.

    `peak_memory` is in bytes, as its executor tells it and `cpu_seconds`, and `place` the machine
    that it ran on.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    reason: str | None = None
    peak_memory: int | None = None
    place: str = ""
    cpu_seconds: float | None = None


class PreparedFacts(BaseModel):
    """What was found out about an environment, as far as it is read again."""

    model_config = ConfigDict(frozen=True)

    group: Group


class CeilingFacts(BaseModel):
    """What the true environment scores on its own data, None where that cannot be said.

    With memory it goes on from its own state along an episode.
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
    """What came of a search, as far as it is read again."""

    program: str | None = None
    failure: Failure | None = None
    solved: bool
    finished: bool = False
    given_up: bool = False
    completions: int
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    max_cost: float | None = None
    out_of_money: bool = False


class BenchmarkFolder(Run[BenchmarkHeader, TaskRecord]):
    """The folder of a benchmark, below which each trial has a run folder of its own.

    Beside them are `data`, what tasks found in `outcomes`, what their processes
    printed in `logs`, and the journal, which says what failed.
    """

    kind = "benchmark"
    header_type = BenchmarkHeader
    record_type = TaskRecord
    patience: ClassVar[float] = 10.0
    """For the processes of a benchmark that was killed, which end when they notice."""

    @property
    def config(self) -> BenchmarkConfig:
        """The choices of this benchmark."""
        return self.header.config

    def trial_folder(self, trial: Trial) -> Path:
        """Where the run of a trial is."""
        return self.folder / trial.name

    def program_folder(self, environment: str) -> Path:
        """Where the run is that writes the program of an environment."""
        return self.folder / "programs" / slug(environment)

    def data_file(self, environment: str) -> Path:
        """Where the transitions of an environment are."""
        return self.folder / "data" / f"{slug(environment)}.npz"

    @property
    def spending_file(self) -> Path:
        """What all jobs may spend together, and when (`cwm_cli.search.spending`)."""
        return self.folder / "spending.json"

    def begin_spending(self) -> None:
        """Say what jobs may spend from now on; what they spent before counts."""
        open_spending(self.spending_file, self.header.terms.max_cost, self._recorded_cost)

    def _recorded_cost(self) -> float:
        """Add up what the journals of all jobs say."""
        tails = [JournalTail(self.trial_folder(trial)) for trial in self.config.trials]
        for tail in tails:
            tail.read()
        return sum(tail.known_cost for tail in tails)

    def out_of_money(self) -> list[Trial]:
        """Return the trials that were stopped for want of money, and go on with more of it."""
        results = ((trial, self.trial_result(trial)) for trial in self.config.trials)
        limit = self.header.terms.max_cost
        return [t for t, r in results if r and r.out_of_money and r.max_cost == limit]

    def log_file(self, task: BenchmarkTask) -> Path:
        """Where the process of a task prints."""
        return self.folder / "logs" / f"{task.key}.txt"

    def prepared(self, environment: str) -> PreparedFacts | None:
        """Read what is known of an environment; what is damaged is found out again."""
        return read_found(self._found(BenchmarkTask("prepare", environment)), PreparedFacts)

    def ceiling_of(self, environment: str) -> CeilingFacts | None:
        """Read what can be reached in an environment."""
        return read_found(self._found(BenchmarkTask("ceiling", environment)), CeilingFacts)

    def _found(self, task: BenchmarkTask) -> Path:
        """Where a task writes down what it found, but for searches, which have a run."""
        return self.folder / "outcomes" / f"{task.key}.json"

    def keep(self, task: BenchmarkTask, found: Mapping[str, Any]) -> None:
        """Write down what a task found."""
        write_object(self._found(task), found)
        send(self._found(task))

    def bring(self, task: BenchmarkTask) -> None:
        """Bring what tells how far a task is, where the benchmark is kept on an object store."""
        searched = self._searched(task)
        if searched is None:
            bring(self._found(task))
        elif storage := storage_of(searched):
            storage.bring(light=True)

    def bring_for(self, task: BenchmarkTask) -> None:
        """Bring what a task needs to be done on this machine, and what it has found so far."""
        if storage_of(self.folder) is None:
            return
        environments = {trial.name: trial.environment for trial in self.config.trials}
        environment = environments.get(task.name, task.name)
        searched = self.folder / task.name if task.kind == "play" else self._searched(task)
        if searched is not None:
            placed(searched)
        if task.kind in ("search", "write", "ceiling"):
            bring(self.data_file(environment))
        if task.kind == "search" and self.config.needs_programs:
            placed(self.program_folder(environment))

    def _searched(self, task: BenchmarkTask) -> Path | None:
        """Where the run of a task is, None if it has none."""
        if task.kind == "search":
            return self.folder / task.name
        return self.program_folder(task.name) if task.kind == "write" else None

    def ended(self) -> dict[str, TaskRecord]:
        """Return how tasks ended when they were done last, by their keys."""
        return {record.task: record for record in self.records()}

    def failures(self) -> dict[str, str]:
        """Return why tasks failed, by their keys; one that was done later has not failed."""
        last = self.ended().items()
        return {task: record.reason for task, record in last if record.reason is not None}

    def trial_result(self, trial: Trial) -> SearchFacts | None:
        """Read what came of a trial."""
        return read_found(self.trial_folder(trial) / RESULT, SearchFacts)

    def program_result(self, environment: str) -> SearchFacts | None:
        """Read what came of the writing of a program of an environment."""
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
        """Return what the present program of a trial came to in as many episodes as are asked."""
        found = self.played(BenchmarkTask("play", trial.name))
        return found if found and found.program_digest == self.digest(trial) else None

    def oracle_of(self, environment: str, planner: str | None) -> PlayFacts | None:
        """Return what the oracle with a model's planner came to, or what stands in for it."""
        tasks = (BenchmarkTask("oracle", environment, p) for p in (planner, AUTOMATIC) if p)
        return next(filter(None, map(self.played, tasks)), None)

    def played(self, task: BenchmarkTask) -> PlayFacts | None:
        """Read what was played, if that is enough episodes."""
        found = read_found(self._found(task), PlayFacts)
        if found is None:
            return None
        fewest, wanted = min(len(found.returns), len(found.random_returns)), self.wanted(found)
        return found if wanted is not None and fewest >= wanted else None

    def wanted(self, found: PlayFacts) -> int | None:
        """Return how many episodes the benchmark plays, None if that is not known yet."""
        return self.header.terms.episodes or found.usual_episodes

    def left(self, failed: Collection[str] = ()) -> list[BenchmarkTask]:
        """Return the tasks that can be begun, the most urgent first, without those that failed.

        Searches come first; what concerns an environment only fills the gaps.
        """
        return [task for task in TasksLeft(self).listed() if task.key not in failed]

    def summary(self) -> RunSummary:
        """Say what is compared, and how many jobs are over."""
        config = self.config
        results = [self.trial_result(trial) for trial in config.trials]
        over = [result for result in results if result and self.is_settled(result)]
        answers = ", ".join(filter(None, config.models)) or config.backend
        return RunSummary(
            self.place,
            self.kind,
            environment=_some(config.environments),
            strategy=_some(config.strategies),
            answers=answers,
            completions=sum(result.completions for result in results if result),
            done=f"{len(over)}/{len(results)} jobs",
            result=f"{sum(result.solved for result in over)} solved",
            created=self.header.created,
        )


@dataclass
class _EnvironmentFacts:
    """What the folder says of an environment; `oracles` by the planners that were asked for."""

    is_prepared: bool = False
    is_written: bool = False
    has_ceiling: bool = False
    oracles: dict[str, PlayFacts] = field(default_factory=dict)


class _TrialFacts(NamedTuple):
    """What the folder says of a trial, as far as it decides what is to be done for it."""

    is_settled: bool = False
    has_program: bool = False
    is_played: bool = False
    planner: str | None = None


class _Ready(NamedTuple):
    """A task that can be begun; the smallest is the most urgent."""

    rank: int
    place: int
    number: int
    task: BenchmarkTask


SEARCHES, BESIDES = 0, 1
"""The ranks of tasks: on the way to what a trial comes to, and what only fills the gaps."""


class TasksLeft:
    """The tasks of a benchmark that are left to do.

    What the folder says is read once. After a task only what it touched is looked at again, so
    that what an event costs does not grow with the number of jobs; `look` reads all that may
    have changed by the hand of others.
    """

    def __init__(self, run: BenchmarkFolder) -> None:
        self.run = run
        self.trials = run.config.trials
        self.to_come = 0
        """How many of the tasks that can be begun are for an environment, not on the way."""
        self._places = {trial.name: place for place, trial in enumerate(self.trials)}
        self._at: defaultdict[str, list[int]] = defaultdict(list)
        for place, trial in enumerate(self.trials):
            self._at[trial.environment].append(place)
        self._environments = {name: _EnvironmentFacts() for name in self._at}
        self._facts = [_TrialFacts()] * len(self.trials)
        self._ready: list[_Ready] = []
        self._offered: set[str] = set()
        self.look()

    def listed(self) -> list[BenchmarkTask]:
        """Return all that can be begun now, the most urgent first."""
        return [ready.task for ready in sorted(self._ready)]

    def take(self) -> BenchmarkTask | None:
        """Return the most urgent task that is still to be done, and offer it no more."""
        while self._ready:
            ready = heapq.heappop(self._ready)
            self.to_come -= ready.rank == BESIDES
            self._look_at(ready.task)
            if not self.is_done(ready.task):
                return ready.task
            self._queue_after(ready.task)
        return None

    def saw(self, task: BenchmarkTask) -> bool:
        """Look at what a task that is over has touched; return whether it was done."""
        self._look_at(task)
        self._queue_after(task)
        return self.is_done(task)

    def look(self) -> None:
        """Look at everything that is not finished."""
        for environment in self._environments:
            self._look_at(BenchmarkTask("prepare", environment))
        for place, facts in enumerate(self._facts):
            if not self._is_finished(facts):
                self._look_at_trial(place)
        for place in range(len(self.trials)):
            self._queue(place)

    def is_done(self, task: BenchmarkTask) -> bool:
        """Say whether a task is done, as far as it was looked at."""
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
        """Return which of the trials has a name."""
        return self._places[name]

    def places_at(self, environment: str) -> Sequence[int]:
        """Return which of the trials are in an environment."""
        return self._at[environment]

    def is_waiting(self, place: int) -> bool:
        """Whether the search of a trial is not over."""
        return not self._facts[place].is_settled

    def is_to_play(self, place: int) -> bool:
        """Whether the program of a trial is to be played with, and was not."""
        facts = self._facts[place]
        return facts.is_settled and not self._is_finished(facts)

    def _is_finished(self, facts: _TrialFacts) -> bool:
        """Whether nothing is left to do for a trial itself."""
        if not facts.is_settled:
            return False
        return facts.is_played or not (self.run.header.terms.plan and facts.has_program)

    def _look_at(self, task: BenchmarkTask) -> None:
        """Read what a task has to do with."""
        if task.kind in ("search", "play"):
            self._look_at_trial(self._places[task.name])
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

    def _look_at_trial(self, place: int) -> None:
        """Read how far a trial is."""
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
        """Queue what can be begun after a task."""
        if task.kind in ("search", "play"):
            self._queue(self._places[task.name])
        elif task.kind != "ceiling" and task.planner in ("", AUTOMATIC):
            for place in self._at[task.name]:
                self._queue(place)

    def _queue(self, place: int) -> None:
        """Queue what can be begun for a trial and was not offered before."""
        for rank, task in self._tasks(place):
            if task.key in self._offered or self.is_done(task):
                continue
            self._offered.add(task.key)
            if task.kind == "oracle":  # of which there may be one for every planner
                self._look_at(task)
            if not self.is_done(task):
                self.to_come += rank == BESIDES
                heapq.heappush(self._ready, _Ready(rank, place, len(self._offered), task))

    def _tasks(self, place: int) -> Iterator[tuple[int, BenchmarkTask]]:
        """Yield the next task on the way of a trial, and those for its environment beside it."""
        trial, facts = self.trials[place], self._facts[place]
        name, terms = trial.environment, self.run.header.terms
        known = self._environments[name]
        if not known.is_prepared:
            yield SEARCHES, BenchmarkTask("prepare", name)
            return
        if self.run.config.needs_programs and not known.is_written:
            yield SEARCHES, BenchmarkTask("write", name)
        elif not facts.is_settled:
            yield SEARCHES, BenchmarkTask("search", trial.name)
        elif not self._is_finished(facts):
            yield SEARCHES, BenchmarkTask("play", trial.name)
        if terms.ceilings:
            yield BESIDES, BenchmarkTask("ceiling", name)
        if not terms.plan:
            return
        usual = known.oracles.get(AUTOMATIC)
        if usual is None:
            yield BESIDES, BenchmarkTask("oracle", name, AUTOMATIC)
        elif facts.planner not in (None, usual.planner) and (
            f"not {facts.planner}: " not in (usual.note or "")
        ):  # where the planner of a model was tried in vain, the usual oracle stands in
            yield BESIDES, BenchmarkTask("oracle", name, facts.planner or "")


def _some(names: Sequence[str]) -> str:
    """Name the first of many."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
