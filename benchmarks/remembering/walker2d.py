"""A walker in a plane that shows velocities clipped to 10, and continues with the true ones."""

import mujoco
import numpy as np

MECHANISM = """
<mujoco model="walker2d">
  <compiler angle="degree" inertiafromgeom="true"/>
  <default>
    <joint armature="0.01" damping=".1" limited="true"/>
    <geom conaffinity="0" condim="3" contype="1" density="1000" friction=".7 .1 .1"/>
  </default>
  <option integrator="RK4" timestep="0.002"/>
  <worldbody>
    <geom conaffinity="1" condim="3" name="floor" pos="0 0 0" size="40 40 40" type="plane"/>
    <body name="torso" pos="0 0 1.25">
      <joint armature="0" axis="1 0 0" damping="0" limited="false" name="rootx" pos="0 0 -1.25"
            stiffness="0" type="slide"/>
      <joint armature="0" axis="0 0 1" damping="0" limited="false" name="rootz" pos="0 0 -1.25"
            ref="1.25" stiffness="0" type="slide"/>
      <joint armature="0" axis="0 1 0" damping="0" limited="false" name="rooty" pos="0 0 0"
            stiffness="0" type="hinge"/>
      <geom friction="0.9" name="torso_geom" size="0.05 0.2" type="capsule"/>
      <body name="thigh" pos="0 0 -0.2">
        <joint axis="0 -1 0" name="thigh_joint" pos="0 0 0" range="-150 0" type="hinge"/>
        <geom friction="0.9" pos="0 0 -0.225" name="thigh_geom" size="0.05 0.225" type="capsule"/>
        <body name="leg" pos="0 0 -0.7">
          <joint axis="0 -1 0" name="leg_joint" pos="0 0 0.25" range="-150 0" type="hinge"/>
          <geom friction="0.9" name="leg_geom" size="0.04 0.25" type="capsule"/>
          <body name="foot" pos="0.2 0 -0.35">
            <joint axis="0 -1 0" name="foot_joint" pos="-0.2 0 0.1" range="-45 45" type="hinge"/>
            <geom friction="1.9" pos="-0.1 0 0.1"
                  quat="0.70710678118654757 0 -0.70710678118654746 0" name="foot_geom"
                  size="0.06 0.1" type="capsule"/>
          </body>
        </body>
      </body>
      <body name="thigh_left" pos="0 0 -0.2">
        <joint axis="0 -1 0" name="thigh_left_joint" pos="0 0 0" range="-150 0" type="hinge"/>
        <geom friction="0.9" name="thigh_left_geom" size="0.05 0.225" pos="0 0 -0.225"
              type="capsule"/>
        <body name="leg_left" pos="0 0 -0.7">
          <joint axis="0 -1 0" name="leg_left_joint" pos="0 0 0.25" range="-150 0" type="hinge"/>
          <geom friction="0.9" name="leg_left_geom" size="0.04 0.25" type="capsule"/>
          <body name="foot_left" pos="0.2 0 -0.35">
            <joint axis="0 -1 0" name="foot_left_joint" pos="-0.2 0 0.1" range="-45 45"
                  type="hinge"/>
            <geom friction="1.9" name="foot_left_geom" size="0.06 0.1" pos="-0.1 0 0.1"
                  type="capsule" quat="0.70710678118654757 0 -0.70710678118654746 0"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor ctrllimited="true" ctrlrange="-1.0 1.0" gear="100" joint="thigh_joint"/>
    <motor ctrllimited="true" ctrlrange="-1.0 1.0" gear="100" joint="leg_joint"/>
    <motor ctrllimited="true" ctrlrange="-1.0 1.0" gear="100" joint="foot_joint"/>
    <motor ctrllimited="true" ctrlrange="-1.0 1.0" gear="100" joint="thigh_left_joint"/>
    <motor ctrllimited="true" ctrlrange="-1.0 1.0" gear="100" joint="leg_left_joint"/>
    <motor ctrllimited="true" ctrlrange="-1.0 1.0" gear="100" joint="foot_left_joint"/>
    </actuator>
</mujoco>
"""
FRAME_SKIP = 4
POSITIONS = 8
FASTEST = 10.0


class Environment:
    """The observation is the positions but for x, and the nine velocities, clipped."""

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(MECHANISM)
        self.data = mujoco.MjData(self.model)

    def reset(self, observation):
        mujoco.mj_resetData(self.model, self.data)
        self.correct(observation, 0.0)
        mujoco.mj_forward(self.model, self.data)

    def step(self, action):
        data = self.data
        before = data.qpos[0]
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, FRAME_SKIP)
        speed = (data.qpos[0] - before) / (self.model.opt.timestep * FRAME_SKIP)
        healthy = 0.8 < data.qpos[1] < 2.0 and -1.0 < data.qpos[2] < 1.0
        reward = speed + float(healthy) - 1e-3 * np.sum(np.square(action))
        seen = np.concatenate([data.qpos[1:], np.clip(data.qvel, -FASTEST, FASTEST)])
        return seen, float(reward), not healthy

    def correct(self, observation, reward):
        data, seen = self.data, observation[POSITIONS:]
        data.qpos[1:] = observation[:POSITIONS]
        carried = (np.abs(seen) >= FASTEST) & (data.qvel * seen >= FASTEST**2)
        data.qvel[:] = np.where(carried, data.qvel, seen)
