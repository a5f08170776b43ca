"""Rewards that are a function of a sum: bumps, lengths and reciprocals."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.latents import MATCH
from cwm_induction.continuous.regression import Formula, Search, exact
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, Term
from cwm_induction.effort import Share
from cwm_induction.rewards.cases import right
from cwm_induction.rewards.fit import possible

OFFSETS = (0.0, 1.0, -1.0)
MOST_ROWS = 400


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


def linked(
    samples: Samples, libraries: Sequence[Sequence[Term]], effort: Share, search: Search
) -> Iterator[Formula]:
    """Yield functions of a sum of terms, up to a constant, that hold in rows held back."""
    usable = samples.smooth & samples.learn
    for offset in OFFSETS:
        for link in LINKS:
            values = samples.rewards - offset
            if not (link.sign * values > 0)[usable].all() and (link.sign or not values.all()):
                continue
            for terms in libraries:
                formula = _inner(samples, values, link, terms, effort, search)
                if formula is not None:
                    yield _written(formula, link, offset, len(samples))


def _inner(
    samples: Samples,
    values: Array,
    link: Link,
    terms: Sequence[Term],
    effort: Share,
    search: Search,
) -> Formula | None:
    """Return a sum of terms of which the values are a function."""
    with np.errstate(all="ignore"):
        target = link.inverse(values)
        tolerance = 0.25 * MATCH * (1 + np.abs(samples.rewards)) / np.abs(link.slope(values))
    known = np.isfinite(target) & np.isfinite(tolerance) & (tolerance > 0) & samples.smooth
    rows = np.flatnonzero(known & samples.learn)[:MOST_ROWS]
    if len(terms) > 0.5 * len(rows) or not possible(terms, target, tolerance, rows, effort):
        return None
    formula = exact(terms, target, tolerance, rows, effort, search)
    if formula is None:
        return None
    with np.errstate(all="ignore"):
        found = link.function(formula.values(len(samples)))
    check = samples.smooth & ~samples.learn
    return formula if right(found, values)[check].mean() > 0.98 else None


def _written(formula: Formula, link: Link, offset: float, rows: int) -> Formula:
    with np.errstate(all="ignore"):
        values = np.nan_to_num(link.function(formula.values(rows)))
    terms = [Term(link.text.format(formula.text()), values, 2.0 + formula.cost)]
    terms += [Term(ONE, np.ones(rows), 1.0)] if offset else []
    return Formula(tuple(terms), (1.0, offset)[: len(terms)])
