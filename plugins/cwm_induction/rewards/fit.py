"""Formulas for the reward that hold in every row, or in most."""

from collections.abc import Sequence

import numpy as np

from cwm_induction.continuous.latents import MATCH
from cwm_induction.continuous.regression import Formula, Search, approximate, exact
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, Term, distinct
from cwm_induction.effort import Share
from cwm_induction.rewards.cases import right

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


def orthonormal(matrix: Array, least: float = 1e-9) -> Array:
    """Return an orthonormal basis of some columns, without what is lost in rounding."""
    sizes = np.linalg.norm(matrix, axis=0)
    left, lengths, _ = np.linalg.svd(matrix / (sizes + 1e-300), full_matrices=False)
    basis: Array = left[:, lengths > least]
    return basis


def _basis(terms: Sequence[Term], rows: Array) -> Array:
    return orthonormal(np.stack([term.values[rows] for term in terms], 1))


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
