"""Runs of learning strategies: a session that writes steps, episodes and programs to the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from cwm_cli.data.dataset import Transition
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.runs.observer import Observer
from cwm_learn.certificate import EpisodeRecord
from cwm_learn.records import ProgramRecord
from cwm_learn.runs import LearningResult, LearnRun, SavedModel
from cwm_learn.strategy import LearningSession, LearningStrategy, LearningTask

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox


@dataclass
class RecordedSession(LearningSession):
    """A learning session that writes its progress to a run.

    The run stores the rows of its own environment. Of earlier environments in a curriculum it
    stores the episodes only.
    """

    run: LearnRun = field(kw_only=True)
    _episode: int = 0
    _length: int = 0
    _mismatched: int = 0
    _programs: int = 0
    trainer: str = ""
    """Name of the trainer of the model, "" without a trained model."""

    @classmethod
    def of(
        cls, run: LearnRun, tasks: Sequence[LearningTask], sandbox: Sandbox, observer: Observer
    ) -> Self:
        """Open a session; an interrupted run restarts, with its recorded answers."""
        if run.is_continued:
            run.rewrite([])
            run.restart_clock()
        return cls(tasks, sandbox, seed=run.config.seed, observer=observer, run=run)

    def stepped(self, row: Transition, *, aim: str, mismatched: bool = False) -> None:
        """Write a step to the run."""
        super().stepped(row, aim=aim, mismatched=mismatched)
        self._length += 1
        self._mismatched += mismatched
        with suppress(ValueError, KeyError, TypeError):  # rows of earlier environments do not fit
            self.run.append_steps([row._replace(episode=self._episode)])

    def ended(self, returned: float, *, aim: str) -> None:
        """Write an episode to the run."""
        super().ended(returned, aim=aim)
        record = EpisodeRecord(
            number=self._episode,
            steps=len(self.rows),
            returned=returned,
            length=self._length,
            aims={aim: self._length},
            mismatched=self._mismatched,
        )
        self.run.append(record)
        self._episode, self._length, self._mismatched = self._episode + 1, 0, 0
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

        Raises:
            CwmError: The strategy needs a language model, and the session has none.
        """
        if strategy.needs_answers and self.backend is None:
            raise CwmError("this strategy needs a language model: add --model PROVIDER/NAME")
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
        config = self.run.config
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
            has_simulator=environment(config.env).has_simulator(config.env_args),
        )
