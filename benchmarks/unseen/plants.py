"""Two process plants: a cascade of tanks and a refrigerated room with a switching machine."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Cascade(gymnasium.Env[Floats, Floats]):
    """Two tanks, the upper of which drains into the lower, fed by a pump.

    The observation holds the levels of the upper and the lower tank in metres. The action is the
    pump's command between -1 and 1; the pump cannot suck, and it reaches its full flow before the
    command's end. The upper tank spills at 1.2 m. The reward falls with the square of the
    lower level's distance from 0.6 m and slightly with the square of the command. The episode
    ends when the lower tank holds more than 1 m or less than 0.2 m.
    """

    upper_drain, lower_drain, brim, dt = 0.62, 0.55, 1.2, 0.2

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(0.0, 1.5, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.levels: tuple[float, float] = (0.0, 0.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start with both tanks partly filled."""
        super().reset(seed=seed)
        upper, lower = self.np_random.uniform([0.0, 0.3], [1.2, 0.9])
        self.levels = (float(upper), float(lower))
        return np.array(self.levels, np.float32), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Advance both levels by Euler's method."""
        upper, lower = self.levels
        command = float(np.clip(action[0], -1.0, 1.0))
        inflow = min(max(0.5 + 0.8 * command, 0.0), 1.0)
        between = self.upper_drain * math.sqrt(upper)
        upper = min(max(upper + self.dt * (inflow - between), 0.0), self.brim)
        lower = max(lower + self.dt * (between - self.lower_drain * math.sqrt(lower)), 0.0)
        self.levels = (upper, lower)
        reward = -((lower - 0.6) ** 2) - 0.02 * command**2
        return np.array(self.levels, np.float32), reward, not 0.2 <= lower <= 1.0, False, {}


class Coldroom(gymnasium.Env[Floats, np.int64]):
    """A refrigerated room whose compressor follows a thermostat with hysteresis.

    | Num | Observation                   | Min | Max |
    |-----|-------------------------------|-----|-----|
    | 0   | Air temperature (deg C)       | -30 | 40  |
    | 1   | Goods temperature (deg C)     | -30 | 40  |
    | 2   | Compressor runs (0 or 1)      | 0   | 1   |

    The action chooses the thermostat's set point: -4, 3 or 10 degrees. The compressor starts more
    than 1.5 degrees above the set point and stops more than 1.5 degrees below it. The reward is
    minus a tenth of the goods' distance from 4 degrees, and 0.3 less while the compressor runs.
    The episode ends when the goods are below 2 or above 6 degrees.
    """

    outside, wall, exchange, uptake, cooling, dt = 24.0, 0.11, 0.23, 0.17, 4.6, 0.5
    set_points = (-4.0, 3.0, 10.0)

    def __init__(self) -> None:
        """Declare the spaces."""
        low, high = np.array([-30.0, -30.0, 0.0]), np.array([40.0, 40.0, 1.0])
        self.observation_space = Box(low.astype(np.float32), high.astype(np.float32))
        self.action_space = Discrete(3)
        self.temperatures: tuple[float, float] = (0.0, 0.0)
        self.runs = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start with cool air and cool goods."""
        super().reset(seed=seed)
        air, goods = self.np_random.uniform([-3.0, 2.0], [12.0, 6.0])
        self.temperatures = (float(air), float(goods))
        self.runs = bool(self.np_random.integers(2))
        return self.observation(), {}

    def observation(self) -> Floats:
        """Both temperatures and the compressor's flag."""
        return np.array([*self.temperatures, float(self.runs)], np.float32)

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Switch the compressor, then advance both temperatures by Euler's method."""
        air, goods = self.temperatures
        excess = air - self.set_points[int(action)]
        if abs(excess) > 1.5:
            self.runs = excess > 0
        gained = self.wall * (self.outside - air) + self.exchange * (goods - air)
        air_next = air + self.dt * (gained - self.cooling * self.runs)
        goods_next = goods + self.dt * self.uptake * (air - goods)
        self.temperatures = (air_next, goods_next)
        reward = -0.1 * abs(goods_next - 4.0) - 0.3 * self.runs
        return self.observation(), reward, not 2.0 <= goods_next <= 6.0, False, {}
