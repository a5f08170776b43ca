"""Heat, water and process plants."""

from math import sqrt
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import clamp
from benchmarks.contracts.base import ContractSystem, box, force


class Thermostat(ContractSystem):
    """A room with an electric heater that a relay switches.

    | Num | Observation                  | Min | Max |
    |-----|------------------------------|-----|-----|
    | 0   | temperature of the room      | 0   | 45  |
    | 1   | set temperature              | 15  | 25  |
    | 2   | 1 if the relay is on, else 0 | 0   | 1   |

    Actions 0, 1 and 2 change the set temperature by -0.5, 0 and 0.5. The relay switches on
    more than 1 degree below the set temperature, off more than 1 degree above, and keeps its
    position between these thresholds. The reward is minus the distance to the set temperature.
    """

    shown = ("temperature", "setting", "relay")

    def __init__(self) -> None:
        self.observation_space = box([0, 15, 0], [45, 25, 1])
        self.action_space = spaces.Discrete(3)
        self.temperature, self.setting, self.relay = 20.0, 20.0, 0.0

    def _start(self) -> None:
        self.temperature = self.np_random.uniform(12, 28)
        self.setting = 15 + 0.5 * int(self.np_random.integers(21))
        self.relay = float(self.np_random.integers(2))

    def _advance(self, action: Any) -> tuple[float, bool]:
        self.setting = clamp(self.setting + 0.5 * (int(action) - 1), 15, 25)
        if self.temperature < self.setting - 1:
            self.relay = 1.0
        elif self.temperature > self.setting + 1:
            self.relay = 0.0
        self.temperature += 0.08 * (8 - self.temperature) + 2.4 * self.relay
        return -abs(self.temperature - self.setting), False


class Sluice(ContractSystem):
    """Two basins with a gate between them.

    | Num | Observation              | Min | Max |
    |-----|--------------------------|-----|-----|
    | 0   | level of the upper basin | 0   | 1   |
    | 1   | level of the lower basin | 0   | 1   |
    | 2   | opening of the gate      | 0   | 1   |

    The action between -1 (shut) and 1 (open) is the requested opening. The gate moves by at
    most 0.15 in a step and ignores requests that differ by less than 0.05. The upper basin
    fills by 0.06 in a step, and water above its rim is lost for a reward of -1. The lower
    basin drains with the square root of its level. The other reward is the drained water.
    """

    shown = ("upper", "lower", "gate")

    def __init__(self) -> None:
        self.observation_space = box([0] * 3, [1] * 3, np.float32)
        self.action_space = force()
        self.upper = self.lower = self.gate = 0.5

    def _start(self) -> None:
        self.upper, self.lower, self.gate = self.np_random.random(3).tolist()

    def _advance(self, action: Any) -> tuple[float, bool]:
        change = (float(action[0]) + 1) / 2 - self.gate
        if abs(change) >= 0.05:
            self.gate += clamp(change, -0.15, 0.15)
        flow = min(0.15 * self.gate * sqrt(self.upper), self.upper, 1 - self.lower)
        drained = min(0.06 * sqrt(self.lower), self.lower)
        filled = self.upper - flow + 0.06
        self.upper = min(filled, 1.0)
        self.lower = clamp(self.lower + flow - drained, 0, 1)
        return drained - (1.0 if filled > 1 else 0.0), False


class Boiler(ContractSystem):
    """A boiler with a slow heating element and a slow thermometer.

    | Num | Observation                | Min | Max |
    |-----|----------------------------|-----|-----|
    | 0   | temperature of the water   | 10  | 100 |
    | 1   | temperature of the element | 10  | 500 |
    | 2   | reading of the thermometer | 10  | 100 |
    | 3   | power in the previous step | 0   | 3   |

    The action sets the power, which heats the element one step later. The element heats the
    water, and the thermometer follows the water. The reward is minus the distance of the
    reading from 60, divided by 50. Boiling water ends the episode.
    """

    shown = ("water", "element", "reading", "power")

    def __init__(self) -> None:
        self.observation_space = box([10, 10, 10, 0], [100, 500, 100, 3], np.float32)
        self.action_space = spaces.Discrete(4)
        self.water = self.element = self.reading = 20.0
        self.power = 0.0

    def _start(self) -> None:
        self.water = self.np_random.uniform(15, 70)
        self.element = self.water + self.np_random.uniform(0, 30)
        self.reading = self.water - self.np_random.uniform(0, 5)
        self.power = float(self.np_random.integers(4))

    def _advance(self, action: Any) -> tuple[float, bool]:
        exchanged = 0.2 * (self.element - self.water)
        reading = self.reading + 0.25 * (self.water - self.reading)
        self.element += 20 * self.power - exchanged
        self.water = min(self.water + 0.3 * exchanged - 0.12 * (self.water - 10), 100.0)
        self.reading, self.power = reading, float(action)
        return -abs(self.reading - 60) / 50, self.water >= 100


class Fuse(ContractSystem):
    """A cable that carries a load and is protected by a fuse.

    | Num | Observation       | Min | Max |
    |-----|-------------------|-----|-----|
    | 0   | load              | 0   | 1.5 |
    | 1   | heat of the fuse  | 0   | 2.5 |

    The action changes the load by up to 0.3. The heat follows the square of the load. With
    probability 0.3 times the heat above 0.4 the fuse blows, which ends the episode with a
    reward of -5. Else the reward is the load.
    """

    shown = ("load", "heat")

    def __init__(self) -> None:
        self.observation_space = box([0, 0], [1.5, 2.5], np.float32)
        self.action_space = force()
        self.load = self.heat = 0.0

    def _start(self) -> None:
        self.load, self.heat = self.np_random.uniform(0.2, 0.8), self.np_random.uniform(0, 0.4)

    def _advance(self, action: Any) -> tuple[float, bool]:
        self.load = clamp(self.load + 0.3 * float(action[0]), 0, 1.5)
        self.heat += 0.3 * (self.load**2 - self.heat)
        blown = self.np_random.random() < 0.3 * max(self.heat - 0.4, 0.0)
        return -5.0 if blown else self.load, blown


class Kiln(ContractSystem):
    """A pottery kiln with a long gas pipe.

    | Num | Observation                | Min | Max  |
    |-----|----------------------------|-----|------|
    | 0   | temperature of the chamber | 0   | 1500 |
    | 1   | temperature of the wall    | 0   | 1500 |

    Action 0 closes the gas, 1 opens it by half and 2 fully. The burner gets the gas three
    steps later. The reward is minus the distance of the chamber from 900, divided by 500.
    """

    shown = ("chamber", "wall")
    hidden = ("pipe",)

    def __init__(self) -> None:
        self.observation_space = box([0, 0], [1500, 1500])
        self.action_space = spaces.Discrete(3)
        self.chamber = self.wall = 20.0
        self.pipe: tuple[int, ...] = (0, 0, 0)

    def _start(self) -> None:
        self.chamber = self.np_random.uniform(200, 1000)
        self.wall = self.chamber * self.np_random.uniform(0.5, 0.9)
        self.pipe = (0, 0, 0)

    def _advance(self, action: Any) -> tuple[float, bool]:
        burning, *rest = self.pipe
        self.pipe = (*rest, int(action))
        exchanged = 0.1 * (self.chamber - self.wall)
        self.chamber += 40 * burning - exchanged - 0.03 * self.chamber
        self.wall += 0.4 * exchanged - 0.01 * self.wall
        return -abs(self.chamber - 900) / 500, False


class Tank(ContractSystem):
    """A tank with a pump, an open drain and a level sensor.

    | Num | Observation       | Min | Max |
    |-----|-------------------|-----|-----|
    | 0   | reading of level  | 0   | 2   |

    The action between -1 (off) and 1 (full) drives the pump. The sensor damps waves: in
    each step its reading moves a quarter of the distance to the real level. The reward is
    minus the distance of the reading from 0.8.
    """

    shown = ("reading",)
    hidden = ("level",)

    def __init__(self) -> None:
        self.observation_space = box([0], [2], np.float32)
        self.action_space = force()
        self.level = self.reading = 0.8

    def _start(self) -> None:
        self.level = self.reading = self.np_random.uniform(0.2, 1.6)

    def _advance(self, action: Any) -> tuple[float, bool]:
        pumped = 0.2 * (float(action[0]) + 1) / 2
        self.level = clamp(self.level + pumped - 0.11 * sqrt(self.level), 0, 2)
        self.reading += 0.25 * (self.level - self.reading)
        return -abs(self.reading - 0.8), False
