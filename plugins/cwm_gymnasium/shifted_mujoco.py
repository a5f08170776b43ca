"""Classes that take the place of MuJoCo ones where a rule that changes is written into the code.

Each makes the numbers of such a rule attributes, with the values of the original, and does what
the original does with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.inverted_double_pendulum_v5 import InvertedDoublePendulumEnv
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv


class LeaningPendulum(InvertedPendulumEnv):
    """A pendulum that falls at another angle."""

    lean = 0.2

    def step(self, action: Any) -> Any:
        """Step, and end where the pole leans too far."""
        observation, *_, info = super().step(action)  # type: ignore[no-untyped-call]
        fallen = not np.isfinite(observation).all() or np.abs(observation[1]) > self.lean
        return observation, int(not fallen), bool(fallen), False, info


class LoweredDoublePendulum(InvertedDoublePendulumEnv):
    """A double pendulum that falls at another height."""

    lowest = 1.0

    def step(self, action: Any) -> Any:
        """Step, and end where the tip is too low."""
        observation, *_, info = super().step(action)  # type: ignore[no-untyped-call]
        terminated = bool(self.data.site_xpos[0, 2] <= self.lowest)
        alive = self._healthy_reward * int(not terminated)
        reward = alive + info["distance_penalty"] + info["velocity_penalty"]
        return observation, reward, terminated, False, {**info, "reward_survive": alive}
