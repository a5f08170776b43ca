"""Sokoban boards: moves, a solver, and random solvable boards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

Cell = tuple[int, int]
"""A column and a row, from the upper left corner."""

SIZE = 7
"""Columns and rows; the outer ones are walls."""

MOVES: tuple[Cell, ...] = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""Up, down, left and right."""

ACTIVATE = len(MOVES)
"""The action that uses a teleporter."""

ACTIONS = ("up", "down", "left", "right", "activate")
"""Names of the actions, in the order of their numbers."""

INNER: tuple[Cell, ...] = tuple((x, y) for x in range(1, SIZE - 1) for y in range(1, SIZE - 1))
OUTER = frozenset((x, y) for x in range(SIZE) for y in range(SIZE)) - frozenset(INNER)

MAX_INNER_WALLS = 7
"""Maximum number of inner walls: with more walls, few boards can be solved."""


class Positions(NamedTuple):
    """The cells of the player and the boxes."""

    player: Cell
    boxes: tuple[Cell, ...]


class Warehouse(NamedTuple):
    """The fixed parts of a board: walls, targets and teleporters."""

    walls: frozenset[Cell]
    targets: tuple[Cell, ...]
    teleporters: tuple[Cell, ...] = ()

    def after(self, position: Positions, action: int) -> Positions:
        """Return the positions after an action; an impossible action changes nothing."""
        player, boxes = position
        if action == ACTIVATE:
            return Positions(self._teleport(player, boxes), boxes)
        dx, dy = MOVES[action]
        ahead = (player[0] + dx, player[1] + dy)
        if ahead in self.walls:
            return position
        if ahead not in boxes:
            return Positions(ahead, boxes)
        behind = (ahead[0] + dx, ahead[1] + dy)
        if behind in self.walls or behind in boxes:
            return position
        return Positions(ahead, tuple(behind if box == ahead else box for box in boxes))

    def count_placed(self, position: Positions) -> int:
        """Return the number of boxes on targets."""
        return sum(box in self.targets for box in position.boxes)

    def solution(self, start: Positions) -> list[int] | None:
        """Return the shortest solution by breadth-first search, or None if there is none."""
        actions, live = range(ACTIVATE + bool(self.teleporters)), self.live_cells()
        previous: dict[Positions, tuple[Positions, int] | None] = {start: None}
        queue = [start] if live.issuperset(start.boxes) else []
        for here in queue:
            if self.count_placed(here) == len(here.boxes):
                return _trace_actions(previous, here)
            for action in actions:
                there = self.after(here, action)
                if there not in previous and live.issuperset(there.boxes):
                    previous[there] = (here, action)
                    queue.append(there)
        return None

    def live_cells(self) -> set[Cell]:
        """Return the cells from where a single box can be pushed onto a target."""
        live = set(self.targets)
        queue = list(live)
        for x, y in queue:
            for dx, dy in MOVES:
                box, player = (x - dx, y - dy), (x - 2 * dx, y - 2 * dy)
                if not {box, player} & self.walls and box not in live:
                    live.add(box)
                    queue.append(box)
        return live

    def _teleport(self, player: Cell, boxes: Sequence[Cell]) -> Cell:
        """Return the player's cell after `activate`: the other teleporter, if no box is on it."""
        if player not in self.teleporters:
            return player
        one, two = self.teleporters
        other = two if player == one else one
        return player if other in boxes else other


def draw(
    rng: np.random.Generator, boxes: int, *, teleporters: bool = False, parted: bool = False
) -> tuple[Warehouse, Positions]:
    """Draw a random board that can be solved.

    Args:
        rng: The random generator.
        boxes: Number of boxes.
        teleporters: Whether the board has two teleporters.
        parted: Draw a board with a wall between the player and the boxes, which can be solved
            only with teleporters. All other boards can be solved without teleporters.
    """
    min_solution_steps = 5  # minimum length of the shortest solution of a board
    while True:
        walls = {
            INNER[place] for place in rng.permutation(len(INNER))[: rng.integers(MAX_INNER_WALLS)]
        }
        if parted:
            walls = {
                cell for cell in walls if rng.random() < 1 / 3
            }  # because half of the board is small
            axis, line = rng.integers(2), rng.integers(2, SIZE - 2)
            walls |= {cell for cell in INNER if cell[axis] == line}
        free = [cell for cell in INNER if cell not in walls]
        cells = [free[place] for place in rng.permutation(len(free))[: 2 * boxes + 3]]
        if len(walls) > MAX_INNER_WALLS or len(cells) < 2 * boxes + 3:
            continue
        player, *others = cells
        start = Positions(player, tuple(others[:boxes]))
        targets, ends = tuple(others[boxes : 2 * boxes]), tuple(others[2 * boxes :])
        board = Warehouse(OUTER | walls, targets, ends if teleporters else ())
        alone = board._replace(teleporters=()).solution(start)
        found = board.solution(start) if parted else alone
        if found and len(found) >= min_solution_steps and (alone is None) == parted:
            return board, start


def _trace_actions(
    previous: dict[Positions, tuple[Positions, int] | None], here: Positions
) -> list[int]:
    """Return the actions that lead from the start to `here`."""
    actions: list[int] = []
    step = previous[here]
    while step is not None:
        here, action = step
        actions.append(action)
        step = previous[here]
    return actions[::-1]
