"""Runs of learning strategies: a session that writes steps, episodes and programs to the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

from cwm_cli.data.dataset import Transition
from cwm_cli.errors import CwmError
from cwm_learn.certificate import EpisodeRecord
from cwm_learn.records import ComputedRecord, LearnRecord, ProgramRecord, StepsTaken
from cwm_learn.runs import LearningResult, LearnRun, SavedModel
from cwm_learn.strategy import LearningSession, LearningStrategy, Work

T = TypeVar("T")


@dataclass
class RecordedSession(LearningSession):
    """A learning session that writes its progress to a run.

    The run stores the rows of its own environment. Of earlier environments in a curriculum it
    stores the episodes only.

    A continued run repeats its decisions and its steps in the environment, and reads the results
    of `compute` from its journal. Records that it does not repeat are removed: the end of a cut
    episode, or everything after the environment deviated.
    """

    run: LearnRun = field(kw_only=True)
    _mismatched: int = 0
    """Wrong predictions in the running episode."""
    _programs: int = 0
    _replay: deque[LearnRecord] = field(default_factory=deque)
    _seconds_before: float = 0.0
    trainer: str = ""
    """Name of the trainer of the model, "" without a trained model."""

    def __post_init__(self) -> None:
        if self.run.is_continued:  # a continued run is repeated first
            self._replay.extend(self.run.records())
        self._seconds_before = self.run.elapsed

    def seconds_left(self) -> float:
        """Return the seconds until the time limit; recorded work does not count again."""
        return inf if self._replay else self.seconds - self.run.elapsed

    @contextmanager
    def timed(self, work: Work) -> Iterator[None]:
        """Add the duration of a block to `work_seconds`, except during the replay."""
        with nullcontext() if self._replay else super().timed(work):
            yield

    def compute(self, work: Work, function: Callable[[], T]) -> T:
        """Return the recorded result, else call the function; a result after the time is lost."""
        if self._replay and isinstance(record := self._replay[0], ComputedRecord):
            self._advance()
            self.work_seconds[work] += record.seconds
            self.asked, self.cost = self.asked + record.completions, self.cost + record.cost
            return record.result  # type: ignore[no-any-return]
        self._drop_replay()
        asked, cost, seconds = self.asked, self.cost, self.work_seconds[work]
        result = super().compute(work, function)
        if self.seconds_left() > 0:
            self.run.append(
                ComputedRecord(
                    work=work,
                    result=result,
                    seconds=round(self.work_seconds[work] - seconds, 3),
                    completions=self.asked - asked,
                    cost=self.cost - cost,
                )
            )
        return result

    def stepped(self, row: Transition, *, aim: str, mismatched: bool = False) -> None:
        """Write a step to the run."""
        super().stepped(row, aim=aim, mismatched=mismatched)
        self._mismatched += mismatched
        try:
            columns = self.run.dataset_of([row._replace(episode=len(self.returns))]).columns
        except (ValueError, KeyError, TypeError):  # rows of earlier environments do not fit
            return
        self._append(StepsTaken(columns=columns))

    def ended(self, returned: float, *, aim: str) -> None:
        """Write an episode to the run."""
        steps = len(self.rows)
        length = steps - (self.returns[-1][0] if self.returns else 0)
        record = EpisodeRecord(
            number=len(self.returns),
            steps=steps,
            returned=returned,
            length=length,
            aims={aim: length},
            mismatched=self._mismatched,
        )
        super().ended(returned, aim=aim)
        self._mismatched = 0
        self._append(record)

    def wrote(self, program: str, note: str = "") -> None:
        """Write a program to the run."""
        super().wrote(program, note)
        self._programs += 1
        self._append(
            ProgramRecord(
                number=self._programs,
                steps=len(self.rows),
                rows=len(self.rows),
                origin=note or self.run.config.strategy,
                lines=program.count("\n"),
            )
        )

    def trained(self, trainer: str, options: Mapping[str, Any], training: SavedModel) -> None:
        """Write a trained model to the run."""
        self.trainer = trainer
        self.run.save_trained(trainer, options, training)

    def run_strategy(self, strategy: LearningStrategy) -> LearningResult:
        """Learn with a strategy, and write the result to the run.

        A continued run is repeated up to its last record first.

        Raises:
            CwmError: The strategy needs a language model, and the session has none.
        """
        if strategy.needs_answers and self.backend is None:
            raise CwmError("this strategy needs a language model: add --model PROVIDER/NAME")
        steps = sum(isinstance(each, StepsTaken) for each in self._replay)
        verb = f"continues after {steps:,} steps" if steps else "started"
        self.observer.note(f"{self.run.place} {verb}", "Run")
        self.observer.begins(self)
        try:
            strategy.learn(self)
        except KeyboardInterrupt:
            words = f"interrupted after {max(steps, len(self.rows)):,} steps"
            raise KeyboardInterrupt(
                f"{words}: the same command continues {self.run.place}"
            ) from None
        finally:
            self.observer.ends()
        result = self._result()
        self.run.save_result(result.as_json())
        return result

    def _append(self, record: LearnRecord) -> None:
        """Write a record, unless the replay contains it, and report it."""
        if self._replay and self._replay[0].model_dump_json() == record.model_dump_json():
            self._advance()
            return
        self._drop_replay()
        if isinstance(record, ProgramRecord):
            self.run.save_program(record, self.program)
        self.run.append(record)
        if isinstance(record, ProgramRecord):
            self.run.write_best(self.program)
        if not isinstance(record, StepsTaken):
            self.observer.advanced(record)

    def _advance(self) -> None:
        """Remove the next record of the replay."""
        self._replay.popleft()
        if not self._replay:
            self._end_replay()

    def _end_replay(self) -> None:
        """Continue the clock, and write the program, which a crash may have prevented."""
        self.run.restart_clock(self._seconds_before)
        if self.program:
            self.run.write_best(self.program)

    def _drop_replay(self) -> None:
        """Remove the records that are not repeated from the run."""
        if not self._replay:
            return
        records = list(self.run.records())
        steps = sum(isinstance(each, StepsTaken) for each in self._replay)
        if steps:
            self.observer.note(
                f"the run could not be repeated exactly: its last {steps:,} steps are discarded"
            )
        self.run.rewrite(records[: len(records) - len(self._replay)])
        for each in self._replay:
            if isinstance(each, ProgramRecord):
                (self.run.folder / each.file).unlink(missing_ok=True)
        self._replay.clear()
        self._end_replay()

    def _result(self) -> LearningResult:
        return LearningResult(
            run=self.run.folder,
            program=self.run.folder / "best.py" if self.program else None,
            steps=len(self.rows),
            episodes=len(self.returns),
            returns=[
                {"steps": steps, "return": returned, "aim": aim}
                for steps, returned, aim in self.returns
            ],
            certificate=None,
            questions=[],
            completions=self.asked,
            cost=self.cost,
            seconds=round(self.run.elapsed, 3),
            stopped=self.over or "strategy",
            refits=self._programs,
            writing_seconds=round(self.work_seconds["writing"], 3),
            planning_seconds=round(self.work_seconds["planning"], 3),
            trained=self.trainer,
        )
