"""A made-up mill: a wheel with a bed of gravel, heat and a worn gear."""

from typing import Any

import gymnasium
import numpy as np

GEAR = (22, 21, 11, 13, 10, 1, 18, 5, 19, 20, 14, 17, 8, 6, 0, 16, 2, 4, 15, 12, 3, 9, 7)
"""The next tooth of each tooth: a table without a rule."""


class Mill(gymnasium.Env[np.ndarray, int]):  # noqa: D101  # its docstring would describe it
    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (4,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.state = np.zeros(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start at a random place, speed and tooth."""
        super().reset(seed=seed)
        place, speed = self.np_random.uniform(0, 8), self.np_random.uniform(-1, 1)
        self.state = np.array([place, speed, 1.0, float(self.np_random.integers(len(GEAR)))])
        return self.state.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push the wheel backward (0), not at all (1) or forward (2)."""
        place, speed, heat, tooth = self.state
        push = float(action - 1)
        speed = 0.93 * speed + 0.4 * push
        if 3.0 < place < 5.0:
            speed *= 0.5
        place += 0.25 * speed
        heat += 0.15 * push**2 - 0.04 * heat
        tooth = float(GEAR[int(tooth)])
        self.state = np.array([place, speed, heat, tooth])
        reward = 2.0 if tooth == 6 and action == 2 else -0.1 * abs(push)
        return self.state.copy(), reward, bool(not -1.0 < place < 9.0), False, {}


gymnasium.register("Mill-v0", entry_point=Mill, max_episode_steps=60)
