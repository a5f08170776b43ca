"""An environment whose spaces are of every kind."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Everything(gymnasium.Env):
    """Shows and takes values of every kind of space that is served."""

    metadata = {}  # noqa: RUF012
    action_space = spaces.Discrete(3, start=-1)
    observation_space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2, 2), np.float32),
            "board": spaces.Box(0, 9, (3,), np.uint8),
            "parts": spaces.Tuple([spaces.Discrete(4, start=2), spaces.MultiBinary(3)]),
            "counts": spaces.MultiDiscrete([2, 5]),
            "told": spaces.Text(8, min_length=0, charset="abcdé "),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(action), self.steps == 4, False, {}
