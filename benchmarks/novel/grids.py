"""Grid worlds: a locked door, ice and a box to push."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""North, east, south and west."""


class KeyDoor(gym.Env[np.ndarray, int]):
    """Two rooms of 5 x 3 cells with a locked door in the wall between them.

    | Num | Observation                   | Min | Max |
    |-----|-------------------------------|-----|-----|
    | 0   | row of the agent              | 0   | 4   |
    | 1   | column of the agent           | 0   | 6   |
    | 2   | row of the key, in column 0   | 0   | 4   |
    | 3   | key: lying, held, used        | 0   | 2   |
    | 4   | door: shut, open              | 0   | 1   |

    Actions 0 to 3 move, 4 takes a key that lies under the agent, or opens
    the door, at row 2 and column 3, from the cell to its west with the key.
    Taking the key is worth 0.2, opening 0.5, the goal at the lower right corner 1
    and ends the episode; every other step costs 0.01, a bump 0.05.
    """

    ROWS, COLUMNS, WALL, DOOR_ROW = 5, 7, 3, 2

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([5, 7, 5, 3, 2])
        self.action_space = spaces.Discrete(5)  # type: ignore[assignment]
        self.row = self.column = self.key_row = self.key = self.open = 0

    def _observation(self) -> np.ndarray:
        return np.array([self.row, self.column, self.key_row, self.key, self.open], np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with some of the work done already, perhaps even in the east room."""
        super().reset(seed=seed)
        self.row = int(self.np_random.integers(5))
        self.key_row = int(self.np_random.integers(5))
        self.key = int(self.np_random.integers(3))
        self.open = int(self.key == 2)
        room = 4 if self.open and self.np_random.random() < 0.5 else 0
        self.column = room + int(self.np_random.integers(2 if room else 3))
        return self._observation(), {}

    def _free(self, row: int, column: int) -> bool:
        inside = 0 <= row < self.ROWS and 0 <= column < self.COLUMNS
        return inside and (column != self.WALL or (row == self.DOOR_ROW and self.open == 1))

    def _use(self) -> float:
        if self.key == 0 and (self.row, self.column) == (self.key_row, 0):
            self.key = 1
            return 0.2
        if self.key == 1 and (self.row, self.column) == (self.DOOR_ROW, self.WALL - 1):
            self.key, self.open = 2, 1
            return 0.5
        return -0.01

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move, or use the object at hand."""
        if action == 4:
            reward = self._use()
            return self._observation(), reward, False, False, {}
        row, column = self.row + MOVES[action][0], self.column + MOVES[action][1]
        if not self._free(row, column):
            return self._observation(), -0.05, False, False, {}
        self.row, self.column = row, column
        arrived = (row, column) == (self.ROWS - 1, self.COLUMNS - 1)
        return self._observation(), 1.0 if arrived else -0.01, arrived, False, {}


class IceSlide(gym.Env[int, int]):
    """A frozen pond of 6 x 7 cells, numbered row by row.

    A push to the north, east, south or west lets the agent slide until a rock
    or the shore stops it. It stops at the hut as well, which is
    worth 1, and falls into a hole on its way, which is worth -1; both end the
    episode. A slide costs 0.02 for every cell.
    """

    POND = (
        "...#..H",
        ".#.....",
        "....#..",
        "#.H..#.",
        "......G",
        "..#....",
    )

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(42)  # type: ignore[assignment]
        self.action_space = spaces.Discrete(4)  # type: ignore[assignment]
        self.row = self.column = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Start on any cell of ice."""
        super().reset(seed=seed)
        ice = [cell for cell in range(42) if self.POND[cell // 7][cell % 7] == "."]
        self.row, self.column = divmod(int(self.np_random.choice(ice)), 7)
        return self.row * 7 + self.column, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Slide to the end of the ice."""
        reward, cell = 0.0, "."
        while cell == ".":
            row, column = self.row + MOVES[action][0], self.column + MOVES[action][1]
            if not (0 <= row < 6 and 0 <= column < 7) or self.POND[row][column] == "#":
                break
            self.row, self.column, cell = row, column, self.POND[row][column]
            reward -= 0.02
        reward += {"G": 1.0, "H": -1.0}.get(cell, 0.0)
        return self.row * 7 + self.column, reward, cell in "GH", False, {}


class BoxPusher(gym.Env[np.ndarray, int]):
    """One box, one goal: the smallest warehouse.

    The observation is the board: 0 floor, 1 wall, 2 goal, 3 box, 4 box on the goal,
    5 agent, 6 agent on the goal. The four actions move the agent and
    push the box if the cell behind it is free. A step costs 0.1; the box on the goal
    is worth 5, a box in a corner -2, and both end the episode.
    """

    WALLS = np.array([[cell == "#" for cell in row] for row in (
        "#######",
        "#     #",
        "#     #",
        "#  #  #",
        "#     #",
        "#######",
    )])  # fmt: skip
    GOAL = (2, 4)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 6, (6, 7), np.int8)
        self.action_space = spaces.Discrete(4)  # type: ignore[assignment]
        self.agent = self.box = (0, 0)

    def _observation(self) -> np.ndarray:
        board = self.WALLS.astype(np.int8)
        board[self.GOAL] = 2
        board[self.box] = 4 if self.box == self.GOAL else 3
        board[self.agent] = 6 if self.agent == self.GOAL else 5
        return board

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the box away from the outer walls and the agent anywhere else."""
        super().reset(seed=seed)
        floor = [(int(row), int(column)) for row, column in np.argwhere(~self.WALLS)]
        inner = [(r, c) for r, c in floor if 1 < r < 4 and 1 < c < 5 and (r, c) != self.GOAL]
        self.box = inner[int(self.np_random.integers(len(inner)))]
        floor.remove(self.box)
        self.agent = floor[int(self.np_random.integers(len(floor)))]
        return self._observation(), {}

    def _cornered(self) -> bool:
        walled = [bool(self.WALLS[self.box[0] + dr, self.box[1] + dc]) for dr, dc in MOVES]
        return (walled[0] or walled[2]) and (walled[1] or walled[3])

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk, and push a box that is ahead."""
        down, right = MOVES[action]
        ahead = (self.agent[0] + down, self.agent[1] + right)
        if ahead == self.box:
            behind = (ahead[0] + down, ahead[1] + right)
            if not self.WALLS[behind]:
                self.agent, self.box = ahead, behind
        elif not self.WALLS[ahead]:
            self.agent = ahead
        if self.box == self.GOAL:
            return self._observation(), 5.0, True, False, {}
        stuck = self._cornered()
        return self._observation(), -2.0 if stuck else -0.1, stuck, False, {}
