"""Formulas for the reward: that hold in every row, in most, through a function, or in turns."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import (
    Formula,
    SearchLimits,
    approximate,
    exact,
    orthonormal,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, Term, distinct
from cwm_induction.continuous.variables import MATCH
from cwm_induction.effort import Share
from cwm_induction.rewards.terms import RewardContext

MOST_ROWS = 600
"""Rows that a formula is fitted to; those held back check it."""

MOST_LINK_ROWS = 400
"""The same for functions of a sum, of which many are tried."""

HELD = 0.98
"""Share of the rows held back in which a formula has to be right."""

SLACK = 1.1
"""How much larger the error of an approximation may be with fewer terms."""

OFFSETS = (0.0, 1.0, -1.0)
"""Constants beside a function: a bump often stands one above or below zero."""


class Link(NamedTuple):
    """A function as it is written, its inverse, itself, and its slope given its value.

    It only gives values of the `sign`, or of both where that is 0.
    """

    text: str
    inverse: Callable[[Array], Array]
    function: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    sign: int


LINKS = (
    Link("np.exp({})", np.log, np.exp, lambda r: r, 1),
    Link("-np.exp({})", lambda r: np.log(-r), lambda g: -np.exp(g), lambda r: r, -1),
    Link("np.sqrt({})", np.square, np.sqrt, lambda r: 0.5 / r, 1),
    Link("-np.sqrt({})", np.square, lambda g: -np.sqrt(g), lambda r: 0.5 / r, -1),
    Link("1 / ({})", lambda r: 1 / r, lambda g: 1 / g, np.square, 0),
)
"""Bumps, lengths and reciprocals."""


def formula_in(
    context: RewardContext,
    terms: Sequence[Term],
    effort: Share,
    search: SearchLimits,
    known: Array | bool = True,
) -> Formula | None:
    """Return a formula for the known rewards along the way that also holds in rows held back."""
    samples, rewards = context.samples, context.samples.rewards
    usable = samples.smooth & known
    few = int((usable & samples.learn).sum()) < 3 * len(terms) and known is not True
    rows = np.flatnonzero(usable if few else usable & samples.learn)[:MOST_ROWS]
    check = usable & ~samples.learn
    size = np.abs(rewards)
    rounding = 8 * samples.grain * (size + size.mean()) + 1e-12
    enough = len(terms) <= 0.5 * len(rows)  # of fewer rows all terms explain nearly anything
    if enough and not _possible(terms, rewards, context.tolerance, rows, effort):
        return None
    for tolerance in (rounding, context.tolerance):
        formula = exact(terms, rewards, tolerance, rows, effort, search)
        if formula is None:
            continue
        held = _right(formula.values(len(samples)), rewards)[check]
        if not held.size or held.mean() > HELD:
            return formula
    return None


def linked(
    context: RewardContext,
    libraries: Sequence[Sequence[Term]],
    effort: Share,
    search: SearchLimits,
) -> Iterator[Formula]:
    """Yield functions of a sum of terms, up to a constant, that hold in rows held back."""
    samples = context.samples
    usable = samples.smooth & samples.learn
    for offset in OFFSETS:
        for link in LINKS:
            values = samples.rewards - offset
            if not (link.sign * values > 0)[usable].all() and (link.sign or not values.all()):
                continue
            for terms in libraries:
                inner = _inner(context, values, link, terms, effort, search)
                if inner is None:
                    continue
                with np.errstate(all="ignore"):
                    outer = np.nan_to_num(link.function(inner.values(len(samples))))
                found = [Term(link.text.format(inner.text()), outer, 2.0 + inner.cost)]
                found += [Term(ONE, np.ones(len(samples)), 1.0)] if offset else []
                yield Formula(tuple(found), (1.0, offset)[: len(found)])


def approximation(samples: Samples, terms: Sequence[Term]) -> Formula:
    """Return an approximation by the fewest terms that lose little against all of them."""
    check = samples.smooth & ~samples.learn
    learn = samples.smooth & samples.learn
    whole = approximate(terms, samples.rewards, learn, check)
    sizes = [abs(w) * t.values.std() for t, w in zip(whole.terms, whole.weights, strict=True)]
    ones = Term(ONE, np.ones(len(samples)), 1.0)
    order = np.argsort(-np.array(sizes), kind="stable").tolist()
    limit = SLACK * _miss(samples, whole, check)
    for count in range(1, len(order)):
        chosen = [ones, *(whole.terms[index] for index in order[:count])]
        fewer = approximate(distinct(chosen), samples.rewards, learn, check)
        if fewer.terms and _miss(samples, fewer, check) <= limit:
            return fewer
    return whole


def _possible(
    terms: Sequence[Term],
    target: Array,
    tolerance: Array,
    rows: Array,
    effort: Share,
    most: float = 1.0,
) -> bool:
    """Whether all terms together explain the rows, of which they may be a share of `most`."""
    few = len(terms) <= most * len(rows)
    if not few or not effort.spend(4.0 * len(rows) * len(terms) ** 2):
        return False
    basis = _basis(terms, rows)
    rest = target[rows] - basis @ (basis.T @ target[rows])
    return bool((np.abs(rest) <= 2 * tolerance[rows]).all())


def _inner(
    context: RewardContext,
    values: Array,
    link: Link,
    terms: Sequence[Term],
    effort: Share,
    search: SearchLimits,
) -> Formula | None:
    """Return a sum of terms of which the values are a function."""
    samples = context.samples
    with np.errstate(all="ignore"):
        target = link.inverse(values)
        tolerance = context.tolerance / np.abs(link.slope(values))
    known = np.isfinite(target) & np.isfinite(tolerance) & (tolerance > 0) & samples.smooth
    rows = np.flatnonzero(known & samples.learn)[:MOST_LINK_ROWS]
    if len(terms) > 0.5 * len(rows) or not _possible(terms, target, tolerance, rows, effort):
        return None
    formula = exact(terms, target, tolerance, rows, effort, search)
    if formula is None:
        return None
    with np.errstate(all="ignore"):
        found = link.function(formula.values(len(samples)))
    check = samples.smooth & ~samples.learn
    return formula if _right(found, values)[check].mean() > HELD else None


def _basis(terms: Sequence[Term], rows: Array) -> Array:
    return orthonormal(np.stack([term.values[rows] for term in terms], 1), least=1e-9)


def _right(values: Array, rewards: Array) -> Array:
    mask: Array = np.abs(values - rewards) <= MATCH * (1 + np.abs(rewards))
    return mask


def _miss(samples: Samples, formula: Formula, rows: Array) -> float:
    return float(np.abs(formula.values(len(samples)) - samples.rewards)[rows].mean())
