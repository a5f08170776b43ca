"""What rules about a discrete environment can look at."""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.tables import Column, Pool

LEAST_MEETING = 4


class Scene(NamedTuple):
    """Transitions in factors, one row each.

    `old` is the state before, `aimed` where the nominal moves lead, `new` the
    next state as far as it is known, `done` whether the episode ended, `reward`
    the number of the reward.
    """

    action: np.ndarray
    old: np.ndarray
    aimed: np.ndarray
    new: np.ndarray
    done: np.ndarray
    reward: np.ndarray

    def column(self, column: Column) -> np.ndarray:
        """Return the values of one column."""
        factor, values = column.factor, self.old[:, column.factor]
        if column.kind in ("action", "done", "reward"):
            values = getattr(self, column.kind)
        elif column.kind == "same":
            values = (self.new == self.old).all(axis=1)
        elif column.kind == "meets":
            values = self.new[:, factor] == self.new[:, column.other]
        elif column.kind == "edge":
            values = values + self.aimed[:, factor]
        elif column.kind != "old":
            values = getattr(self, column.kind)[:, factor]
        return values.astype(np.int64)

    def pool(self, columns: tuple[Column, ...], sizes: "Sizes") -> Pool:
        """Gather columns for rules to look at."""
        values = np.stack([self.column(column) for column in columns], axis=1)
        varying = np.flatnonzero((self.old != self.old[:1]).any(axis=0)).tolist()
        factors = {factor: sizes.radices[factor] for factor in varying}
        return Pool(columns, values, factors, sizes.actions)


class Sizes(NamedTuple):
    """The radix of every factor and the number of actions."""

    radices: tuple[int, ...]
    actions: int

    def columns(self, scene: Scene, *kinds: str) -> tuple[Column, ...]:
        """List the columns of the given kinds that say something in a scene.

        The values before and the aims of a factor count only where they
        differ from its newer values, an edge only where the factor moves.
        """
        found = []
        for kind in kinds:
            if kind == "action":
                found.append(Column(kind, -1, self.actions))
            elif kind in ("same", "done"):
                found.append(Column(kind, -1, 2))
            elif kind == "reward":
                found.append(Column(kind, -1, int(scene.reward.max()) + 1))
            elif kind == "meets":
                found += self._meetings(scene)
            else:
                found += [
                    Column(kind, factor, radix * 2 - 1 if kind == "edge" else radix)
                    for factor, radix in enumerate(self.radices)
                    if _says_something(scene, kind, factor)
                ]
        return tuple(found)

    def _meetings(self, scene: Scene) -> Iterator[Column]:
        """Yield the pairs of factors of nearly the same range that sometimes have one value."""
        for one, other in combinations(range(len(self.radices)), 2):
            pair = self.radices[one], self.radices[other]
            met = scene.new[:, one] == scene.new[:, other]
            if (
                min(pair) >= LEAST_MEETING
                and abs(pair[0] - pair[1]) < 2
                and 0 < met.sum() < len(met)
            ):
                yield Column("meets", one, 2, other)


def _says_something(scene: Scene, kind: str, factor: int) -> bool:
    """Say whether a column of a factor varies and differs from the plainer ones."""
    old, aimed, new = (part[:, factor] for part in (scene.old, scene.aimed, scene.new))
    if kind == "old":
        return bool((old != old[0]).any())
    if kind == "new":
        return bool((new != old).any())
    if kind == "aimed":
        return bool((aimed != new).any() and (aimed != old).any())
    return bool((aimed != old).any())
