"""Choosing between programs: every candidate runs in the sandbox before it is believed."""

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
    culprit,
    fixes,
    forgetful,
    improvements,
    proposals,
)
from cwm_induction.effort import Effort
from cwm_induction.structure import KnownStructure

CHECK_SHARE = 0.2
"""Share of the fit part, in whole trajectories, that is held back to choose between programs."""

MOST_OVER = 1.5
"""How much of that share may be held back at most, so that a long trajectory stays in."""

FEWEST_EPISODES = 4
"""Trajectories below which single rows are held back instead."""

KNOWN_MORE = 0.02
"""What a program may gain from the rows held back that the one which is judged never saw."""

MOST = 0.9
"""Share of exact rows with which an agent that is learning is content."""

BEGINS = 2
"""Steps of an episode that a program with memory may have to guess: a velocity shows in the second
observation, and what a step makes of it in the third."""

AT_ONCE = 2
"""Attempts made at the same time once there is a program to compare them with."""


class JudgedProgram(NamedTuple):
    """A program that ran, and its scores on the rows held back and on the whole fit part.

    `above` is the second as a share of what lies above that of a constant prediction,
    `exact` the share of rows of the fit part that are right in every part, `reward` the share
    whose reward is right. `contract` and `is_complete` come from its proposal.
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
    """Score on the rows held back of the program that never saw them."""

    @property
    def rank(self) -> float:
        """What a program is chosen by: rare rewards may all be in the rows held back, or none."""
        return self.held_back + self.fit

    @property
    def is_worthless(self) -> bool:
        """Whether a constant prediction has a higher score on the rows held back."""
        return self.held_back < 0 or self.rank <= 0

    @property
    def is_right(self) -> bool:
        """Whether every row that may be looked at is predicted, also those that were held back."""
        return self.fit >= 1.0 and self.held_back >= 1.0


@dataclass(frozen=True)
class Portfolio:
    """Tries hypotheses in turn until one explains everything, and returns the best program."""

    problem: WorldModelProblem
    fit: Dataset
    request: Request
    effort: Effort
    known: KnownStructure | None = None
    """What was found in fewer rows by an agent that is learning: one that looks up itself what
    rules do not explain, and does not wait for the best of all programs."""

    def best(self) -> JudgedProgram | None:
        """Return the best program that runs, other than the one that the move starts from."""
        best: JudgedProgram | None = None
        waiting = list(self._attempts())
        while waiting and not (best is not None and self._is_enough(best)):
            if best is not None and not self.effort.spend(0):
                break
            size = AT_ONCE if best is not None else 1
            for proposal in proposals(waiting[:size], self.task):
                waiting += proposal.more
                found = self._judged(proposal)
                if found is not None and (best is None or found.rank > best.rank):
                    best = found
            del waiting[:size]
        if best is not None and self.problem.contract == "memory" and best.is_worthless:
            return None
        return best

    def _is_enough(self, best: JudgedProgram) -> bool:
        content = self.known is not None and best.exact >= MOST
        return best.is_right or best.is_complete or content

    @cached_property
    def task(self) -> InductionTask:
        """What every attempt is given."""
        mask = held_back(self.fit, self.request.seed)
        return InductionTask(
            self.fit,
            mask,
            self.request.seed,
            self.request.step,
            self.effort,
            self.known,
            self.problem.body,
        )

    def _attempts(self) -> Iterator[Attempt]:
        """Yield what to try, the likeliest first."""
        move = self.request.move
        if self.problem.body is not None:
            yield BodyAttempt(self.problem.contract)
            return
        predictions = self._predictions(move.program) if move.action == IMPROVE else None
        if predictions is not None and self.problem.contract == "plain":
            yield from improvements(self.task, move.program, predictions.likeliest())
        if move.action == FIX:
            yield from fixes(self.fit, culprit(move))
        yield from attempts(self.fit, self.problem.contract)

    def _judged(self, proposal: ProgramProposal) -> JudgedProgram | None:
        """Run a program on the fit part and score it, or return None if it fails."""
        if self.known is not None:
            proposal = proposal._replace(program=forgetful(proposal.program, self.fit))
        if proposal.program in ("", self.request.move.program):
            return None
        predictions = self._predictions(proposal.program)
        if predictions is None:
            return None
        whole, told = self.problem.metric.score(predictions, self.fit), self._told
        right = self._right(
            whole if told.all() else self.problem.metric.score(predictions[told], self.fit[told])
        )
        above = 1.0 if whole.normalised is None else whole.normalised
        judged = self._predictions(proposal.judged) if proposal.judged else predictions
        mask, given = self.task.held_back & told, (proposal.contract, proposal.is_complete)
        if judged is None or not mask.any():
            return JudgedProgram(
                proposal.program, 0.0, right, above, whole.exact, whole.reward, *given
            )
        checked = self._right(self.problem.metric.score(judged[mask], self.fit[mask]))
        bonus = KNOWN_MORE if proposal.judged else 0.0
        held_back = min(1.0, checked + bonus)
        return JudgedProgram(
            proposal.program, held_back, right, above, whole.exact, whole.reward, *given, checked
        )

    @cached_property
    def _told(self) -> np.ndarray:
        """Mask of the rows that programs are chosen by: with memory not those that it begins in."""
        count = len(self.fit)
        if self.problem.contract != "memory":
            return np.ones(count, bool)
        episodes = self.fit.columns["episodes"]
        told = np.zeros(count, bool)
        told[BEGINS:] = episodes[BEGINS:] == episodes[:-BEGINS]
        return told if told.any() else ~told

    def _right(self, score: Score) -> float:
        """Return what programs are compared by: what is right, or the skill if that is asked for.

        It is below 0 for one that is worse than what is usual.
        """
        return score.accuracy if score.skill is None else min(1.0, score.skill)

    def _predictions(self, program: str) -> Predictions | None:
        """Run a program on the fit part; None when it fails."""
        model, draws = ProgramModel(program, self.problem.sandbox), self.problem.metric.draws
        predictions = model.predict(self.fit, seed=self.problem.seed, draws=draws)
        return predictions if predictions.failure is None else None


def held_back(fit: Dataset, seed: int) -> np.ndarray:
    """Return the mask of the rows that equations are not fitted to: whole trajectories.

    One that is most of the data is not among them.
    """
    rng = np.random.default_rng([seed, len(fit)])
    episodes, sizes = np.unique(fit.columns["episodes"], return_counts=True)
    if len(episodes) < FEWEST_EPISODES:
        chosen = rng.permutation(len(fit))[: int(CHECK_SHARE * len(fit))]
        return np.isin(np.arange(len(fit)), chosen)
    held: list[int] = []
    count = 0
    for episode in rng.permutation(len(episodes)).tolist():
        fits = count + sizes[episode] <= MOST_OVER * CHECK_SHARE * len(fit)
        if count < CHECK_SHARE * len(fit) and fits:
            held.append(episodes[episode])
            count += int(sizes[episode])
    return np.isin(fit.columns["episodes"], held or episodes[sizes == sizes.min()][:1])
