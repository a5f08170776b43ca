"""Slides: moves over a grid that continue until they meet an obstacle."""

from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.expressions import Constants
from cwm_induction.discrete.features import Sizes
from cwm_induction.discrete.moves import FactorMove

GridCell = tuple[int, int]

LEAST_RIGHT = 0.95
"""Slides must explain this share of the transitions; other events during a slide are exceptions."""

AXES = 2
"""Number of factors of a grid, and the least length of a move that is more than one step."""

STEP_BITS = 3.0
"""Price of the direction of an action."""

LOOP = """\
new_{row}, new_{column} = {row}, {column}
down, right = {steps}.get(action, (0, 0))
while (down, right) != (0, 0):
    there = new_{row} + down, new_{column} + right
    inside = 0 <= there[0] <= {last_row} and 0 <= there[1] <= {last_column}
    if not inside{walls}:
        break
    new_{row}, new_{column} = there{stops}"""

STOP = """
    if there in {stops}:
        break"""


class Slide(NamedTuple):
    """The direction of each action; slides stop in front of `walls` and in `stops`."""

    steps: dict[int, GridCell]
    walls: frozenset[GridCell]
    stops: frozenset[GridCell]
    radices: tuple[int, int]
    actions: int

    @property
    def bits(self) -> float:
        """Description length."""
        cells = log2(self.radices[0] * self.radices[1])
        return STEP_BITS * len(self.steps) + cells * (len(self.walls) + len(self.stops))

    @property
    def moves(self) -> tuple[FactorMove, ...]:
        """The single steps, one move per factor."""
        deltas = np.array([self.steps.get(action, (0, 0)) for action in range(self.actions)])
        return tuple(
            FactorMove(radix, wraps=False, key=None, deltas=deltas[:, [factor]])
            for factor, radix in enumerate(self.radices)
        )

    def landing(self, old: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return the last cell of each slide."""
        pairs = zip(map(tuple, old.tolist()), action.tolist(), strict=True)
        return np.array([self._end(cell, self.steps.get(number, (0, 0))) for cell, number in pairs])

    def _end(self, cell: GridCell, step: GridCell) -> GridCell:
        """Return the last cell of one slide."""
        while step != (0, 0):
            there = cell[0] + step[0], cell[1] + step[1]
            inside = all(0 <= at < size for at, size in zip(there, self.radices, strict=True))
            if not inside or there in self.walls:
                break
            cell = there
            if cell in self.stops:
                break
        return cell

    def lines(self, constants: Constants, names: list[str]) -> list[str]:
        """Write the loop of a slide; `names` are the factors of the grid, row first."""
        row, column = names
        steps = constants.add("SLIDES", str(self.steps), f"by action: step of ({row}, {column})")
        walls, stops = (
            "{" + ", ".join(map(str, sorted(cells))) + "}" for cells in (self.walls, self.stops)
        )
        if self.walls:
            walls = constants.add("WALLS", walls, "cells in front of which it stops")
        if self.stops:
            stops = constants.add("STOPS", stops, "cells in which it stops")
        return LOOP.format(
            row=row,
            column=column,
            steps=steps,
            walls=f" or there in {walls}" if self.walls else "",
            stops=STOP.format(stops=stops) if self.stops else "",
            last_row=self.radices[0] - 1,
            last_column=self.radices[1] - 1,
        ).split("\n")


def fit_slide(
    old: np.ndarray, action: np.ndarray, after: np.ndarray, done: np.ndarray, sizes: Sizes
) -> Slide | None:
    """Return slides along the axes of a grid, if they explain most transitions."""
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
    explained = (slide.landing(old, action) == after).all(axis=1)
    return slide if steps and explained.mean() >= LEAST_RIGHT else None


def _steps(changes: np.ndarray, action: np.ndarray) -> dict[int, GridCell]:
    """Return the most common direction of each action that changes anything."""
    steps = {}
    for number in np.unique(action).tolist():
        rows = np.sign(changes[(action == number) & changes.any(axis=1)])
        if len(rows):
            directions, counts = np.unique(rows, axis=0, return_counts=True)
            down, right = directions[counts.argmax()].tolist()
            steps[number] = down, right
    return steps
