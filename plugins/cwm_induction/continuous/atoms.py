"""Functions with one free inner constant, such as `exp(k / x)` or `x / (k + x)`, and products.

An atom is such a function of one quantity. Each shape of an atom has a grid of starting constants
that suit the values in the data. `Products` multiplies atoms by other quantities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.writing.rounding import literal

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


class Part(NamedTuple):
    """An expression in `{x}`, `{k}` and `{shifted}` (x - k), and the corresponding function.

    The function takes values and constants, which broadcast.
    """

    text: str
    function: Callable[[Array, Array], Array]


class AtomShape(NamedTuple):
    """Expressions that share a constant, and the grid of starting constants."""

    parts: tuple[Part, ...]
    grid: Grid


@dataclass(frozen=True)
class Atom:
    """A shape, applied to a quantity."""

    shape: AtomShape
    column: NamedColumn

    def values(self, constant: float, rows: Array | slice = EVERY) -> list[Array]:
        """Return the values of every part in the given rows."""
        values, constants = self.column.values[rows], np.array(constant)
        with np.errstate(all="ignore"):
            return [part.function(values, constants) for part in self.shape.parts]

    def texts(self, constant: float) -> list[str]:
        """Return the source text of every part."""
        shifted = f"{self.column.text} {'+' if constant < 0 else '-'} {literal(abs(constant))}"
        names = {"x": self.column.text, "k": literal(constant), "shifted": shifted}
        return [part.text.format(**names) for part in self.shape.parts]


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


@dataclass(frozen=True)
class Products:
    """Products of atoms with 1 and with every factor, for some rows and in units of `scale`.

    With `weights`, atoms and factors have values at several integration stages, one stage after
    another, and each product is the weighted mean over the stages.
    """

    factors: Sequence[NamedColumn]
    rows: Array
    scale: Array
    weights: Array | None

    def of(self, atom: Atom, constant: float) -> Array:
        """Return the products of an atom with a constant (rows, products)."""
        values = np.stack(atom.values(constant, self._needed))
        parts = [values, *(values * factor for factor in self._values)]
        products = np.stack(parts, 1).reshape(-1, values.shape[1])
        if self.weights is not None:
            products = self.weights @ products.reshape(len(products), len(self.weights), -1)
            products = products[:, self.rows]
        scaled: Array = np.multiply(products.T, self.scale[:, None], order="C")
        return scaled

    def of_all(self, atoms: Sequence[Atom], constants: Sequence[float]) -> Array:
        """Return the products of several atoms (rows, products), with 0 for non-finite values."""
        products = [self.of(*pair) for pair in zip(atoms, constants, strict=True)]
        group = np.column_stack([np.zeros((len(self.rows), 0)), *products])
        finite = np.isfinite(group)
        return group if finite.all() else np.where(finite, group, 0.0)

    @property
    def _needed(self) -> Array | slice:
        """The rows to compute: all rows if products are averaged over stages."""
        return self.rows if self.weights is None else EVERY

    @cached_property
    def _values(self) -> list[Array]:
        return [factor.values[self._needed] for factor in self.factors]


def _shape(grid: Grid, *texts: str) -> AtomShape:
    """Return the shape with the given expressions and grid."""
    codes = [text.format(x="x", k="k", shifted="(x - k)") for text in texts]
    names = {"np": np, "max": np.maximum}
    functions = [eval(f"lambda x, k: {code}", names) for code in codes]  # noqa: S307  # see SHAPES
    return AtomShape(tuple(map(Part, texts, functions)), grid)


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
