"""Choose between programs: run every candidate in the sandbox and compare the scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import Score
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import FIX, IMPROVE, Request
from cwm_cli.worlds.model import Predictions
from cwm_cli.worlds.program import ProgramModel
from cwm_induction.attempts import (
    Attempt,
    BodyAttempt,
    InductionTask,
    ProgramProposal,
    attempts,
    fixes,
    forgetful,
    held_back,
    improvements,
    is_restart,
    proposals,
)
from cwm_induction.effort import Effort
from cwm_induction.structure import KnownStructure

HELD_OUT_BONUS = 0.02
"""Bonus on the held-out score of a program if its judged version was fitted without those rows."""

ENOUGH_EXACT = 0.9
"""Share of exact rows at which the search stops if programs are written during learning."""

NEARLY_EXACT = 0.95
"""Share of exact rows above which equations are not searched for again with other held-out rows."""

WARM_UP_STEPS = 2
"""Unscored steps at the beginning of an episode for programs with memory: a velocity is visible
from the second observation on, and its effect from the third."""

AT_ONCE = 2
"""Number of simultaneous attempts after the first program is found."""


class JudgedProgram(NamedTuple):
    """A program that ran, and its scores on the held-out rows and on all training rows.

    `above` is the score on all training rows, rescaled so that a constant prediction has 0. `exact`
    is the share of training rows that are correct in every part, `reward` the share with a correct
    reward. `contract` and `is_complete` are those values of the proposal.
    """

    program: str
    held_back: float
    fit: float
    above: float
    exact: float
    reward: float
    contract: str = ""
    is_complete: bool = False
    checked: float | None = None
    """Held-out score of the program that was fitted without the held-out rows."""

    @property
    def rank(self) -> float:
        """Sum of both scores: rare rewards may all be in the held-out rows, or none may be."""
        return self.held_back + self.fit

    @property
    def is_right(self) -> bool:
        """Whether the program predicts all training rows, including the held-out rows."""
        return self.fit >= 1.0 and self.held_back >= 1.0


@dataclass(frozen=True)
class Portfolio:
    """Attempts in order, until a program explains everything; the best program is returned."""

    problem: WorldModelProblem
    fit: Dataset
    request: Request
    effort: Effort
    known: KnownStructure | None = None
    """Structure found in fewer rows, if an agent learns while recording. Such an agent looks up
    transitions without a rule itself, and accepts a program that is right in most rows."""

    def best(self) -> JudgedProgram | None:
        """Return the best running program; None if none runs.

        It may be the program of the request: then the search finds no further improvement.
        """
        best: JudgedProgram | None = None
        waiting = list(self._attempts())
        while waiting and not (best is not None and self._is_enough(best)):
            if best is not None and not self.effort.spend(0):
                break
            size = AT_ONCE if best is not None else 1
            for proposal in proposals(waiting[:size], self.task):
                waiting += proposal.more
                candidate = self._judged(proposal)
                if candidate is not None and (best is None or candidate.rank > best.rank):
                    best = candidate
            del waiting[:size]
            if best is not None and best.exact >= NEARLY_EXACT:
                waiting = [attempt for attempt in waiting if not is_restart(attempt)]
        return best

    def _is_enough(self, best: JudgedProgram) -> bool:
        suffices_for_learning = self.known is not None and best.exact >= ENOUGH_EXACT
        return best.is_right or best.is_complete or suffices_for_learning

    @cached_property
    def task(self) -> InductionTask:
        """The task of every attempt."""
        mask = held_back(self.fit, self.request.seed)
        return InductionTask(
            self.fit,
            mask,
            self.request.seed,
            self.effort,
            self.known,
            self.problem.body,
        )

    def _attempts(self) -> Iterator[Attempt]:
        """Yield the attempts, the likeliest first."""
        move = self.request.move
        if self.problem.body is not None:
            yield BodyAttempt(self.problem.contract)
            return
        predictions = self._predictions(move.program) if move.action == IMPROVE else None
        if predictions is not None and self.problem.contract == "plain":
            yield from improvements(self.fit, move.program, predictions.likeliest())
        if move.action == FIX:
            yield from fixes(self.fit)
        yield from attempts(self.fit, self.problem.contract)

    def _judged(self, proposal: ProgramProposal) -> JudgedProgram | None:
        """Run a program on the training rows and score it; return None if it fails."""
        if self.known is not None:
            proposal = proposal._replace(program=forgetful(proposal.program, self.fit))
        failing = self.request.move.program if self.request.move.action == FIX else ""
        if proposal.program in ("", failing):
            return None
        predictions = self._predictions(proposal.program)
        if predictions is None:
            return None
        whole, counted = self.problem.metric.score(predictions, self.fit), self._scored_rows
        right = self._right(
            whole
            if counted.all()
            else self.problem.metric.score(predictions[counted], self.fit[counted])
        )
        above = 1.0 if whole.normalised is None else whole.normalised
        reward = 1.0 if whole.reward is None else whole.reward
        judged = self._predictions(proposal.judged) if proposal.judged else predictions
        mask, given = self.task.held_back & counted, (proposal.contract, proposal.is_complete)
        if judged is None or not mask.any():
            return JudgedProgram(proposal.program, 0.0, right, above, whole.exact, reward, *given)
        checked = self._right(self.problem.metric.score(judged[mask], self.fit[mask]))
        bonus = HELD_OUT_BONUS if proposal.judged else 0.0
        held_back = min(1.0, checked + bonus)
        return JudgedProgram(
            proposal.program, held_back, right, above, whole.exact, reward, *given, checked
        )

    @cached_property
    def _scored_rows(self) -> np.ndarray:
        """Mask of the rows for scores: with memory, without the first steps of an episode."""
        count = len(self.fit)
        if self.problem.contract != "memory":
            return np.ones(count, bool)
        episodes = self.fit.columns["episodes"]
        scored = np.zeros(count, bool)
        scored[WARM_UP_STEPS:] = episodes[WARM_UP_STEPS:] == episodes[:-WARM_UP_STEPS]
        return scored if scored.any() else ~scored

    def _right(self, score: Score) -> float:
        """Return the accuracy, or the skill or the share explained if the metric has one.

        A negative skill is worse than the baseline. A share explained up to noise counts as 1.
        """
        if score.explained is not None:
            return 1.0 if score.reached else score.explained
        return score.accuracy if score.skill is None else min(1.0, score.skill)

    def _predictions(self, program: str) -> Predictions | None:
        """Run a program on the training rows; return None if it fails."""
        model, draws = ProgramModel(program, self.problem.sandbox), self.problem.metric.draws
        predictions = model.predict(self.fit, seed=self.problem.seed, draws=draws)
        return predictions if predictions.failure is None else None
