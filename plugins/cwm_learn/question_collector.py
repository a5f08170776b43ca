"""Collect the open questions of a learner from all sources, and record the answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.evaluation.missing_data import find_gaps
from cwm_cli.planning.model import key
from cwm_cli.search.contracts import Usage
from cwm_learn.actors.base import Knowledge, OpenQuestion
from cwm_learn.doubting import DOUBT_INTERVAL, MAX_OPEN
from cwm_learn.questions import Questions, Source
from cwm_learn.records import ComparisonRecord
from cwm_learn.runs import dataset_value

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_learn.doubting import DoubtingModel
    from cwm_learn.journal_replay import LearnerJournal
    from cwm_learn.writing import ProgramWriter, WrittenProgram

MAX_COMPARED_STATES, MAX_DISPUTES = 300, 20
"""Maximum number of states to compare programs in, and of differences to probe."""


@dataclass
class QuestionCollector:
    """Collects open questions, and writes them and their answers to the journal.

    The sources are the actor, gaps in the rows, rows that no rule predicts, programs that
    disagree, and a language model (`doubting_model`, None without one).
    """

    known: Knowledge
    writer: ProgramWriter
    journal: LearnerJournal
    action_space: gym.Space[Any]
    doubting_model: DoubtingModel | None
    questions: Questions = field(default_factory=Questions)
    _programs_compared: int = 0

    def update(self, asked: Iterable[OpenQuestion] | None, source: Source, steps: int) -> None:
        """Record new and answered questions, given all questions that a source asks now.

        None leaves the questions of a source that failed unchanged.
        """
        if asked is None:
            return
        for question in self.questions.update(asked, source, steps):
            self.journal.append(question)
            self.journal.report(question)

    def ask_about_rows(
        self, written: WrittenProgram, rows: Dataset, contradicted: int, steps: int
    ) -> None:
        """Ask about gaps in the rows, rows that no rule predicts, and contradictions.

        `contradicted` is the number of (observation, action) pairs with several outcomes.
        """
        gaps = [OpenQuestion(text) for text in find_gaps(rows, self.known.names)]
        self.update(gaps, "gaps", steps)
        asked = []
        if count := int(written.unexplained.sum()):
            row = rows.row(int(np.flatnonzero(written.unexplained)[-1]))
            asked.append(
                OpenQuestion(
                    f"no rule predicts {count} of {len(rows)} rows",
                    f"such as {self.known.describe(row.observation)}",
                    row.action,
                    "the same outcome again: a rule is missing; another outcome: randomness",
                    1.0,
                )
            )
        if contradicted:
            asked.append(
                OpenQuestion(
                    f"{contradicted} (observation, action) pairs had more than one outcome",
                    answers="randomness, or hidden state",
                )
            )
        self.update(asked, "rows", steps)

    def find_disputes(self, rows: Dataset, programs: int, steps: int) -> float:
        """Compare program number `programs` with rivals, once; return the seconds taken.

        Rivals replay every row. Untried actions with different predictions become `known.disputed`.
        """
        if programs == self._programs_compared:
            return 0.0
        self._programs_compared = programs
        began, program, seed = time.perf_counter(), self.known.program, self.known.seed
        comparison = self.journal.recorded(ComparisonRecord)
        if comparison is None:
            rival = self.writer.rival(rows, program)
            comparison = ComparisonRecord(programs=() if rival is None else (rival,))
            self.journal.append(comparison)
        untried = self._untried_rows(steps)
        rivals = comparison.programs
        if rivals and len(untried):
            columns, _ = self.writer.sandbox.predict(program, untried, seed=seed)
            predicted = replace(untried, columns=untried.columns | columns)
            differ = np.any([self.writer.wrong(each, predicted) for each in rivals], axis=0)
            disputes = [predicted.row(int(n)) for n in np.flatnonzero(differ)[:MAX_DISPUTES]]
            self.known.disputed[:] = [(row.observation, row.action) for row in disputes]
        return time.perf_counter() - began

    def ask_about_disputes(self, steps: int) -> None:
        """Ask about the disputed predictions."""
        disputes = [(self.known.describe(o), action) for o, action in self.known.disputed]
        words = "two programs that fit all rows predict different outcomes of action"
        answers = "which program is right"
        asked = [
            OpenQuestion(f"{words} {action} at {state}", state, action, answers, 1.0)
            for state, action in disputes
        ]
        self.update(asked, "candidates", steps)

    def may_ask_model(self, programs: int) -> bool:
        """Return whether the language model is to name questions after this many programs."""
        doubting_model = self.doubting_model
        if doubting_model is None or programs % DOUBT_INTERVAL or not doubting_model.model.left:
            return False
        return sum(each.source == "model" for each in self.questions.open) < MAX_OPEN

    def ask_model(self, written: WrittenProgram, rows: Dataset) -> tuple[list[OpenQuestion], Usage]:
        """Ask the language model what the program may predict wrongly."""
        if self.doubting_model is None:
            return [], Usage()
        verb = "allows" if self.writer.is_stochastic else "predicts"
        right = len(rows) - int(written.wrong.sum())
        accuracy = f"It {verb} {right:,} of {len(rows):,} recorded outcomes."
        # The recorded section states the gaps of the rows already.
        asked = [each.text for each in self.questions.open if each.source != "gaps"]
        return self.doubting_model.find_questions(
            written.program, accuracy, self.writer.recorded(rows), asked
        )

    def pursue(self, named: Sequence[OpenQuestion], steps: int) -> None:
        """Record questions of the language model; those with a region become targets to explore."""
        open_before = [each.question for each in self.questions.open if each.source == "model"]
        asked = [*open_before, *named]
        self.update(asked, "model", steps)
        if self.doubting_model is not None:
            targets = map(self.doubting_model.locate, asked)
            self.known.targets[:] = [target for target in targets if target is not None]

    def answer(self, row: Transition, steps: int) -> None:
        """Remove the dispute and the questions of the language model that a step answers."""
        if self.known.disputed:
            tried = key(row.observation), key(row.action)
            left = [pair for pair in self.known.disputed if tuple(map(key, pair)) != tried]
            self.known.disputed[:] = left
        targets = self.known.targets
        answered = [target for target in targets if target.is_answered(row)]
        targets[:] = [target for target in targets if not target.is_answered(row)]
        for target in answered:
            outcome = f"{self.known.describe(row.next_observation)}, reward {row.reward:g}"
            answer = f"step {steps:,} led to {outcome}" + ", the end" * row.terminated
            question = self.questions.answer(target.question, "model", answer)
            self.journal.append(question)
            self.journal.report(question)

    def _untried_rows(self, steps: int) -> Dataset:
        """Return untried actions in observed states as rows with placeholder outcomes.

        Observations at the end of an episode are left out, since no action can be tried there.
        """
        known, space = self.known, self.known.action_space
        rng = np.random.default_rng([known.seed, steps])
        tried = {(key(row.observation), key(row.action)) for row in known.rows}
        reached = [row.next_observation for row in known.rows if not row.terminated]
        chosen = rng.permutation(len(reached))[:MAX_COMPARED_STATES]
        states = {key(o): o for o in (reached[n] for n in chosen)}
        rows = []
        for state, observation in states.items():
            if space.kind == "discrete":
                actions = [int(space.low[0]) + n for n in range(space.count)]
            else:
                actions = [dataset_value(space, self.action_space.sample()) for _ in range(3)]
            rows += [
                Transition(observation, action, observation, 0.0, False)
                for action in actions
                if (state, key(action)) not in tried
            ]
        return self.journal.run.dataset_of(rows)
