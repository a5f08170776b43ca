# ruff: noqa
import numpy as np


class Environment:
    """CartPole, separate attributes + helper methods + step counter."""

    MAX_STEPS = 500

    def __init__(self):
        self.g = 9.8
        self.mc = 1.0
        self.mp = 0.1
        self.l = 0.5
        self.F = 10.0
        self.dt = 0.02
        self.x_limit = 2.4
        self.theta_limit = np.radians(12)
        self.x = 0.0
        self.x_dot = 0.0
        self.theta = 0.0
        self.theta_dot = 0.0
        self.steps = 0
        self.done = False

    def set_state(self, observation):
        self.x, self.x_dot, self.theta, self.theta_dot = observation
        self.done = False
        self.steps = 0

    def _get_obs(self):
        return np.array([self.x, self.x_dot, self.theta, self.theta_dot])

    def _is_done(self):
        if abs(self.x) > self.x_limit:
            return True
        if abs(self.theta) > self.theta_limit:
            return True
        if self.steps >= self.MAX_STEPS:
            return True
        return False

    def _accelerations(self, force):
        total = self.mc + self.mp
        ct, st = np.cos(self.theta), np.sin(self.theta)
        temp = (force + self.mp * self.l * self.theta_dot**2 * st) / total
        theta_acc = (self.g * st - ct * temp) / (self.l * (4.0 / 3.0 - self.mp * ct**2 / total))
        x_acc = temp - self.mp * self.l * theta_acc * ct / total
        return x_acc, theta_acc

    def step(self, action):
        if self.done:
            return self._get_obs(), 0.0, True
        action = int(np.asarray(action).item()) if not isinstance(action, int) else action
        if action not in (0, 1):
            raise ValueError(f"Invalid action: {action}")
        force = self.F if action == 1 else -self.F
        x_acc, theta_acc = self._accelerations(force)
        self.x += self.dt * self.x_dot
        self.x_dot += self.dt * x_acc
        self.theta += self.dt * self.theta_dot
        self.theta_dot += self.dt * theta_acc
        self.steps += 1
        self.done = self._is_done()
        reward = 1.0
        return self._get_obs(), reward, self.done
