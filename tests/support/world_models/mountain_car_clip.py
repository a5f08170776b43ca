# ruff: noqa
import numpy as np


class Environment:
    def __init__(self):
        self.observation_space = {"low": np.array([-1.2, -0.07]), "high": np.array([0.6, 0.07])}
        self.action_space = {0: -1, 1: 0, 2: 1}
        self.state = np.array([-0.5, 0.0])
        self.force = 0.001
        self.gravity = 0.0025

    def set_state(self, obs):
        self.state = np.array(obs, dtype=np.float64)

    def step(self, action):
        position, velocity = self.state
        velocity += self.action_space[action] * self.force - np.cos(3 * position) * self.gravity
        velocity = np.clip(
            velocity, self.observation_space["low"][1], self.observation_space["high"][1]
        )
        position = np.clip(
            position + velocity, self.observation_space["low"][0], self.observation_space["high"][0]
        )
        if position <= self.observation_space["low"][0]:
            velocity = max(velocity, 0.0)
        self.state = np.array([position, velocity])
        done = position >= 0.5
        return self.state.copy(), -1.0, bool(done)
