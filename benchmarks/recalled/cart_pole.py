"""CartPole from memory, with declared parameters and choices."""

import math


class Environment:
    PARAMETERS = {
        "gravity": 9.8,
        "cart": 1.0,
        "pole": 0.1,
        "half_length": 0.5,
        "force": 10.0,
        "time_step": 0.02,
        "widest": 2.4,
        "steepest": 12 * math.pi / 180,
        "reward": 1.0,
    }
    CHOICES = {"integrator": ["euler", "semi-implicit"]}

    def set_state(self, observation):
        self.state = [float(part) for part in observation]

    def step(self, action):
        p = self.PARAMETERS
        x, v, angle, spin = self.state
        push = p["force"] if action == 1 else -p["force"]
        total, lever = p["cart"] + p["pole"], p["pole"] * p["half_length"]
        cos, sin = math.cos(angle), math.sin(angle)
        pressed = (push + lever * spin**2 * sin) / total
        arm = p["half_length"] * (4.0 / 3.0 - p["pole"] * cos**2 / total)
        twist = (p["gravity"] * sin - cos * pressed) / arm
        pull = pressed - lever * twist * cos / total
        if self.CHOICES["integrator"][0] == "euler":
            x, v = x + p["time_step"] * v, v + p["time_step"] * pull
            angle, spin = angle + p["time_step"] * spin, spin + p["time_step"] * twist
        else:
            v, spin = v + p["time_step"] * pull, spin + p["time_step"] * twist
            x, angle = x + p["time_step"] * v, angle + p["time_step"] * spin
        self.state = [x, v, angle, spin]
        ends = abs(x) > p["widest"] or abs(angle) > p["steepest"]
        return self.state, p["reward"], ends
