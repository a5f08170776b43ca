"""Puzzles and games: lights out and a game of taking away."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class LightsOut(gym.Env[np.ndarray, int]):
    """Nine lamps in a square, each a switch for itself and its neighbours.

    | Num    | Observation               | Min | Max |
    |--------|---------------------------|-----|-----|
    | 0 to 8 | lamp is lit, row by row   | 0   | 1   |

    Pressing a lamp toggles it and the lamps above, below, left and right of it.
    The reward is the number of lamps that went out in the step, less those that
    went on, over nine; darkness ends the episode and is worth 1 more.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.MultiBinary(9)
        self.action_space = spaces.Discrete(9)  # type: ignore[assignment]
        self.lamps = np.zeros(9, np.int8)

    def _press(self, lamp: int) -> None:
        row, column = divmod(lamp, 3)
        for other in range(9):
            if abs(other // 3 - row) + abs(other % 3 - column) <= 1:
                self.lamps[other] ^= 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Press one to four different lamps."""
        super().reset(seed=seed)
        self.lamps = np.zeros(9, np.int8)
        for lamp in self.np_random.permutation(9)[: self.np_random.integers(1, 5)]:
            self._press(int(lamp))
        return self.lamps.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Press one lamp."""
        before = int(self.lamps.sum())
        self._press(int(action))
        lit = int(self.lamps.sum())
        return self.lamps.copy(), (before - lit) / 9 + float(lit == 0), lit == 0, False, {}


class TakeAwayNim(gym.Env[np.ndarray, np.ndarray]):
    """Three heaps of up to six stones, of which one to three may be taken at a time.

    The observation is the heaps. The first part of the action names a heap, the
    second how many stones to take, less one. A heap with too few stones is
    left alone: that costs 0.2 and the turn is repeated. Who takes the last stone wins, 1
    for the agent and -1 for its opponent, who plays a perfect move at once:
    the first heap, and from it the fewest stones, that leave a lost game; or one stone of
    the largest heap, the first of equals, if no move does.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 6, (3,), np.int8)
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.heaps = [0, 0, 0]

    def _observation(self) -> np.ndarray:
        return np.array(self.heaps, np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Lay heaps of up to six stones, of which the first is never empty."""
        super().reset(seed=seed)
        self.heaps = [int(stones) for stones in self.np_random.integers(0, 7, 3)]
        self.heaps[0] = max(self.heaps[0], 1)
        return self._observation(), {}

    def _answer(self) -> None:
        first, second, third = (stones % 4 for stones in self.heaps)
        total = first ^ second ^ third
        for heap, stones in enumerate(self.heaps):
            for taken in range(1, min(3, stones) + 1):
                if total ^ (stones % 4) ^ ((stones - taken) % 4) == 0:
                    self.heaps[heap] -= taken
                    return
        self.heaps[self.heaps.index(max(self.heaps))] -= 1

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take stones and hear the answer."""
        heap, taken = int(action[0]), int(action[1]) + 1
        if taken > self.heaps[heap]:
            return self._observation(), -0.2, False, False, {}
        self.heaps[heap] -= taken
        if not any(self.heaps):
            return self._observation(), 1.0, True, False, {}
        self._answer()
        lost = not any(self.heaps)
        return self._observation(), -1.0 if lost else 0.0, lost, False, {}
