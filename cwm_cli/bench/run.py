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
    Trial,
    slug,
)
from cwm_cli.runs.files import read_object, write_object
from cwm_cli.runs.report import RunReport, RunSummary
from cwm_cli.runs.store import Run

AUTOMATIC = "auto"
"""With this planner the oracle plays, and again with that of a model where they differ."""


class TaskRecord(BaseModel):
    """A line of the journal: a task that is over, and why it failed, if it did."""

    model_config = ConfigDict(frozen=True)

    task: str
    reason: str | None = None


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

    def found(self, task: BenchmarkTask) -> dict[str, Any] | None:
        """Read what a task found, but for searches, which have a run."""
        return read_object(self.folder / "outcomes" / f"{task.key}.json")

    def keep(self, task: BenchmarkTask, found: Mapping[str, Any]) -> None:
        """Write down what a task found."""
        write_object(self.folder / "outcomes" / f"{task.key}.json", found)

    def failures(self) -> dict[str, str]:
        """Return why tasks failed, by their keys; one that was done later has not failed."""
        last = {record.task: record.reason for record in self.records()}
        return {task: reason for task, reason in last.items() if reason is not None}

    def trial_result(self, trial: Trial) -> dict[str, Any] | None:
        """Read what came of a trial."""
        return read_object(self.trial_folder(trial) / "result.json")

    def program_result(self, environment: str) -> dict[str, Any] | None:
        """Read what came of the writing of a program of an environment."""
        return read_object(self.program_folder(environment) / "result.json")

    def digest(self, trial: Trial) -> str:
        """Return the hash of the program of a trial, empty if there is none."""
        file = self.trial_folder(trial) / "best.py"
        return sha256(file.read_bytes()).hexdigest() if file.exists() else ""

    def is_settled(self, result: Mapping[str, Any] | None) -> bool:
        """Whether a search is over: solved, given up, or budget or money are spent."""
        if result is None:
            return False
        terms = self.header.terms
        spent = result.get("out_of_money") and result.get("max_cost") == terms.max_cost
        over = result["solved"] or result.get("given_up")
        return bool(over or result["completions"] >= terms.budget or spent)

    def play_of(self, trial: Trial) -> dict[str, Any] | None:
        """Return what the present program of a trial came to in as many episodes as are asked."""
        found = self.found(BenchmarkTask("play", trial.name))
        if found is None or found["program_digest"] != self.digest(trial):
            return None
        return found if len(found["returns"]) >= self.header.terms.episodes else None

    def oracle_of(self, environment: str, planner: str | None) -> dict[str, Any] | None:
        """Return what the oracle with a model's planner came to, or what stands in for it."""
        for name in filter(None, (planner, AUTOMATIC)):
            found = self.found(BenchmarkTask("oracle", environment, name))
            if found and len(found["returns"]) >= self.header.terms.episodes:
                return found
        return None

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
        if self.found(BenchmarkTask("prepare", environment)) is None:
            yield BenchmarkTask("prepare", environment)
        elif self.config.needs_programs and self.program_result(environment) is None:
            yield BenchmarkTask("write", environment)
        elif not self.is_settled(result):
            yield BenchmarkTask("search", trial.name)
        elif (
            self.header.terms.plan and result and result["program"] and self.play_of(trial) is None
        ):
            yield BenchmarkTask("play", trial.name)

    def _besides(self, trial: Trial) -> Iterator[BenchmarkTask]:
        """Yield what is to be found out about the environment of a trial."""
        terms, environment = self.header.terms, trial.environment
        if self.found(BenchmarkTask("prepare", environment)) is None:
            return
        ceiling = BenchmarkTask("ceiling", environment)
        if terms.ceilings and self.found(ceiling) is None:
            yield ceiling
        if not terms.plan:
            return
        oracle = BenchmarkTask("oracle", environment, AUTOMATIC)
        usual = self.found(oracle)
        if usual is None or len(usual["returns"]) < terms.episodes:
            yield oracle
            return
        planner = (self.play_of(trial) or {}).get("planner")
        if planner in (None, usual["planner"]) or f"not {planner}: " in usual["note"]:
            return  # where the planner of a model was tried in vain, the usual oracle stands in
        found = self.found(BenchmarkTask("oracle", environment, planner))
        if found is None or len(found["returns"]) < terms.episodes:
            yield BenchmarkTask("oracle", environment, planner)

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
            completions=sum(result["completions"] for result in results if result),
            done=f"{len(over)}/{len(results)} jobs",
            result=f"{sum(bool(result['solved']) for result in over)} solved",
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence["BenchmarkRun"]) -> RunReport:
        """Return the tables of a benchmark, whatever state it is in."""
        from cwm_cli.bench.tables import benchmark_report

        return super().report(runs) if len(runs) > 1 else benchmark_report(runs[0])


def _some(names: Sequence[str]) -> str:
    """Name the first of many."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
