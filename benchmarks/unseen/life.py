"""Two continuous systems of the life sciences: a growing culture and an excitable cell."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Culture(gymnasium.Env[Floats, Floats]):
    """A stirred vessel in which cells feed on a substrate while a pump exchanges the medium.

    | Num | Observation                   | Min | Max |
    |-----|-------------------------------|-----|-----|
    | 0   | Biomass concentration (g/l)   | 0   | 10  |
    | 1   | Substrate concentration (g/l) | 0   | 10  |

    The action is the pump's speed between 0 and 1. The reward is the biomass that leaves with the
    medium, less the cost of pumping. The episode ends when the culture is ripe or washed out.
    """

    growth, half, output, feed, flow, dt = 0.53, 0.41, 0.47, 6.0, 0.9, 0.25

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(0.0, 10.0, (2,), np.float64)
        self.action_space = Box(0.0, 1.0, (1,), np.float64)
        self.state: Floats = np.zeros(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start with some cells and some food."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform([0.4, 0.2], [1.6, 5.0])
        return self.state.copy(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Advance a quarter of an hour by Euler's method."""
        cells, food = self.state
        speed = float(np.clip(action[0], 0.0, 1.0))
        dilution = self.flow * speed
        uptake = self.growth * food / (self.half + food) * cells
        cells_next = cells + self.dt * (uptake - dilution * cells)
        food_next = food + self.dt * (dilution * (self.feed - food) - uptake / self.output)
        self.state = np.array([cells_next, max(food_next, 0.0)])
        reward = float(dilution * cells_next - 0.2 * speed)
        ended = bool(cells_next < 0.3 or cells_next > 2.0)
        return self.state.copy(), reward, ended, False, {}


class Spike(gymnasium.Env[Floats, np.int64]):
    """An excitable nerve cell under a stimulating electrode.

    The observation holds the membrane potential and the recovery variable, both without unit.
    The action chooses an inhibiting current, no current or an exciting current. Each step costs
    the square of the recovery variable, and a spike (potential above 1.4) pays 5 and ends the
    episode.
    """

    rate, offset, leak, dt = 0.09, 0.65, 0.75, 0.3
    currents = (-0.25, 0.0, 0.6)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(-4.0, 4.0, (2,), np.float64)
        self.action_space = Discrete(3)
        self.state: Floats = np.zeros(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start near rest or in the recovery from a spike."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform([-2.0, -0.8], [0.0, 0.8])
        return self.state.copy(), {}

    def slope(self, state: Floats, current: float) -> Floats:
        """Time derivative of the potential and the recovery."""
        v, w = state
        return np.array([v - v**3 / 3 - w + current, self.rate * (v + self.offset - self.leak * w)])

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Advance by one classical Runge-Kutta step."""
        current, h = self.currents[int(action)], self.dt
        k1 = self.slope(self.state, current)
        k2 = self.slope(self.state + h / 2 * k1, current)
        k3 = self.slope(self.state + h / 2 * k2, current)
        k4 = self.slope(self.state + h * k3, current)
        self.state = self.state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        fired = bool(self.state[0] > 1.4)
        reward = (5.0 if fired else 0.0) - float(self.state[1] ** 2)
        return self.state.copy(), reward, fired, False, {}
