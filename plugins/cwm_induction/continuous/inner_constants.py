"""Equations with a constant inside a term, such as `exp(k / x)` or `x / (k + x)`.

An atom is a function of one quantity with one inner constant. For given inner constants, the other
parameters are linear (variable projection; Golub and Pereyra, 1973). The search scans a grid of
constants with all other terms present, refines the best constants, and finally removes unneeded
terms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.least_squares import descended, shortened
from cwm_induction.continuous.regression import (
    SLACK,
    Formula,
    Projection,
    SearchLimits,
    Target,
    exact,
    fitted,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, hypotenuses, library
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

Grid = Callable[[Array], Array]
"""Maps the values of a quantity to starting constants, or to none if the function is unsuitable."""

COST = 2.0
"""Description cost of an atom: the same as for a product of two quantities."""

FEWEST_LEVELS = 20
"""Minimum number of distinct values for bends and limits; fewer do not determine the position."""

EVERY = slice(None)
"""All rows."""

NONE = np.zeros(0)
"""No starting constants: the function is unsuitable for the values."""


class AtomShape(NamedTuple):
    """Functions of a quantity that share a constant, and the grid of starting constants.

    The texts are expressions in `{x}`, `{k}` and `{shifted}` (x - k). The functions take values and
    constants, which broadcast.
    """

    texts: tuple[str, ...]
    functions: tuple[Callable[[Array, Array], Array], ...]
    grid: Grid


@dataclass(frozen=True)
class Atom:
    """A shape, applied to a quantity."""

    shape: AtomShape
    column: NamedColumn

    def values(self, constant: float, rows: Array | slice = EVERY) -> list[Array]:
        """Return the values of every function in the given rows."""
        values, constants = self.column.values[rows], np.array(constant)
        with np.errstate(all="ignore"):
            return [function(values, constants) for function in self.shape.functions]

    def texts(self, constant: float) -> list[str]:
        """Return the source text of every function."""
        shifted = f"{self.column.text} {'+' if constant < 0 else '-'} {literal(abs(constant))}"
        names = {"x": self.column.text, "k": literal(constant), "shifted": shifted}
        return [text.format(**names) for text in self.shape.texts]


def atoms(columns: Sequence[NamedColumn]) -> list[tuple[Atom, Array]]:
    """Return the suitable atoms of some quantities, each with starting constants."""
    pairs = []
    for column in columns:
        for shape in SHAPES:
            with np.errstate(all="ignore"):
                grid = shape.grid(column.values)
            if len(grid):
                pairs.append((Atom(shape, column), grid))
    return pairs


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
            groups = [self._product(atom, constant) for constant in grid.tolist()]
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

    def _product(self, atom: Atom, constant: float) -> Array:
        """Return the products of an atom with 1 and with every factor (rows, products)."""
        rows = self._plain.rows
        needed = rows if self.weights is None else EVERY
        values = np.stack(atom.values(constant, needed))
        parts = [values, *(values * factor.values[needed] for factor in self.factors)]
        products = np.stack(parts, 1).reshape(-1, values.shape[1])
        if self.weights is not None:
            products = self.weights @ products.reshape(len(products), len(self.weights), -1)
            products = products[:, rows]
        scaled: Array = np.multiply(products.T, self._plain.scale[:, None], order="C")
        return scaled

    def _group(self, inner: Inner) -> Array:
        """Return the usable products of atoms and factors, with 0 for non-finite values."""
        pairs = zip(inner.atoms, inner.constants, strict=True)
        none = np.zeros((len(self._plain.rows), 0))
        group = np.column_stack([none, *(self._product(*pair) for pair in pairs)])
        group = np.where(np.isfinite(group), group, 0.0)
        if self.kept is not None:
            group = np.compress(self.kept, group, axis=1)
        if group.size:
            width = group.shape[1] + self._plain.basis.shape[1]
            self.effort.spend(4.0 * group.size * width + CALL)
        return group


def equation(
    variable: Variable,
    samples: Samples,
    columns: Sequence[NamedColumn],
    chain: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
    effort: Share,
) -> Formula | None:
    """Return a formula with few inner constants that also holds in held-out rows, or None.

    It may read current values, explained next values (`chain`) and inputs.
    """
    usable = samples.smooth & variable.free
    target = Target(variable.change, variable.quarter, usable & samples.learn)
    if target.rows.sum() < FEWEST_ROWS:
        return None
    now = [*columns, *chain]
    terms = [t for t in library(now, inputs, 2) if t.cost <= 2]
    scan = Scan(terms, factors(now, inputs), target, effort)
    formula = scan.formula(varied([*columns, *inputs]))
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


def _value(
    target: Target, rows: Array, chain: Sequence[NamedColumn], effort: Share
) -> Formula | None:
    """Return the first formula for a value that is exact in the fitted rows, or None."""
    plain = distinct([*library(chain, [], 3), *hypotenuses(chain)])
    formula = exact(plain, target.values, target.tolerance, rows, effort, SearchLimits(4, 12, 10))
    if formula is not None:
        return formula
    scan = Scan([t for t in plain if t.cost <= 2], list(chain)[:4], target, effort)
    return scan.formula(chain)


def varied(columns: Sequence[NamedColumn]) -> list[NamedColumn]:
    """Return columns with more than two values; for two values, every function is linear."""
    return [column for column in columns if len(np.unique(column.values)) > 2]


def _shape(grid: Grid, *texts: str) -> AtomShape:
    """Return the shape with the given expressions and grid."""
    codes = [text.format(x="x", k="k", shifted="(x - k)") for text in texts]
    names = {"np": np, "max": np.maximum}
    functions = [eval(f"lambda x, k: {code}", names) for code in codes]  # noqa: S307  # see SHAPES
    return AtomShape(texts, tuple(functions), grid)


def _size(values: Array) -> float:
    return float(np.abs(values).mean()) + 1e-12


def _rates(values: Array) -> Array:
    """Return factors that scale the mean absolute value to between 0.05 and 20."""
    grid: Array = np.geomspace(0.05, 20, 24) / _size(values)
    return grid


def _both_rates(values: Array) -> Array:
    return np.concatenate([_rates(values), -_rates(values)])


def _multiples(low: float, high: float, power: int) -> Grid:
    """Return a grid of multiples of a power of the mean absolute value."""
    return lambda values: np.asarray(np.geomspace(low, high, 24) * _size(values) ** power)


def _activations(values: Array) -> Array:
    """Return numerators of exponents `k / x`; none if a value is close to 0."""
    if np.abs(values).min() < 0.02 * _size(values):
        return NONE
    rates = _multiples(0.1, 60, 1)(values)
    return np.concatenate([-rates, rates])


def _halves(values: Array) -> Array:
    """Return points of half saturation; none if a value is negative."""
    return NONE if values.min() < 0 else _multiples(0.02, 50, 1)(values)


def _frequencies(values: Array) -> Array:
    """Return angular frequencies: a sixth of a wave to ten waves over the range of the values."""
    grid: Array = np.arange(1, 61) * np.pi / 3 / float(np.ptp(values))
    return grid


def _slants(values: Array) -> Array:
    """Return factors that keep the argument of a tangent between its poles."""
    grid: Array = np.linspace(0.1, 0.97, 12) * np.pi / 2 / float(np.abs(values).max() + 1e-12)
    return grid


def _powers(values: Array) -> Array:
    """Return exponents from -3 to 4, except -1, 0, 1 and 2; none if a value is not positive."""
    return NONE if values.min() <= 0 else np.delete(np.arange(-30, 41) / 10, [20, 30, 40, 50])


def _knots(values: Array) -> Array:
    """Return quantiles of the distinct values, as positions of a bend."""
    levels = np.unique(values)
    if len(levels) < FEWEST_LEVELS:
        return NONE
    grid: Array = np.quantile(levels, np.linspace(0.03, 0.97, 25))
    return grid


def _bounds(values: Array) -> Array:
    """Return limits for clipping symmetrically about zero."""
    if not values.min() < 0 < values.max() or len(np.unique(values)) < FEWEST_LEVELS:
        return NONE
    grid: Array = np.linspace(0.05, 0.97, 24) * min(-values.min(), values.max())
    return grid


def _offsets(values: Array) -> Array:
    """Return offsets that make the argument of a root or a logarithm positive."""
    grid: Array = np.geomspace(0.003, 30, 24) * np.ptp(values) - values.min()
    return grid


SHAPES = (
    _shape(_halves, "{x} / ({k} + {x})"),
    _shape(_both_rates, "np.exp({k} * {x})"),
    _shape(_activations, "np.exp({k} / {x})"),
    _shape(_rates, "np.tanh({k} * {x})"),
    _shape(_frequencies, "np.sin({k} * {x})", "np.cos({k} * {x})"),
    _shape(_knots, "max({shifted}, 0.0)"),
    _shape(_bounds, "np.clip({x}, -{k}, {k})"),
    _shape(_multiples(0.01, 100, 2), "{x}**2 / ({k} + {x}**2)"),
    _shape(_multiples(0.001, 1000, 4), "{x}**4 / ({k} + {x}**4)"),
    _shape(_powers, "{x}**{k}"),
    _shape(_offsets, "np.sqrt({x} + {k})"),
    _shape(_offsets, "np.log({x} + {k})"),
    _shape(_multiples(0.01, 100, 2), "np.exp(-{k} * {x}**2)"),
    _shape(_rates, "np.arctan({k} * {x})"),
    _shape(_slants, "np.tan({k} * {x})"),
)
"""All shapes; the first one is chosen if several fit equally well."""
