"""Atoms times factors, as columns of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cwm_induction.continuous.atoms import EVERY, Atom
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import Column


@dataclass(frozen=True)
class Products:
    """Multiplies atoms by one and by every factor, in some rows and in the units of `scale`.

    With `weights` atoms and factors are given at several stages, one after another, and enter
    as weighted means over these.
    """

    factors: Sequence[Column]
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
