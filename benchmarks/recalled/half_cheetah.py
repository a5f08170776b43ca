"""A runner in a plane: torso and head, a hind leg and a fore leg of three parts each."""

import mujoco
import numpy as np

MECHANISM = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.01" integrator="%s" gravity="0 0 -9.81"/>
  <default>
    <joint axis="0 1 0" limited="true" solreflimit="0.02 1" solimplimit="0 0.8 0.03"/>
    <geom type="capsule" contype="1" conaffinity="0" condim="3" solref="0.02 1"
          solimp="0 0.8 0.01"/>
    <motor ctrlrange="-1 1" ctrllimited="true"/>
  </default>
  <worldbody>
    <geom name="floor" type="plane" size="40 40 40" conaffinity="1" friction="0.4"/>
    <body name="torso" pos="0 0 0.7">
      <joint name="rootx" type="slide" axis="1 0 0" limited="false"/>
      <joint name="rootz" type="slide" axis="0 0 1" limited="false"/>
      <joint name="rooty" limited="false"/>
      <geom name="torso" fromto="-0.5 0 0 0.5 0 0" size="0.046"
            density="1000" friction="0.4"/>
      <geom name="head" pos="0.6 0 0.1" axisangle="0 1 0 0.87" size="0.046 0.15"
            density="1000" friction="0.4"/>
      <body name="bthigh" pos="-0.5 0 0">
        <joint name="bthigh" range="-0.52 1.05" damping="6" stiffness="240"
               armature="0.1"/>
        <geom name="bthigh" pos="0.1 0 -0.13" axisangle="0 1 0 -3.8" size="0.046 0.145"
              density="1000" friction="0.4"/>
        <body name="bshin" pos="0.16 0 -0.25">
          <joint name="bshin" range="-0.785 0.785" damping="4.5" stiffness="180"
                 armature="0.1"/>
          <geom name="bshin" pos="-0.14 0 -0.07" axisangle="0 1 0 -2.03" size="0.046 0.15"
                density="1000" friction="0.4"/>
          <body name="bfoot" pos="-0.28 0 -0.14">
            <joint name="bfoot" range="-0.4 0.785" damping="3" stiffness="120"
                   armature="0.1"/>
            <geom name="bfoot" pos="0.03 0 -0.097" axisangle="0 1 0 -0.27" size="0.046 0.094"
                  density="1000" friction="0.4"/>
          </body>
        </body>
      </body>
      <body name="fthigh" pos="0.5 0 0">
        <joint name="fthigh" range="-1 0.7" damping="4.5" stiffness="180"
               armature="0.1"/>
        <geom name="fthigh" pos="-0.07 0 -0.12" axisangle="0 1 0 0.52" size="0.046 0.133"
              density="1000" friction="0.4"/>
        <body name="fshin" pos="-0.14 0 -0.24">
          <joint name="fshin" range="-1.2 0.87" damping="3" stiffness="120"
                 armature="0.1"/>
          <geom name="fshin" pos="0.065 0 -0.09" axisangle="0 1 0 -0.6" size="0.046 0.106"
                density="1000" friction="0.4"/>
          <body name="ffoot" pos="0.13 0 -0.18">
            <joint name="ffoot" range="-0.5 0.5" damping="1.5" stiffness="60"
                   armature="0.1"/>
            <geom name="ffoot" pos="0.045 0 -0.07" axisangle="0 1 0 -0.6" size="0.046 0.07"
                  density="1000" friction="0.4"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="bthigh" gear="120"/>
    <motor joint="bshin" gear="90"/>
    <motor joint="bfoot" gear="60"/>
    <motor joint="fthigh" gear="120"/>
    <motor joint="fshin" gear="60"/>
    <motor joint="ffoot" gear="30"/>
  </actuator>
</mujoco>
"""


class Environment:
    """The observation is the positions but for x, and the nine velocities."""

    CHOICES = {"integrator": ["Euler", "RK4", "implicitfast"], "frame_skip": [5, 4, 6]}
    PARAMETERS = {"forward_weight": 1.0, "control_weight": 0.1, "mass": 14.0}

    def __init__(self):
        integrator = self.CHOICES["integrator"][0]
        self.frame_skip = self.CHOICES["frame_skip"][0]
        self.model = mujoco.MjModel.from_xml_string(MECHANISM % integrator)
        self.data = mujoco.MjData(self.model)
        mujoco.mj_setTotalmass(self.model, self.PARAMETERS["mass"])
        mujoco.mj_setConst(self.model, self.data)

    def set_state(self, observation):
        self.data.qpos[0] = 0.0
        self.data.qpos[1:] = observation[:8]
        self.data.qvel[:] = observation[8:]
        self.data.qacc_warmstart[:] = 0.0

    def step(self, action):
        data = self.data
        before = data.qpos[0]
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, self.frame_skip)
        velocity = (data.qpos[0] - before) / (self.model.opt.timestep * self.frame_skip)
        reward = self.PARAMETERS["forward_weight"] * velocity
        reward -= self.PARAMETERS["control_weight"] * np.sum(np.square(action))
        return np.concatenate([data.qpos[1:], data.qvel]), float(reward), False
