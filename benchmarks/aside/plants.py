"""Plants that heat up: a jacketed reactor and a hall of servers."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.aside.base import Simulator, clamp


class JacketedReactor(Simulator):
    """A stirred tank with an exothermic reaction of first order and a cooling jacket.

    The action, between -1 and 1, sets the temperature of the coolant around 302 K, and the
    jacket follows it with a lag. The observation is the concentration of the reactant (mol/l),
    the temperature of the tank and the temperature of the jacket (both in K). The reaction
    speeds up with temperature after Arrhenius. The reward falls with the distance from 352 K and
    with the square of the action. The episode ends when the tank runs away above 392 K, or dies
    below 318 K; each costs 20.
    """

    def __init__(self) -> None:
        low = np.array([0.0, 280.0, 270.0], np.float32)
        high = np.array([1.5, 460.0, 335.0], np.float32)
        self.observation_space = spaces.Box(low, high)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.state = (0.5, 350.0, 302.0)

    def _start(self) -> None:
        state = self.np_random.uniform((0.3, 332.0, 290.0), (0.95, 366.0, 314.0)).tolist()
        self.state = (state[0], state[1], state[2])

    def _advance(self, action: Any) -> tuple[float, bool]:
        valve = clamp(float(action[0]), -1.0, 1.0)
        reactant, tank, jacket = self.state
        for _ in range(5):
            rate = 4.1e10 * math.exp(-8480.0 / tank) * reactant
            heating = 0.9 * (348.0 - tank) + 187.0 * rate - 2.3 * (tank - jacket)
            reactant = clamp(reactant + 0.02 * (0.9 * (1.0 - reactant) - rate), 0.0, 1.5)
            tank = clamp(tank + 0.02 * heating, 280.0, 460.0)
            jacket += 0.02 * (302.0 + 22.0 * valve - jacket) / 0.35
        self.state = (reactant, tank, jacket)
        lost = tank > 392.0 or tank < 318.0
        return -abs(tank - 352.0) / 40.0 - 0.05 * valve**2 - 20.0 * lost, lost

    def _observe(self) -> NDArray[np.float32]:
        return np.array(self.state, np.float32)


class DataHall(Simulator):
    """A hall of servers that works off a backlog under a chiller with hysteresis.

    ## Action Space

    | Num | Action     |
    |-----|------------|
    | 0   | Idle       |
    | 1   | Half load  |
    | 2   | Full load  |

    ## Observation Space

    | Num | Observation                    | Min | Max |
    |-----|--------------------------------|-----|-----|
    | 0   | Room temperature (C)           | 0   | 80  |
    | 1   | Server temperature (C)         | 0   | 120 |
    | 2   | Backlog (hours of work)        | 0   | 12  |
    | 3   | Chiller (0 off, 1 on)          | 0   | 1   |

    The chiller starts above 27.5 C in the room and stops below 23.2 C. The reward is the fall of
    the backlog, less 0.15 where the chiller ends up on. The episode ends when the backlog is
    worked off (+5), when it is full or when a server trips at 49 C (-5 each).
    """

    def __init__(self) -> None:
        high = np.array([80.0, 120.0, 12.0, 1.0], np.float32)
        self.observation_space = spaces.Box(np.zeros(4, np.float32), high)
        self.action_space = spaces.Discrete(3)
        self.room, self.server, self.backlog, self.chiller = 24.0, 30.0, 5.0, 0

    def _start(self) -> None:
        self.room, self.server, self.backlog = self.np_random.uniform(
            (22.0, 26.0, 2.0), (29.0, 42.0, 9.0)
        ).tolist()
        self.chiller = int(self.np_random.integers(2))

    def _advance(self, action: Any) -> tuple[float, bool]:
        load = 0.5 * float(action)
        before, room = self.backlog, self.room
        self.room += 0.12 * (self.server - room) + 0.05 * (31.5 - room) - 2.3 * self.chiller
        self.server += 0.25 * (room - self.server) + 5.6 * load**1.63
        self.backlog = clamp(before + 0.34 - 0.93 * load, 0.0, 12.0)
        if self.room > 27.5:
            self.chiller = 1
        elif self.room < 23.2:
            self.chiller = 0
        reward = before - self.backlog - 0.15 * self.chiller
        if self.server > 49.0 or self.backlog >= 12.0:
            return reward - 5.0, True
        return reward + 5.0 * (self.backlog == 0.0), self.backlog == 0.0

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self.room, self.server, self.backlog, self.chiller], np.float32)
