"""Rewards for which several formulas take turns."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regimes import Places, Regimes, regimes
from cwm_induction.continuous.regression import (
    Formula,
    SearchLimits,
    Target,
    approximate,
    exact,
    orthonormal,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, Term, distinct
from cwm_induction.continuous.variables import MATCH
from cwm_induction.effort import Share
from cwm_induction.rewards.cases import Other, right
from cwm_induction.rewards.terms import RewardContext

MOST_ROWS = 600
STEPS = 40
SLACK = 1.1
"""How much larger the error of an approximation may be with fewer terms."""
MAJORITY = 0.55
"""Share of the rows that a formula has to explain where others may differ."""


def formula_in(
    samples: Samples,
    terms: Sequence[Term],
    effort: Share,
    search: SearchLimits,
    known: Array | bool = True,
) -> Formula | None:
    """Return a formula for the known rewards along the way that also holds in rows held back."""
    rewards = samples.rewards
    usable = samples.smooth & known
    few = int((usable & samples.learn).sum()) < 3 * len(terms) and known is not True
    rows = np.flatnonzero(usable if few else usable & samples.learn)[:MOST_ROWS]
    check = usable & ~samples.learn
    size = np.abs(rewards)
    rounding = 8 * samples.grain * (size + size.mean()) + 1e-12
    loose = 0.25 * MATCH * (1 + size)
    enough = len(terms) <= 0.5 * len(rows)
    if enough and not possible(terms, rewards, loose, rows, effort):
        return None
    for tolerance in (rounding, loose):
        formula = exact(terms, rewards, tolerance, rows, effort, search)
        if formula is None:
            continue
        held = right(formula.values(len(samples)), rewards)[check]
        if not held.size or held.mean() > 0.98:
            return formula
    return None


def possible(
    terms: Sequence[Term],
    target: Array,
    tolerance: Array,
    rows: Array,
    effort: Share,
    most: float = 1.0,
) -> bool:
    """Whether all terms together explain the rows, of which they may be a share of `most`."""
    if len(terms) > most * len(rows):
        return False
    if not effort.spend(4.0 * len(rows) * len(terms) ** 2):
        return False
    basis = _basis(terms, rows)
    rest = target[rows] - basis @ (basis.T @ target[rows])
    return bool((np.abs(rest) <= 2 * tolerance[rows]).all())


def most_of(
    samples: Samples, terms: Sequence[Term], effort: Share, search: SearchLimits
) -> Formula | None:
    """Return a formula that holds in most rows, found by least absolute deviations.

    These are fitted by reweighted least squares, which ignore what a minority of rows says.
    """
    rewards = samples.rewards
    rows = np.flatnonzero(samples.smooth & samples.learn)[:MOST_ROWS]
    if len(terms) > 0.3 * len(rows):
        return None
    if not effort.spend(2.0 * STEPS * len(rows) * len(terms) ** 2):
        return None
    tolerance = 0.25 * MATCH * (1 + np.abs(rewards))
    rest = _least_deviations(_basis(terms, rows), rewards[rows])
    agreeing = rows[np.abs(rest) <= 4 * tolerance[rows]]
    if len(agreeing) < MAJORITY * len(rows) or len(agreeing) < 2 * len(terms):
        return None
    return exact(terms, rewards, tolerance, agreeing, effort, search)


def _basis(terms: Sequence[Term], rows: Array) -> Array:
    return orthonormal(np.stack([term.values[rows] for term in terms], 1), least=1e-9)


def _least_deviations(basis: Array, target: Array) -> Array:
    """Return what a fit by least absolute deviations leaves."""
    rest: Array = target - basis @ (basis.T @ target)
    floor = float(np.abs(rest).mean()) + 1e-300
    for _ in range(STEPS):
        weights = 1 / np.maximum(np.abs(rest), floor)
        weighted = basis * weights[:, None]
        solution = np.linalg.lstsq(weighted.T @ basis, weighted.T @ target, rcond=None)[0]
        rest = np.asarray(target - basis @ solution)
        floor = max(0.6 * floor, 1e-9 * float(np.abs(target).max()))
    return rest


def pruned(samples: Samples, terms: Sequence[Term]) -> Formula:
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


def _miss(samples: Samples, formula: Formula, rows: Array) -> float:
    return float(np.abs(formula.values(len(samples)) - samples.rewards)[rows].mean())


OFFSETS = (0.0, 1.0, -1.0)
MOST_LINK_ROWS = 400


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
    samples: Samples, libraries: Sequence[Sequence[Term]], effort: Share, search: SearchLimits
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
    search: SearchLimits,
) -> Formula | None:
    """Return a sum of terms of which the values are a function."""
    with np.errstate(all="ignore"):
        target = link.inverse(values)
        tolerance = 0.25 * MATCH * (1 + np.abs(samples.rewards)) / np.abs(link.slope(values))
    known = np.isfinite(target) & np.isfinite(tolerance) & (tolerance > 0) & samples.smooth
    rows = np.flatnonzero(known & samples.learn)[:MOST_LINK_ROWS]
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


LEAST = 0.9
"""Share of rows that the formulas together have to explain."""
MOST_TERMS = 5
MOST_LEVELS = 8
MOST_CELLS = 16
MOST_CROSSED = 5


def pieces(worth: RewardContext, terms: Sequence[Term], effort: Share) -> list[Formula]:
    """Return formulas of which one holds in nearly every row, the commonest first."""
    samples = worth.samples
    tolerance = 0.25 * MATCH * (1 + np.abs(samples.rewards))
    target = Target(samples.rewards, tolerance, samples.smooth & samples.learn)
    cells = [
        rows
        for rows in _cells(worth, target.rows)
        if possible(terms, samples.rewards, tolerance, np.flatnonzero(rows), effort, 0.7)
    ]
    places = Places(np.column_stack([samples.after, samples.actions]), _apart(cells))
    rng = np.random.default_rng(len(samples))
    found = regimes(terms, target, places, rng, effort, size=MOST_TERMS)
    return _commonest_first(found) if found.covered >= LEAST else []


def _cells(worth: RewardContext, usable: Array) -> Iterator[Array]:
    """Yield rows that lie close together in one or two quantities, or agree in a whole number."""
    columns = [*worth.then, *worth.inputs]
    levels = [np.unique(column.values) for column in columns]
    for column, seen in zip(columns, levels, strict=True):
        if len(seen) <= MOST_LEVELS:
            yield from (usable & (column.values == level) for level in seen.tolist())
    wide = [c for c, seen in zip(columns, levels, strict=True) if len(seen) > MOST_LEVELS]
    parted = {size: [_parts(c.values, usable, size) for c in wide] for size in (3, 4, 16)}
    for parts in [*parted[4], *parted[16]]:
        yield from parts
    for first, second in combinations(parted[3][:MOST_CROSSED], 2):
        yield from (a & b for a in first for b in second)


def _apart(cells: Sequence[Array]) -> list[Array]:
    """Return the largest cells of those that have most rows for themselves."""
    chosen: list[Array] = []
    covered = np.zeros_like(cells[0]) if cells else np.zeros(0, bool)
    for rows in sorted(cells, key=lambda rows: -int(rows.sum())):
        if (rows & ~covered).sum() > 0.5 * rows.sum() and len(chosen) < MOST_CELLS:
            chosen.append(rows)
            covered = covered | rows
    return chosen


def _parts(values: Array, usable: Array, count: int) -> list[Array]:
    """Return equally many usable rows along a quantity, nothing where there are none."""
    if not usable.any():
        return []
    edges = np.quantile(values[usable], np.linspace(0, 1, count + 1))
    part = np.clip(np.searchsorted(edges, values, "right") - 1, 0, count - 1)
    return [usable & (part == index) for index in range(count)]


def turns(worth: RewardContext, formulas: Sequence[Formula]) -> list[Other]:
    """Return the formulas after the first, with the rows that only they explain."""
    rewards = worth.samples.rewards
    explained = right(formulas[0].values(len(rewards)), rewards)
    found = []
    for formula in formulas[1:]:
        own = right(formula.values(len(rewards)), rewards) & ~explained
        if own.any():
            found.append(Other(formula, False, own))
        explained = explained | own
    return found


def _commonest_first(found: Regimes) -> list[Formula]:
    order = sorted(range(len(found.formulas)), key=lambda i: -int(found.members[i].sum()))
    return [found.formulas[index] for index in order]
