"""Two deterministic discrete systems: a fruit picker on a grid and a tram between stops."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Orchard(gymnasium.Env[Integers, np.int64]):
    """A picker gathers the fruit of two trees and brings it to the barn past a patrolling dog.

    The orchard has 4 rows and 5 columns; a hedge stands at row 1, columns 1 and 3. The observation
    is: picker's row, picker's column, fruit on the tree at (0, 4), fruit on the tree at (3, 0),
    pieces in the basket, dog's column, dog walks east. The actions are north, east, south, west
    and pick. The dog walks to and fro along row 2 between columns 1 and 3. Emptying the basket at
    the barn (0, 2) pays 5 for each piece, picking pays 1, each step costs 0.1, and the dog's bite
    costs 10 and ends the episode, as does the delivery of the last fruit.
    """

    moves = ((-1, 0), (0, 1), (1, 0), (0, -1), (0, 0))
    hedge = ((1, 1), (1, 3))
    trees = ((0, 4), (3, 0))
    barn = (0, 2)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([4, 5, 2, 2, 3, 5, 2])
        self.action_space = Discrete(5)
        self.place = (0, 0)
        self.fruit = [1, 1]
        self.basket, self.dog, self.east = 0, 1, 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        """Start in the first or the last row, perhaps with a piece in the basket."""
        super().reset(seed=seed)
        self.place = (int(self.np_random.choice([0, 3])), int(self.np_random.integers(5)))
        ripe = int(self.np_random.integers(4))
        self.fruit = [ripe % 2, ripe // 2]
        self.basket = int(ripe == 0 or (ripe < 3 and self.np_random.integers(2)))
        self.dog, self.east = int(self.np_random.integers(1, 4)), int(self.np_random.integers(2))
        return self.observation(), {}

    def observation(self) -> Integers:
        """All registers in the order of the class's description."""
        return np.array([*self.place, *self.fruit, self.basket, self.dog, self.east], np.int64)

    def step(self, action: np.int64) -> tuple[Integers, float, bool, bool, dict[str, Any]]:
        """Move the picker, handle the fruit, then move the dog."""
        reward = -0.1
        row = min(max(self.place[0] + self.moves[int(action)][0], 0), 3)
        column = min(max(self.place[1] + self.moves[int(action)][1], 0), 4)
        if (row, column) not in self.hedge:
            self.place = (row, column)
        if action == 4 and self.place in self.trees:
            tree = self.trees.index(self.place)
            reward += self.fruit[tree]
            self.basket += self.fruit[tree]
            self.fruit[tree] = 0
        if self.place == self.barn:
            reward += 5 * self.basket
            self.basket = 0
        self.walk_dog()
        bitten = self.place == (2, self.dog)
        done = not any(self.fruit) and self.basket == 0
        return self.observation(), reward - 10 * bitten, bitten or done, False, {}

    def walk_dog(self) -> None:
        """Turn the dog at the end of its beat, then move it by one column."""
        if self.dog == (3 if self.east else 1):
            self.east = 1 - self.east
        self.dog += 1 if self.east else -1


class Tram(gymnasium.Env[Integers, np.int64]):
    """A tram that is to halt at a stop without overheating its brake.

    | Num | Observation                      | Min | Max |
    |-----|----------------------------------|-----|-----|
    | 0   | Position on the track            | 0   | 40  |
    | 1   | Speed                            | 0   | 5   |
    | 2   | Brake heat                       | 0   | 9   |
    | 3   | Position of the stop             | 15  | 35  |

    The actions are coast, accelerate and brake. A brake of heat 7 or more has no effect. The
    reward is -1 for each step, 20 more for a halt within one place of the stop, and 10 less for
    a run more than one place past the stop; both end the episode.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(
            np.array([0, 0, 0, 15]), np.array([40, 5, 9, 35]), dtype=np.int64
        )
        self.action_space = Discrete(3)
        self.position, self.speed, self.heat, self.stop = 0, 0, 0, 15

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        """Start at the beginning of the track with some speed and a stop ahead."""
        super().reset(seed=seed)
        self.position, self.speed = (int(self.np_random.integers(n)) for n in (8, 4))
        self.heat, self.stop = 0, int(self.np_random.integers(15, 36))
        return self.observation(), {}

    def observation(self) -> Integers:
        """Position, speed, heat and stop."""
        return np.array([self.position, self.speed, self.heat, self.stop], np.int64)

    def step(self, action: np.int64) -> tuple[Integers, float, bool, bool, dict[str, Any]]:
        """Apply the lever, cool or heat the brake, then roll."""
        if action == 2 and self.speed > 0:
            if self.heat < 7:
                self.speed = max(self.speed - 2, 0)
            self.heat = min(self.heat + 3, 9)
        else:
            self.heat = max(self.heat - 1, 0)
            if action == 1:
                self.speed = min(self.speed + 1, 5)
        self.position = min(self.position + self.speed, 40)
        halted = self.speed == 0 and abs(self.position - self.stop) <= 1
        passed = self.position > self.stop + 1
        reward = -1.0 + 20.0 * halted - 10.0 * passed
        return self.observation(), reward, halted or passed, False, {}
