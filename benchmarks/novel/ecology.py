"""Biology: a managed predator-prey system and an epidemic."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from benchmarks.novel.integrators import rk4


class PredatorPrey(gym.Env[np.ndarray, int]):
    """Prey with logistic growth and predators that saturate.

    The observation is the density of the prey and of the predators. Action 0
    does nothing, 1 harvests 15 % of the prey, 2 culls 15 % of the predators
    and 3 releases 0.3 prey. Then a quarter of a season passes. The reward of a
    harvest is the harvested amount, a cull costs 0.1, a release 0.25. When a
    species falls below 0.15 it is lost: -5, and the episode ends.
    """

    GROWTH, CAPACITY, ATTACK, HANDLING = 1.1, 6.0, 1.2, 0.35
    YIELD, DEATH = 0.6, 0.55

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(4)  # type: ignore[assignment]
        self.state = np.zeros(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Populate the area at random."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform([0.3, 0.3], [5.0, 3.0])
        return self.state.copy(), {}

    def _slope(self, state: np.ndarray) -> np.ndarray:
        prey, predators = state
        eaten = self.ATTACK * prey * predators / (1.0 + self.ATTACK * self.HANDLING * prey)
        grown = self.GROWTH * prey * (1.0 - prey / self.CAPACITY)
        return np.array([grown - eaten, self.YIELD * eaten - self.DEATH * predators])

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Intervene, then let the populations interact."""
        reward = 0.0
        prey, predators = self.state
        if action == 1:
            reward = 0.15 * prey
            prey -= reward
        elif action == 2:
            reward = -0.1
            predators *= 0.85
        elif action == 3:
            reward = -0.25
            prey += 0.3
        self.state = rk4(self._slope, np.array([prey, predators]), 0.25)
        lost = bool((self.state < 0.15).any())
        return self.state.copy(), float(reward) - 5.0 * lost, lost, False, {}


class EpidemicControl(gym.Env[np.ndarray, np.ndarray]):
    """An epidemic with waning immunity that is slowed by closing places.

    | Num | Observation        | Min | Max |
    |-----|--------------------|-----|-----|
    | 0   | susceptible share  | 0   | 1   |
    | 1   | infectious share   | 0   | 1   |
    | 2   | recovered share    | 0   | 1   |

    The action is the strength of the closure, from 0 to 1; full closure
    prevents 70 % of the contacts. A step is a day in four Euler steps. The
    reward is -(4 i + 0.1 a^2) with the infectious share i at the end of the day;
    it is 2 more when i falls below 0.008 and 3 less when it exceeds 0.15, and
    both end the episode.
    """

    CONTACT, RECOVERY, WANING = 0.55, 0.22, 0.01

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.shares = (1.0, 0.0, 0.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with up to an eighth infectious and any share immune up to six tenths."""
        super().reset(seed=seed)
        infectious = float(self.np_random.uniform(0.01, 0.13))
        recovered = float(self.np_random.uniform(0.0, 0.6))
        self.shares = (1.0 - infectious - recovered, infectious, recovered)
        return np.array(self.shares, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Keep places closed for a day."""
        closure = float(np.clip(action[0], 0.0, 1.0))
        susceptible, infectious, recovered = self.shares
        for _ in range(4):
            infected = 0.25 * self.CONTACT * (1.0 - 0.7 * closure) * susceptible * infectious
            healed = 0.25 * self.RECOVERY * infectious
            waned = 0.25 * self.WANING * recovered
            susceptible += waned - infected
            infectious += infected - healed
            recovered += healed - waned
        self.shares = (susceptible, infectious, recovered)
        over, overwhelmed = infectious < 0.008, infectious > 0.15
        reward = -4.0 * infectious - 0.1 * closure**2 + 2.0 * over - 3.0 * overwhelmed
        return np.array(self.shares, np.float32), reward, over or overwhelmed, False, {}
