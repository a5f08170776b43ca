"""Operations research: an elevator and a vending machine."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Elevator(gym.Env[np.ndarray, int]):
    """An elevator in a house of five floors.

    | Num     | Observation                              | Min | Max |
    |---------|------------------------------------------|-----|-----|
    | 0       | floor of the cabin                       | 0   | 4   |
    | 1 to 5  | someone waits on floor 0 to 4            | 0   | 1   |
    | 6 to 10 | someone aboard wants to floor 0 to 4     | 0   | 1   |

    Actions: 0 goes down a floor, 1 goes up a floor, 2 opens the door. Whoever wants to
    the floor leaves, then anyone who waits comes in and wants to the floor two above, or
    three below where there is none. The reward is 1 when someone leaves,
    less 0.1 for each one who is still waiting or aboard; with none of them the episode ends.
    """

    def __init__(self) -> None:
        high = np.array([4, *[1] * 10], np.int64)
        self.observation_space = spaces.Box(np.zeros(11, np.int64), high, dtype=np.int64)
        self.action_space = spaces.Discrete(3)  # type: ignore[assignment]
        self.floor = 0
        self.waiting, self.aboard = [0] * 5, [0] * 5

    def _observation(self) -> np.ndarray:
        return np.array([self.floor, *self.waiting, *self.aboard], np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Place one to three waiting people, and perhaps one passenger."""
        super().reset(seed=seed)
        self.floor = int(self.np_random.integers(5))
        self.waiting, self.aboard = [0] * 5, [0] * 5
        for caller in self.np_random.permutation(5)[: self.np_random.integers(1, 4)]:
            self.waiting[int(caller)] = 1
        self.aboard[int(self.np_random.integers(5))] = int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move by a floor or serve the one where the cabin stands."""
        left = 0
        if action == 0:
            self.floor = max(self.floor - 1, 0)
        elif action == 1:
            self.floor = min(self.floor + 1, 4)
        else:
            left, self.aboard[self.floor] = self.aboard[self.floor], 0
            if self.waiting[self.floor]:
                self.waiting[self.floor] = 0
                self.aboard[(self.floor + 2) % 5] = 1
        people = sum(self.waiting) + sum(self.aboard)
        return self._observation(), left - 0.1 * people, people == 0, False, {}


class VendingMachine(gym.Env[np.ndarray, int]):
    """A machine that sells gum and juice for coins.

    The observation is the credit in units of five cents, up to twelve, then the
    gums and the juices in stock, up to three each. Actions 0, 1 and 2 insert a
    coin of one, two and five units; a coin that would lift the credit above twelve
    falls through. Action 3 buys gum for three units, 4 buys juice for seven,
    if there is credit and stock, and 5 returns all credit. A coin
    costs the user a tenth per unit, returned credit brings it back, gum is worth 0.5
    to the user and juice 1. The episode ends when the machine is empty.
    """

    COINS = (1, 2, 5)
    PRICES = (3, 7)
    WORTH = (0.5, 1.0)

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([13, 4, 4])
        self.action_space = spaces.Discrete(6)  # type: ignore[assignment]
        self.credit, self.stock = 0, [0, 0]

    def _observation(self) -> np.ndarray:
        return np.array([self.credit, *self.stock], np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Fill the machine with at least one piece, and leave some credit in it."""
        super().reset(seed=seed)
        self.credit = int(self.np_random.integers(13))
        self.stock = [int(self.np_random.integers(1, 4)), int(self.np_random.integers(4))]
        return self._observation(), {}

    def _insert(self, coin: int) -> float:
        if self.credit + coin > 12:
            return 0.0
        self.credit += coin
        return -0.1 * coin

    def _buy(self, good: int) -> float:
        if self.credit < self.PRICES[good] or self.stock[good] == 0:
            return 0.0
        self.credit -= self.PRICES[good]
        self.stock[good] -= 1
        return self.WORTH[good]

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Press a key or insert a coin."""
        if action < 3:
            reward = self._insert(self.COINS[action])
        elif action < 5:
            reward = self._buy(int(action) - 3)
        else:
            reward, self.credit = 0.1 * self.credit, 0
        return self._observation(), reward, self.stock == [0, 0], False, {}
