"""Equations with a constant inside a term, fitted by variable projection.

For given inner constants, the other parameters are linear (Golub and Pereyra, 1973). The search
scans a grid of constants with all other terms present, refines the best constants, and finally
removes unneeded terms.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, product
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.atoms import COST, Atom, Products, atoms
from cwm_induction.continuous.least_squares import descended, shortened
from cwm_induction.continuous.regression import (
    SLACK,
    Formula,
    Projection,
    SearchLimits,
    Target,
    exact,
    fitted,
    solve,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, distinct, hypotenuses, library
from cwm_induction.continuous.variables import Variable
from cwm_induction.effort import Share
from cwm_induction.writing.rounding import literal

MOST_ROWS = 300
"""Rows for fitting constants: about this many, because few constants need few rows."""

FEWEST_ROWS = 20
"""Minimum number of rows for an equation with inner constants."""

REFINED = 8
"""Number of the best atoms in the scan whose constants are refined."""

AT_ONCE = 8
"""Number of constants whose decompositions are computed together."""

MOST_ATOMS = 3
"""Maximum number of atoms in an equation."""

MOST_FACTORS = 10
"""Maximum number of factors of an atom, because each factor widens every decomposition."""

CALL = 2e4
"""Fixed cost of a decomposition in multiplications, independent of its size."""

CLIPPED = re.compile(r"np\.clip\(\w+\[\d+\], [^()]*\)")
"""Source text of an input that is clipped to limits."""

STEEPNESSES = (0.6, 1.5, 3.0, 6.0)
"""Starting exponents of a saturation, from flat to almost a step."""

HALVES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of the data that are starting values for the point of half saturation."""


class Inner(NamedTuple):
    """Atoms, and the constant of each atom."""

    atoms: tuple[Atom, ...] = ()
    constants: tuple[float, ...] = ()

    def at(self, constants: Array) -> "Inner":
        """Return the atoms with new constants."""
        return Inner(self.atoms, tuple(constants.tolist()))


@dataclass(frozen=True)
class Scan:
    """A search for atoms whose products with factors complete a sum of other terms.

    With `weights`, atoms and factors have values at several integration stages, one stage after
    another, and each product is the weighted mean over the stages. `kept` is a mask of the products
    that may be used.
    """

    terms: Sequence[Term]
    factors: Sequence[NamedColumn]
    target: Target
    effort: Share
    weights: Array | None = None
    kept: tuple[bool, ...] | None = None

    def formula(self, arguments: Sequence[NamedColumn]) -> Formula | None:
        """Return an exact formula with few inner constants, or None."""
        if len(self._plain.rows) < FEWEST_ROWS:
            return None
        room = int(self.target.rows.sum()) // 3  # with more terms, the regression overfits
        scan = replace(self, terms=sorted(self.terms, key=lambda term: term.cost)[:room])
        candidates, inner = atoms(arguments), Inner()
        largest, size = scan.worst(inner)
        if largest <= 1:
            return scan.written(inner)
        for _ in range(MOST_ATOMS):
            extensions = scan.ranked(inner, candidates)
            if not extensions:
                return None
            inner, before = extensions[0], size
            largest, size = scan.worst(inner)
            if largest <= 1:
                return scan.written(inner)
            if size > 0.8 * before:
                return None
        return None

    def ranked(
        self, inner: Inner, candidates: Sequence[tuple[Atom, Array]], patient: bool = False
    ) -> list[Inner]:
        """Return extensions by one atom, the best first; unless `patient`, stop at an exact one."""
        plain = self._plain
        if inner.atoms:
            plain = plain.wider(self._group(inner))
        ranked: list[tuple[float, int, float]] = []
        for index, (atom, grid) in enumerate(candidates):
            single = 2.0 * plain.basis.size * (len(self.factors) + 2) + CALL
            if not self.effort.spend(single * len(grid)):
                return []
            groups = [self._products.of(atom, constant) for constant in grid.tolist()]
            parts = [groups[start : start + AT_ONCE] for start in range(0, len(groups), AT_ONCE)]
            sizes = np.concatenate([plain.sizes(np.stack(part)) for part in parts])
            best = int(np.argmin(sizes))
            ranked.append((float(sizes[best]), index, float(grid[best])))
        extensions: list[tuple[float, int, Inner]] = []
        for _, index, constant in sorted(ranked)[:REFINED]:
            wider = Inner((*inner.atoms, candidates[index][0]), (*inner.constants, constant))
            refined = self.refined(wider)
            largest, size = self.worst(refined)
            extensions.append((size, index, refined))
            if largest <= 1 and not patient:
                break
        return [refined for *_, refined in sorted(extensions, key=lambda entry: entry[:2])]

    def refined(self, inner: Inner) -> Inner:
        """Improve the constants by the Levenberg-Marquardt method."""
        if not inner.constants:
            return inner
        start = np.array(inner.constants)

        def rest(constants: Array) -> Array:
            return self._plain.left(self._group(inner.at(constants)))

        return inner.at(descended(rest, start, self.effort))

    def worst(self, inner: Inner) -> tuple[float, float]:
        """Return the largest residual and the norm of all, in units of the tolerance."""
        rest = self._plain.left(self._group(inner))
        return float(np.abs(rest).max()), float(np.linalg.norm(rest))

    def expanded(self, inner: Inner) -> list[Term]:
        """Return the atoms, and their products with every factor, as terms."""
        expanded = []
        for atom, constant in zip(inner.atoms, inner.constants, strict=True):
            for text, values in zip(atom.texts(constant), atom.values(constant), strict=True):
                expanded.append(Term(text, self._mean(values), COST))
                quotient = f"({text})" if " / (" in text else text
                for factor in self.factors:
                    mean = self._mean(values * factor.values)
                    expanded.append(Term(f"{quotient} * {factor.text}", mean, COST + 1))
        return expanded if self.kept is None else list(compress(expanded, self.kept))

    def written(self, inner: Inner) -> Formula | None:
        """Remove unneeded terms, refine the constants of the other terms, and round them."""
        rows = self._plain.rows
        terms = distinct([*self.terms, *self.expanded(inner)])
        values, tolerance = self.target.values, self.target.tolerance
        formula = exact(terms, values, tolerance, rows, self.effort, SearchLimits(6, eliminate=16))
        if formula is None:
            return None
        chosen = {term.text for term in formula.terms}
        few = replace(
            self,
            terms=[term for term in self.terms if term.text in chosen],
            kept=tuple(term.text in chosen for term in self.expanded(inner)),
        )
        used = few.refined(inner)
        limit = max(SLACK * few.worst(used)[0], 1e-2)  # 1e-2 is far below the tolerance

        def fits(constants: Array) -> bool:
            return few.worst(inner.at(constants))[0] <= limit

        short = shortened(np.array(used.constants), fits, range(len(used.constants)))
        return fitted([*few.terms, *few.expanded(inner.at(short))], values, tolerance, rows)

    @cached_property
    def _plain(self) -> Projection:
        plain = Projection.of(self.terms, self.target, MOST_ROWS)
        self.effort.spend(4.0 * len(plain.rows) * len(self.terms) ** 2)
        return plain

    def _mean(self, values: Array) -> Array:
        """Return the weighted mean over the stages."""
        if self.weights is None:
            return values
        mean: Array = self.weights @ values.reshape(len(self.weights), -1)
        return mean

    @cached_property
    def _products(self) -> Products:
        return Products(self.factors, self._plain.rows, self._plain.scale, self.weights)

    def _group(self, inner: Inner) -> Array:
        """Return the usable products of atoms and factors (rows, products)."""
        group = self._products.of_all(inner.atoms, inner.constants)
        if self.kept is not None:
            group = np.compress(self.kept, group, axis=1)
        if group.size:
            width = group.shape[1] + self._plain.basis.shape[1]
            self.effort.spend(4.0 * group.size * width + CALL)
        return group


class Known(NamedTuple):
    """Quantities that an equation may read: current values, explained next values, and inputs."""

    columns: Sequence[NamedColumn]
    chain: Sequence[NamedColumn]
    inputs: Sequence[NamedColumn]


def equation(
    variable: Variable, samples: Samples, known: Known, effort: Share, *, steered: bool
) -> Formula | None:
    """Return a formula with few inner constants that also holds in held-out rows, or None.

    If `steered`, constants are inside functions of inputs, which are multiplied by next values.
    Otherwise constants may be inside functions of any quantity.
    """
    usable = samples.smooth & variable.free
    target = Target(variable.change, variable.quarter, usable & samples.learn)
    if target.rows.sum() < FEWEST_ROWS:
        return None
    columns, chain, inputs = known
    terms = library([*columns, *chain], inputs, 1 if steered else 2)
    if steered:
        products, arguments = factors(chain or columns, []), inputs
    else:
        terms = [t for t in terms if t.cost <= 2]
        products, arguments = factors([*columns, *chain], inputs), [*columns, *inputs]
    formula = Scan(terms, products, target, effort).formula(varied(arguments))
    if formula is None:
        return None
    held = variable.agrees(formula.values(len(samples)), usable & ~samples.learn)
    return formula if held else None


def derived(
    variable: Variable, samples: Samples, chain: Sequence[NamedColumn], effort: Share
) -> Formula | None:
    """Return the change of a variable whose next value depends on other next values, or None.

    The change is a formula for the next value minus the current value. The formula for the next
    value also holds in held-out rows.
    """
    usable = samples.smooth & variable.free
    rows = np.flatnonzero(usable & samples.learn)
    if len(rows) < FEWEST_ROWS or not chain:
        return None
    target = Target(variable.then, variable.quarter, usable & samples.learn)
    value = _value(target, rows, chain, effort)
    if value is None:
        return None
    formula = value.less(Term(variable.name, variable.now, 1.0))
    held = variable.agrees(formula.values(len(samples)), usable & ~samples.learn)
    return formula if held else None


def factors(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> list[NamedColumn]:
    """Return the factors of atoms: cosines and sines of angles, other quantities, and inputs."""
    factors_of_columns = []
    for text, values, is_angle in columns:
        if is_angle:
            factors_of_columns.append(NamedColumn(f"np.cos({text})", np.cos(values)))
            factors_of_columns.append(NamedColumn(f"np.sin({text})", np.sin(values)))
        elif np.ptp(values) > 1e-9:
            factors_of_columns.append(NamedColumn(text, values))
    return [*factors_of_columns, *inputs][:MOST_FACTORS]


def clipped(formulas: Iterable[Formula]) -> list[NamedColumn]:
    """Return the clipped inputs that formulas read."""
    terms = [term for formula in formulas for term in formula.terms]
    return [NamedColumn(t.text, t.values) for t in terms if CLIPPED.fullmatch(t.text)]


def _value(
    target: Target, rows: Array, chain: Sequence[NamedColumn], effort: Share
) -> Formula | None:
    """Return the first formula for a value that is exact in the fitted rows, or None."""
    plain = distinct([*library(chain, [], 3), *hypotenuses(chain)])
    formula = exact(plain, target.values, target.tolerance, rows, effort, SearchLimits(4, 12, 10))
    if formula is not None:
        return formula
    for column in chain:
        saturation = _saturation(target, rows, column, effort)
        if saturation is not None:
            return saturation
    scan = Scan([t for t in plain if t.cost <= 2], list(chain)[:4], target, effort)
    return scan.formula(chain)


def _saturation(target: Target, rows: Array, column: NamedColumn, effort: Share) -> Formula | None:
    """Fit a multiple of Hill's function, `x**n / (k**n + x**n)`, plus a constant."""
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
    best = descended(rest, first, effort)
    limit = max(SLACK * float(np.abs(rest(best)).max()), 1e-2)
    if limit > SLACK:
        return None
    best = shortened(best, lambda trial: bool(np.abs(rest(trial)).max() <= limit), (0, 1))
    return fitted(terms(best), target.values, target.tolerance, rows)


def varied(columns: Sequence[NamedColumn]) -> list[NamedColumn]:
    """Return columns with more than two values; for two values, every function is linear."""
    return [column for column in columns if len(np.unique(column.values)) > 2]
