"""World models that are exact."""

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
