# ruff: noqa
import numpy as np


class Environment:
    def __init__(self):
        self.l1 = 0.1
        self.l2 = 0.11
        self.dt = 0.02
        self.gear = 200.0
        self.damping = 1.0
        self.state = np.zeros(11)

    def set_state(self, state):
        self.state = np.array(state, dtype=np.float64)

    def step(self, action):
        action = np.clip(action, -1, 1)
        cos_t = self.state[0:2]
        sin_t = self.state[2:4]
        theta = np.arctan2(sin_t, cos_t)
        target = self.state[4:6]
        vel = self.state[6:8]
        dist_vec = self.state[8:11]
        reward_dist = -np.linalg.norm(dist_vec)
        reward_ctrl = -np.sum(np.square(action))
        reward = reward_dist + reward_ctrl
        acc = action * self.gear - self.damping * vel
        vel = vel + acc * self.dt * 0.05
        theta = theta + vel * self.dt
        tip_x = self.l1 * np.cos(theta[0]) + self.l2 * np.cos(theta[0] + theta[1])
        tip_y = self.l1 * np.sin(theta[0]) + self.l2 * np.sin(theta[0] + theta[1])
        obs = np.zeros(11)
        obs[0:2] = np.cos(theta)
        obs[2:4] = np.sin(theta)
        obs[4:6] = target
        obs[6:8] = vel
        obs[8] = tip_x - target[0]
        obs[9] = tip_y - target[1]
        obs[10] = 0.0
        self.state = obs
        return obs, float(reward), False
