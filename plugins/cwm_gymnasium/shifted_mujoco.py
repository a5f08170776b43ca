"""Subclasses of MuJoCo environments whose hard-coded constants are attributes that can change.

The defaults of the attributes are the constants of the original class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.inverted_double_pendulum_v5 import InvertedDoublePendulumEnv
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv


class LeaningPendulum(InvertedPendulumEnv):
    """An inverted pendulum whose episode ends beyond the angle `lean`, in radians."""

    lean = 0.2

    def step(self, action: Any) -> Any:
        """Take a step; terminate if the pole leans too far."""
        observation, *_, info = super().step(action)  # type: ignore[no-untyped-call]
        fallen = not np.isfinite(observation).all() or np.abs(observation[1]) > self.lean
        return observation, int(not fallen), bool(fallen), False, info


class LoweredDoublePendulum(InvertedDoublePendulumEnv):
    """An inverted double pendulum whose episode ends below the height `lowest`."""

    lowest = 1.0

    def step(self, action: Any) -> Any:
        """Take a step; terminate if the tip is too low."""
        observation, *_, info = super().step(action)  # type: ignore[no-untyped-call]
        terminated = bool(self.data.site_xpos[0, 2] <= self.lowest)
        alive = self._healthy_reward * int(not terminated)
        reward = alive + info["distance_penalty"] + info["velocity_penalty"]
        return observation, reward, terminated, False, {**info, "reward_survive": alive}
