"""Pendulum from memory, with the order of its update declared as a choice."""

import math


class Environment:
    CHOICES = {"position follows the speed": ["after the step", "before the step"]}

    def __init__(self, gravity=10.0):
        self.gravity = gravity
        self.mass = 1.0
        self.length = 1.0
        self.time_step = 0.05
        self.most_torque = 2.0
        self.most_speed = 8.0
        self.weights = (1.0, 0.1, 0.001)

    def set_state(self, observation):
        cos, sin, self.speed = (float(part) for part in observation)
        self.angle = math.atan2(sin, cos)

    def step(self, action):
        torque = min(max(float(action[0]), -self.most_torque), self.most_torque)
        angle, speed, effort = self.weights
        cost = angle * self.angle**2 + speed * self.speed**2 + effort * torque**2
        pull = 3 * self.gravity / (2 * self.length) * math.sin(self.angle)
        push = 3.0 / (self.mass * self.length**2) * torque
        before = self.speed
        self.speed += (pull + push) * self.time_step
        self.speed = min(max(self.speed, -self.most_speed), self.most_speed)
        is_after = self.CHOICES["position follows the speed"][0] == "after the step"
        self.angle += (self.speed if is_after else before) * self.time_step
        return [math.cos(self.angle), math.sin(self.angle), self.speed], -cost, False
