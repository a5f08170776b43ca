# ruff: noqa
import numpy as np


class Environment:
    def __init__(self):
        self.max_speed = 8.0
        self.max_torque = 2.0
        self.dt = 0.05
        self.g = 10.0
        self.m = 1.0
        self.l = 1.0
        self.state = np.array([0.0, 0.0])
        self.action_low = np.array([-2.0])
        self.action_high = np.array([2.0])

    def set_state(self, state):
        cos_theta, sin_theta, theta_dot = state
        theta = np.arctan2(sin_theta, cos_theta)
        self.state = np.array([theta, theta_dot])

    def angle_normalize(self, x):
        return ((x + np.pi) % (2 * np.pi)) - np.pi

    def step(self, action):
        theta, theta_dot = self.state
        u = np.clip(action, -self.max_torque, self.max_torque)[0]
        cost = self.angle_normalize(theta) ** 2 + 0.1 * theta_dot**2 + 0.001 * u**2
        new_theta_dot = (
            theta_dot
            + (3 * self.g / (2 * self.l) * np.sin(theta) + 3.0 / (self.m * self.l**2) * u) * self.dt
        )
        new_theta_dot = np.clip(new_theta_dot, -self.max_speed, self.max_speed)
        new_theta = theta + new_theta_dot * self.dt
        self.state = np.array([new_theta, new_theta_dot])
        return self._get_obs(), -cost, False

    def _get_obs(self):
        theta, theta_dot = self.state
        return np.array([np.cos(theta), np.sin(theta), theta_dot], dtype=np.float32)
