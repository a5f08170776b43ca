"""A driven rotor with gravity, magnets and dry friction."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import Simulator, Vector, clamp, runge_kutta, wrap


class DetentRotor(Simulator):
    """A weighted arm on a shaft with three magnetic detents, to be latched upright.

    The motor takes a torque between -2 and 2. The observation is the angle, zero when the arm
    hangs down and wrapped to one turn, and the angular velocity, which a governor limits to 9
    rad/s. The bearing has dry and viscous friction. The latch closes within 0.3 rad of the top
    at less than 4 rad/s, ends the episode and earns 20; each step costs 0.1 and the torque.
    """

    def __init__(self) -> None:
        high = np.array([np.pi, 9.0])
        self.observation_space = spaces.Box(-high, high, dtype=np.float64)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.state: Vector = np.zeros(2)

    def _start(self) -> None:
        self.state = self.np_random.uniform((-2.2, -7.0), (2.2, 7.0))

    def _advance(self, action: Any) -> tuple[float, bool]:
        torque = clamp(float(action[0]), -2.0, 2.0)

        def slope(state: Vector) -> Vector:
            angle, velocity = state
            magnets = 0.9 * math.sin(3 * angle)
            friction = 0.35 * math.tanh(12.0 * velocity) + 0.08 * velocity
            pull = -6.3 * math.sin(angle) - magnets - friction + 2.6 * torque
            return np.array([velocity, pull])

        for _ in range(2):
            self.state = runge_kutta(slope, self.state, 0.04)
        angle, velocity = wrap(float(self.state[0])), clamp(float(self.state[1]), -9.0, 9.0)
        self.state = np.array([angle, velocity])
        latched = abs(angle) > math.pi - 0.3 and abs(velocity) < 4.0
        return 20.0 * latched - 0.1 - 0.02 * torque**2, latched

    def _observe(self) -> Vector:
        return self.state.copy()
