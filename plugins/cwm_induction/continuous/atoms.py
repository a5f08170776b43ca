"""Functions with one free inner constant, such as `exp(k / x)` or `x / (k + x)`, and products.

An atom is such a function of one quantity. It brings a grid of constants that make sense for
the values seen; `Products` multiplies atoms by other quantities.
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
"""From the values of a quantity to constants to begin with; none where a function is senseless."""

COST = 2.0
"""What it costs to believe in an atom, as much as in a product of two quantities."""

FEWEST_LEVELS = 20
"""Different values below which a bend or a limit could be anything."""

EVERY = slice(None)
"""All rows."""

NONE = np.zeros(0)
"""No constants: a function makes no sense for the values seen."""


class Part(NamedTuple):
    """An expression in `{x}`, `{k}` and `{shifted}` (x - k), and the function that it writes.

    The function takes values and constants, which broadcast.
    """

    text: str
    function: Callable[[Array, Array], Array]


class AtomShape(NamedTuple):
    """Expressions that share a constant, and the constants to begin with."""

    parts: tuple[Part, ...]
    grid: Grid


@dataclass(frozen=True)
class Atom:
    """A shape of a quantity."""

    shape: AtomShape
    column: NamedColumn

    def values(self, constant: float, rows: Array | slice = EVERY) -> list[Array]:
        """Return every part in some rows."""
        values, constants = self.column.values[rows], np.array(constant)
        with np.errstate(all="ignore"):
            return [part.function(values, constants) for part in self.shape.parts]

    def texts(self, constant: float) -> list[str]:
        """Write every part."""
        shifted = f"{self.column.text} {'+' if constant < 0 else '-'} {literal(abs(constant))}"
        names = {"x": self.column.text, "k": literal(constant), "shifted": shifted}
        return [part.text.format(**names) for part in self.shape.parts]


def atoms(columns: Sequence[NamedColumn]) -> list[tuple[Atom, Array]]:
    """Return the shapes of some quantities that make sense, each with constants to begin with."""
    found = []
    for column in columns:
        for shape in SHAPES:
            with np.errstate(all="ignore"):
                grid = shape.grid(column.values)
            if len(grid):
                found.append((Atom(shape, column), grid))
    return found


@dataclass(frozen=True)
class Products:
    """Multiplies atoms by one and by every factor, in some rows and in the units of `scale`.

    With `weights` atoms and factors are given at several stages, one after another, and enter
    as weighted means over these.
    """

    factors: Sequence[NamedColumn]
    rows: Array
    scale: Array
    weights: Array | None

    def of(self, atom: Atom, constant: float) -> Array:
        """Return the products of an atom with a constant (rows, products)."""
        values = np.stack(atom.values(constant, self._needed))
        parts = [values, *(values * factor for factor in self._values)]
        found = np.stack(parts, 1).reshape(-1, values.shape[1])
        if self.weights is not None:
            found = self.weights @ found.reshape(len(found), len(self.weights), -1)
            found = found[:, self.rows]
        scaled: Array = np.multiply(found.T, self.scale[:, None], order="C")
        return scaled

    def of_all(self, atoms: Sequence[Atom], constants: Sequence[float]) -> Array:
        """Return the products of several atoms side by side, with 0 for what is not finite."""
        found = [self.of(*pair) for pair in zip(atoms, constants, strict=True)]
        group = np.column_stack([np.zeros((len(self.rows), 0)), *found])
        finite = np.isfinite(group)
        return group if finite.all() else np.where(finite, group, 0.0)

    @property
    def _needed(self) -> Array | slice:
        """The rows to compute: all where they are averaged over stages."""
        return self.rows if self.weights is None else EVERY

    @cached_property
    def _values(self) -> list[Array]:
        return [factor.values[self._needed] for factor in self.factors]


def _shape(grid: Grid, *texts: str) -> AtomShape:
    """Return the shape of some expressions."""
    codes = [text.format(x="x", k="k", shifted="(x - k)") for text in texts]
    names = {"np": np, "max": np.maximum}
    functions = [eval(f"lambda x, k: {code}", names) for code in codes]  # noqa: S307  # see SHAPES
    return AtomShape(tuple(map(Part, texts, functions)), grid)


def _size(values: Array) -> float:
    return float(np.abs(values).mean()) + 1e-12


def _rates(values: Array) -> Array:
    """Return factors that make the values neither tiny nor huge."""
    grid: Array = np.geomspace(0.05, 20, 24) / _size(values)
    return grid


def _both_rates(values: Array) -> Array:
    return np.concatenate([_rates(values), -_rates(values)])


def _multiples(low: float, high: float, power: int) -> Grid:
    """Return multiples of a power of the size of the values."""
    return lambda values: np.asarray(np.geomspace(low, high, 24) * _size(values) ** power)


def _activations(values: Array) -> Array:
    """Return the numerators of quotients that stand in an exponent, of values away from 0."""
    if np.abs(values).min() < 0.02 * _size(values):
        return NONE
    rates = _multiples(0.1, 60, 1)(values)
    return np.concatenate([-rates, rates])


def _halves(values: Array) -> Array:
    """Return points of half saturation of what is never negative."""
    return NONE if values.min() < 0 else _multiples(0.02, 50, 1)(values)


def _frequencies(values: Array) -> Array:
    """Return angular frequencies from a sixth of a wave over the range to ten waves."""
    grid: Array = np.arange(1, 61) * np.pi / 3 / float(np.ptp(values))
    return grid


def _slants(values: Array) -> Array:
    """Return factors that keep the argument of a tangent between its poles."""
    grid: Array = np.linspace(0.1, 0.97, 12) * np.pi / 2 / float(np.abs(values).max() + 1e-12)
    return grid


def _powers(values: Array) -> Array:
    """Return exponents other than the usual ones."""
    return NONE if values.min() <= 0 else np.delete(np.arange(-30, 41) / 10, [20, 30, 40, 50])


def _knots(values: Array) -> Array:
    """Return places between the values where something may bend."""
    levels = np.unique(values)
    if len(levels) < FEWEST_LEVELS:
        return NONE
    grid: Array = np.quantile(levels, np.linspace(0.03, 0.97, 25))
    return grid


def _bounds(values: Array) -> Array:
    """Return limits on both sides of zero."""
    if not values.min() < 0 < values.max() or len(np.unique(values)) < FEWEST_LEVELS:
        return NONE
    grid: Array = np.linspace(0.05, 0.97, 24) * min(-values.min(), values.max())
    return grid


def _offsets(values: Array) -> Array:
    """Return what can be added under a root or a logarithm."""
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
"""What is tried, in this order where several do as well."""
