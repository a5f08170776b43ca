"""A small environment that renders pictures."""

import gymnasium as gym
import numpy as np


class Lamp(gym.Env):
    """A picture as bright as the sum of the actions so far; where it starts is up to chance."""

    observation_space = gym.spaces.Discrete(256)
    action_space = gym.spaces.Discrete(3)
    trouble = None

    def __init__(self, fps=20, render_mode=None):
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.light = int(self.np_random.integers(100))
        return self.light, {}

    def step(self, action):
        self.light += 10 * (1 + action)
        return self.light, 0.0, False, False, {}

    def render(self):
        if self.trouble:
            raise self.trouble
        return None if self.render_mode is None else np.full((6, 8, 3), self.light, np.uint8)
