"""Mechanics in one dimension: dry friction, impacts and a forced nonlinear spring."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from benchmarks.novel.integrators import rk4


class CoulombCart(gym.Env[np.ndarray, np.ndarray]):
    """A cart on a rough track, to be parked at a mark.

    | Num | Observation | Min  | Max |
    |-----|-------------|------|-----|
    | 0   | position    | -Inf | Inf |
    | 1   | velocity    | -Inf | Inf |

    The action is a force of at most 6 N, given in units of that. Dry friction
    holds a resting cart against 2.1 N and slows a moving one with 1.6 N; it
    stops the cart and never turns it round. Semi-implicit Euler, 0.05 s, 1.4 kg.
    Parking within 0.15 of 0.8 at less than 0.3 m/s ends the episode with 10,
    leaving the track at 2 on either side with -10; until then each step is
    paid with -0.1 times the distance to the mark.
    """

    MASS, FORCE, STATIC, KINETIC, STEP, MARK = 1.4, 6.0, 2.1, 1.6, 0.05, 0.8

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.position = self.velocity = 0.0

    def _observation(self) -> np.ndarray:
        return np.array([self.position, self.velocity])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Push the cart off, or leave it at rest in one of four episodes."""
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(-1.5, 1.5))
        self.velocity = float(self.np_random.uniform(-2.0, 2.0))
        if self.np_random.random() < 0.25:
            self.velocity = 0.0
        return self._observation(), {}

    def _next_velocity(self, force: float) -> float:
        if self.velocity == 0.0 and abs(force) <= self.STATIC:
            return 0.0
        direction = np.sign(self.velocity) if self.velocity != 0.0 else np.sign(force)
        pushed = self.velocity + self.STEP * (force - self.KINETIC * direction) / self.MASS
        return 0.0 if pushed * direction < 0.0 else float(pushed)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push for one twentieth of a second."""
        self.velocity = self._next_velocity(self.FORCE * float(np.clip(action[0], -1.0, 1.0)))
        self.position += self.STEP * self.velocity
        distance = abs(self.position - self.MARK)
        if distance < 0.15 and abs(self.velocity) < 0.3:
            return self._observation(), 10.0, True, False, {}
        if abs(self.position) > 2.0:
            return self._observation(), -10.0, True, False, {}
        return self._observation(), -0.1 * distance, False, False, {}


class BouncingBall(gym.Env[np.ndarray, int]):
    """A ball over a table, with a racket that strikes it near the table.

    The observation is height and velocity. Action 1 swings: a ball below 0.15
    that falls at more than 1 m/s is sent up 1.6 m/s faster than it came; else the swing
    is a miss. Air drag grows with the square of the speed. The
    ball bounces with restitution 0.8, in five substeps of 0.01 s. The reward is
    the rise of the ball in the step, less 0.05 for a swing, plus 2 when it passes 1.8,
    which ends the episode, and -1 when it lies still, which ends it too.
    """

    GRAVITY, DRAG, RESTITUTION, SUBSTEP = 9.81, 0.06, 0.8, 0.01

    def __init__(self) -> None:
        low = np.array([0.0, -np.inf], np.float32)
        self.observation_space = spaces.Box(low, np.full(2, np.inf, np.float32), dtype=np.float32)
        self.action_space = spaces.Discrete(2)  # type: ignore[assignment]
        self.height = self.velocity = 0.0

    def _observation(self) -> np.ndarray:
        return np.array([self.height, self.velocity], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Throw the ball."""
        super().reset(seed=seed)
        self.height = float(self.np_random.uniform(0.1, 1.5))
        self.velocity = float(self.np_random.uniform(-3.0, 3.0))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Swing or wait, then let the ball fly."""
        before = self.height
        if action == 1 and self.height < 0.15 and self.velocity < -1.0:
            self.velocity = 1.6 - self.velocity
        for _ in range(5):
            drag = self.DRAG * self.velocity * abs(self.velocity)
            self.velocity -= self.SUBSTEP * (self.GRAVITY + drag)
            self.height += self.SUBSTEP * self.velocity
            if self.height < 0.0:
                self.height *= -1.0
                self.velocity *= -self.RESTITUTION
        over = self.height > 1.8
        still = self.height < 0.04 and abs(self.velocity) < 0.4
        reward = self.height - before - 0.05 * int(action) + 2.0 * over - 1.0 * still
        return self._observation(), reward, over or still, False, {}


class DuffingDrive(gym.Env[np.ndarray, int]):
    """A mass between two wells, shaken periodically and nudged by the agent.

    | Num | Observation         | Min  | Max   |
    |-----|---------------------|------|-------|
    | 0   | displacement        | -Inf | Inf   |
    | 1   | velocity            | -Inf | Inf   |
    | 2   | phase of the shaker | 0    | 2 pi  |

    The actions 0, 1 and 2 push with -0.5, 0 and 0.5. One step is a Runge-Kutta
    step of 0.12. The reward is -x^2 - 0.1 v^2 of the new state, less 0.02 for
    any push. A displacement beyond 1.45 breaks the rig and ends the episode.
    """

    DAMPING, LINEAR, CUBIC, SHAKE, FREQUENCY, STEP = 0.25, 1.0, 1.0, 0.45, 1.3, 0.12

    def __init__(self) -> None:
        high = np.array([np.inf, np.inf, 2 * np.pi], np.float32)
        low = np.array([-np.inf, -np.inf, 0.0], np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)  # type: ignore[assignment]
        self.state = np.zeros(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start anywhere near the wells, at any phase."""
        super().reset(seed=seed)
        self.state = self.np_random.uniform([-1.3, -0.8, 0.0], [1.3, 0.8, 2 * np.pi])
        return self.state.astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Nudge the mass through a part of the shaker's cycle."""
        push = 0.5 * (int(action) - 1)

        def slope(state: np.ndarray) -> np.ndarray:
            x, v, phase = state
            spring = self.LINEAR * x - self.CUBIC * x**3
            force = spring - self.DAMPING * v + self.SHAKE * np.cos(phase) + push
            return np.array([v, force, self.FREQUENCY])

        self.state = rk4(slope, self.state, self.STEP)
        self.state[2] %= 2 * np.pi
        x, v, _ = self.state
        reward = float(-(x**2) - 0.1 * v**2) - 0.02 * (push != 0.0)
        return self.state.astype(np.float32), reward, bool(abs(x) > 1.45), False, {}
