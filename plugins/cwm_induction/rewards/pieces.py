"""Rewards for which several formulas take turns."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from cwm_induction.continuous.latents import MATCH
from cwm_induction.continuous.mixture import Places, Regimes, Target, regimes
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import Term
from cwm_induction.effort import Share
from cwm_induction.rewards.cases import Other, right
from cwm_induction.rewards.fit import possible
from cwm_induction.rewards.terms import Worth

LEAST = 0.9
"""Share of rows that the formulas together have to explain."""
MOST_TERMS = 5
MOST_LEVELS = 8
MOST_CELLS = 16
MOST_CROSSED = 5


def pieces(worth: Worth, terms: Sequence[Term], effort: Share) -> list[Formula]:
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


def _cells(worth: Worth, usable: Array) -> Iterator[Array]:
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


def turns(worth: Worth, formulas: Sequence[Formula]) -> list[Other]:
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
