"""What a step is worth."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.regression import Formula, Search
from cwm_induction.continuous.rules import condition, holds
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, Column, Term, library
from cwm_induction.effort import Share
from cwm_induction.mechanics.kinematics import Kinematics
from cwm_induction.rewards.cases import Case, cases, combined, constant, others, right
from cwm_induction.rewards.distances import distances_in
from cwm_induction.rewards.fit import pruned
from cwm_induction.rewards.pieces import turns
from cwm_induction.rewards.search import Candidates
from cwm_induction.rewards.terms import Worth

MOST_VALUES = 6
"""Rewards of at most this many values are chosen by rules."""

EXACT = 0.98
"""Share of rows in which an explanation of the reward has to be right to be believed."""

USEFUL = 0.3
"""Share of rows in which an explanation has to be right to be worth more than an approximation."""


@dataclass(frozen=True)
class Reward:
    """A formula, and in order the cases in which it does not hold alone.

    `right` is the share of rows in which this is right.
    """

    formula: Formula
    cases: tuple[Case, ...] = ()
    right: float = 1.0

    @property
    def is_constant(self) -> bool:
        """Whether every reward seen was the same."""
        return all(term.text == ONE for term in self.formula.terms) and not self.cases

    def kinds(self, terminated: Array) -> list[Array]:
        """Return the ends that pay alike."""
        found, remaining = [], terminated
        for case in self.cases:
            rows = holds(case.tree, len(terminated)) & remaining
            found.append(rows)
            remaining = remaining & ~rows
        return [rows for rows in [*found, remaining] if rows.any()]

    @property
    def places(self) -> list[Term]:
        """Functions of what follows a step that the formula reads, and distances in it."""
        terms = [t for t in self.formula.terms if _is_place(t)]
        return [*terms, *distances_in(self.formula)]

    @property
    def texts(self) -> list[str]:
        """Everything that is written of it."""
        formulas = [self.formula, *(case.formula for case in self.cases)]
        found = [term.text for formula in formulas for term in formula.terms]
        return [*found, *(condition(case.tree) for case in self.cases)]


def reward(
    samples: Samples,
    variables: Sequence[Variable],
    inputs: Sequence[Column],
    effort: Share,
    *,
    level: int = 3,
    kinematics: Kinematics | None = None,
) -> Reward:
    """Explain the rewards; `level` 4 searches further for formulas."""
    worth = Worth(samples, variables, inputs)
    best = _with_cases(worth, [_commonest(samples)])
    if len(np.unique(np.round(samples.rewards, 9))) <= MOST_VALUES and best.right > EXACT:
        return best
    search = Search(10, 24, 16) if level > 3 else Search()
    for formulas in Candidates(worth, effort, search, kinematics, best.right > USEFUL):
        found = _with_cases(worth, formulas)
        best = max(best, found, key=lambda reward: reward.right)
        if best.right > EXACT:
            return best
    if best.right > USEFUL:
        return best
    plain = Reward(_commonest(samples))
    return min(_judged(worth, plain), _roughly(worth), key=lambda found: _error(worth, found))


def predicted(samples: Samples, found: Reward) -> Array:
    """Return the reward of every row according to an explanation."""
    return combined(found.formula, found.cases, len(samples))


def _commonest(samples: Samples) -> Formula:
    (value, _), *_ = Counter(np.round(samples.rewards, 9).tolist()).most_common(1)
    return constant(value, len(samples))


def _with_cases(worth: Worth, formulas: Sequence[Formula]) -> Reward:
    """Add what holds where the first formula does not: numbers, or else the other formulas."""
    first, samples = formulas[0], worth.samples
    found = _judged(worth, Reward(first, cases(worth, first, others(first, samples))))
    if len(formulas) == 1 or found.right > EXACT:
        return found
    more = others(first, samples, turns(worth, formulas))
    both = _judged(worth, Reward(first, cases(worth, first, more)))
    return max(found, both, key=lambda reward: reward.right)


def _roughly(worth: Worth) -> Reward:
    """Return a linear formula of few terms for what has no exact one."""
    columns = [*(v.column for v in worth.variables), *worth.then]
    formula = pruned(worth.samples, library(columns, worth.inputs, 1))
    if not formula.terms:
        formula = constant(float(np.median(worth.samples.rewards)), len(worth.samples))
    return _judged(worth, Reward(formula))


def _judged(worth: Worth, found: Reward) -> Reward:
    share = right(predicted(worth.samples, found), worth.samples.rewards).mean()
    return replace(found, right=float(share))


def _error(worth: Worth, found: Reward) -> float:
    return float(np.abs(predicted(worth.samples, found) - worth.samples.rewards).mean())


def _is_place(term: Term) -> bool:
    """Whether a term is a distance or a wave of what follows a step."""
    inner = term.text[term.text.find("(") + 1 : -1]
    shaped = re.fullmatch(r"(abs|np\.(hypot|sqrt|cos|sin))\(.*\)", term.text)
    own = {name for name in term.names if name not in ("np", "abs")}
    return bool(shaped) and not inner.isidentifier() and all(n.endswith("_next") for n in own)
