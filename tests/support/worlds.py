"""World models that are exact."""

import recordings

CARTPOLE = """
import math

class Environment:
    def set_state(self, observation):
        self.state = observation.tolist()

    def step(self, action):
        x, v, angle, spin = self.state
        cos, sin = math.cos(angle), math.sin(angle)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * spin * spin * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        pull = push - 0.05 * twist * cos / 1.1
        self.state = x, v, angle, spin = (
            x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * twist
        )
        return [x, v, angle, spin], 1.0, abs(x) > 2.4 or abs(angle) > math.radians(12)
"""

PENDULUM = """
import math

class Environment:
    def set_state(self, observation):
        cos, sin, self.spin = observation.tolist()
        self.angle = math.atan2(sin, cos)

    def step(self, action):
        torque = min(max(float(action[0]), -2.0), 2.0)
        angle = (self.angle + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * self.spin**2 + 0.001 * torque**2
        spin = self.spin + (15 * math.sin(self.angle) + 3 * torque) * 0.05
        self.spin = min(max(spin, -8.0), 8.0)
        self.angle += self.spin * 0.05
        return [math.cos(self.angle), math.sin(self.angle), self.spin], -cost, False
"""

CAR = """
import numpy as np

GRAVITY = 0.0025


class Environment:
    def set_state(self, observation):
        self.position, self.velocity = observation

    def step(self, action):
        velocity = self.velocity + (action - 1) * 0.001 - np.cos(3 * self.position) * GRAVITY
        velocity = min(max(velocity, -0.07), 0.07)
        position = min(max(self.position + velocity, -1.2), 0.6)
        if position == -1.2 and velocity < 0:
            velocity = 0.0
        self.position, self.velocity = position, velocity
        return np.array([position, velocity]), -1.0, bool(position >= 0.5 and velocity >= 0)
"""

# Beyond a speed of 0.04 its loop takes too many rounds to be translated.
LOOPING = CAR.replace(
    "        self.position, self.velocity = position, velocity\n",
    "        rest = abs(velocity)\n        while rest > 0.01:\n            rest = rest - 0.01\n"
    "        position = position + 0 * rest\n"
    "        self.position, self.velocity = position, velocity\n",
)

COUNTER = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        self.state = self.state + 1
        return self.state, float(action), False
"""

ICE = """
class Environment:
    def set_state(self, observation):
        self.cell = observation

    def outcomes(self, action):
        found = []
        for turn in (-1, 0, 1):
            row, column = divmod(self.cell, 4)
            move = (action + turn) % 4
            row, column = row + (move == 1) - (move == 3), column + (move == 2) - (move == 0)
            cell = 4 * min(max(row, 0), 3) + min(max(column, 0), 3)
            found.append((1 / 3, cell, float(cell == 15), cell in (5, 7, 11, 12, 15)))
        return found
"""

SLIPPERY = f"""{ICE}
    def step(self, action):
        _, self.cell, reward, ended = self.outcomes(action)[self.rng.integers(3)]
        return self.cell, reward, ended
"""

PHYSICS = """
import math
import numpy as np

def moved(state, force):
    x, v, a, w = state
    push = (force + 0.05 * w**2 * math.sin(a)) / 1.1
    turn = 9.8 * math.sin(a) - math.cos(a) * push
    turn /= 0.5 * (4.0 / 3.0 - 0.1 * math.cos(a) ** 2 / 1.1)
    pull = push - 0.05 * turn * math.cos(a) / 1.1
    return [x + 0.02 * v, v + 0.02 * pull, a + 0.02 * w, w + 0.02 * turn]

def ended(state):
    return abs(state[0]) > 2.4 or abs(state[2]) > 12 * math.pi / 180
"""

HIDDEN = (
    PHYSICS
    + """
class Environment:
    def reset(self, observation):
        self.state = [float(observation[0]), 0.0, float(observation[1]), 0.0]

    def step(self, action):
        self.before, self.force = self.state, 10.0 if action == 1 else -10.0
        self.state = moved(self.before, self.force)
        return np.array([self.state[0], self.state[2]]), 1.0, ended(self.state)

    def correct(self, observation, reward):
        x, a = float(observation[0]), float(observation[1])
        speeds = (x - self.before[0]) / 0.02, (a - self.before[2]) / 0.02
        known = [self.before[0], speeds[0], self.before[2], speeds[1]]
        after = moved(known, self.force)
        self.state = [x, after[1], a, after[3]]
"""
)

LAKE = recordings.FROZEN_LAKE.replace("(column + 1) % 4", "min(column + 1, 3)")
