"""A leg with a torso, a thigh, a shin and a foot that hops in a plane."""

import mujoco
import numpy as np

MECHANISM = """
<mujoco>
  <compiler angle="degree"/>
  <option timestep="0.002" integrator="%s" gravity="0 0 -9.81"/>
  <default>
    <geom type="capsule" condim="1" margin="0.001" solref="0.02 1" solimp="0.8 0.8 0.01"/>
    <motor ctrlrange="-1 1" ctrllimited="true"/>
  </default>
  <worldbody>
    <geom name="floor" type="plane" size="20 20 0.1" condim="3" friction="1"/>
    <body name="torso" pos="0 0 1.25">
      <joint name="rootx" type="slide" axis="1 0 0"/>
      <joint name="rootz" type="slide" axis="0 0 1" ref="1.25"/>
      <joint name="rooty" axis="0 1 0"/>
      <geom name="torso" fromto="0 0 0.2 0 0 -0.2" size="0.05" density="1000" friction="0.9"/>
      <body name="thigh" pos="0 0 -0.2">
        <joint name="thigh" axis="0 -1 0" armature="1" damping="1" range="-150 0"
               limited="true"/>
        <geom name="thigh" fromto="0 0 0 0 0 -0.45" size="0.05" density="1000" friction="0.9"/>
        <body name="leg" pos="0 0 -0.45">
          <joint name="leg" axis="0 -1 0" armature="1" damping="1" range="-150 0"
                 limited="true"/>
          <geom name="leg" fromto="0 0 0 0 0 -0.5" size="0.04" density="1000" friction="0.9"/>
          <body name="foot" pos="0 0 -0.5">
            <joint name="foot" axis="0 -1 0" armature="1" damping="1" range="-45 45"
                   limited="true"/>
            <geom name="foot" fromto="-0.13 0 0 0.26 0 0" size="0.06" density="1000"
                  friction="2"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="thigh" gear="200"/>
    <motor joint="leg" gear="200"/>
    <motor joint="foot" gear="200"/>
  </actuator>
</mujoco>
"""


class Environment:
    """The observation is height, angle, three joints, and the six velocities, clipped."""

    CHOICES = {"integrator": ["RK4", "Euler", "implicitfast"], "frame_skip": [4, 3, 5]}
    PARAMETERS = {
        "forward_weight": 1.0,
        "control_weight": 0.001,
        "healthy_reward": 1.0,
        "least_height": 0.7,
        "greatest_angle": 0.2,
        "greatest_value": 100.0,
    }

    def __init__(self):
        integrator = self.CHOICES["integrator"][0]
        self.frame_skip = self.CHOICES["frame_skip"][0]
        self.model = mujoco.MjModel.from_xml_string(MECHANISM % integrator)
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        self.data.qpos[0] = 0.0
        self.data.qpos[1:] = observation[:5]
        self.data.qvel[:] = observation[5:]
        self.data.qacc_warmstart[:] = 0.0

    def step(self, action):
        numbers, data = self.PARAMETERS, self.data
        before = data.qpos[0]
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, self.frame_skip)
        seconds = self.model.opt.timestep * self.frame_skip
        velocity = (data.qpos[0] - before) / seconds
        state = np.concatenate([data.qpos[2:], data.qvel])
        healthy = (
            bool(np.all(np.abs(state) < numbers["greatest_value"]))
            and data.qpos[1] > numbers["least_height"]
            and abs(data.qpos[2]) < numbers["greatest_angle"]
        )
        reward = numbers["forward_weight"] * velocity + numbers["healthy_reward"] * healthy
        reward -= numbers["control_weight"] * np.sum(np.square(action))
        observation = np.concatenate([data.qpos[1:], np.clip(data.qvel, -10, 10)])
        return observation, float(reward), not healthy
