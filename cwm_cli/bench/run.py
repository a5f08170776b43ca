"""The folder of a benchmark: where everything is, what is there, and what is left to do."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from cwm_cli.bench.configuration import (
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
from cwm_cli.runs.report import RunReport, RunSummary, Section
from cwm_cli.runs.store import RESULT, Run

AUTOMATIC = "auto"
"""With this planner the oracle plays, and again with that of a model where they differ."""


class TaskRecord(BaseModel):
    """A line of the journal: a task that is over, and why it failed, if it did."""

    model_config = ConfigDict(frozen=True)

    task: str
    reason: str | None = None


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
    """What came of playing, as far as it is read again; `program_digest` says with what."""

    model_config = ConfigDict(frozen=True)

    returns: list[float]
    random_returns: list[float]
    planner: str | None = None
    note: str | None = None
    decisions: int
    failures: int
    program_digest: str = ""


class SearchFacts(CeilingFacts):
    """What came of a search, as far as it is read again."""

    program: str | None = None
    solved: bool
    given_up: bool = False
    completions: int
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    max_cost: float | None = None
    out_of_money: bool = False


class BenchmarkRun(Run[BenchmarkHeader, TaskRecord]):
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

    def failures(self) -> dict[str, str]:
        """Return why tasks failed, by their keys; one that was done later has not failed."""
        last = {record.task: record.reason for record in self.records()}
        return {task: reason for task, reason in last.items() if reason is not None}

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
        """Whether a search is over: solved, given up, or budget or money are spent."""
        if result is None:
            return False
        terms = self.header.terms
        spent = result.out_of_money and result.max_cost == terms.max_cost
        return result.solved or result.given_up or result.completions >= terms.budget or spent

    def play_of(self, trial: Trial) -> PlayFacts | None:
        """Return what the present program of a trial came to in as many episodes as are asked."""
        found = self._played(BenchmarkTask("play", trial.name))
        return found if found and found.program_digest == self.digest(trial) else None

    def oracle_of(self, environment: str, planner: str | None) -> PlayFacts | None:
        """Return what the oracle with a model's planner came to, or what stands in for it."""
        tasks = (BenchmarkTask("oracle", environment, p) for p in (planner, AUTOMATIC) if p)
        return next(filter(None, map(self._played, tasks)), None)

    def _played(self, task: BenchmarkTask) -> PlayFacts | None:
        """Read what was played, if that is enough episodes."""
        found = read_found(self._found(task), PlayFacts)
        if found is None:
            return None
        fewest = min(len(found.returns), len(found.random_returns))
        return found if fewest >= self.header.terms.episodes else None

    def left(self, failed: Collection[str] = ()) -> list[BenchmarkTask]:
        """Return the tasks that can be begun, the most urgent first, without those that failed.

        Searches come first; what concerns an environment only fills the gaps.
        """
        trials = self.config.trials
        tasks = dict.fromkeys(task for trial in trials for task in self._urgent(trial))
        tasks |= dict.fromkeys(task for trial in trials for task in self._besides(trial))
        return [task for task in tasks if task.key not in failed]

    def _urgent(self, trial: Trial) -> Iterator[BenchmarkTask]:
        """Yield the next task on the way to what a trial comes to."""
        environment, result = trial.environment, self.trial_result(trial)
        if self.prepared(environment) is None:
            yield BenchmarkTask("prepare", environment)
        elif self.config.needs_programs and self.program_result(environment) is None:
            yield BenchmarkTask("write", environment)
        elif not self.is_settled(result):
            yield BenchmarkTask("search", trial.name)
        elif self.header.terms.plan and result and result.program and self.play_of(trial) is None:
            yield BenchmarkTask("play", trial.name)

    def _besides(self, trial: Trial) -> Iterator[BenchmarkTask]:
        """Yield what is to be found out about the environment of a trial."""
        terms, environment = self.header.terms, trial.environment
        if self.prepared(environment) is None:
            return
        if terms.ceilings and self.ceiling_of(environment) is None:
            yield BenchmarkTask("ceiling", environment)
        if not terms.plan:
            return
        oracle = BenchmarkTask("oracle", environment, AUTOMATIC)
        usual, play = self._played(oracle), self.play_of(trial)
        if usual is None:
            yield oracle
            return
        planner = play.planner if play else None
        if planner in (None, usual.planner) or f"not {planner}: " in (usual.note or ""):
            return  # where the planner of a model was tried in vain, the usual oracle stands in
        oracle = BenchmarkTask("oracle", environment, planner or "")
        if self._played(oracle) is None:
            yield oracle

    def summary(self) -> RunSummary:
        """Say what is compared, and how many jobs are over."""
        config = self.config
        results = [self.trial_result(trial) for trial in config.trials]
        over = [result for result in results if result and self.is_settled(result)]
        answers = ", ".join(filter(None, config.models)) or config.backend
        return RunSummary(
            str(self.folder),
            self.kind,
            environment=_some(config.environments),
            strategy=_some(config.strategies),
            answers=answers,
            completions=sum(result.completions for result in results if result),
            done=f"{len(over)}/{len(results)} jobs",
            result=f"{sum(result.solved for result in over)} solved",
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence["BenchmarkRun"]) -> RunReport:
        """Return the tables of a benchmark, whatever state it is in."""
        from cwm_cli.bench.tables import benchmark_report

        return super().report(runs) if len(runs) > 1 else benchmark_report(runs[0])

    @classmethod
    def sections(cls, runs: Sequence["BenchmarkRun"]) -> list[Section]:
        """Return the curves and the table of all jobs, with filters, and groups."""
        from cwm_cli.bench.tables import benchmark_sections

        return super().sections(runs) if len(runs) > 1 else benchmark_sections(runs[0])


def _some(names: Sequence[str]) -> str:
    """Name the first of many."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
