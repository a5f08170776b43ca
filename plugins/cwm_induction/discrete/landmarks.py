"""Places that the values of a factor stand for, as where something lies or is to be brought."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

Cell = tuple[int, ...]

LEAST_SYMBOLS = 3
LEAST_SITES = 2
RARE = 0.02


class Landmarks(NamedTuple):
    """What the values of the factor `item` stand for.

    All but `held` stand for a cell, given by the factors `places`. `sites` are the
    cells that were seen; `possible` lists for every other value the cells in which
    nothing that was tried rules it out, and `optimistic` says that what happens in
    the right one is so rare that it is worth foreseeing in all of them. The factor
    `target` says where to, if what is put down always lies there.
    """

    item: int
    held: int
    places: tuple[int, ...]
    sites: Mapping[int, Cell]
    possible: Mapping[int, tuple[Cell, ...]]
    optimistic: bool
    target: int | None

    @property
    def values(self) -> dict[Cell, int]:
        """The value that stands for each cell that was seen."""
        return {cell: value for value, cell in self.sites.items()}

    def here(self, factors: np.ndarray) -> np.ndarray:
        """Return the value that stands for the present cell, or -1."""
        cells = map(tuple, factors[:, self.places].tolist())
        return np.array([self.values.get(cell, -1) for cell in cells], dtype=np.int64)

    def at(self, factors: np.ndarray, factor: int) -> np.ndarray:
        """Say where the present cell is what a factor stands for."""
        result: np.ndarray = self.here(factors) == factors[:, factor]
        return result

    def perhaps(self, factors: np.ndarray, factor: int) -> np.ndarray:
        """Say where the present cell is or may be what a factor stands for."""
        cells = map(tuple, factors[:, self.places].tolist())
        pairs = zip(factors[:, factor].tolist(), cells, strict=True)
        maybe = np.array([cell in self.possible.get(value, ()) for value, cell in pairs])
        either: np.ndarray = self.at(factors, factor) | maybe.astype(bool)
        return either

    def goals(self, radices: tuple[int, ...]) -> list[int]:
        """List the factors that may say where things are to be put, the one that does if known."""
        others = [other for other in self.companions(radices) if other != self.item]
        return others if self.target is None else [self.target]

    def companions(self, radices: tuple[int, ...]) -> list[int]:
        """List the factors whose values may stand for the same cells."""
        size = radices[self.item]
        others = [i for i in range(len(radices)) if i not in self.places]
        return [i for i in others if abs(radices[i] - size) < 2 and radices[i] >= LEAST_SYMBOLS]


class Trials(NamedTuple):
    """Transitions in factors, and the factors that say where something happens."""

    old: np.ndarray
    action: np.ndarray
    after: np.ndarray
    codes: np.ndarray
    places: tuple[int, ...]
    radices: tuple[int, ...]

    def landmarks(self) -> Landmarks | None:
        """Return the places that the values of some factor stand for, if one has such values."""
        others = [i for i in range(len(self.radices)) if i not in self.places]
        found = (self._landmarks(i) for i in others if self.radices[i] >= LEAST_SYMBOLS)
        return next((landmarks for landmarks in found if landmarks), None)

    def _landmarks(self, item: int) -> Landmarks | None:
        """Read the changes of a factor as taking something up and putting it down."""
        pairs = np.stack([self.old[:, item], self.after[:, item]], axis=1)
        changed = pairs[:, 0] != pairs[:, 1]
        held = set(range(self.radices[item]))
        for pair in pairs[changed].tolist():
            held &= set(pair)
        if len(held) != 1:
            return None
        (value,) = held
        symbols = pairs[changed].sum(axis=1) - value
        cells = [tuple(cell) for cell in self.old[changed][:, self.places].tolist()]
        seen = set(zip(symbols.tolist(), cells, strict=True))
        sites = dict(sorted(seen))
        if len(seen) < LEAST_SITES or not len(seen) == len(sites) == len(set(sites.values())):
            return None
        possible = {
            symbol: tuple(self._possible(item, symbol, value, set(sites.values())))
            for symbol in range(self.radices[item])
            if symbol not in sites and symbol != value
        }
        put = changed & (pairs[:, 0] == value)
        share = np.bincount(self.codes)[self.codes[put]].min(initial=len(put)) / len(put)
        found = Landmarks(item, value, self.places, sites, possible, bool(share < RARE), None)
        return found._replace(target=next(self._targets(found, put), None))

    def _targets(self, found: Landmarks, put: np.ndarray) -> Iterator[int]:
        """Yield the factors that say where everything that is put down lies afterwards."""
        for other in found.companions(self.radices):
            same = self.old[put, other] == self.after[put, found.item]
            if other != found.item and len(same) and same.all():
                yield other

    def _possible(self, item: int, symbol: int, held: int, taken: set[Cell]) -> Iterator[Cell]:
        """Yield the cells that nothing tried in vain rules out for a value."""
        values, changed = self.old[:, item], self.old[:, item] != self.after[:, item]
        vain = np.zeros(len(values), dtype=bool)
        for value, source in ((symbol, values != held), (held, values == held)):
            actions = np.unique(self.action[changed & source])
            vain |= ~changed & (values == value) & np.isin(self.action, actions)
        excluded = taken | set(map(tuple, self.old[vain][:, self.places].tolist()))
        for cell in product(*(range(self.radices[place]) for place in self.places)):
            if cell not in excluded:
                yield cell
