"""A pole on a cart that is pushed along a rail."""

import mujoco
import numpy as np

MECHANISM = """
<mujoco>
  <compiler angle="degree"/>
  <option timestep="0.02" integrator="%s" gravity="0 0 -9.81"/>
  <default>
    <joint limited="true"/>
    <geom type="capsule" contype="0" conaffinity="0"/>
  </default>
  <worldbody>
    <body name="cart">
      <joint name="slider" type="slide" axis="1 0 0" range="-1 1" damping="1"/>
      <geom name="cart" quat="0.707 0 0.707 0" size="0.1 0.1" density="1000"/>
      <body name="pole">
        <joint name="hinge" axis="0 1 0" range="-90 90" damping="1"/>
        <geom name="pole" fromto="0 0 0 0.001 0 0.6" size="0.049" density="1000"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="slider" gear="100" ctrlrange="-3 3" ctrllimited="true"/>
  </actuator>
</mujoco>
"""


class Environment:
    """The observation is the place of the cart, the angle of the pole, and their velocities."""

    CHOICES = {"integrator": ["RK4", "Euler", "implicitfast"], "frame_skip": [2, 1, 3]}
    PARAMETERS = {"greatest_angle": 0.2, "healthy_reward": 1.0}

    def __init__(self):
        integrator = self.CHOICES["integrator"][0]
        self.frame_skip = self.CHOICES["frame_skip"][0]
        self.model = mujoco.MjModel.from_xml_string(MECHANISM % integrator)
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        self.data.qpos[:], self.data.qvel[:] = observation[:2], observation[2:]
        self.data.qacc_warmstart[:] = 0.0

    def step(self, action):
        data = self.data
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, self.frame_skip)
        falls = bool(abs(data.qpos[1]) > self.PARAMETERS["greatest_angle"])
        reward = 0.0 if falls else self.PARAMETERS["healthy_reward"]
        return np.concatenate([data.qpos, data.qvel]), reward, falls
