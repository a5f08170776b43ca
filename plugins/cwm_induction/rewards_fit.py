"""Formulas for the reward that hold in every row, or in most."""

from collections.abc import Sequence

import numpy as np

from cwm_induction.effort import Share
from cwm_induction.latents import MATCH
from cwm_induction.regression import Formula, Search, exact
from cwm_induction.rewards_cases import right
from cwm_induction.samples import Array, Samples
from cwm_induction.terms import Term

MOST_ROWS = 600
STEPS = 40
MAJORITY = 0.55
"""Share of the rows that a formula has to explain where others may differ."""


def formula_in(
    samples: Samples,
    terms: Sequence[Term],
    effort: Share,
    search: Search,
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
    if not possible(terms, rewards, loose, rows, effort):
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
    terms: Sequence[Term], target: Array, tolerance: Array, rows: Array, effort: Share
) -> bool:
    """Whether all terms together can explain the rows, as far as these are enough to tell."""
    if len(terms) > 0.5 * len(rows) or not len(rows):
        return True
    if not effort.spend(4.0 * len(rows) * len(terms) ** 2):
        return False
    basis = _basis(terms, rows)
    rest = target[rows] - basis @ (basis.T @ target[rows])
    return bool((np.abs(rest) <= 2 * tolerance[rows]).all())


def most_of(
    samples: Samples, terms: Sequence[Term], effort: Share, search: Search
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
    """Return an orthonormal basis of the terms, without what is lost in rounding."""
    matrix = np.stack([term.values[rows] for term in terms], 1)
    matrix = matrix / (np.linalg.norm(matrix, axis=0) + 1e-300)
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    basis: Array = left[:, sizes > 1e-9 * sizes[0]]
    return basis


def _least_deviations(basis: Array, target: Array) -> Array:
    """Return what a fit by least absolute deviations leaves."""
    rest = target - basis @ (basis.T @ target)
    floor = float(np.abs(rest).mean()) + 1e-300
    for _ in range(STEPS):
        weights = 1 / np.maximum(np.abs(rest), floor)
        weighted = basis * weights[:, None]
        solution = np.linalg.lstsq(weighted.T @ basis, weighted.T @ target, rcond=None)[0]
        rest = target - basis @ solution
        floor = max(0.6 * floor, 1e-9 * float(np.abs(target).max()))
    return rest
