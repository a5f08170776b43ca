"""Equations with few terms that hold for every row, with numbers of few digits.

`exact` searches for a small support: a few columns of a library that explain a target in every row.
A beam search adds columns to the best supports. If it fails, backward elimination removes columns
from the full library. Least squares gives the weights, which are then rounded to as few digits as
the data allow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import ONE, Term
from cwm_induction.effort import Share
from cwm_induction.writing.rounding import literal, rounded

SLACK = 2.0
"""Rounding the weights may increase the largest error of an equation by this factor."""

DEPENDENT = 3e-7
"""Columns with a smaller component orthogonal to the columns before them are left out."""

ZERO_SINGULAR_VALUE = 1e-7
"""Singular values of unit columns up to this count as zero."""

COST_PENALTY = 0.02
"""Relative increase of a support's loss per unit of cost, to prefer cheap supports."""


@dataclass(frozen=True)
class Formula:
    """A sum of weighted terms."""

    terms: tuple[Term, ...]
    weights: tuple[float, ...]

    @property
    def names(self) -> set[str]:
        """Names that the formula reads."""
        return {name for term in self.terms for name in term.names}

    @property
    def cost(self) -> float:
        """Sum of the description costs of the terms."""
        return sum(term.cost for term in self.terms)

    def less(self, term: Term) -> "Formula":
        """Return the formula minus a term."""
        return Formula((*self.terms, term), (*self.weights, -1.0))

    def values(self, rows: int) -> Array:
        """Return the value of the sum in every row."""
        total = np.zeros(rows)
        for term, weight in zip(self.terms, self.weights, strict=True):
            total += weight * term.values
        return total

    def text(self, start: str = "") -> str:
        """Return the source text of the sum, added to `start`, with the constant last."""
        weights = {start: 1.0} if start else {}
        for term, weight in zip(self.terms, self.weights, strict=True):
            total = weights.get(term.text, 0.0) + weight
            weights[term.text] = 0.0 if abs(total) < 1e-12 else total
        text = ""
        for name, weight in sorted(weights.items(), key=lambda part: part[0] == ONE):
            sign = "-" if weight < 0 else "+"
            lead = ("-" if weight < 0 else "") if not text else f" {sign} "
            size = literal(abs(weight))
            part = size if name == ONE else name if abs(weight) == 1 else f"{size} * {name}"
            text += lead + part if weight else ""
        return text or "0.0"


MAX_ERROR_RATIO = 0.97
"""A longer approximation must reduce the error to less than this share."""

SPARSE_TERMS = 16
"""Maximum number of terms of an approximation; more would gain little and be hard to read."""


@dataclass(frozen=True)
class Target:
    """A quantity to explain: values, tolerance, and the rows to explain it in."""

    values: Array
    tolerance: Array
    rows: Array


class Projection(NamedTuple):
    """The residual of a target after projecting out some terms, in units of the tolerance.

    `scale` is 1 / tolerance, `basis` an orthonormal basis of the terms, and `rest` the residual,
    all in the given rows.
    """

    rows: Array
    scale: Array
    basis: Array
    rest: Array

    @classmethod
    def of(cls, terms: Sequence[Term], target: Target, most: int) -> "Projection":
        """Project the target in evenly spaced rows: all, or `most` to twice as many."""
        rows = np.flatnonzero(target.rows)
        rows = rows[:: max(1, len(rows) // most)]
        scale = 1 / target.tolerance[rows]
        columns = [term.values[rows] for term in terms]
        matrix = np.stack(columns, 1) if columns else np.zeros((len(rows), 0))
        basis = orthonormal(matrix * scale[:, None])
        wanted = target.values[rows] * scale
        return cls(rows, scale, basis, wanted - basis @ (basis.T @ wanted))

    def left(self, group: Array) -> Array:
        """Return the residual after projecting out further columns, in the same units."""
        if not group.size:
            return self.rest
        added = _directions(_without_projection(self.basis, group), ZERO_SINGULAR_VALUE)
        left: Array = self.rest - added @ (added.T @ self.rest)
        return left

    def wider(self, group: Array) -> "Projection":
        """Return the projection with further columns, in the same units."""
        added = _directions(_without_projection(self.basis, group), ZERO_SINGULAR_VALUE)
        return self._replace(basis=np.column_stack([self.basis, added]), rest=self.left(group))

    def sizes(self, groups: Array) -> Array:
        """Return the norm of the residual after adding each group of columns.

        The norm is infinite for groups with non-finite values.
        """
        sizes, finite = np.full(len(groups), np.inf), np.isfinite(groups).all((1, 2))
        left, lengths, _ = np.linalg.svd(
            _without_projection(self.basis, groups[finite]), full_matrices=False
        )
        bases = [
            own[:, length > ZERO_SINGULAR_VALUE] for own, length in zip(left, lengths, strict=True)
        ]
        sizes[finite] = [np.linalg.norm(self.rest - own @ (own.T @ self.rest)) for own in bases]
        return sizes


class SearchLimits(NamedTuple):
    """Limits of a regression: maximum number of terms, beam width, and extensions per state.

    If the beam search fails, backward elimination keeps at most `eliminate` terms; 0 disables it.
    """

    size: int = 6
    beam: int = 12
    branch: int = 10
    eliminate: int = 0


class _State(NamedTuple):
    """A support, an orthonormal basis of its columns in two parts, and the residual."""

    support: tuple[int, ...]
    earlier: Array
    latest: Array
    rest: Array
    rank: float


STANDARD = SearchLimits()
"""Default limits: formulas of up to six terms."""


def exact(
    terms: Sequence[Term],
    target: Array,
    tolerance: Array,
    rows: Array,
    effort: Share,
    search: SearchLimits = STANDARD,
) -> Formula | None:
    """Search for a cheap formula within tolerance of the target in every given row.

    Return None if the search finds none.
    """
    matrix = np.stack([term.values[rows] for term in terms], 1) / tolerance[rows, None]
    wanted = target[rows] / tolerance[rows]
    costs = np.array([term.cost for term in terms])
    support = _support(matrix, wanted, costs, effort, search)
    if support is None:
        return None
    for index in sorted(support, key=lambda i: -costs[i]):
        fewer = tuple(i for i in support if i != index)
        columns = matrix[:, list(fewer)]
        if fewer and _worst(columns, solve(columns, wanted), wanted) <= 1:
            support = fewer
    return fitted([terms[index] for index in support], target, tolerance, rows)


def fitted(terms: Sequence[Term], target: Array, tolerance: Array, rows: Array) -> Formula:
    """Fit the weights of terms by least squares, and round them to few digits."""
    if not terms:
        return Formula((), ())
    matrix = np.stack([term.values[rows] for term in terms], 1) / tolerance[rows, None]
    weights = snapped(matrix, target[rows] / tolerance[rows])
    kept = np.flatnonzero(weights).tolist()
    return Formula(tuple(terms[i] for i in kept), tuple(weights[kept].tolist()))


def snapped(matrix: Array, target: Array) -> Array:
    """Solve for weights with few digits.

    The largest error may grow by the factor `SLACK`. The weights are rounded one after another, the
    most influential first. The remaining weights are fitted again after each one.
    """
    weights = solve(matrix, target)
    limit = max(SLACK * _worst(matrix, weights, target), 1e-3)  # less is far below any tolerance
    influence = np.abs(weights) * np.abs(matrix).mean(0)
    fixed: list[int] = []
    for index in np.argsort(-influence).tolist():
        held = [*fixed, index]
        free = [i for i in range(len(weights)) if i not in held]
        for digits in range(8):
            trial = weights.copy()
            trial[index] = rounded(weights[index], digits) if digits else 0.0
            if free:
                trial[free] = solve(matrix[:, free], target - matrix[:, held] @ trial[held])
            if _worst(matrix, trial, target) <= limit:
                weights, fixed = trial, held
                break
    return weights


def solve(matrix: Array, target: Array) -> Array:
    """Solve a least-squares problem after scaling the columns to unit length."""
    scale = np.linalg.norm(matrix, axis=0) + 1e-300
    solution: Array = np.linalg.lstsq(matrix / scale, target, rcond=None)[0] / scale
    return solution


def sparse(terms: Sequence[Term], target: Array, learn: Array, check: Array) -> Formula:
    """Fit a regression on a few terms that explain most of a target.

    The number of terms minimises the error in the check rows; a longer formula must reduce the
    error by more than 3 %.
    """
    if not check.any():
        return Formula((), ())
    matrix = np.stack([term.values for term in terms], 1)
    unit = matrix[learn] / (np.linalg.norm(matrix[learn], axis=0) + 1e-300)
    chosen = selected(unit, target[learn], most=SPARSE_TERMS, gain=1e-3)
    best, least = Formula((), ()), float(np.abs(target[check]).mean())
    exact = 1e-6 * (1 + float(np.abs(target).max(initial=0.0)))
    for size in range(1, len(chosen) + 1):
        if least < exact:
            break
        weights = np.linalg.lstsq(matrix[learn][:, chosen[:size]], target[learn], rcond=1e-8)[0]
        weights = np.array([rounded(float(weight), 6) for weight in weights])
        error = float(np.abs(matrix[check][:, chosen[:size]] @ weights - target[check]).mean())
        if error < MAX_ERROR_RATIO * least:
            kept = tuple(terms[i] for i in chosen[:size])
            best, least = Formula(kept, tuple(weights.tolist())), error
    return best


def selected(unit: Array, target: Array, most: int, gain: float) -> list[int]:
    """Select columns of unit length by orthogonal least squares (Chen et al., 1989).

    Stop after `most` columns, or if the next one explains less than the share `gain` of the
    remaining sum of squares.
    """
    chosen: list[int] = []
    remaining, rest = unit.copy(), target
    while len(chosen) < most:
        norms = np.einsum("ij,ij->j", remaining, remaining)
        fresh = norms > DEPENDENT
        gains = np.where(fresh, (remaining.T @ rest) ** 2 / np.where(fresh, norms, 1), -1.0)
        best = int(np.argmax(gains))
        if gains[best] < gain * float(rest @ rest):
            break
        chosen.append(best)
        direction = remaining[:, best] / np.sqrt(norms[best])
        rest = rest - direction * (direction @ rest)
        remaining = remaining - np.outer(direction, direction @ remaining)
    return chosen


def orthonormal(matrix: Array, least: float = 1e-10) -> Array:
    """Return an orthonormal basis of the columns, for singular values above `least`."""
    return _directions(matrix / (np.linalg.norm(matrix, axis=0) + 1e-300), least)


def _support(
    matrix: Array, target: Array, costs: Array, effort: Share, search: SearchLimits
) -> tuple[int, ...] | None:
    """Search for a cheap support that explains the target to within 1 in every row."""
    if np.abs(target).max(initial=0) <= 1:
        return ()
    norms = np.linalg.norm(matrix, axis=0)
    unit = matrix / np.where(norms > 0, norms, 1)
    none = np.zeros((len(target), 0))
    states = [_State((), none, none, target, 0.0)]
    for size in range(1, min(search.size, len(target) // 3) + 1):
        if not effort.spend(2.0 * len(states) * matrix.size * (size + 1)):
            return None
        states = _extended(unit, states, costs, search)
        passing = [state for state in states if np.abs(state.rest).max() <= 1]
        if passing:
            return min(passing, key=lambda s: (costs[list(s.support)].sum(), s.support)).support
        states = states[: search.beam]
    if search.eliminate:
        return _eliminated(matrix, target, costs, effort, search.eliminate)
    return None


def _extended(
    unit: Array, states: Sequence[_State], costs: Array, search: SearchLimits
) -> list[_State]:
    """Return the states with one more column, the best first."""
    found: dict[tuple[int, ...], _State] = {}
    for state in states:
        basis = np.column_stack([state.earlier, state.latest])
        remaining = basis @ (basis.T @ unit)
        np.subtract(unit, remaining, out=remaining)
        norms = np.einsum("ij,ij->j", remaining, remaining)
        fresh = norms > 1e-11  # squared norm of the new component of a unit column
        gain = np.where(fresh, (remaining.T @ state.rest) ** 2 / np.where(fresh, norms, 1), -1.0)
        best = np.argsort(-gain, kind="stable")[: search.branch]
        every = {tuple(sorted((*state.support, i))): i for i in best[gain[best] > 0].tolist()}
        new = {support: i for support, i in every.items() if support not in found}
        if new:
            chosen = list(new.values())
            directions = np.ascontiguousarray(remaining[:, chosen].T)
            directions /= np.sqrt(norms[chosen])[:, None]
            grown = _grown(basis, state.rest, list(new), directions, costs)
            found.update({wider.support: wider for wider in grown})
    return sorted(found.values(), key=lambda state: state.rank)


def _grown(
    basis: Array, rest: Array, supports: Sequence[tuple[int, ...]], directions: Array, costs: Array
) -> Iterator[_State]:
    """Yield states with each direction added, orthogonalised twice for exact small residuals."""
    directions = directions - (basis @ (basis.T @ directions[..., None]))[..., 0]
    directions /= np.sqrt(_dots(directions, directions))
    rests = rest - directions * _dots(directions, np.broadcast_to(rest, directions.shape))
    rests = rests - directions * _dots(directions, rests)
    penalties = 1 + COST_PENALTY * costs[np.array(supports)].sum(axis=1)
    ranks = _dots(rests, rests)[:, 0] * penalties
    for support, direction, left, rank in zip(supports, directions, rests, ranks, strict=True):
        yield _State(support, basis, direction, left, float(rank))


def _dots(first: Array, second: Array) -> Array:
    """Return the inner product of every pair of rows (rows, 1)."""
    products: Array = (first[:, None] @ second[..., None])[..., 0]
    return products


def _eliminated(
    matrix: Array, target: Array, costs: Array, effort: Share, most: int
) -> tuple[int, ...] | None:
    """Eliminate columns until at most `most` explain the target to within 1 in every row.

    Start from all independent columns. Repeatedly remove the column whose removal increases the
    loss least (Hassibi, 1993). The updates lose digits, so the regression is solved again after ten
    updates, or after a fifth of the columns is removed.
    """
    rows = len(target)
    active = _independent(matrix, costs)
    if len(active) > 0.6 * rows or not effort.spend(4.0 * rows * len(active) ** 2):
        return None
    found: list[Array] = []
    while len(active):
        weights, inverse, loss = _solved(matrix[:, active], target)
        if loss > rows:
            break
        while len(active) and loss <= rows:
            found.append(active)
            active, weights, inverse, rise = _without_least(active, weights, inverse)
            loss += rise
            if len(active) < 0.8 * len(found[-1]) or len(found) % 10 == 0:
                break
    small = [chosen for chosen in reversed(found) if len(chosen) <= most]
    for chosen in small:
        columns = matrix[:, chosen]
        if _worst(columns, solve(columns, target), target) <= 1:
            return tuple(sorted(chosen.tolist()))
    return None


def _independent(matrix: Array, costs: Array) -> Array:
    """Return linearly independent columns, preferring cheap ones."""
    norms = np.linalg.norm(matrix, axis=0)
    order = np.argsort(costs, kind="stable")
    order = order[norms[order] > 0]
    upper = np.linalg.qr(matrix[:, order] / norms[order])[1]
    count = min(upper.shape)
    chosen: Array = order[:count][np.abs(np.diag(upper))[:count] > DEPENDENT]
    return chosen


def _solved(matrix: Array, target: Array) -> tuple[Array, Array, float]:
    """Return the weights of scaled columns, their inverse normal matrix and the loss."""
    basis, upper = np.linalg.qr(matrix / np.linalg.norm(matrix, axis=0))
    inverse = np.linalg.inv(upper)
    part = basis.T @ target
    rest = target - basis @ part
    return inverse @ part, inverse @ inverse.T, float(rest @ rest)


def _without_least(
    active: Array, weights: Array, inverse: Array
) -> tuple[Array, Array, Array, float]:
    """Remove the column whose removal increases the loss least.

    Return the remaining columns, weights, inverse normal matrix, and the increase of the loss.
    """
    rises = weights**2 / np.diag(inverse)
    least = int(np.argmin(rises))
    pull = inverse[:, least] / inverse[least, least]
    weights = np.delete(weights - pull * weights[least], least)
    inverse = inverse - np.outer(pull, inverse[least])
    inverse = np.delete(np.delete(inverse, least, 0), least, 1)
    return np.delete(active, least), weights, inverse, float(rises[least])


def _directions(matrix: Array, least: float) -> Array:
    """Return the left singular vectors with singular values above `least`."""
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    basis: Array = left[:, sizes > least]
    return basis


def _without_projection(basis: Array, group: Array) -> Array:
    """Return unit columns (..., rows, columns) minus their projections on a basis."""
    group = group / (np.linalg.norm(group, axis=-2, keepdims=True) + 1e-300)
    group = group - basis @ (basis.T @ group)
    apart: Array = group - basis @ (basis.T @ group)
    return apart


def _worst(matrix: Array, weights: Array, target: Array) -> float:
    return float(np.abs(matrix @ weights - target).max(initial=0))
