"""Two continuous systems of moving craft: a steered ship and a body in orbit."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Ferry(gymnasium.Env[Floats, np.int64]):
    """A ferry that is to be steered onto its course.

    | Num | Observation            | Min   | Max  |
    |-----|------------------------|-------|------|
    | 0   | Heading error (rad)    | -pi   | pi   |
    | 1   | Turning rate (rad/s)   | -1    | 1    |
    | 2   | Rudder angle (rad)     | -0.5  | 0.5  |

    The action moves the rudder to port, leaves it or moves it to starboard. The reward is the
    cosine of the heading error less half the rudder's deflection. The episode ends on course
    (error below 0.15, rate below 0.25) or when the ferry turns faster than 0.6.
    """

    gain, inertia, cubic, notch, dt = 1.9, 2.3, 0.7, 0.12, 0.25

    def __init__(self) -> None:
        """Declare the spaces."""
        high = np.array([math.pi, 1.0, 0.5], np.float32)
        self.observation_space = Box(-high, high, dtype=np.float32)
        self.action_space = Discrete(3)
        self.state: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start on any heading with a small turning rate."""
        super().reset(seed=seed)
        heading, rate, rudder = self.np_random.uniform([-3.1, -0.3, -0.3], [3.1, 0.3, 0.3])
        self.state = (float(heading), float(rate), float(rudder))
        return np.array(self.state, np.float32), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Move the rudder, then the turning rate, then the heading."""
        heading, rate, rudder = self.state
        rudder = min(max(rudder + self.notch * (int(action) - 1), -0.5), 0.5)
        rate += self.dt * (self.gain * rudder - rate - self.cubic * rate**3) / self.inertia
        heading = (heading + self.dt * rate + math.pi) % (2 * math.pi) - math.pi
        self.state = (heading, rate, rudder)
        arrived = abs(heading) < 0.15 and abs(rate) < 0.25
        reward = math.cos(heading) - 0.5 * abs(rudder)
        return np.array(self.state, np.float32), reward, arrived or abs(rate) > 0.6, False, {}


class Satellite(gymnasium.Env[Floats, np.int64]):
    """A satellite that is to keep its altitude in a plane orbit.

    The observation holds the distance from the planet's centre, the radial velocity and the
    angular velocity. The actions are: coast, thrust outward, thrust inward, thrust forward,
    thrust backward. The reward is 1 less ten times the distance from the nominal radius 1, and
    0.1 less for any thrust. The episode ends outside the band between 0.8 and 1.25.
    """

    pull, thrust, dt = 1.3, 0.2, 0.08
    thrusts = ((0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))

    def __init__(self) -> None:
        """Declare the spaces."""
        low, high = np.array([0.0, -3.0, 0.0]), np.array([2.0, 3.0, 3.0])
        self.observation_space = Box(low.astype(np.float32), high.astype(np.float32))
        self.action_space = Discrete(5)
        self.state: tuple[float, float, float] = (1.0, 0.0, 1.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start near the circular orbit."""
        super().reset(seed=seed)
        radius, climb, spin = self.np_random.uniform([0.93, -0.1, 1.0], [1.1, 0.1, 1.25])
        self.state = (float(radius), float(climb), float(spin))
        return np.array(self.state, np.float32), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Advance the velocities, then the radius."""
        radius, climb, spin = self.state
        outward, forward = (self.thrust * part for part in self.thrusts[int(action)])
        climb_rate = radius * spin**2 - self.pull / radius**2 + outward
        spin_rate = (forward - 2 * climb * spin) / radius
        climb += self.dt * climb_rate
        spin += self.dt * spin_rate
        radius += self.dt * climb
        self.state = (radius, climb, spin)
        reward = 1.0 - 10.0 * abs(radius - 1.0) - (0.1 if action else 0.0)
        return np.array(self.state, np.float32), reward, not 0.8 <= radius <= 1.25, False, {}
