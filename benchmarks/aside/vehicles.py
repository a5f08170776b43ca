"""Vehicles: a rover that docks and a lander that descends."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.aside.base import Simulator, clamp, wrap


class DockingRover(Simulator):
    """A rover with a steered axle that has to reach its dock slowly.

    ## Action Space

    | Num | Action     | Min | Max |
    |-----|------------|-----|-----|
    | 0   | Throttle   | -1  | 1   |
    | 1   | Steering   | -1  | 1   |

    ## Observation Space

    | Num | Observation            | Min  | Max |
    |-----|------------------------|------|-----|
    | 0   | x of the rover (m)     | -4   | 4   |
    | 1   | y of the rover (m)     | -4   | 4   |
    | 2   | Heading (rad)          | -pi  | pi  |
    | 3   | Speed (m/s)            | -0.5 | 1.4 |

    The dock is at the origin and catches the rover within 0.55 m: 10 below 0.8 m/s, else -4.
    More than 3 m out along an axis the rover is lost, for -10. Each step earns the
    approach to the dock, less 0.05 for full throttle.
    """

    def __init__(self) -> None:
        high = np.array([4.0, 4.0, np.pi, 1.4], np.float32)
        low = np.array([-4.0, -4.0, -np.pi, -0.5], np.float32)
        self.observation_space = spaces.Box(low, high)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.x, self.y, self.heading, self.speed = 1.0, 0.0, 0.0, 0.0

    def _start(self) -> None:
        distance = float(self.np_random.uniform(1.0, 2.6))
        bearing, self.heading = self.np_random.uniform(-math.pi, math.pi, 2).tolist()
        self.x, self.y = distance * math.cos(bearing), distance * math.sin(bearing)
        self.speed = float(self.np_random.uniform(-0.3, 1.0))

    def _advance(self, action: Any) -> tuple[float, bool]:
        throttle, steering = (clamp(float(part), -1.0, 1.0) for part in action)
        before = math.hypot(self.x, self.y)
        self.speed += 0.15 * (1.9 * throttle + 0.35 - 0.8 * self.speed)
        self.speed = clamp(self.speed, -0.5, 1.4)
        self.heading = wrap(self.heading + 0.15 * self.speed / 0.42 * math.tan(0.65 * steering))
        self.x += 0.15 * self.speed * math.cos(self.heading)
        self.y += 0.15 * self.speed * math.sin(self.heading)
        distance = math.hypot(self.x, self.y)
        reward = before - distance - 0.05 * abs(throttle)
        if distance < 0.55:
            return reward + (10.0 if abs(self.speed) < 0.8 else -4.0), True
        lost = max(abs(self.x), abs(self.y)) > 3.0
        return reward - 10.0 * lost, lost

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self.x, self.y, self.heading, self.speed], np.float32)


class PlanetDescent(Simulator):
    """A lander that falls through a thin atmosphere on one engine.

    ## Action Space

    | Num | Action     | Min | Max |
    |-----|------------|-----|-----|
    | 0   | Throttle   | 0   | 1   |

    ## Observation Space

    | Num | Observation              | Min  | Max |
    |-----|--------------------------|------|-----|
    | 0   | Altitude (m)             | 0    | Inf |
    | 1   | Vertical velocity (m/s)  | -Inf | Inf |
    | 2   | Fuel (kg)                | 0    | 200 |

    The density of the air falls exponentially with altitude. Throttle costs 0.1 a second. The
    episode ends on the ground with 10, less 0.6 for each m/s of the touchdown.
    """

    SUBSTEPS = 4
    SECONDS = 0.25

    def __init__(self) -> None:
        low = np.array([0.0, -np.inf, 0.0], np.float32)
        high = np.array([np.inf, np.inf, 200.0], np.float32)
        self.observation_space = spaces.Box(low, high)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.altitude, self.velocity, self.fuel = 500.0, -30.0, 100.0

    def _start(self) -> None:
        self.altitude, self.velocity, self.fuel = self.np_random.uniform(
            (250.0, -65.0, 25.0), (1000.0, -15.0, 140.0)
        ).tolist()

    def _advance(self, action: Any) -> tuple[float, bool]:
        throttle = clamp(float(action[0]), 0.0, 1.0)
        for _ in range(self.SUBSTEPS):
            if self.altitude > 0.0:
                self._fall(throttle)
        landed = self.altitude <= 0.0
        return -0.1 * throttle + (10.0 - 0.6 * abs(self.velocity)) * landed, landed

    def _fall(self, throttle: float) -> None:
        thrust = 6400.0 * throttle if self.fuel > 0.0 else 0.0
        density = 0.87 * math.exp(-self.altitude / 640.0)
        drag = 0.43 * density * abs(self.velocity) * self.velocity
        mass = 880.0 + self.fuel
        self.velocity += self.SECONDS * ((thrust - drag) / mass - 3.71)
        self.altitude = max(self.altitude + self.SECONDS * self.velocity, 0.0)
        self.fuel = max(self.fuel - self.SECONDS * thrust / 2210.0, 0.0)

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self.altitude, self.velocity, self.fuel], np.float32)
