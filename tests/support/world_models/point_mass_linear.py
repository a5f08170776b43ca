# ruff: noqa
"""Linear dynamics with constant matrices, norms, concatenation, np.where and nested functions."""

import numpy as np


class Environment:
    def __init__(self):
        self.A = np.eye(4)
        self.A[0, 2] = self.A[1, 3] = 0.1
        self.B = np.array([[0.005, 0.0], [0.0, 0.005], [0.1, 0.0], [0.0, 0.1]])
        self.Q = np.diag([1.0, 1.0, 0.1, 0.1])
        self.limits = {"u": np.array([1.0, 1.0]), "v": 2.0}
        self.x = None

    def set_state(self, state):
        self.x = np.asarray(state, dtype=float)

    def step(self, action):
        u = np.clip(np.asarray(action).flatten(), -self.limits["u"], self.limits["u"])

        def cost(x, u):
            return x @ self.Q @ x + 0.01 * np.dot(u, u)

        reward = -cost(self.x, u)
        x = self.A @ self.x + self.B.dot(u)
        p, v = x[:2], x[2:]
        v = np.where(np.abs(v) > self.limits["v"], np.sign(v) * self.limits["v"], v)
        speed = np.linalg.norm(v)
        if speed > 1.5:
            v = v * (1.5 / speed)
        for i in range(2):
            if p[i] > 3.0 or p[i] < -3.0:
                v[i] = -0.5 * v[i]
                p[i] = np.sign(p[i]) * 3.0
        self.x = np.concatenate([p, v])
        done = np.linalg.norm(p) < 0.1 and speed < 0.2
        return self.x.copy(), float(reward), bool(done)
