"""Robotics: a planar quadrotor and a unicycle."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class PlanarQuadrotor(gym.Env[np.ndarray, np.ndarray]):
    """A quadrotor in a vertical plane that shall hover at height 1.

    | Num | Observation           | Min  | Max |
    |-----|-----------------------|------|-----|
    | 0   | horizontal position   | -Inf | Inf |
    | 1   | height                | -Inf | Inf |
    | 2   | pitch                 | -pi  | pi  |
    | 3   | horizontal velocity   | -4   | 4   |
    | 4   | vertical velocity     | -4   | 4   |
    | 5   | pitch rate            | -8   | 8   |

    The two actions set the left and the right rotor; 0 is half of the thrust that
    carries the weight, and 1 is 60 % more. Semi-implicit Euler, 0.04 s. The reward
    is 1 - 0.5 d^2 - 0.1 pitch^2 with the distance d to the hover point, and -5
    when the craft hits the ground, tilts beyond 1.2 or strays by 2.5.
    """

    MASS, ARM, INERTIA, GRAVITY, STEP = 0.55, 0.18, 0.012, 9.81, 0.04

    def __init__(self) -> None:
        high = np.array([np.inf, np.inf, np.pi, 4.0, 4.0, 8.0], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.state = np.zeros(6)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Release the craft near the hover point."""
        super().reset(seed=seed)
        spread = np.array([1.0, 0.6, 0.4, 1.0, 1.0, 1.0])
        self.state = self.np_random.uniform(-spread, spread)
        self.state[1] += 1.0
        return self.state.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold both thrusts for one step."""
        command = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        left, right = 0.5 * self.MASS * self.GRAVITY * (1.0 + 0.6 * command)
        x, z, pitch, vx, vz, rate = self.state
        thrust = (left + right) / self.MASS
        vx = np.clip(vx - self.STEP * thrust * np.sin(pitch), -4.0, 4.0)
        vz = np.clip(vz + self.STEP * (thrust * np.cos(pitch) - self.GRAVITY), -4.0, 4.0)
        rate = np.clip(rate + self.STEP * self.ARM * (right - left) / self.INERTIA, -8.0, 8.0)
        x, z = x + self.STEP * vx, z + self.STEP * vz
        pitch = (pitch + self.STEP * rate + np.pi) % (2 * np.pi) - np.pi
        self.state = np.array([x, z, pitch, vx, vz, rate])
        crashed = bool(z < 0.0 or abs(pitch) > 1.2 or np.hypot(x, z - 1.0) > 2.5)
        reward = 1.0 - 0.5 * (x**2 + (z - 1.0) ** 2) - 0.1 * pitch**2
        return self.state.astype(np.float32), -5.0 if crashed else float(reward), crashed, False, {}


class DockingUnicycle(gym.Env[np.ndarray, np.ndarray]):
    """A wheeled robot in a fenced yard that has to find its dock.

    It sees its place (x, y) and the cosine and sine of its heading, all as
    doubles. The first action is the forward speed, from a slow reverse of
    -0.3 m/s to 1 m/s, the second the turning rate up to 2 rad/s. In a step of
    0.2 s the robot drives along the heading that it has in the middle of its turn.
    The fence, a square of side 4 around the origin, stops it. The reward is the
    progress towards the dock at (1.2, -0.7) in metres less 0.01, and 5 more on
    arriving within 0.45 m, which ends the episode.
    """

    DOCK = np.array([1.2, -0.7])
    STEP = 0.2

    def __init__(self) -> None:
        high = np.array([2.0, 2.0, 1.0, 1.0])
        self.observation_space = spaces.Box(-high, high, dtype=np.float64)
        low = np.array([-0.3, -2.0], np.float32)
        self.action_space = spaces.Box(low, np.array([1.0, 2.0], np.float32), dtype=np.float32)
        self.place, self.heading = np.zeros(2), 0.0

    def _observation(self) -> np.ndarray:
        return np.array([*self.place, np.cos(self.heading), np.sin(self.heading)])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the robot anywhere in the yard."""
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1.9, 1.9, 2)
        self.heading = float(self.np_random.uniform(-np.pi, np.pi))
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Drive for a fifth of a second."""
        speed = float(np.clip(action[0], -0.3, 1.0))
        turn = float(np.clip(action[1], -2.0, 2.0))
        before = np.linalg.norm(self.place - self.DOCK)
        middle = self.heading + 0.5 * self.STEP * turn
        drive = self.STEP * speed * np.array([np.cos(middle), np.sin(middle)])
        self.place = np.clip(self.place + drive, -2.0, 2.0)
        self.heading += self.STEP * turn
        after = np.linalg.norm(self.place - self.DOCK)
        docked = bool(after < 0.45)
        return self._observation(), float(before - after) - 0.01 + 5.0 * docked, docked, False, {}
