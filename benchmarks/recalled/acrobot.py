"""Acrobot from memory: the constants of the class, the equations of the book, Runge-Kutta."""

import math

import numpy as np


class Environment:
    dt = 0.2
    LINK_LENGTH_1 = 1.0
    LINK_MASS_1 = 1.0
    LINK_MASS_2 = 1.0
    LINK_COM_POS_1 = 0.5
    LINK_COM_POS_2 = 0.5
    LINK_MOI = 1.0
    MAX_VEL_1 = 4 * math.pi
    MAX_VEL_2 = 9 * math.pi
    TORQUE = 1.0
    GRAVITY = 9.8
    HEIGHT = 1.0

    def set_state(self, observation):
        c1, s1, c2, s2, v1, v2 = (float(part) for part in observation)
        self.state = np.array([math.atan2(s1, c1), math.atan2(s2, c2), v1, v2])

    def slopes(self, state, torque):
        m1, m2, l1 = self.LINK_MASS_1, self.LINK_MASS_2, self.LINK_LENGTH_1
        lc1, lc2, inertia, g = (
            self.LINK_COM_POS_1,
            self.LINK_COM_POS_2,
            self.LINK_MOI,
            self.GRAVITY,
        )
        a1, a2, v1, v2 = state
        cos2, sin2 = math.cos(a2), math.sin(a2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + 2 * inertia
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + inertia
        phi2 = m2 * lc2 * g * math.cos(a1 + a2 - math.pi / 2)
        phi1 = -m2 * l1 * lc2 * v2**2 * sin2 - 2 * m2 * l1 * lc2 * v2 * v1 * sin2
        phi1 += (m1 * lc1 + m2 * l1) * g * math.cos(a1 - math.pi / 2) + phi2
        turned = torque + d2 / d1 * phi1 - m2 * l1 * lc2 * v1**2 * sin2 - phi2
        second = turned / (m2 * lc2**2 + inertia - d2**2 / d1)
        return np.array([v1, v2, -(d2 * second + phi1) / d1, second])

    def step(self, action):
        torque, dt, state = (action - 1) * self.TORQUE, self.dt, self.state
        k1 = self.slopes(state, torque)
        k2 = self.slopes(state + dt / 2 * k1, torque)
        k3 = self.slopes(state + dt / 2 * k2, torque)
        k4 = self.slopes(state + dt * k3, torque)
        a1, a2, v1, v2 = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        v1 = min(max(v1, -self.MAX_VEL_1), self.MAX_VEL_1)
        v2 = min(max(v2, -self.MAX_VEL_2), self.MAX_VEL_2)
        self.state = np.array([a1, a2, v1, v2])
        ends = -math.cos(a1) - math.cos(a1 + a2) > self.HEIGHT
        seen = [math.cos(a1), math.sin(a1), math.cos(a2), math.sin(a2), v1, v2]
        return seen, 0.0 if ends else -1.0, ends
