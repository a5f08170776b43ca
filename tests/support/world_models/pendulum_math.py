# ruff: noqa
import math
import numpy as np


class Environment:
    def __init__(self):
        self.g, self.m, self.l = 10.0, 1.0, 1.0
        self.dt = 0.05
        self.theta = 0.0
        self.theta_dot = 0.0
        self.time_steps = 0
        self.max_time_steps = 200

    def set_state(self, obs):
        x, y, w = float(obs[0]), float(obs[1]), float(obs[2])
        self.theta = math.atan2(y, x)
        self.theta_dot = w

    def step(self, action):
        torque = float(action[0]) if hasattr(action, "__len__") else float(action)
        torque = max(-2.0, min(2.0, torque))
        th = self.theta
        while th > math.pi:
            th -= 2 * math.pi
        while th < -math.pi:
            th += 2 * math.pi
        reward = -(th**2 + 0.1 * self.theta_dot**2 + 0.001 * torque**2)
        acc = 3 * self.g / (2 * self.l) * math.sin(self.theta) + 3.0 / (self.m * self.l**2) * torque
        self.theta_dot += acc * self.dt
        self.theta_dot = max(-8.0, min(8.0, self.theta_dot))
        self.theta += self.theta_dot * self.dt
        self.time_steps += 1
        done = False
        obs = np.array([math.cos(self.theta), math.sin(self.theta), self.theta_dot])
        return obs, reward, done
