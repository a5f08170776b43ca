# ruff: noqa
import numpy as np


class Environment:
    def __init__(self):
        self.gravity = 9.81
        self.cart_mass = 10.0
        self.pole_mass = 5.0
        self.pole_length = 0.3
        self.gear = 100.0
        self.dt = 0.02
        self.frame_skip = 2
        self.state = np.zeros(4)

    def set_state(self, state):
        self.state = np.copy(state)

    def _dynamics(self, s, force):
        x, theta, x_dot, theta_dot = s[0], s[1], s[2], s[3]
        total = self.cart_mass + self.pole_mass
        pml = self.pole_mass * self.pole_length
        temp = (force + pml * theta_dot**2 * np.sin(theta)) / total
        theta_acc = (self.gravity * np.sin(theta) - np.cos(theta) * temp) / (
            self.pole_length * (4.0 / 3.0 - self.pole_mass * np.cos(theta) ** 2 / total)
        )
        x_acc = temp - pml * theta_acc * np.cos(theta) / total
        return np.array([x_dot, theta_dot, x_acc, theta_acc])

    def step(self, action):
        force = np.clip(action, -3.0, 3.0)[0] * self.gear
        s = self.state.copy()
        for _ in range(self.frame_skip):
            ds = self._dynamics(s, force)
            s[2:] += ds[2:] * self.dt
            s[:2] += s[2:] * self.dt
        s[0] = np.clip(s[0], -1.0, 1.0)
        self.state = s
        done = bool(not np.all(np.isfinite(s)) or np.abs(s[1]) > 0.2)
        reward = 1.0
        return self.state, reward, done
