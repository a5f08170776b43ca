"""Runs of learning strategies: a session that writes steps, episodes and programs to the run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cwm_cli.data.dataset import Transition
from cwm_cli.errors import CwmError
from cwm_learn.certificate import EpisodeRecord
from cwm_learn.records import ProgramRecord
from cwm_learn.runs import LearningResult, LearnRun, SavedModel
from cwm_learn.strategy import LearningSession, LearningStrategy


@dataclass
class RecordedSession(LearningSession):
    """A learning session that writes its progress to a run.

    The run stores the rows of its own environment. Of earlier environments in a curriculum it
    stores the episodes only.
    """

    run: LearnRun = field(kw_only=True)
    _mismatched: int = 0
    """Wrong predictions in the running episode."""
    _programs: int = 0
    trainer: str = ""
    """Name of the trainer of the model, "" without a trained model."""

    def stepped(self, row: Transition, *, aim: str, mismatched: bool = False) -> None:
        """Write a step to the run."""
        super().stepped(row, aim=aim, mismatched=mismatched)
        self._mismatched += mismatched
        with suppress(ValueError, KeyError, TypeError):  # rows of earlier environments do not fit
            self.run.append_steps([row._replace(episode=len(self.returns))])

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
        self.run.append(record)
        self.observer.advanced(record)

    def wrote(self, program: str, note: str = "") -> None:
        """Write a program to the run."""
        super().wrote(program, note)
        self._programs += 1
        record = ProgramRecord(
            number=self._programs,
            steps=len(self.rows),
            rows=len(self.rows),
            origin=note or self.run.config.strategy,
            lines=program.count("\n"),
        )
        self.run.save_program(record, program)
        self.run.append(record)
        self.run.write_best(program)
        self.observer.advanced(record)

    def trained(self, trainer: str, options: Mapping[str, Any], training: SavedModel) -> None:
        """Write a trained model to the run."""
        self.trainer = trainer
        self.run.save_trained(trainer, options, training)

    def run_strategy(self, strategy: LearningStrategy) -> LearningResult:
        """Learn with a strategy, and write the result to the run.

        An interrupted run restarts, with its recorded answers.

        Raises:
            CwmError: The strategy needs a language model, and the session has none.
        """
        if strategy.needs_answers and self.backend is None:
            raise CwmError("this strategy needs a language model: add --model PROVIDER/NAME")
        if self.run.is_continued:
            self.run.rewrite([])
            self.run.restart_clock()
        self.observer.note(f"{self.run.place} started", "Run")
        self.observer.begins(self)
        try:
            strategy.learn(self)
        finally:
            self.observer.ends()
        result = self._result()
        self.run.save_result(result.as_json())
        return result

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
            trained=self.trainer,
        )
