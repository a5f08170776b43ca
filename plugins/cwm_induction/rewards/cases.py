"""Where a reward differs from its formula: other values or formulas, and what is added."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.rules import (
    Feature,
    Tree,
    as_features,
    complexity,
    holds,
    in_rows,
    separated,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, Term
from cwm_induction.continuous.variables import MATCH
from cwm_induction.rewards.terms import RewardContext
from cwm_induction.writing.rounding import literal, rounded

MOST_CASES = 8
"""Values and formulas besides the first one after which the rest stays unexplained."""


class RewardCase(NamedTuple):
    """When another formula holds, instead of the first one or on top of it."""

    tree: Tree
    formula: Formula
    added: bool = False


class Other(NamedTuple):
    """What holds in some rows that the first formula gets wrong."""

    formula: Formula
    added: bool
    rows: Array


def constant(value: float, rows: int) -> Formula:
    """Return a formula that is one number."""
    return Formula((Term(ONE, np.ones(rows), 1.0),), (float(literal(value)),))


def right(values: Array, rewards: Array) -> Array:
    """Mask of the rows in which these values count as right."""
    mask: Array = np.abs(values - rewards) <= MATCH * (1 + np.abs(rewards))
    return mask


def others(formula: Formula, samples: Samples, known: Sequence[Other] = ()) -> list[Other]:
    """Return numbers that are paid, or added, in rows as yet unexplained, the commonest first.

    What is paid in a single row is a case only where an episode ends.
    """
    rewards = samples.rewards
    first = formula.values(len(rewards))
    remaining = ~np.any([right(first, rewards), *(other.rows for other in known)], axis=0)
    found = list(known)
    plain = all(term.text == ONE for term in formula.terms)
    whole, beside = _Amounts.of(rewards), _Amounts.of(rewards - first)
    while remaining.any() and len(found) < MOST_CASES:
        value, rows = paid = _commonest(whole, rewards, remaining)
        added = False
        if not plain:
            extra = _commonest(beside, rewards, remaining)
            added = _commonness(extra, beside.values) > _commonness(paid, rewards)
            value, rows = extra if added else paid
        remaining = remaining & ~rows
        if rows.sum() > 1 or (rows & samples.terminated).any():
            found.append(Other(constant(value, len(rewards)), added, rows))
    return found


def in_turn(context: RewardContext, formulas: Sequence[Formula]) -> list[Other]:
    """Return the formulas after the first, with the rows that only they explain."""
    rewards = context.samples.rewards
    explained = right(formulas[0].values(len(rewards)), rewards)
    found = []
    for formula in formulas[1:]:
        own = right(formula.values(len(rewards)), rewards) & ~explained
        if own.any():
            found.append(Other(formula, False, own))
        explained = explained | own
    return found


def cases(
    context: RewardContext, formula: Formula, found: Sequence[Other]
) -> tuple[RewardCase, ...]:
    """Learn when each of the others holds, leaving out those that cannot be told apart."""
    rewards = context.samples.rewards
    count = len(rewards)
    first = formula.values(count)
    known = right(first, rewards) | np.any([other.rows for other in found], axis=0)
    features = _features(context, [formula, *(other.formula for other in found)])
    result = []
    for other in found:
        values = other.formula.values(count) + (first if other.added else 0)
        decided = np.flatnonzero(known & (other.rows | ~right(values, rewards)))
        tree = in_rows(separated, features, other.rows, decided, 3)
        wrong = int((holds(tree, count) != other.rows)[decided].sum())
        rows = int(other.rows[decided].sum())
        # A rule of more comparisons than rows only separates these rows.
        is_supported = complexity(tree)[0] <= rows + 1
        if not isinstance(tree, bool) and is_supported and wrong <= 0.3 * rows:
            result.append(RewardCase(tree, other.formula, other.added))
    return tuple(result)


class _Amounts(NamedTuple):
    """What is paid in every row, the same rounded, and a number for each rounded amount."""

    values: Array
    short: Array
    kinds: Array

    @classmethod
    def of(cls, values: Array) -> "_Amounts":
        """Round amounts and number them."""
        short = np.round(values, 6)
        return cls(values, short, np.unique(short, return_inverse=True)[1])


def _commonest(amounts: _Amounts, rewards: Array, rows: Array) -> tuple[float, Array]:
    """Return the shortest form of the value that most rows share, and those rows."""
    values, indices = amounts.values, np.flatnonzero(rows)
    kinds = amounts.kinds[indices]
    value = amounts.short[indices[np.argmax(np.bincount(kinds)[kinds])]]
    near = rows & (np.abs(values - value) <= MATCH * (1 + np.abs(rewards)))
    value = float(np.median(values[near]))
    shared, tolerance = values[near], MATCH * (1 + np.abs(rewards[near]))
    for digits in range(1, 10):
        short = rounded(value, digits)
        if (np.abs(shared - short) <= tolerance).all():
            return short, near
    return value, near


def _commonness(found: tuple[float, Array], values: Array) -> tuple[int, int, float]:
    """Return how many rows share a value, how short it is, and how well it fits."""
    value, rows = found
    return int(rows.sum()), -len(literal(value)), -float(np.abs(values - value)[rows].max())


def _differences(formulas: Sequence[Formula]) -> Iterator[Term]:
    """Yield differences of two formulas, which say which one is larger."""
    for index, first in enumerate(formulas):
        for second in formulas[:index]:
            weights = (*first.weights, *(-weight for weight in second.weights))
            both = Formula((*first.terms, *second.terms), weights)
            text = both.text()
            if both.terms and text.count(" ") <= 16:
                yield Term(text, both.values(len(both.terms[0].values)), 2.0)


def _features(context: RewardContext, formulas: Sequence[Formula]) -> list[Feature]:
    """Return what rules about the reward may compare."""
    terminated = context.samples.terminated.astype(float)
    moving = [v for v in context.variables if not v.still]
    changes = [
        Feature(f"{v.next} - {v.name}", v.then - v.now, 2.0) for v in moving if not v.is_angle
    ]
    terms = {t.text: Feature(t.text, t.values, 1.4) for f in formulas for t in f.terms}
    larger = [Feature(t.text, t.values, t.cost) for t in _differences(formulas)]
    sizes = [
        Feature(f"abs({v.next})", np.abs(v.then), 1.3)
        for v in moving
        if v.then.min() < 0 < v.then.max()
    ]
    return [
        Feature("terminated", terminated, 0.5),
        *as_features([v.next_column for v in moving], 1.0),
        *as_features([v.column for v in moving], 1.2),
        *as_features(context.inputs),
        *sizes,
        *changes,
        *[f for f in [*terms.values(), *larger] if f.text != ONE and np.ptp(f.values) > 0],
    ]
