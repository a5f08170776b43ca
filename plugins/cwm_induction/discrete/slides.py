"""Moves that go on until something is in the way."""

from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.moves import Move
from cwm_induction.discrete.scene import Sizes

Cell = tuple[int, int]

LEAST_RIGHT = 0.95
AXES = 2


class Slide(NamedTuple):
    """Where each action slides, the cells in front of which and those in which it stops."""

    steps: dict[int, Cell]
    walls: frozenset[Cell]
    stops: frozenset[Cell]
    radices: tuple[int, int]
    actions: int

    @property
    def bits(self) -> float:
        """Description length."""
        cells = log2(self.radices[0] * self.radices[1])
        return 3.0 * len(self.steps) + cells * (len(self.walls) + len(self.stops))

    @property
    def moves(self) -> tuple[Move, ...]:
        """The single steps, one move per factor."""
        deltas = np.array([self.steps.get(action, (0, 0)) for action in range(self.actions)])
        return tuple(
            Move(radix, wraps=False, key=None, deltas=deltas[:, [factor]])
            for factor, radix in enumerate(self.radices)
        )

    def landing(self, old: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return where every slide ends."""
        pairs = zip(map(tuple, old.tolist()), action.tolist(), strict=True)
        return np.array([self._end(cell, self.steps.get(number, (0, 0))) for cell, number in pairs])

    def _end(self, cell: Cell, step: Cell) -> Cell:
        """Return where one slide ends."""
        while step != (0, 0):
            there = cell[0] + step[0], cell[1] + step[1]
            inside = all(0 <= at < size for at, size in zip(there, self.radices, strict=True))
            if not inside or there in self.walls:
                break
            cell = there
            if cell in self.stops:
                break
        return cell


def fit_slide(
    old: np.ndarray,
    action: np.ndarray,
    after: np.ndarray,
    done: np.ndarray,
    sizes: Sizes,
) -> Slide | None:
    """Read moves of different lengths along the axes of a grid as slides, if they explain most."""
    radices = sizes.radices
    if len(radices) != AXES or np.abs(after - old).max() < AXES:
        return None
    steps = _steps(after - old, action)
    starts, ends = (list(map(tuple, part.tolist())) for part in (old, after))
    stops = {end for end, is_end in zip(ends, done.tolist(), strict=True) if is_end}
    free, ahead = set(starts), set()
    for start, end, number in zip(starts, ends, action.tolist(), strict=True):
        down, right = steps.get(number, (0, 0))
        length = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
        free |= {(start[0] + k * down, start[1] + k * right) for k in range(length + 1)}
        if end not in stops:
            ahead.add((end, (end[0] + down, end[1] + right)))
    inside = {(end, cell) for end, cell in ahead if 0 <= cell[0] < radices[0]}
    inside = {(end, cell) for end, cell in inside if 0 <= cell[1] < radices[1] and cell != end}
    stops |= {end for end, cell in inside if cell in free}
    walls = {cell for _, cell in inside if cell not in free}
    slide = Slide(
        steps, frozenset(walls), frozenset(stops), (radices[0], radices[1]), sizes.actions
    )
    right_ones = (slide.landing(old, action) == after).all(axis=1)
    return slide if steps and right_ones.mean() >= LEAST_RIGHT else None


def _steps(changes: np.ndarray, action: np.ndarray) -> dict[int, Cell]:
    """Return the commonest direction of every action that changes anything."""
    steps = {}
    for number in np.unique(action).tolist():
        rows = np.sign(changes[(action == number) & changes.any(axis=1)])
        if len(rows):
            directions, counts = np.unique(rows, axis=0, return_counts=True)
            down, right = directions[counts.argmax()].tolist()
            steps[number] = down, right
    return steps
