# ruff: noqa
import math
import numpy as np


class Environment:
    def __init__(self):
        self.params = {
            "m1": 1.0,
            "m2": 1.0,
            "l1": 1.0,
            "lc1": 0.5,
            "lc2": 0.5,
            "I1": 1.0,
            "I2": 1.0,
            "g": 9.8,
        }
        self.dt = 0.2
        self.max_vel = [4 * math.pi, 9 * math.pi]
        self.theta = [0.0, 0.0]
        self.vel = [0.0, 0.0]

    def set_state(self, state):
        self.theta = [math.atan2(state[1], state[0]), math.atan2(state[3], state[2])]
        self.vel = [float(state[4]), float(state[5])]

    def deriv(self, y, tau):
        p = self.params
        m1, m2, l1, lc1, lc2, I1, I2, g = (
            p["m1"],
            p["m2"],
            p["l1"],
            p["lc1"],
            p["lc2"],
            p["I1"],
            p["I2"],
            p["g"],
        )
        th1, th2, w1, w2 = y
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * math.cos(th2)) + I1 + I2
        d2 = m2 * (lc2**2 + l1 * lc2 * math.cos(th2)) + I2
        phi2 = m2 * lc2 * g * math.cos(th1 + th2 - math.pi / 2)
        phi1 = (
            -m2 * l1 * lc2 * w2**2 * math.sin(th2)
            - 2 * m2 * l1 * lc2 * w2 * w1 * math.sin(th2)
            + (m1 * lc1 + m2 * l1) * g * math.cos(th1 - math.pi / 2)
            + phi2
        )
        a2 = (tau + d2 / d1 * phi1 - m2 * l1 * lc2 * w1**2 * math.sin(th2) - phi2) / (
            m2 * lc2**2 + I2 - d2**2 / d1
        )
        a1 = -(d2 * a2 + phi1) / d1
        return [w1, w2, a1, a2]

    def step(self, action):
        tau = action - 1.0
        y = [self.theta[0], self.theta[1], self.vel[0], self.vel[1]]
        h = self.dt
        k1 = self.deriv(y, tau)
        k2 = self.deriv([y[i] + h / 2 * k1[i] for i in range(4)], tau)
        k3 = self.deriv([y[i] + h / 2 * k2[i] for i in range(4)], tau)
        k4 = self.deriv([y[i] + h * k3[i] for i in range(4)], tau)
        y = [y[i] + h / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]) for i in range(4)]
        for i in range(2):
            y[i] = ((y[i] + math.pi) % (2 * math.pi)) - math.pi
            y[i + 2] = max(-self.max_vel[i], min(self.max_vel[i], y[i + 2]))
        self.theta = [y[0], y[1]]
        self.vel = [y[2], y[3]]
        terminal = -math.cos(y[0]) - math.cos(y[1] + y[0]) > 1.0
        reward = -1.0
        if terminal:
            reward = 0.0
        obs = np.array([math.cos(y[0]), math.sin(y[0]), math.cos(y[1]), math.sin(y[1]), y[2], y[3]])
        return obs, reward, terminal
