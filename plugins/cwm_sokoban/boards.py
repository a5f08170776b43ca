"""Boards: how things move on them, how they are solved, and how solvable ones are drawn."""

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
"""The action of who stands on a teleporter."""

ACTIONS = ("up", "down", "left", "right", "activate")
"""What the actions are called, in their order."""

INNER: tuple[Cell, ...] = tuple((x, y) for x in range(1, SIZE - 1) for y in range(1, SIZE - 1))
OUTER = frozenset((x, y) for x in range(SIZE) for y in range(SIZE)) - frozenset(INNER)

MOST_INNER_WALLS = 7
"""Inner walls of a board: with more, few boards can be solved."""

FEWEST_STEPS = 5
"""Steps that the shortest solution of a board takes at least."""


class Positions(NamedTuple):
    """Where the player and the boxes are."""

    player: Cell
    boxes: tuple[Cell, ...]


class Warehouse(NamedTuple):
    """What never moves."""

    walls: frozenset[Cell]
    targets: tuple[Cell, ...]
    teleporters: tuple[Cell, ...] = ()

    def after(self, position: Positions, action: int) -> Positions:
        """Return where an action leads; one that is impossible changes nothing."""
        player, boxes = position
        if action == ACTIVATE:
            return Positions(self._teleported(player, boxes), boxes)
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

    def placed(self, position: Positions) -> int:
        """Return how many boxes stand on targets."""
        return sum(box in self.targets for box in position.boxes)

    def solution(self, start: Positions) -> list[int] | None:
        """Return the fewest actions that place all boxes, by breadth; None where none do."""
        actions, alive = range(ACTIVATE + bool(self.teleporters)), self.alive()
        came: dict[Positions, tuple[Positions, int] | None] = {start: None}
        waiting = [start] if alive.issuperset(start.boxes) else []
        for here in waiting:
            if self.placed(here) == len(here.boxes):
                return _back(came, here)
            for action in actions:
                there = self.after(here, action)
                if there not in came and alive.issuperset(there.boxes):
                    came[there] = (here, action)
                    waiting.append(there)
        return None

    def alive(self) -> set[Cell]:
        """Return the cells from which a box, were it alone, could be pushed onto a target."""
        found = set(self.targets)
        waiting = list(found)
        for x, y in waiting:
            for dx, dy in MOVES:
                box, player = (x - dx, y - dy), (x - 2 * dx, y - 2 * dy)
                if not {box, player} & self.walls and box not in found:
                    found.add(box)
                    waiting.append(box)
        return found

    def _teleported(self, player: Cell, boxes: Sequence[Cell]) -> Cell:
        """Return where the player is after activating: at the other teleporter, if it is free."""
        if player not in self.teleporters:
            return player
        one, two = self.teleporters
        other = two if player == one else one
        return player if other in boxes else other


def draw(
    rng: np.random.Generator, boxes: int, *, teleporters: bool = False, parted: bool = False
) -> tuple[Warehouse, Positions]:
    """Draw a board that can be solved.

    A `parted` one cannot be solved without teleporters: a wall stands between the player and the
    boxes. Any other can.
    """
    while True:
        walls = {
            INNER[place] for place in rng.permutation(len(INNER))[: rng.integers(MOST_INNER_WALLS)]
        }
        if parted:
            walls = {cell for cell in walls if rng.random() < 1 / 3}  # half the room is little room
            axis, line = rng.integers(2), rng.integers(2, SIZE - 2)
            walls |= {cell for cell in INNER if cell[axis] == line}
        free = [cell for cell in INNER if cell not in walls]
        cells = [free[place] for place in rng.permutation(len(free))[: 2 * boxes + 3]]
        if len(walls) > MOST_INNER_WALLS or len(cells) < 2 * boxes + 3:
            continue
        player, *others = cells
        start = Positions(player, tuple(others[:boxes]))
        targets, ends = tuple(others[boxes : 2 * boxes]), tuple(others[2 * boxes :])
        board = Warehouse(OUTER | walls, targets, ends if teleporters else ())
        alone = board._replace(teleporters=()).solution(start)
        found = board.solution(start) if parted else alone
        if found and len(found) >= FEWEST_STEPS and (alone is None) == parted:
            return board, start


def _back(came: dict[Positions, tuple[Positions, int] | None], here: Positions) -> list[int]:
    """Return the actions that led to a position."""
    actions: list[int] = []
    step = came[here]
    while step is not None:
        here, action = step
        actions.append(action)
        step = came[here]
    return actions[::-1]
