"""A puzzle of hopping animals and a machine that wears by chance."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Frogs(gymnasium.Env[Integers, np.int64]):
    """Three green and three brown frogs on seven stones that are to change sides.

    The observation gives each stone's content: 0 empty, 1 green, 2 brown. The action names the
    stone whose frog is to hop. Green frogs hop right and brown frogs left, onto the next stone if
    it is empty or over one frog of any colour onto the stone after it. A hop costs 0.1, an
    impossible hop changes nothing and costs 1. The episode ends with 10 when all brown frogs sit
    on the left and all green ones on the right, and with -5 when no hop is left.
    """

    goal = (2, 2, 2, 0, 1, 1, 1)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([3] * 7)
        self.action_space = Discrete(7)
        self.stones = [1, 1, 1, 0, 2, 2, 2]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        """Start from a random arrangement that allows a hop."""
        super().reset(seed=seed)
        self.stones = [int(frog) for frog in self.np_random.permutation(self.goal)]
        while self.stuck():
            self.stones = [int(frog) for frog in self.np_random.permutation(self.goal)]
        return np.array(self.stones, np.int64), {}

    def landing(self, stone: int) -> int | None:
        """Where the frog on this stone would land, or None where it cannot hop."""
        direction = (0, 1, -1)[self.stones[stone]]
        for target in (stone + direction, stone + 2 * direction):
            if direction and 0 <= target < 7 and self.stones[target] == 0:
                return target
        return None

    def stuck(self) -> bool:
        """Whether no frog can hop."""
        return all(self.landing(stone) is None for stone in range(7))

    def step(self, action: np.int64) -> tuple[Integers, float, bool, bool, dict[str, Any]]:
        """Move the chosen frog."""
        source = int(action)
        target = self.landing(source)
        if target is None:
            return np.array(self.stones, np.int64), -1.0, False, False, {}
        self.stones[source], self.stones[target] = 0, self.stones[source]
        observation = np.array(self.stones, np.int64)
        if tuple(self.stones) == self.goal:
            return observation, 10.0, True, False, {}
        if self.stuck():
            return observation, -5.0, True, False, {}
        return observation, -0.1, False, False, {}


class Press(gymnasium.Env[Integers, np.int64]):
    """A press that wears by chance and is kept alive with spare parts.

    | Num | Observation          | Min | Max |
    |-----|----------------------|-----|-----|
    | 0   | Wear (7: broken)     | 0   | 7   |
    | 1   | Spare parts in store | 0   | 3   |
    | 2   | Part on order        | 0   | 1   |

    The actions are: press slowly, press fast, fit a part, order a part. Slow pressing wears the
    press by nothing with probability 0.8 and by 1 otherwise, fast pressing by 1 with probability
    0.75 and by 3 otherwise. A part takes away 3 points of wear. An ordered part arrives during the
    next step with certainty, as long as the store has room. Slow pressing earns 1, fast pressing 3,
    an order costs 2; a break costs 15 and ends the episode.
    """

    earnings = (1.0, 3.0, 0.0, -2.0)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([8, 4, 2])
        self.action_space = Discrete(4)
        self.wear, self.parts, self.ordered = 0, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        """Start with a used press and some parts."""
        super().reset(seed=seed)
        self.wear, self.parts = (int(self.np_random.integers(n)) for n in (5, 4))
        self.ordered = 0
        return np.array([self.wear, self.parts, self.ordered], np.int64), {}

    def step(self, action: np.int64) -> tuple[Integers, float, bool, bool, dict[str, Any]]:
        """Use or repair the press, then receive the ordered part."""
        unlucky = self.np_random.random() < (0.2, 0.25, 0.0, 0.0)[int(action)]
        arrived = self.ordered
        if action == 0:
            self.wear += 1 if unlucky else 0
        elif action == 1:
            self.wear += 3 if unlucky else 1
        elif action == 2 and self.parts > 0:
            self.wear, self.parts = max(self.wear - 3, 0), self.parts - 1
        self.wear = min(self.wear, 7)
        self.parts = min(self.parts + arrived, 3)
        self.ordered = int(action == 3)
        broken = self.wear == 7
        reward = self.earnings[int(action)] - 15.0 * broken
        return np.array([self.wear, self.parts, self.ordered], np.int64), reward, broken, False, {}
