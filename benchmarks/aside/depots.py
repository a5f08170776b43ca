"""Moving goods: a forklift, a lift and a barge."""

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import Simulator, clamp

Cell = tuple[int, int]


class ForkliftYard(Simulator):
    """A forklift has to put a pallet on the ramp of a yard.

    ## Action Space

    | Num | Action                                   |
    |-----|------------------------------------------|
    | 0   | Turn left                                |
    | 1   | Turn right                               |
    | 2   | Drive one cell forward                   |
    | 3   | Fork: take or put down the pallet ahead  |

    ## Observation Space

    A tuple of three parts:

    | Num | Observation                                        | Min  | Max  |
    |-----|----------------------------------------------------|------|------|
    | 0   | Row and column of the forklift                     | 0, 0 | 3, 4 |
    | 1   | Heading (north, east, south, west)                 | 0    | 3    |
    | 2   | Cell of the pallet, by rows; 20 when on the fork   | 0    | 20   |

    Shelves, the pallet and the fence stop the forklift. The ramp is the last column. A pallet put
    there ends the episode with 10, an oil spill driven on with -5. Taking the pallet earns 2,
    putting it down elsewhere costs 2 and every step 0.1.
    """

    ROWS, COLUMNS, ON_FORK = 4, 5, 20
    SHELVES: tuple[Cell, ...] = ((1, 1), (2, 3))
    SPILLS: tuple[Cell, ...] = ((3, 0), (0, 3))
    HEADINGS: tuple[Cell, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))

    def __init__(self) -> None:
        self.observation_space = spaces.Tuple(
            (spaces.MultiDiscrete([4, 5]), spaces.Discrete(4), spaces.Discrete(21))
        )
        self.action_space = spaces.Discrete(4)
        self.row, self.column, self.heading, self.pallet = 0, 0, 0, self.ON_FORK

    def _start(self) -> None:
        taken = (*self.SHELVES, *self.SPILLS)
        cells = [(r, c) for r in range(self.ROWS) for c in range(4) if (r, c) not in taken]
        truck, pallet = self.np_random.choice(len(cells), 2, replace=False).tolist()
        self.row, self.column = cells[truck]
        self.heading = int(self.np_random.integers(4))
        held = self.np_random.random() < 0.4
        self.pallet = self.ON_FORK if held else cells[pallet][0] * 5 + cells[pallet][1]

    def _advance(self, action: Any) -> tuple[float, bool]:
        rows, columns = self.HEADINGS[self.heading]
        ahead = (self.row + rows, self.column + columns)
        if action == 3:
            return self._fork(ahead)
        if action == 2:
            if self._free(ahead):
                self.row, self.column = ahead
            spilled = (self.row, self.column) in self.SPILLS
            return -0.1 - 5.0 * spilled, spilled
        self.heading = (self.heading + (1 if action == 1 else 3)) % 4
        return -0.1, False

    def _fork(self, ahead: Cell) -> tuple[float, bool]:
        place = ahead[0] * 5 + ahead[1]
        if self.pallet == self.ON_FORK and self._free(ahead):
            self.pallet = place
            docked = ahead[1] == 4
            return (9.9 if docked else -2.1), docked
        if self.pallet == place and 0 <= ahead[1] < 5:
            self.pallet = self.ON_FORK
            return 1.9, False
        return -0.1, False

    def _free(self, cell: Cell) -> bool:
        inside = 0 <= cell[0] < self.ROWS and 0 <= cell[1] < self.COLUMNS
        return inside and cell not in self.SHELVES and cell[0] * 5 + cell[1] != self.pallet

    def _observe(self) -> tuple[Any, int, int]:
        return np.array([self.row, self.column]), self.heading, self.pallet


class GoodsLift(Simulator):
    """A lift serves the calls of five floors.

    Actions: up (0), down (1), door (2), which opens a closed door and closes an open one. The
    observation is one number, `(floor * 2 + door) * 32 + calls`, where bit `n` of `calls` is the
    call of floor `n`. With an open door the lift does not move, and trying costs 1. Opening the
    door serves the call of the floor for 1; without a call it costs 0.5. Each step costs 0.1, and
    with no call left the episode ends with 5.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(320)
        self.action_space = spaces.Discrete(3)
        self.floor, self.door, self.calls = 0, 0, 1

    def _start(self) -> None:
        self.floor = int(self.np_random.integers(5))
        self.door = int(self.np_random.integers(2))
        self.calls = int(self.np_random.integers(1, 32))

    def _advance(self, action: Any) -> tuple[float, bool]:
        reward = -0.1
        if action == 2:
            self.door = 1 - self.door
            bit = 1 << self.floor
            if self.door:
                reward += 1.0 if self.calls & bit else -0.5
                self.calls &= ~bit
        elif self.door:
            reward -= 1.0
        else:
            self.floor = int(clamp(self.floor + (1 if action == 0 else -1), 0, 4))
        return reward + 5.0 * (self.calls == 0), self.calls == 0

    def _observe(self) -> int:
        return (self.floor * 2 + self.door) * 32 + self.calls


class DriftBarge(Simulator):
    """A barge crosses a river of five rows and six columns with a current to the east.

    The observation is `row * 6 + column`; the actions go north, east, south and west by one cell,
    and banks stop the barge. One time in five the current then carries the barge one more cell to
    the east. Sandbanks end the trip with -5 and the harbour with 10; each step costs 0.2.
    """

    MOVES: tuple[Cell, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))
    SANDBANKS: tuple[Cell, ...] = ((1, 2), (3, 4), (0, 5))
    HARBOUR: Cell = (4, 5)

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(30)
        self.action_space = spaces.Discrete(4)
        self.row, self.column = 0, 0

    def _start(self) -> None:
        self.row = int(self.np_random.integers(5))
        self.column = int(self.np_random.integers(2))

    def _advance(self, action: Any) -> tuple[float, bool]:
        rows, columns = self.MOVES[action]
        drift = int(self.np_random.random() < 0.2)
        self.row = int(clamp(self.row + rows, 0, 4))
        self.column = int(clamp(self.column + columns, 0, 5))
        self.column = min(self.column + drift, 5)
        place = (self.row, self.column)
        if place in self.SANDBANKS:
            return -5.2, True
        return (9.8, True) if place == self.HARBOUR else (-0.2, False)

    def _observe(self) -> int:
        return self.row * 6 + self.column
