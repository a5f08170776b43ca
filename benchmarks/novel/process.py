"""Chemical engineering: a stirred reactor and two tanks."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from benchmarks.novel.integrators import rk4


class ArrheniusReactor(gym.Env[np.ndarray, np.ndarray]):
    """A cooled stirred tank with an exothermic first-order reaction.

    The state is the concentration of the reactant (mol/l) and the temperature
    (K). Feed of 1 mol/l and 350 K replaces the content once a minute. The
    reaction follows Arrhenius' law. The action moves the jacket by up to 20 K
    around 306 K, one step is 0.1 min. The reward is the negative squared
    distance to 350 K in tens of kelvin, less a small cost of cooling effort,
    and -20 at runaway, above 390 K, which ends the episode.
    """

    RATE, ACTIVATION, HEAT, JACKET = 8.4e9, 8000.0, 160.0, 2.1
    TARGET, RUNAWAY = 350.0, 390.0
    STEP, SUBSTEPS = 0.1, 8

    def __init__(self) -> None:
        self.observation_space = spaces.Box(
            np.array([0.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.state = np.zeros(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start cold or hot, with little or much reactant."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform([0.3, 330.0], [0.85, 368.0])
        return self.state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold the jacket for one sampling time."""
        effort = float(np.clip(action[0], -1.0, 1.0))
        jacket = 306.0 + 20.0 * effort

        def slope(state: np.ndarray) -> np.ndarray:
            concentration, temperature = state
            reacted = self.RATE * np.exp(-self.ACTIVATION / temperature) * concentration
            warming = 350.0 - temperature + self.HEAT * reacted
            return np.array(
                [1.0 - concentration - reacted, warming + self.JACKET * (jacket - temperature)]
            )

        for _ in range(self.SUBSTEPS):
            self.state = rk4(slope, self.state, self.STEP / self.SUBSTEPS)
        self.state[0] = min(max(self.state[0], 0.0), 1.0)
        runaway = bool(self.state[1] > self.RUNAWAY)
        reward = -(((self.state[1] - self.TARGET) / 10.0) ** 2) - 0.05 * effort**2
        return self.state.copy(), float(reward) - 20.0 * runaway, runaway, False, {}


class TwoTanks(gym.Env[np.ndarray, int]):
    """Two tanks in a row, each emptied by gravity through a hole.

    | Num | Observation             | Min | Max |
    |-----|-------------------------|-----|-----|
    | 0   | level of the upper tank | 0   | 2.0 |
    | 1   | level of the lower tank | 0   | 1.6 |

    Actions: 0 stops the pump, 1 runs it at half power, 2 at full power.
    One step is an Euler step of 2 s; what flows over the rim is lost. The reward
    is 1 while the lower level is within 0.1 of 0.8, less 0.02 for each grade of
    the pump. The episode ends when the lower tank is full or below 0.35.
    """

    INFLOW, UPPER_HOLE, LOWER_HOLE = 0.06, 0.08, 0.07
    STEP, AREA = 2.0, 0.8

    def __init__(self) -> None:
        high = np.array([2.0, 1.6], np.float32)
        self.observation_space = spaces.Box(np.zeros(2, np.float32), high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)  # type: ignore[assignment]
        self.upper = self.lower = 0.0

    def _observation(self) -> np.ndarray:
        return np.array([self.upper, self.lower], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Fill both tanks to random levels."""
        super().reset(seed=seed)
        self.upper = float(self.np_random.uniform(0.1, 1.9))
        self.lower = float(self.np_random.uniform(0.4, 1.45))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pump for two seconds."""
        between = self.UPPER_HOLE * np.sqrt(self.upper)
        out = self.LOWER_HOLE * np.sqrt(self.lower)
        upper = self.upper + self.STEP * (self.INFLOW * int(action) - between)
        lower = self.lower + self.STEP * (between - out) / self.AREA
        self.upper = float(np.clip(upper, 0.0, 2.0))
        self.lower = float(np.clip(lower, 0.0, 1.6))
        ended = self.lower >= 1.6 or self.lower < 0.35
        reward = float(abs(self.lower - 0.8) < 0.1) - 0.02 * int(action)
        return self._observation(), reward, ended, False, {}
