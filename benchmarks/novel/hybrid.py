"""Hybrid systems: real variables that switch with modes and counts."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class HysteresisHeater(gym.Env[np.ndarray, int]):
    """A room with a heater that a two-point controller switches.

    | Num | Observation                    | Min  | Max |
    |-----|--------------------------------|------|-----|
    | 0   | temperature of the room        | -Inf | Inf |
    | 1   | temperature of the walls       | -Inf | Inf |
    | 2   | heater is on                   | 0    | 1   |
    | 3   | set point, in whole degrees    | 15   | 25  |
    | 4   | starts of the heater so far    | 0    | 9   |

    The actions lower, keep and raise the set point by a degree. The heater then
    goes on below the set point less 0.5 and off above it plus 0.5, and otherwise
    stays. Two Euler steps of 0.1 h follow, with 4 degrees outside. The
    reward is 1 - 0.25 |room - 21| of the new temperature, less 0.3 while the heater
    is on. The ninth start wears the heater out and ends the episode with 3 less.
    """

    HEATING, TO_WALL, FROM_ROOM, OUTSIDE = 14.0, 1.5, 0.5, 0.25

    def __init__(self) -> None:
        low = np.array([-np.inf, -np.inf, 0, 15, 0], np.float32)
        high = np.array([np.inf, np.inf, 1, 25, 9], np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)  # type: ignore[assignment]
        self.room = self.wall = 0.0
        self.on, self.set_point, self.starts = False, 20, 0

    def _observation(self) -> np.ndarray:
        state = [self.room, self.wall, self.on, self.set_point, self.starts]
        return np.array(state, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start in any weather of the last days and with a used heater."""
        super().reset(seed=seed)
        self.room = float(self.np_random.uniform(14.0, 25.0))
        self.wall = float(self.np_random.uniform(10.0, 18.0))
        self.on = bool(self.np_random.integers(2))
        self.set_point = int(self.np_random.integers(17, 24))
        self.starts = int(self.np_random.integers(5))
        return self._observation(), {}

    def _switch(self) -> None:
        if self.room < self.set_point - 0.5:
            self.starts += not self.on
            self.on = True
        elif self.room > self.set_point + 0.5:
            self.on = False

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Turn the knob and wait for twelve minutes."""
        self.set_point = min(max(self.set_point + int(action) - 1, 15), 25)
        self._switch()
        for _ in range(2):
            gap = self.wall - self.room
            room = self.room + 0.1 * (self.TO_WALL * gap + self.HEATING * self.on)
            self.wall += 0.1 * (self.OUTSIDE * (4.0 - self.wall) - self.FROM_ROOM * gap)
            self.room = room
        worn = self.starts == 9
        reward = 1.0 - 0.25 * abs(self.room - 21.0) - 0.3 * self.on - 3.0 * worn
        return self._observation(), reward, worn, False, {}


class GearboxCar(gym.Env[dict[str, Any], int]):
    """A car with four gears that has to reach the end of a road with little fuel.

    The observation has three entries: `motion`, the position in metres and
    the speed in metres per second; `gear`, from 1 to 4; and `fuel` in decilitres.
    Actions: 0 coasts, 1 accelerates, 2 brakes, 3 shifts up and 4 shifts down;
    the car coasts while it shifts. The pull of a gear falls linearly
    and is gone at the gear's top speed; above it the engine brakes. Idling burns
    0.02 and accelerating 0.05 more plus 0.006 times the speed over the gear. A step is
    one second, Euler with the old speed. Past 300 m the episode ends with 10
    plus the fuel left; an empty tank ends it with -5. Other steps cost 0.1, and
    a shift beyond the last or the first gear 0.5.
    """

    PULL = (4.0, 2.8, 1.9, 1.3)
    TOP = (9.0, 16.0, 24.0, 34.0)
    AIR, ROLL, BRAKE = 0.0015, 0.12, 5.0

    def __init__(self) -> None:
        motion = spaces.Box(0.0, np.inf, (2,), np.float32)
        fuel = spaces.Box(0.0, 3.0, (1,), np.float32)
        parts = {"motion": motion, "gear": spaces.Discrete(4, start=1), "fuel": fuel}
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(5)  # type: ignore[assignment]
        self.position = self.speed = self.fuel = 0.0
        self.gear = 1

    def _observation(self) -> dict[str, Any]:
        motion = np.array([self.position, self.speed], np.float32)
        return {"motion": motion, "gear": self.gear, "fuel": np.array([self.fuel], np.float32)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start on the first part of the road, rolling."""
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(0.0, 150.0))
        self.speed = float(self.np_random.uniform(0.0, 20.0))
        self.fuel = float(self.np_random.uniform(0.8, 3.0))
        self.gear = int(self.np_random.integers(1, 5))
        return self._observation(), {}

    def _drive(self, action: int) -> None:
        acceleration = -self.AIR * self.speed**2 - self.ROLL
        burnt = 0.02
        if action == 1:
            acceleration += self.PULL[self.gear - 1] * (1 - self.speed / self.TOP[self.gear - 1])
            burnt += 0.05 + 0.006 * self.speed / self.gear
        elif action == 2:
            acceleration -= self.BRAKE
        self.position += self.speed
        self.speed = max(self.speed + acceleration, 0.0)
        self.fuel = max(self.fuel - burnt, 0.0)

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Drive for a second."""
        gear = self.gear + {3: 1, 4: -1}.get(int(action), 0)
        grinding = not 1 <= gear <= 4
        self.gear = min(max(gear, 1), 4)
        self._drive(int(action))
        if self.position > 300.0:
            return self._observation(), 10.0 + self.fuel, True, False, {}
        if self.fuel == 0.0:
            return self._observation(), -5.0, True, False, {}
        return self._observation(), -0.6 if grinding else -0.1, False, False, {}
