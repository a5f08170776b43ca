"""Variables whose value, not whose change, follows from the next values of others."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from cwm_induction.continuous.descent import descended
from cwm_induction.continuous.inner_constants import Scan
from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.mixture import Target
from cwm_induction.continuous.regression import SLACK, Formula, Search, exact, fitted, solve
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, Column, Term, distinct, hypotenuses, library
from cwm_induction.effort import Share
from cwm_induction.writing.rounding import literal, rounded

FEWEST_ROWS = 20
MOST_ROWS = 300
STEEPNESSES = (0.6, 1.5, 3.0, 6.0)
HALVES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles at which a saturation may be half."""


def derived(
    variable: Variable, samples: Samples, chain: Sequence[Column], effort: Share
) -> Formula | None:
    """Return the change as a value that also holds in rows held back, less the one before."""
    usable = samples.smooth & variable.free
    rows = np.flatnonzero(usable & samples.learn)
    if len(rows) < FEWEST_ROWS or not chain:
        return None
    target = Target(variable.then, variable.quarter, usable & samples.learn)
    for value in _values(target, rows, chain, effort):
        own = Term(variable.name, variable.now, 1.0)
        formula = Formula((*value.terms, own), (*value.weights, -1.0))
        right = variable.matches(formula.values(len(samples)))[usable & ~samples.learn]
        if right.size == 0 or right.mean() >= 0.98:
            return formula
    return None


def _values(target: Target, rows: Array, chain: Sequence[Column], effort: Share) -> list[Formula]:
    """Return the first formula for a value that is exact where it is fitted."""
    plain = distinct([*library(chain, [], 3), *hypotenuses(chain)])
    found = exact(plain, target.values, target.tolerance, rows, effort, Search(4, 12, 10))
    if found is not None:
        return [found]
    for column in chain:
        saturation = _saturation(target, rows, column, effort)
        if saturation is not None:
            return [saturation]
    scan = Scan([t for t in plain if t.cost <= 2], list(chain)[:4], target, effort)
    scanned = scan.formula(chain)
    return [] if scanned is None else [scanned]


def _saturation(target: Target, rows: Array, column: Column, effort: Share) -> Formula | None:
    """Return a multiple of Hill's function, `x**n / (k**n + x**n)`, plus a constant."""
    rows = rows[:: max(1, len(rows) // MOST_ROWS)]
    x, size = column.values, target.tolerance[rows]
    if x.min() < 0 or not effort.spend(2e5 * len(STEEPNESSES) * len(HALVES)):
        return None

    def terms(constants: Array) -> list[Term]:
        half, steepness = constants.tolist()
        with np.errstate(all="ignore"):
            values = 1 / (1 + (abs(half) / np.maximum(x, 1e-300)) ** steepness)
        power = f"{column.text}**{literal(steepness)}"
        text = f"{power} / ({power} + {literal(abs(half))}**{literal(steepness)})"
        return [Term(ONE, np.ones(len(x)), 1.0), Term(text, values, 4.0)]

    def rest(constants: Array) -> Array:
        matrix = np.stack([term.values[rows] for term in terms(constants)], 1) / size[:, None]
        wanted = target.values[rows] / size
        left: Array = wanted - np.nan_to_num(matrix) @ solve(np.nan_to_num(matrix), wanted)
        return left

    starts = product(np.quantile(x[rows], HALVES).tolist(), STEEPNESSES)
    first = min((np.array(start) for start in starts), key=lambda s: float(rest(s) @ rest(s)))
    best = descended(rest, first)
    limit = max(SLACK * float(np.abs(rest(best)).max()), 1e-2)
    if limit > SLACK:
        return None
    for index, digits in product((0, 1), range(1, 9)):
        trial = best.copy()
        trial[index] = rounded(best[index], digits)
        if np.abs(rest(trial)).max() <= limit:
            best = trial
    return fitted(terms(best), target.values, target.tolerance, rows)
