# ruff: noqa
"""Mass matrix solved with numpy, as a class with class constants and a static method."""

import numpy as np


class Environment:
    DT = 0.02
    LIMIT = 12 * np.pi / 180

    @staticmethod
    def _acc(q, v, u):
        q0, q1 = q
        v0, v1 = v
        mass = np.array([[1.1, 0.05 * np.cos(q1)], [0.05 * np.cos(q1), 0.0333333]])
        force = np.array([u + 0.05 * v1**2 * np.sin(q1), 0.49 * np.sin(q1)])
        return np.linalg.solve(mass, force)

    def set_state(self, obs):
        self.s = np.asarray(obs, dtype=float).ravel()

    def step(self, action):
        a = int(np.asarray(action).reshape(-1)[0])
        q, v = np.array([self.s[0], self.s[2]]), np.array([self.s[1], self.s[3]])
        q, v = q + self.DT * v, v + self.DT * self._acc(q, v, 10.0 if a else -10.0)
        self.s = np.array([q[0], v[0], q[1], v[1]])
        done = bool(abs(q[0]) > 2.4 or not (-self.LIMIT <= q[1] <= self.LIMIT))
        return self.s.copy(), 1.0, done
