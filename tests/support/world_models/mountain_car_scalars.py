# ruff: noqa
import math
import numpy as np


class Environment:
    def __init__(self):
        self.min_position = -1.2
        self.max_position = 0.6
        self.max_speed = 0.07
        self.goal_position = 0.5
        self.goal_velocity = 0.0
        self.force = 0.001
        self.gravity = 0.0025
        self.position = 0.0
        self.velocity = 0.0

    def set_state(self, state):
        self.position = state[0]
        self.velocity = state[1]

    def step(self, action):
        position = self.position
        velocity = self.velocity
        velocity += (action - 1) * self.force - math.cos(3 * position) * self.gravity
        velocity = max(min(velocity, self.max_speed), -self.max_speed)
        position += velocity
        position = max(min(position, self.max_position), self.min_position)
        # inelastic collision with the left wall
        if position == self.min_position and velocity < 0:
            velocity = 0
        done = bool(position >= self.goal_position and velocity >= self.goal_velocity)
        reward = -1.0
        self.position = position
        self.velocity = velocity
        return np.array([position, velocity], dtype=np.float32), reward, done
