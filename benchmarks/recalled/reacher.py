"""An arm of two links in a plane, whose tip is to reach a target."""

import mujoco
import numpy as np

MECHANISM = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.01" integrator="%s" gravity="0 0 -9.81"/>
  <default>
    <joint axis="0 0 1"/>
    <geom type="capsule" contype="0" conaffinity="0"/>
    <motor ctrlrange="-1 1" ctrllimited="true"/>
  </default>
  <worldbody>
    <body name="upper" pos="0 0 0.01">
      <joint name="shoulder" armature="1" damping="1"/>
      <geom name="upper" fromto="0 0 0 0.1 0 0" size="0.01" density="1000"/>
      <body name="lower" pos="0.1 0 0">
        <joint name="elbow" armature="1" damping="1" range="-3 3" limited="true"/>
        <geom name="lower" fromto="0 0 0 0.1 0 0" size="0.01" density="1000"/>
        <body name="tip" pos="0.11 0 0">
          <geom name="tip" type="sphere" size="0.01" density="1000"/>
        </body>
      </body>
    </body>
    <body name="target" pos="0.1 -0.1 0.01">
      <joint name="target_x" type="slide" axis="1 0 0" ref="0.1"
             range="-0.27 0.27" limited="true"/>
      <joint name="target_y" type="slide" axis="0 1 0" ref="-0.1"
             range="-0.27 0.27" limited="true"/>
      <geom name="target" type="sphere" size="0.009"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="shoulder" gear="200"/>
    <motor joint="elbow" gear="200"/>
  </actuator>
</mujoco>
"""


class Environment:
    """The observation is cosines, sines, target, angular velocities, and tip minus target."""

    CHOICES = {"integrator": ["RK4", "Euler", "implicitfast"], "frame_skip": [2, 1, 3]}
    PARAMETERS = {"distance_weight": 1.0, "control_weight": 1.0}

    def __init__(self):
        integrator = self.CHOICES["integrator"][0]
        self.frame_skip = self.CHOICES["frame_skip"][0]
        self.model = mujoco.MjModel.from_xml_string(MECHANISM % integrator)
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        angles = np.arctan2(observation[2:4], observation[:2])
        self.data.qpos[:] = np.concatenate([angles, observation[4:6]])
        self.data.qvel[:] = [*observation[6:8], 0.0, 0.0]
        self.data.qacc_warmstart[:] = 0.0

    def step(self, action):
        data = self.data
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, self.frame_skip)
        away = data.body("tip").xpos - data.body("target").xpos
        reward = -self.PARAMETERS["distance_weight"] * np.linalg.norm(away)
        reward -= self.PARAMETERS["control_weight"] * np.sum(np.square(action))
        angles, target = data.qpos[:2], data.qpos[2:]
        observation = [np.cos(angles), np.sin(angles), target, data.qvel[:2], away[:2]]
        return np.concatenate(observation), float(reward), False
