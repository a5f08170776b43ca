"""Environments with chance: a machine that wears and a grid with drift."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class MachineMaintenance(gym.Env[np.ndarray, int]):
    """A machine that wears while it produces.

    | Num | Observation         | Min | Max |
    |-----|---------------------|-----|-----|
    | 0   | wear, 5 is broken   | 0   | 5   |
    | 1   | spare parts         | 0   | 4   |

    Action 0 produces: wear stays with probability 0.7, grows by one with 0.22 and
    by two with 0.08; it earns 1 - 0.15 of the new wear. Action 1 services with a spare part:
    wear falls by two, but with probability 0.15 not at all; without a part nothing happens;
    it costs 0.4. Action 2 orders two parts, of which the store holds four;
    it costs 0.6. A broken machine ends the episode with -6.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([6, 5])
        self.action_space = spaces.Discrete(3)  # type: ignore[assignment]
        self.wear = self.parts = 0

    def _observation(self) -> np.ndarray:
        return np.array([self.wear, self.parts], np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with a used machine that runs."""
        super().reset(seed=seed)
        self.wear = int(self.np_random.integers(4))
        self.parts = int(self.np_random.integers(5))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Produce, service or order."""
        if action == 0:
            grown = int(self.np_random.choice(3, p=[0.7, 0.22, 0.08]))
            self.wear = min(self.wear + grown, 5)
            broken = self.wear == 5
            return self._observation(), -6.0 if broken else 1 - 0.15 * self.wear, broken, False, {}
        if action == 2:
            self.parts = min(self.parts + 2, 4)
            return self._observation(), -0.6, False, False, {}
        if self.parts > 0:
            self.parts -= 1
            if self.np_random.random() >= 0.15:
                self.wear = max(self.wear - 2, 0)
        return self._observation(), -0.4, False, False, {}


class PortalDrift(gym.Env[int, int]):
    """A ship on a sea of 5 x 6 cells, numbered row by row, with whirls that carry it away.

    The actions sail to the north, east, south and west. With probability 0.2 the current
    takes the ship one cell to the east instead. The shore holds it. Entering
    one of two whirls, on cells 8 and 21, puts it out at the other one. The harbour on
    cell 5 is worth 10, the reef on cells 15 and 28 -10; both end the episode.
    Every other step costs 0.2.
    """

    WHIRLS = (8, 21)
    HARBOUR, REEF = 5, (15, 28)

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(30)  # type: ignore[assignment]
        self.action_space = spaces.Discrete(4)  # type: ignore[assignment]
        self.cell = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Start on open water in the two western columns."""
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(5)) * 6 + int(self.np_random.integers(2))
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Sail, or drift."""
        course = 1 if self.np_random.random() < 0.2 else int(action)
        row, column = divmod(self.cell, 6)
        row = min(max(row + (-1, 0, 1, 0)[course], 0), 4)
        column = min(max(column + (0, 1, 0, -1)[course], 0), 5)
        entered = row * 6 + column
        if entered != self.cell and entered in self.WHIRLS:
            entered = sum(self.WHIRLS) - entered
        self.cell = entered
        if self.cell == self.HARBOUR:
            return self.cell, 10.0, True, False, {}
        if self.cell in self.REEF:
            return self.cell, -10.0, True, False, {}
        return self.cell, -0.2, False, False, {}
