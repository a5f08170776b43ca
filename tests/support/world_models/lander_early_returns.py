# ruff: noqa
"""Early returns, nested ifs, `is None`, shaping that remembers, augmented elements of a list."""

import math


class Environment:
    FUEL = 0.3

    def __init__(self):
        self.prev_shaping = None
        self.state = [0.0] * 6
        self.crashed = False

    def set_state(self, obs):
        self.state = [float(v) for v in obs]
        self.prev_shaping = None
        self.crashed = False

    @property
    def speed(self):
        return math.sqrt(self.state[2] ** 2 + self.state[3] ** 2)

    def _thrust(self, action, power=0.12):
        angle = self.state[4]
        if action == 0:
            return 0.0, 0.0
        elif action == 2:
            return -math.sin(angle) * power, math.cos(angle) * power
        side = 1 if action == 3 else -1
        self.state[5] += 0.02 * side
        return 0.01 * side, 0.0

    def step(self, action):
        if self.crashed:
            return list(self.state), 0.0, True
        ax, ay = self._thrust(action)
        self.state[2] += ax
        self.state[3] += ay - 0.03
        self.state[0] += self.state[2] * 0.1
        self.state[1] += self.state[3] * 0.1
        self.state[4] += self.state[5] * 0.1
        shaping = (
            -100 * math.hypot(self.state[0], self.state[1])
            - 100 * self.speed
            - 100 * abs(self.state[4])
        )
        reward = 0.0
        if self.prev_shaping is not None:
            reward = shaping - self.prev_shaping
        self.prev_shaping = shaping
        if action == 2:
            reward -= self.FUEL
        elif action in (1, 3):
            reward -= self.FUEL / 10
        if self.state[1] < 0:
            self.crashed = True
            if self.speed < 0.5 and -0.2 < self.state[4] < 0.2:
                return list(self.state), reward + 100, True
            return list(self.state), -100.0, True
        if not -3.0 <= self.state[0] <= 3.0:
            return list(self.state), -100.0, True
        return list(self.state), reward, False
