"""Grids and board games."""

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import clamp
from benchmarks.contracts.base import ContractSystem

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""North, east, south and west, as changes of row and column."""

JUMPS = {7: 22, 18: 40, 33: 51, 57: 30, 45: 12, 27: 3}
"""Ladders and snakes of `Ladder`: the field a piece lands on, and the field it is moved to."""


class Board(ContractSystem):
    """A board of rows and columns with a piece that moves; the observation is its cell."""

    shown = ("row", "column")
    size: tuple[int, int]

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete(list(self.size))
        self.action_space = spaces.Discrete(4)
        self.row = self.column = 0

    def _start(self) -> None:
        self.row, self.column = self.np_random.integers(self.size).tolist()

    def _ahead(self, direction: int) -> tuple[int, int]:
        """Return the next cell in a direction, or the same cell at the edge."""
        down, right = MOVES[direction]
        row = clamp(self.row + down, 0, self.size[0] - 1)
        return int(row), int(clamp(self.column + right, 0, self.size[1] - 1))


class Courtyard(Board):
    """A palace of 40 x 40 cells with walls, pillars and coins.

    | Num | Observation | Min | Max |
    |-----|-------------|-----|-----|
    | 0   | row         | 0   | 39  |
    | 1   | column      | 0   | 39  |

    Actions 0 to 3 move north, east, south and west; walls and pillars stop the move. Action 4
    leaps two cells to the east unless the target is blocked, also over a wall. Entering a cell
    with a coin has a reward of 1, each time. Entering a well ends the episode with -1.
    """

    size = (40, 40)

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(5)

    @staticmethod
    def _is_blocked(row: int, column: int) -> bool:
        wall = (row % 8 == 0 and column % 8 != 4) or (column % 8 == 0 and row % 8 != 3)
        return wall or (row * 7 + column * 13) % 11 == 0

    def _start(self) -> None:
        super()._start()
        while self._is_blocked(self.row, self.column):
            super()._start()

    def _advance(self, action: Any) -> tuple[float, bool]:
        row, column = self._ahead(int(action) % 4)
        if action == 4:
            row, column = self.row, self.column + 2
        if column > 39 or self._is_blocked(row, column) or (row, column) == (self.row, self.column):
            return 0.0, False
        self.row, self.column = row, column
        if (row * 11 + column * 7) % 61 == 0:
            return -1.0, True
        return float((row * 5 + column * 3) % 31 == 0), False


class Ladder(ContractSystem):
    """A race over 60 fields with ladders and snakes.

    The observation is the field, from 0 to 59. Action 0 rolls a die with six faces, action 1 a
    die with three faces. Overshooting the last field moves the piece back by the rest. Ladders
    lead from 7 to 22, 18 to 40 and 33 to 51, snakes from 57 to 30, 45 to 12 and 27 to 3. The
    last field ends the episode with a reward of 10, and each other step costs 0.1.
    """

    shown = ("field",)

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(60)
        self.action_space = spaces.Discrete(2)
        self.field = 0

    def _observe(self) -> Any:
        return self.field

    def place(self, observation: Any) -> None:
        """Set the field."""
        self.field = int(observation)

    def _start(self) -> None:
        self.field = int(self.np_random.integers(6))

    def _advance(self, action: Any) -> tuple[float, bool]:
        target = self.field + int(self.np_random.integers(1, 7 if action == 0 else 4))
        target = 59 - abs(59 - target)
        self.field = JUMPS.get(target, target)
        return (10.0, True) if self.field == 59 else (-0.1, False)


class Catacomb(Board):
    """A crypt of 9 x 9 cells with a ghost.

    | Num | Observation | Min | Max |
    |-----|-------------|-----|-----|
    | 0   | row         | 0   | 8   |
    | 1   | column      | 0   | 8   |

    Actions 0 to 3 move north, east, south and west. Cells with odd row and odd column are
    pillars. With probability 0.03 the ghost carries the visitor to a random free cell
    instead. Each step into the middle row has a reward of 1.
    """

    size = (9, 9)

    def _start(self) -> None:
        super()._start()
        while self.row % 2 and self.column % 2:
            super()._start()

    def _advance(self, action: Any) -> tuple[float, bool]:
        if self.np_random.random() < 0.03:
            self._start()
        else:
            row, column = self._ahead(int(action))
            if not (row % 2 and column % 2):
                self.row, self.column = row, column
        return float(self.row == 4), False


class Rink(Board):
    """A rink of 6 x 8 cells with two holes and a gate.

    | Num | Observation | Min | Max |
    |-----|-------------|-----|-----|
    | 0   | row         | 0   | 5   |
    | 1   | column      | 0   | 7   |

    Actions 0 to 3 move north, east, south and west. With probability 0.15 the skater slips
    and moves at a right angle to the left of that direction. Holes at (2, 3) and (4, 5) end the
    episode with -1, and the gate at (0, 4) with 1.
    """

    size = (6, 8)

    def _start(self) -> None:
        self.row, self.column = int(self.np_random.integers(6)), int(self.np_random.integers(3))

    def _advance(self, action: Any) -> tuple[float, bool]:
        slipped = self.np_random.random() < 0.15
        self.row, self.column = self._ahead((int(action) - slipped) % 4)
        if (self.row, self.column) in ((2, 3), (4, 5)):
            return -1.0, True
        return (1.0, True) if (self.row, self.column) == (0, 4) else (0.0, False)


class Expedition(Board):
    """A slope of 7 x 7 cells with a dark wood in the east.

    | Num | Observation | Min | Max |
    |-----|-------------|-----|-----|
    | 0   | row         | 0   | 6   |
    | 1   | column      | 0   | 6   |

    Actions 0 to 3 move north, east, south and west. Lamps hang in column 0, rows 2
    to 4, and the adventurer takes one on entering such a cell. In the wood, columns 3 to 6,
    steps to the north and south fail without a lamp. The wind in column 6, rows 2 to 4, blows
    the lamp out, and an adventurer with a lamp finds a mushroom there, for a reward of 1.
    """

    size = (7, 7)
    hidden = ("lamp",)

    def __init__(self) -> None:
        super().__init__()
        self.lamp = 0

    def _start(self) -> None:
        self.row, self.column = int(self.np_random.integers(7)), int(self.np_random.integers(1, 4))
        self.lamp = 0

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action % 2 or self.lamp or self.column < 3:
            self.row, self.column = self._ahead(int(action))
        if self.column == 0 and 2 <= self.row <= 4:
            self.lamp = 1
        if self.column == 6 and 2 <= self.row <= 4 and self.lamp:
            self.lamp = 0
            return 1.0, False
        return 0.0, False


class Manor(Board):
    """A manor of two halls with 4 x 2 cells each.

    | Num | Observation | Min | Max |
    |-----|-------------|-----|-----|
    | 0   | row         | 0   | 3   |
    | 1   | column      | 0   | 3   |

    Actions 0 to 3 move north, east, south and west. A wall with a gate in the rows 0 to 2 is
    between the columns 1 and 2. Keys are in all four corners, and a visitor who enters a
    corner takes one, if the visitor has none. The gate opens for a key only, which remains in
    the lock, and passing has a reward of 1.
    """

    size = (4, 4)
    hidden = ("key",)

    def __init__(self) -> None:
        super().__init__()
        self.key = 0

    def _start(self) -> None:
        self.row, self.column = int(self.np_random.integers(1, 3)), int(self.np_random.integers(4))
        self.key = 0

    def _advance(self, action: Any) -> tuple[float, bool]:
        row, column = self._ahead(int(action))
        passing = {self.column, column} == {1, 2}
        if passing and not (self.key and row < 3):
            return 0.0, False
        self.row, self.column = row, column
        if passing:
            self.key = 0
        elif row in (0, 3) and column in (0, 3):
            self.key = 1
        return float(passing), False


class Safe(ContractSystem):
    """A safe with a code of one digit.

    | Num | Observation                    | Min | Max |
    |-----|--------------------------------|-----|-----|
    | 0   | 1 if the safe is open          | 0   | 1   |
    | 1   | attempts so far, at most 9     | 0   | 9   |

    Each episode has another code. The actions 0 to 3 press a digit, and the right one opens
    the safe for a reward of 1. While the safe is open any action shuts it.
    """

    shown = ("is_open", "attempts")
    hidden = ("code",)

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([2, 10])
        self.action_space = spaces.Discrete(4)
        self.is_open = self.attempts = self.code = 0

    def _start(self) -> None:
        self.is_open, self.attempts, self.code = 0, 0, int(self.np_random.integers(4))

    def _advance(self, action: Any) -> tuple[float, bool]:
        if self.is_open:
            self.is_open = 0
            return 0.0, False
        self.attempts = min(self.attempts + 1, 9)
        self.is_open = int(action == self.code)
        return float(self.is_open), False


class Locker(ContractSystem):
    """A corridor with six lockers for coins.

    | Num | Observation                 | Min | Max |
    |-----|-----------------------------|-----|-----|
    | 0   | place in the corridor       | 0   | 5   |
    | 1   | 1 if the hand holds a coin  | 0   | 1   |

    Action 0 walks to the left and 1 to the right. Action 2 opens the locker at this place: a
    hand with a coin puts it in if the locker is empty, and an empty hand takes the coin
    from it for a reward of 1. At the start there are coins in the lockers 0, 2 and 5.
    """

    shown = ("spot", "hand")
    hidden = ("lockers",)

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([6, 2])
        self.action_space = spaces.Discrete(3)
        self.spot = self.hand = 0
        self.lockers: tuple[int, ...] = (1, 0, 1, 0, 0, 1)

    def _start(self) -> None:
        self.spot, self.hand = self.np_random.integers([6, 2]).tolist()
        self.lockers = (1, 0, 1, 0, 0, 1)

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action < 2:
            self.spot = int(clamp(self.spot + 2 * int(action) - 1, 0, 5))
        elif self.lockers[self.spot] != self.hand:
            taken = 1 - self.hand
            contents = np.array(self.lockers)
            contents[self.spot] = self.hand
            self.lockers, self.hand = tuple(contents.tolist()), taken
            return float(taken), False
        return 0.0, False
