"""Learning by another loop than the usual one: what it learns with is written down as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.runs.observer import Observer
from cwm_learn.certificate import EpisodeRecord
from cwm_learn.runs import (
    LearningResult,
    LearnRun,
    ProgramRecord,
    SavedModel,
    StepsTaken,
)
from cwm_learn.strategy import LearningSession, LearningStrategy, LearningTask

if TYPE_CHECKING:
    from cwm_cli.sandbox import Sandbox


@dataclass
class RecordedSession(LearningSession):
    """What another loop learns with, written down as it comes.

    The run keeps the rows of its own environment; of those before it in a curriculum it keeps
    the episodes.
    """

    run: LearnRun = field(kw_only=True)
    _begun: Dataset = field(init=False)
    _episode: int = 0
    _length: int = 0
    _wrong: int = 0
    _programs: int = 0
    trainer: str = ""
    """By what a model was trained, "" where none was."""

    @classmethod
    def of(
        cls, run: LearnRun, tasks: Sequence[LearningTask], sandbox: Sandbox, observer: Observer
    ) -> Self:
        """Gather the tasks; an interrupted run starts again, with its recorded answers."""
        if run.is_continued:
            run.rewrite([])
            run.restart_clock()
        made = cls(tasks, sandbox, seed=run.config.seed, observer=observer, run=run)
        made._begun = run.began()
        return made

    def stepped(self, row: Transition, *, aim: str, mismatched: bool = False) -> None:
        """Write a step down."""
        super().stepped(row, aim=aim, mismatched=mismatched)
        self._length += 1
        self._wrong += mismatched
        with suppress(ValueError, KeyError, TypeError):  # a row of an environment before
            rows = Dataset.of(
                [row._replace(episode=self._episode)],
                observation_space=self._begun.observation_space,
                action_space=self._begun.action_space,
            )
            self.run.append(StepsTaken.of(rows))

    def ended(self, returned: float, *, aim: str) -> None:
        """Write an episode down."""
        super().ended(returned, aim=aim)
        record = EpisodeRecord(
            number=self._episode,
            steps=len(self.rows),
            returned=returned,
            length=self._length,
            aims={aim: self._length},
            mismatched=self._wrong,
        )
        self.run.append(record)
        self._episode, self._length, self._wrong = self._episode + 1, 0, 0
        self.observer.advanced(record)

    def wrote(self, program: str, note: str = "") -> None:
        """Write a program down."""
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
        """Keep a model that was trained."""
        self.trainer = trainer
        self.run.keep_trained(trainer, options, training)

    @property
    def result(self) -> LearningResult:
        """What came of it."""
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


def learned_by(strategy: LearningStrategy, session: RecordedSession) -> LearningResult:
    """Have a strategy learn, and write down what came of it."""
    if strategy.needs_answers and session.backend is None:
        raise CwmError("this strategy needs a language model: add --model PROVIDER/NAME")
    session.observer.note(f"{session.run.place} started", "Run")
    session.observer.begins(session)
    try:
        strategy.learn(session)
    finally:
        session.observer.ends()
    session.run.save_result(session.result.as_json())
    return session.result
