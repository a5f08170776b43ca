"""A training in a job of an executor, such as Slurm; the command that starts it reports on it.

The job runs `python -m cwm_neural.worker`. It continues the run folder, so a lost job is repeated
without lost epochs, and so is the whole command.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from cwm_cli.bench.executor import (
    Command,
    Ended,
    Executor,
    Postponed,
    Started,
    carried_out,
)
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import Observer
from cwm_neural.training.runs import AgentTest, EpochRecord, TrainingResult, TrainRun

LOG = "job.txt"
"""The file of a run folder with the output of its job."""


@dataclass
class TrainingJob:
    """A training in a job. `doing` describes the state of the job.

    Args:
        run: The run of the training, not locked.
        wanted: Number of steps after which the training ends.
        arguments: Arguments of `cwm.train` for the job; paths become texts.
        observer: Receives the job, and the records that it writes.
    """

    run: TrainRun
    wanted: int
    arguments: Mapping[str, Any]
    observer: Observer
    epochs: list[EpochRecord] = field(default_factory=list, init=False)
    played: list[AgentTest] = field(default_factory=list, init=False)
    doing: str = field(default="waiting for the executor", init=False)

    def __post_init__(self) -> None:
        self._log = self.run.folder / LOG
        self._journal_size = -1
        self._read_records()

    def train(self, executor: Executor) -> TrainingResult:
        """Train on an executor; Ctrl-C ends the job.

        Raises:
            CwmError: The job failed.
        """
        words = (sys.executable, "-m", "cwm_neural.worker")
        command = Command("train", (*words, json.dumps(self.arguments, default=str)), self._log)
        self.observer.note(f"{self.run.place}, output of the job: {self._log}", "Run")
        self.observer.begins(self)
        try:
            if not self.run.is_over(self.wanted):
                self._follow(executor, command)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted: the same command continues {self.run.place}"
            ) from None
        finally:
            self.observer.ends()
        return self.run.training_result()

    def _follow(self, executor: Executor, command: Command) -> None:
        """Run the command, and report the records that it writes."""
        with closing(carried_out(executor, [command], stopping=_interrupt)) as events:
            for event in events:
                match event:
                    case Started():
                        self.doing = "training in a job"
                    case Postponed():
                        self.doing = f"waiting: {event.reason}"
                        self.observer.note(f"the job starts again: {event.reason}")
                for record in self._read_records():
                    self.observer.advanced(record)
                if isinstance(event, Ended) and event.reason is not None:
                    raise CwmError(event.reason)

    def _read_records(self) -> list[EpochRecord | AgentTest]:
        """Return the epochs and tests that the journal contains since the last call."""
        size = 0
        with suppress(OSError):
            size = (self.run.folder / self.run.journal_name).stat().st_size
        if size == self._journal_size:
            return []
        self._journal_size, known = size, len(self.epochs) + len(self.played)
        found = [each for each in self.run.records() if isinstance(each, EpochRecord | AgentTest)]
        self.epochs = [each for each in found if isinstance(each, EpochRecord)]
        self.played = [each for each in found if isinstance(each, AgentTest)]
        return found[known:]


def _interrupt(_: int) -> None:
    """Repeat Ctrl-C: the executor would wait for the end of the training otherwise."""
    signal.raise_signal(signal.SIGINT)
