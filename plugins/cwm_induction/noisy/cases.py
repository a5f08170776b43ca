"""Regression trees for components whose law does not explain the data.

A tree adds a number by case to a law without memory, to the current value, or to nothing. It
replaces the law if its error on held-out rows is clearly smaller. Trees grow best-first: the split
that decreases the squared errors most comes first, and the extended Bayesian information criterion
ends the growth. For labels, the squared errors of indicators are used: this is the Gini impurity
(Breiman et al., Classification and Regression Trees, 1984).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cwm_induction.noisy.laws import CaseTree, Condition, LawTarget, NoisyLaw
from cwm_induction.noisy.series import Array, GivenQuantity

MAX_CASES = 24
"""Maximum number of cases, so that a reader can follow the program."""

MIN_CASE_ROWS = 5
"""Minimum number of rows of a case."""

MAX_ERROR_RATIO = 0.95
"""A tree replaces a law only if its held-out error is smaller by this factor."""


def best_with_cases(
    target: LawTarget, law: NoisyLaw, quantities: Sequence[GivenQuantity]
) -> NoisyLaw:
    """Return the law, or a regression tree whose error on held-out rows is clearly smaller."""
    before = _losses(target, law)
    if not len(before) or before.mean() <= 3.0 * target.rounding:
        return law
    bases = [NoisyLaw((), np.zeros(0), keeps=False)]
    if not target.column.is_label:
        bases.append(NoisyLaw((), np.zeros(0)))
        if law.relay is None and law.terms:
            alone = replace(law, gain=1.0, jump=np.inf)
            bases.append(target.fit(alone, fits_gain=False))
    trees = [refitted(target, _grown(target, base, quantities)) for base in bases]
    # A law that is exact in most rows stays, even if a few rows have large errors.
    most = float(np.quantile(before, 0.8)) + target.rounding
    trees = [tree for tree in trees if np.quantile(_losses(target, tree), 0.8) <= most]
    if not trees:
        return law
    best = min(trees, key=lambda tree: float(_losses(target, tree).mean()))
    after = _losses(target, best)
    gains = before - after
    is_sure = gains.mean() > 2.0 * gains.std() / np.sqrt(len(gains))
    is_better = np.sqrt(after.mean()) < MAX_ERROR_RATIO * np.sqrt(before.mean())
    return best if is_better and is_sure else law


def refitted(target: LawTarget, law: NoisyLaw) -> NoisyLaw:
    """Fit the weights of a law and the numbers of its cases again, to the fitted rows."""
    cases = law.cases
    if cases is None:
        return law
    law = target.fit(law, fits_gain=False, rounds=2)
    rows = np.flatnonzero(target.fitted.ravel())
    outcomes = _outcomes(target, replace(law, cases=None))
    return replace(law, cases=_filled(target, cases, outcomes, rows))


def _losses(target: LawTarget, law: NoisyLaw) -> Array:
    """Return the squared errors of held-out rows; a wrong label has error 1."""
    errors = target.errors(target.trace(law))[target.checked]
    return np.asarray(np.abs(errors) > 0.5, float) if target.column.is_label else errors**2


def _outcomes(target: LawTarget, base: NoisyLaw) -> Array:
    """Return what cases have to add to a law (grid rows)."""
    return np.asarray(target.errors(target.trace(base))).ravel()


def _filled(target: LawTarget, tree: CaseTree, outcomes: Array, rows: Array) -> CaseTree:
    """Return the tree with the mean outcome, or the most common label, of each case."""
    if tree.split is None:
        return CaseTree(_number(target, outcomes[rows])) if len(rows) else tree
    condition, yes, no = tree.split
    holds = condition.holds(target.compared(condition).ravel()[rows])
    yes = _filled(target, yes, outcomes, rows[holds])
    no = _filled(target, no, outcomes, rows[~holds])
    return CaseTree(split=(condition, yes, no))


def _number(target: LawTarget, outcomes: Array) -> float:
    """Return the number of a case, with as many digits as its uncertainty allows."""
    if target.column.is_label:
        codes, counts = np.unique(outcomes, return_counts=True)
        return float(codes[counts.argmax()])
    mean = float(outcomes.mean())
    error = max(float(outcomes.std()) / np.sqrt(len(outcomes)), target.rounding**0.5, 1e-12)
    return round(mean, max(0, 1 - int(np.floor(np.log10(error)))))


class CaseSplit(NamedTuple):
    """A condition that divides the rows of a case.

    Attributes:
        gain: Decrease of the squared errors.
        condition: The comparison.
        holds: Mask of the rows of the case where it holds.
    """

    gain: float
    condition: Condition
    holds: Array


@dataclass
class GrowingCase:
    """A case of a growing tree: its rows, its best split, and the two cases after the split."""

    rows: Array
    split: CaseSplit | None
    parts: "tuple[GrowingCase, GrowingCase] | None" = None

    def tree(self) -> CaseTree:
        """Return the finished tree; its numbers are filled in later."""
        if self.split is None or self.parts is None:
            return CaseTree()
        yes, no = self.parts
        return CaseTree(split=(self.split.condition, yes.tree(), no.tree()))


@dataclass(frozen=True)
class CaseInputs:
    """The quantities that splits compare (rows, quantities), and the outcomes (rows, parts)."""

    quantities: Sequence[GivenQuantity | None]
    values: Array
    outcomes: Array

    def split(self, rows: Array) -> CaseSplit | None:
        """Return the split of some rows that decreases the squared errors most."""
        count = len(rows)
        if count < 2 * MIN_CASE_ROWS:
            return None
        values = self.values[rows]
        order = np.argsort(values, axis=0, kind="stable")
        ordered = np.take_along_axis(values, order, axis=0)
        outcomes = self.outcomes[rows] - self.outcomes[rows].mean(axis=0)
        below = np.cumsum(outcomes[order], axis=0)[:-1]  # (rows - 1, quantities, parts)
        sizes = np.arange(1, count)[:, None]
        gains = (below**2).sum(axis=-1) * (1.0 / sizes + 1.0 / (count - sizes))
        edge = MIN_CASE_ROWS - 1
        gains[:edge] = gains[count - 1 - edge :] = 0.0
        gains[ordered[1:] <= ordered[:-1]] = 0.0
        place, column = divmod(int(gains.argmax()), gains.shape[1])
        if gains[place, column] <= 0:
            return None
        threshold = _between(float(ordered[place, column]), float(ordered[place + 1, column]))
        condition = Condition(self.quantities[column], True, threshold)
        return CaseSplit(float(gains[place, column]), condition, values[:, column] >= threshold)


def _between(low: float, high: float) -> float:
    """Return a short number above `low` and at most `high`."""
    middle = 0.5 * (low + high)
    for digits in range(1, 17):
        short = float(f"{middle:.{digits}g}")
        if low < short <= high:
            return short
    return high


def _grown(target: LawTarget, base: NoisyLaw, quantities: Sequence[GivenQuantity]) -> NoisyLaw:
    """Return a law with a tree of the outcomes that it leaves open."""
    rows = np.flatnonzero(target.fitted.ravel())
    inputs = [None, *quantities]
    values = [target.now if each is None else target.on_grid(each.values) for each in inputs]
    left = _outcomes(target, base)[rows]
    if target.column.is_label:
        outcomes = (left[:, None] == np.unique(left)).astype(float)
    else:
        outcomes = left[:, None]
    matrix = np.stack([np.asarray(each).ravel()[rows] for each in values], axis=1)
    known = CaseInputs(inputs, matrix, outcomes)
    places: Array = np.arange(len(rows))
    root = GrowingCase(places, known.split(places))
    cases, count = [root], len(rows)
    loss = float(((outcomes - outcomes.mean(axis=0)) ** 2).sum())
    least = count * max(target.rounding, 1e-3 / count)
    penalty = 2.0 * np.log(count) + 2.0 * np.log(1 + len(inputs))
    while len(cases) < MAX_CASES:
        case = max(cases, key=lambda each: each.split.gain if each.split else 0.0)
        if case.split is None:
            break
        lower = max(loss - case.split.gain, least)
        if count * np.log(max(loss, least) / lower) <= penalty:
            break
        holds, loss = case.split.holds, lower
        inside, outside = case.rows[holds], case.rows[~holds]
        yes, no = (GrowingCase(part, known.split(part)) for part in (inside, outside))
        case.parts = yes, no
        cases = [*(each for each in cases if each is not case), yes, no]
    return replace(base, cases=root.tree())
