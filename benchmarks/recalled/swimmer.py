"""Three links in a viscous fluid, seen from above."""

import mujoco
import numpy as np

MECHANISM = """
<mujoco>
  <compiler angle="degree"/>
  <option timestep="0.01" integrator="%s" density="4000" viscosity="0.1"/>
  <default>
    <joint axis="0 0 1"/>
    <geom type="capsule" contype="0" conaffinity="0"/>
    <motor ctrlrange="-1 1" ctrllimited="true"/>
  </default>
  <worldbody>
    <body name="head">
      <joint name="x" type="slide" axis="1 0 0" armature="0.1"/>
      <joint name="y" type="slide" axis="0 1 0" armature="0.1"/>
      <joint name="turn" armature="0.1"/>
      <geom name="head" fromto="1.5 0 0 0.5 0 0" size="0.1" density="1000"/>
      <body name="middle" pos="0.5 0 0">
        <joint name="front" armature="0.1" range="-100 100" limited="true"/>
        <geom name="middle" fromto="0 0 0 -1 0 0" size="0.1" density="1000"/>
        <body name="tail" pos="-1 0 0">
          <joint name="back" armature="0.1" range="-100 100" limited="true"/>
          <geom name="tail" fromto="0 0 0 -1 0 0" size="0.1" density="1000"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="front" gear="150"/>
    <motor joint="back" gear="150"/>
  </actuator>
</mujoco>
"""


class Environment:
    """The observation is three angles and the five velocities; where it is cannot be seen."""

    CHOICES = {"integrator": ["RK4", "Euler", "implicitfast"], "frame_skip": [4, 3, 5]}
    PARAMETERS = {"forward_weight": 1.0, "control_weight": 0.0001}

    def __init__(self):
        integrator = self.CHOICES["integrator"][0]
        self.frame_skip = self.CHOICES["frame_skip"][0]
        self.model = mujoco.MjModel.from_xml_string(MECHANISM % integrator)
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        self.data.qpos[:2] = 0.0
        self.data.qpos[2:] = observation[:3]
        self.data.qvel[:] = observation[3:]
        self.data.qacc_warmstart[:] = 0.0

    def step(self, action):
        data = self.data
        before = data.qpos[0]
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, self.frame_skip)
        velocity = (data.qpos[0] - before) / (self.model.opt.timestep * self.frame_skip)
        reward = self.PARAMETERS["forward_weight"] * velocity
        reward -= self.PARAMETERS["control_weight"] * np.sum(np.square(action))
        return np.concatenate([data.qpos[2:], data.qvel]), float(reward), False
