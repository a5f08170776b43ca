"""Formulas that are exact in many rows, even if other rows follow no formula.

A robust regression finds the rows: it starts from rows that are likely to share a law, such as
neighbours, and lowers the accepted error step by step (graduated non-convexity, Blake and
Zisserman, 1987). The sparse regression of `continuous.regression` then finds the formula in
these rows. Further candidates differ from a known formula by one term.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import (
    Formula,
    SearchLimits,
    exact,
    fitted,
    orthonormal,
)
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import ONE, Term
from cwm_induction.effort import Share

MAX_ROWS = 400
"""Rows of one robust regression; more rows cost time and determine no further terms."""

COOLING = 0.6
"""Each iteration multiplies the accepted error by this factor."""

SAME_ROWS = 0.99
"""Share of its rows that a law with fewer terms must explain as well."""

TERM_ROWS = 3
"""Rows that a formula must explain beyond one per term: fewer rows would only be interpolated."""

SEARCH = SearchLimits(size=5, beam=8, branch=8, eliminate=10)
"""Limits of the sparse regression in the rows of one law."""


class Law(NamedTuple):
    """A formula, and a mask of all rows that it predicts within the tolerance.

    The law must explain at least `price` rows; each new term raises the price. `support` is the
    weight of rows with an error far below the tolerance, and minus the weight of other rows that
    count as right: an approximation has many such rows, an exact law has none.
    """

    formula: Formula
    rows: Array
    price: float
    support: Array


@dataclass(frozen=True)
class Unknown:
    """A quantity to explain.

    `values` and `tolerance` have a number per row. A prediction is clipped to `low` and `high` and
    is right if it then differs from the value by at most four times the tolerance. `rows` is the
    mask of the rows to explain, and formulas are fitted to the rows of the mask `fit`. Rare rows
    such as ends may have `weights` above 1.
    """

    values: Array
    tolerance: Array
    rows: Array
    fit: Array
    weights: Array
    low: Array | float = -np.inf
    high: Array | float = np.inf

    @property
    def limited(self) -> Array:
        """Return the mask of the rows whose value is at a limit."""
        mask: Array = (self.values <= self.low) | (self.values >= self.high)
        mask &= self.rows
        return mask

    def law(self, formula: Formula, cost: float | None = None) -> Law:
        """Return a formula as a law; `cost` replaces the sum of the costs of its terms."""
        values = np.clip(formula.values(len(self.values)), self.low, self.high)
        error = np.abs(values - self.values) / self.tolerance
        rows = (error <= 4) & self.rows
        support = np.where(error <= 1, self.weights, -self.weights) * rows
        return Law(formula, rows, 1.0 + 1.5 * (formula.cost if cost is None else cost), support)


class Library:
    """Terms as columns of a matrix, shared by all regressions of one quantity."""

    def __init__(self, terms: Sequence[Term], unknown: Unknown) -> None:
        """Scale the columns by the tolerance of the quantity to explain."""
        self.terms, self.unknown = list(terms), unknown
        self._scale = 1 / unknown.tolerance
        self._matrix = np.stack([term.values for term in terms], 1)
        self._seen: set[bytes] = set()
        self._bases: dict[bytes, tuple[Array, Array]] = {}

    def law(self, start: Array, rows: Array, effort: Share) -> Law | None:
        """Return the law that grows from the rows of `start` within `rows` (indices)."""
        inside = self._consensus(start, rows, effort)
        if inside is None or inside.tobytes() in self._seen:
            return None
        self._seen.add(inside.tobytes())
        unknown = self.unknown
        chosen = inside[:: 1 + len(inside) // 200]
        search = SEARCH._replace(size=min(SEARCH.size, max(1, (len(chosen) - 2) // 3)))
        formula = exact(self.terms, unknown.values, unknown.tolerance, chosen, effort, search)
        return None if formula is None else self._refitted(formula)

    def _refitted(self, formula: Formula) -> Law | None:
        """Fit the weights of a formula to all rows that it explains, and drop needless terms."""
        unknown = self.unknown
        law = unknown.law(formula)
        if (law.rows & unknown.fit).sum() < len(formula.terms) + TERM_ROWS:
            return None
        for needless in (None, *formula.terms):
            terms = tuple(term for term in law.formula.terms if term is not needless)
            inside = np.flatnonzero(law.rows & unknown.fit)
            other = unknown.law(fitted(terms, unknown.values, unknown.tolerance, inside))
            if (other.rows & law.rows).sum() >= SAME_ROWS * law.rows.sum():
                law = other
        return law

    def _consensus(self, start: Array, rows: Array, effort: Share) -> Array | None:
        """Return the rows (indices) that one combination of all terms explains."""
        if len(rows) > MAX_ROWS:
            rows = np.union1d(start[:MAX_ROWS], rows[:: 1 + len(rows) // MAX_ROWS])
        if len(self.terms) > len(rows):
            return None
        basis, target = self._basis(rows)
        count = basis.shape[1]
        first = np.isin(rows, start)
        if first.sum() < count + TERM_ROWS or not effort.spend(0.3 * len(rows) * count**2):
            return None
        weights, limit, final = first.astype(float), np.inf, 4
        while final:
            weighted = basis.T * weights
            normal = weighted @ basis + 1e-12 * np.eye(count)
            rest = target - basis @ np.linalg.solve(normal, weighted @ target)
            typical = 3 * float(np.median(np.abs(rest[first]))) if limit == np.inf else limit
            limit = max(1.0, COOLING * typical)
            final -= limit == 1.0
            weights = (limit**2 / (limit**2 + rest**2)) ** 2
            if weights.sum() < count + TERM_ROWS / 2:
                return None
        inside = np.abs(rest) <= 1.0
        return rows[inside] if inside.sum() >= count + TERM_ROWS else None

    def _basis(self, rows: Array) -> tuple[Array, Array]:
        """Return an orthonormal basis of the terms in some rows, and the values to explain."""
        key = rows.tobytes()
        if key not in self._bases:
            matrix = self._matrix[rows] * self._scale[rows, None]
            target = self.unknown.values[rows] * self._scale[rows]
            self._bases = {key: (orthonormal(matrix), target)}
        return self._bases[key]


def variants(law: Law, unknown: Unknown, terms: Sequence[Term], remaining: Array) -> Iterator[Law]:
    """Yield laws that differ from a law by the weight of one term, best first.

    The weight is the most common quotient of the error and the term in the `remaining` rows.
    """
    rows = np.flatnonzero(remaining & (unknown.fit | unknown.limited))
    rest = (unknown.values - law.formula.values(len(unknown.values)))[rows]
    found = []
    for term in terms:
        values = term.values[rows]
        usable = np.abs(values) > 1e-9
        if not usable.any():
            continue
        quotients = rest[usable] / values[usable]
        slack = unknown.tolerance[rows][usable] / np.abs(values[usable])
        weight, count = _most_common(quotients, slack)
        if count < TERM_ROWS and term.text != ONE:
            continue
        found.append((count - 1.5 * term.cost, weight, term))
    found.sort(key=lambda option: -option[0])
    for _, weight, term in found[:4]:
        weights = {
            t.text: (t, w) for t, w in zip(law.formula.terms, law.formula.weights, strict=True)
        }
        _, known = weights.get(term.text, (term, 0.0))
        weights[term.text] = term, known + weight
        chosen = [t for t, w in weights.values() if abs(w) > 1e-9 * max(1.0, abs(weight))]
        if chosen or not weight:
            rough = Formula(tuple(chosen), tuple(weights[t.text][1] for t in chosen))
            inside = np.intersect1d(rows, np.flatnonzero(unknown.law(rough).rows))
            if len(inside):
                yield unknown.law(_revised(rough, unknown, inside, term), term.cost)


def _revised(rough: Formula, unknown: Unknown, rows: Array, term: Term) -> Formula:
    """Fit only the changed weight, and round it to few digits."""
    others = [(t, w) for t, w in zip(rough.terms, rough.weights, strict=True) if t is not term]
    rest = Formula(tuple(t for t, _ in others), tuple(w for _, w in others))
    left = unknown.values - rest.values(len(unknown.values))
    if not any(t.text == term.text for t in rough.terms):
        return rest
    single = fitted([term], left, unknown.tolerance, rows)
    return Formula((*rest.terms, *single.terms), (*rest.weights, *single.weights))


def _most_common(values: Array, slack: Array) -> tuple[float, int]:
    """Return the number that most values agree with, each up to its slack, and their count."""
    edges = np.concatenate([values - slack, values + slack])
    steps = np.concatenate([np.ones(len(values)), -np.ones(len(values))])
    order = np.lexsort((-steps, edges))
    depth = np.cumsum(steps[order])
    best = int(np.argmax(depth))
    low, high = edges[order[best]], edges[order[min(best + 1, len(edges) - 1)]]
    return float((low + high) / 2), int(depth[best])
