# ruff: noqa
"""Mixed whole and real numbers, divmod, negative remainders, boolean arithmetic, copysign."""

import math
from math import copysign, floor

WIDTH, HEIGHT = 10, 8


def reflect(x: float, low: float, high: float) -> float:
    span = high - low
    y = (x - low) % (2 * span)
    return low + (y if y <= span else 2 * span - y)


class Environment:
    def set_state(self, observation):
        (self.x, self.y, self.vx, self.vy, self.p) = observation.tolist()
        self.hits = 0

    def step(self, action):
        self.p = min(max(self.p + (int(action) - 1) * 0.5, 0), HEIGHT)
        nx, ny = self.x + self.vx, reflect(self.y + self.vy, 0.0, float(HEIGHT))
        up = (ny > self.y) == (self.vy > 0)
        if not up:
            self.vy *= -1
        reward, done = 0, False
        if nx < 0:
            if abs(ny - self.p) <= 1.0:
                nx = -nx
                self.vx = copysign(self.vx, 1.0)
                self.hits += 1
                reward = 1 + (self.hits > 2) * 0.5
            else:
                reward, done = -1, True
        elif nx > WIDTH:
            nx, self.vx = 2 * WIDTH - nx, -self.vx
        cell = floor(nx) // 2 + (floor(ny) % 3 - 1) * -7 % 5
        q, r = divmod(-cell, 4)
        self.x, self.y = nx, ny
        return (self.x, self.y, self.vx, self.vy, self.p), reward + 0.01 * q - 0.001 * r, done
