"""Regression trees for components whose law does not explain the data.

A tree adds a number by case to a law without memory, to the current value, or to nothing. It
replaces the law if its error on held-out rows is clearly smaller. Trees grow best-first: the split
that decreases the squared errors most comes first, and the extended Bayesian information criterion
ends the growth. For labels, the squared errors of indicators are used: this is the Gini impurity
(Breiman et al., Classification and Regression Trees, 1984).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cwm_induction.noisy.laws import CaseTree, Condition, LawTarget, NoisyLaw
from cwm_induction.noisy.series import Array, GivenQuantity
from cwm_induction.writing.rounding import literal

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
    return best if is_clearly_better(_losses(target, best), before) else law


def is_clearly_better(losses: Array, before: Array) -> bool:
    """Return whether squared errors are smaller than others by a significant margin."""
    gains = before - losses
    is_sure = gains.mean() > 2.0 * gains.std() / np.sqrt(len(gains))
    return bool(is_sure and np.sqrt(losses.mean()) < MAX_ERROR_RATIO * np.sqrt(before.mean()))


def refitted(target: LawTarget, law: NoisyLaw) -> NoisyLaw:
    """Fit the weights of a law and the numbers of its cases again, to the fitted rows."""
    cases = law.cases
    if cases is None:
        return law
    law = target.fit(law, fits_gain=False, rounds=2)
    rows = np.flatnonzero(target.fitted.ravel())
    outcomes = _outcomes(target, replace(law, cases=None))

    def read(condition: Condition) -> Array:
        return target.compared(condition).ravel()[rows]

    return replace(law, cases=cases.filled(read, outcomes[rows], partial(_number, target)))


def _losses(target: LawTarget, law: NoisyLaw) -> Array:
    """Return the squared errors of held-out rows; a wrong label has error 1."""
    errors = target.errors(target.trace(law))[target.checked]
    return np.asarray(np.abs(errors) > 0.5, float) if target.column.is_label else errors**2


def _outcomes(target: LawTarget, base: NoisyLaw) -> Array:
    """Return what cases have to add to a law (grid rows)."""
    return np.asarray(target.errors(target.trace(base))).ravel()


def _number(target: LawTarget, outcomes: Array) -> float:
    """Return the number of a case: the most common label, or the mean outcome."""
    if target.column.is_label:
        codes, counts = np.unique(outcomes, return_counts=True)
        return float(codes[counts.argmax()])
    return mean_of_case(outcomes, target.rounding**0.5)


def mean_of_case(outcomes: Array, rounding: float) -> float:
    """Return the mean of outcomes, with as many digits as its uncertainty allows."""
    error = max(float(outcomes.std()) / np.sqrt(len(outcomes)), rounding, 1e-12)
    return round(float(outcomes.mean()), max(0, 1 - int(np.floor(np.log10(error)))))


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
    smallest = 1e-3 / len(rows) if target.column.is_label else target.rounding
    return replace(base, cases=grow_tree(CaseInputs(inputs, matrix, outcomes), smallest))


def grow_tree(known: CaseInputs, smallest: float) -> CaseTree:
    """Return a tree of conditions; its numbers have to be filled in.

    Growth ends if the mean squared error is at most `smallest`, such as the rounding error.
    """
    outcomes, count = known.outcomes, len(known.outcomes)
    places: Array = np.arange(count)
    root = GrowingCase(places, known.split(places))
    cases = [root]
    loss = float(((outcomes - outcomes.mean(axis=0)) ** 2).sum())
    least = count * smallest + 1e-300
    penalty = 2.0 * np.log(count) + 2.0 * np.log(1 + len(known.quantities))
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
    return root.tree()


def comparison(condition: Condition, name: str) -> str:
    """Return the expression of a condition; `name` is the component itself."""
    quantity = condition.quantity
    text = name if quantity is None else quantity.text
    if quantity is not None and quantity.is_flag:
        return text if condition.is_above else f"not {text}"
    if condition.threshold in (0.0, 1e-9):
        signs = {
            (True, 1e-9): "> 0",
            (True, 0.0): ">= 0",
            (False, 0.0): "< 0",
            (False, 1e-9): "<= 0",
        }
        return f"{text} {signs[condition.is_above, condition.threshold]}"
    return f"{text} {'>=' if condition.is_above else '<'} {condition.threshold:.6g}"


def case_lines(tree: CaseTree, name: str, adds_to: str = "") -> Iterator[str]:
    """Yield statements that return the number of a case, added to a variable if one is given."""
    if tree.split is not None:
        condition, yes, no = tree.split
        yield f"if {comparison(condition, name)}:"
        yield from (f"    {line}" for line in case_lines(yes, name, adds_to))
        yield from case_lines(no, name, adds_to)
    elif adds_to:
        yield f"return {adds_to} {'-' if tree.value < 0 else '+'} {literal(abs(tree.value))}"
    else:
        yield f"return {literal(tree.value)}"
