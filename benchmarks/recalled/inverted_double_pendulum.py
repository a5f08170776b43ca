"""Two poles, one upon the other, on a cart that is pushed along a rail."""

import mujoco
import numpy as np

MECHANISM = """
<mujoco>
  <compiler angle="degree"/>
  <option timestep="0.01" integrator="%s" gravity="1e-5 0 -9.81"/>
  <default>
    <geom type="capsule" contype="0" conaffinity="0"/>
  </default>
  <worldbody>
    <body name="cart">
      <joint name="slider" type="slide" axis="1 0 0" range="-1 1" limited="true" margin="0.01"
             damping="0.05"/>
      <geom name="cart" quat="0.707 0 0.707 0" size="0.1 0.1" density="1000"/>
      <body name="lower">
        <joint name="lower" axis="0 1 0" damping="0.05"/>
        <geom name="lower" fromto="0 0 0 0 0 0.6" size="0.045" density="1000"/>
        <body name="upper" pos="0 0 0.6">
          <joint name="upper" axis="0 1 0" damping="0.05"/>
          <geom name="upper" fromto="0 0 0 0 0 0.6" size="0.045" density="1000"/>
          <site name="tip" pos="0 0 0.6"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="slider" gear="500" ctrlrange="-1 1" ctrllimited="true"/>
  </actuator>
</mujoco>
"""


class Environment:
    """The observation is the cart, sines and cosines, velocities, and the force of the rail's end.

    The force is that of the last substep, as are the places of sites.
    """

    CHOICES = {"integrator": ["RK4", "Euler", "implicitfast"], "frame_skip": [5, 4, 6]}
    PARAMETERS = {
        "healthy_reward": 10.0,
        "least_height": 1.0,
        "x_weight": 0.01,
        "y_target": 2.0,
        "lower_weight": 0.001,
        "upper_weight": 0.005,
    }

    def __init__(self):
        integrator = self.CHOICES["integrator"][0]
        self.frame_skip = self.CHOICES["frame_skip"][0]
        self.model = mujoco.MjModel.from_xml_string(MECHANISM % integrator)
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        angles = np.arctan2(observation[1:3], observation[3:5])
        self.data.qpos[:] = [observation[0], *angles]
        self.data.qvel[:] = observation[5:8]
        self.data.qacc_warmstart[:] = 0.0

    def step(self, action):
        numbers, data = self.PARAMETERS, self.data
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, self.frame_skip)
        x, _, y = data.site("tip").xpos
        falls = bool(y <= numbers["least_height"])
        _, lower, upper = data.qvel
        reward = 0.0 if falls else numbers["healthy_reward"]
        reward -= numbers["x_weight"] * x**2 + (y - numbers["y_target"]) ** 2
        reward -= numbers["lower_weight"] * lower**2 + numbers["upper_weight"] * upper**2
        observation = [data.qpos[:1], np.sin(data.qpos[1:]), np.cos(data.qpos[1:])]
        observation += [np.clip(data.qvel, -10, 10), np.clip(data.qfrc_constraint, -10, 10)[:1]]
        return np.concatenate(observation), float(reward), falls
