"""MountainCar from memory, with plain numbers."""

import math


class Environment:
    def __init__(self):
        self.lowest, self.highest = -1.2, 0.6
        self.fastest = 0.07
        self.goal = 0.5
        self.force = 0.001
        self.gravity = 0.0025

    def set_state(self, observation):
        self.position, self.velocity = (float(part) for part in observation)

    def step(self, action):
        self.velocity += (action - 1) * self.force - math.cos(3 * self.position) * self.gravity
        self.velocity = min(max(self.velocity, -self.fastest), self.fastest)
        self.position = min(max(self.position + self.velocity, self.lowest), self.highest)
        if self.position == self.lowest and self.velocity < 0:
            self.velocity = 0.0
        ends = self.position >= self.goal and self.velocity >= 0
        return [self.position, self.velocity], -1.0, ends
