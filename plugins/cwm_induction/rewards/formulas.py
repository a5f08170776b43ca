"""Formulas for the reward: sums of terms, functions of such sums, and approximations."""

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
"""Number of rows for fitting a formula; held-out rows check it."""

MOST_LINK_ROWS = 400
"""Number of rows for fitting a function of a sum; fewer, because many functions are tried."""

MIN_HELD_OUT_RIGHT = 0.98
"""A formula is accepted if it predicts more than this share of the held-out rows."""

MAX_ERROR_GROWTH = 1.1
"""Maximum ratio of an approximation's mean error after and before dropping terms."""

OFFSETS = (0.0, 1.0, -1.0)
"""Constants added to a function: the base of a bump is often 1 or -1 instead of 0."""


class Link(NamedTuple):
    """An invertible function: its source text, inverse, function, and slope at a given value.

    All values of the function have the `sign`; 0 means that both signs occur.
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
"""Functions for bumps, lengths and reciprocals."""


def formula_in(
    context: RewardContext,
    terms: Sequence[Term],
    effort: Share,
    search: SearchLimits,
    known: Array | bool = True,
) -> Formula | None:
    """Return a formula for the known rewards of non-terminal rows, checked on held-out rows.

    Return None if no formula holds.
    """
    samples, rewards = context.samples, context.samples.rewards
    usable = samples.smooth & known
    few = int((usable & samples.learn).sum()) < 3 * len(terms) and known is not True
    rows = np.flatnonzero(usable if few else usable & samples.learn)[:MOST_ROWS]
    check = usable & ~samples.learn
    size = np.abs(rewards)
    rounding = 8 * samples.grain * (size + size.mean()) + 1e-12
    enough = len(terms) <= 0.5 * len(rows)  # with fewer rows, all terms together fit any target
    if enough and not _can_explain(terms, rewards, context.tolerance, rows, effort):
        return None
    for tolerance in (rounding, context.tolerance):
        formula = exact(terms, rewards, tolerance, rows, effort, search)
        if formula is None:
            continue
        held = _is_right(formula.values(len(samples)), rewards)[check]
        if not held.size or held.mean() > MIN_HELD_OUT_RIGHT:
            return formula
    return None


def linked(
    context: RewardContext,
    libraries: Sequence[Sequence[Term]],
    effort: Share,
    search: SearchLimits,
) -> Iterator[Formula]:
    """Yield functions of a sum of terms, plus a constant, that hold in held-out rows."""
    samples = context.samples
    usable = samples.smooth & samples.learn
    for offset in OFFSETS:
        for link in LINKS:
            values = samples.rewards - offset
            if not (link.sign * values > 0)[usable].all() and (link.sign or not values.all()):
                continue
            for terms in libraries:
                inner = _inner_sum(context, values, link, terms, effort, search)
                if inner is None:
                    continue
                with np.errstate(all="ignore"):
                    outer = np.nan_to_num(link.function(inner.values(len(samples))))
                parts = [Term(link.text.format(inner.text()), outer, 2.0 + inner.cost)]
                parts += [Term(ONE, np.ones(len(samples)), 1.0)] if offset else []
                yield Formula(tuple(parts), (1.0, offset)[: len(parts)])


def approximation(samples: Samples, terms: Sequence[Term]) -> Formula:
    """Return an approximation with as few terms as the tolerated error growth allows."""
    check = samples.smooth & ~samples.learn
    learn = samples.smooth & samples.learn
    whole = approximate(terms, samples.rewards, learn, check)
    sizes = [abs(w) * t.values.std() for t, w in zip(whole.terms, whole.weights, strict=True)]
    ones = Term(ONE, np.ones(len(samples)), 1.0)
    order = np.argsort(-np.array(sizes), kind="stable").tolist()
    limit = MAX_ERROR_GROWTH * _mean_error(samples, whole, check)
    for count in range(1, len(order)):
        chosen = [ones, *(whole.terms[index] for index in order[:count])]
        fewer = approximate(distinct(chosen), samples.rewards, learn, check)
        if fewer.terms and _mean_error(samples, fewer, check) <= limit:
            return fewer
    return whole


def _can_explain(
    terms: Sequence[Term],
    target: Array,
    tolerance: Array,
    rows: Array,
    effort: Share,
) -> bool:
    """Return whether all terms together explain the rows.

    Return False if there are more terms than rows, or if the budget is exhausted.
    """
    has_enough_rows = len(terms) <= len(rows)
    if not has_enough_rows or not effort.spend(4.0 * len(rows) * len(terms) ** 2):
        return False
    basis = _basis(terms, rows)
    rest = target[rows] - basis @ (basis.T @ target[rows])
    return bool((np.abs(rest) <= 2 * tolerance[rows]).all())


def _inner_sum(
    context: RewardContext,
    values: Array,
    link: Link,
    terms: Sequence[Term],
    effort: Share,
    search: SearchLimits,
) -> Formula | None:
    """Return a sum of terms whose image under the link function gives the values."""
    samples = context.samples
    with np.errstate(all="ignore"):
        target = link.inverse(values)
        tolerance = context.tolerance / np.abs(link.slope(values))
    known = np.isfinite(target) & np.isfinite(tolerance) & (tolerance > 0) & samples.smooth
    rows = np.flatnonzero(known & samples.learn)[:MOST_LINK_ROWS]
    if len(terms) > 0.5 * len(rows) or not _can_explain(terms, target, tolerance, rows, effort):
        return None
    formula = exact(terms, target, tolerance, rows, effort, search)
    if formula is None:
        return None
    with np.errstate(all="ignore"):
        predicted = link.function(formula.values(len(samples)))
    check = samples.smooth & ~samples.learn
    return formula if _is_right(predicted, values)[check].mean() > MIN_HELD_OUT_RIGHT else None


def _basis(terms: Sequence[Term], rows: Array) -> Array:
    return orthonormal(np.stack([term.values[rows] for term in terms], 1), least=1e-9)


def _is_right(values: Array, rewards: Array) -> Array:
    mask: Array = np.abs(values - rewards) <= MATCH * (1 + np.abs(rewards))
    return mask


def _mean_error(samples: Samples, formula: Formula, rows: Array) -> float:
    return float(np.abs(formula.values(len(samples)) - samples.rewards)[rows].mean())
