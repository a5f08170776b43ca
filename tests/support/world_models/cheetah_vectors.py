# ruff: noqa
import numpy as np


class Environment:
    """A typical (inaccurate) LLM guess at HalfCheetah: second order joints + forward drive."""

    def __init__(self):
        self.dt = 0.05
        self.n_joints = 6
        self.forward_reward_weight = 1.0
        self.ctrl_cost_weight = 0.1
        self.gear = np.array([120.0, 90.0, 60.0, 120.0, 60.0, 30.0])
        self.damping = np.array([6.0, 4.5, 3.0, 4.5, 3.0, 1.5])
        self.stiffness = np.array([240.0, 180.0, 120.0, 180.0, 120.0, 60.0])
        self.inertia = np.array([8.0, 6.0, 4.0, 8.0, 6.0, 4.0])
        self.low = np.array([-0.52, -0.785, -0.4, -1.0, -1.2, -0.5])
        self.high = np.array([1.05, 0.785, 0.785, 0.7, 0.87, 0.5])
        self.state = np.zeros(17)

    def set_state(self, state):
        self.state = np.array(state, dtype=np.float64)

    def step(self, action):
        action = np.clip(np.asarray(action, dtype=np.float64), -1.0, 1.0)
        z, pitch = self.state[0], self.state[1]
        q = self.state[2:8]
        vx, vz, wy = self.state[8], self.state[9], self.state[10]
        qd = self.state[11:17]
        torque = self.gear * action - self.damping * qd - self.stiffness * q
        qdd = torque / self.inertia
        qd = qd + qdd * self.dt
        q_new = np.clip(q + qd * self.dt, self.low, self.high)
        qd = (q_new - q) / self.dt
        drive = np.sum(action * qd) * 0.05
        vx = 0.95 * vx + drive
        vz = vz - 9.81 * self.dt * 0.1 if z > 0 else 0.0
        z = max(z + vz * self.dt, -0.3)
        wy = 0.9 * wy + 0.1 * np.mean(qd)
        pitch = pitch + wy * self.dt
        ctrl_cost = self.ctrl_cost_weight * np.sum(np.square(action))
        reward = self.forward_reward_weight * vx - ctrl_cost
        self.state = np.concatenate([[z, pitch], q_new, [vx, vz, wy], qd])
        return self.state.copy(), reward, False
