"""Computing: a machine with two registers and a relay of packets."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.aside.base import Simulator


class RegisterMachine(Simulator):
    """A machine with two registers of four bits has to compute a target.

    ## Action Space

    | Num | Action                                           |
    |-----|--------------------------------------------------|
    | 0   | Add B and the carry to A, and set the carry      |
    | 1   | Rotate A left through the carry                  |
    | 2   | Exclusive or of B into A                         |
    | 3   | Swap A and B                                     |
    | 4   | Add one to B                                     |
    | 5   | Complement A and clear the carry                 |

    ## Observation Space

    | Num | Observation  | Min | Max |
    |-----|--------------|-----|-----|
    | 0   | A            | 0   | 15  |
    | 1   | B            | 0   | 15  |
    | 2   | Carry        | 0   | 1   |
    | 3   | Target       | 0   | 15  |

    Each step costs 1, and A equal to the target ends the episode with 10.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([16, 16, 2, 16])
        self.action_space = spaces.Discrete(6)
        self.a, self.b, self.carry, self.target = 0, 0, 0, 1

    def _start(self) -> None:
        self.a, self.b, self.target = self.np_random.integers(16, size=3).tolist()
        self.carry = int(self.np_random.integers(2))
        if self.a == self.target:
            self.target = (self.target + 5) % 16

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action == 0:
            self.carry, self.a = divmod(self.a + self.b + self.carry, 16)
        elif action == 1:
            self.carry, self.a = divmod(2 * self.a + self.carry, 16)
        elif action == 2:
            self.a ^= self.b
        elif action == 3:
            self.a, self.b = self.b, self.a
        elif action == 4:
            self.b = (self.b + 1) % 16
        else:
            self.a, self.carry = 15 - self.a, 0
        done = self.a == self.target
        return (10.0 if done else -1.0), done

    def _observe(self) -> NDArray[np.int64]:
        return np.array([self.a, self.b, self.carry, self.target], np.int64)


class PacketRelay(Simulator):
    """A relay empties two queues of packets over one channel.

    Actions: send from the first queue (0), send from the second (1), clear the channel (2). The
    observation has the lengths of the queues, at most 6, and whether the channel is jammed. A
    packet sent over a free channel leaves its queue; one time in seven it collides instead, which
    jams the channel. Nothing passes a jammed channel until it is cleared. One time in nine
    another packet joins the first queue after the step. A packet sent earns 1, and
    every step costs 0.2. The episode ends when both queues are empty (5) or the first is full
    (-5).
    """

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([7, 7, 2])
        self.action_space = spaces.Discrete(3)
        self.queues, self.jammed = [1, 1], 0

    def _start(self) -> None:
        self.queues = self.np_random.integers(1, 5, size=2).tolist()
        self.jammed = int(self.np_random.integers(2))

    def _advance(self, action: Any) -> tuple[float, bool]:
        before = sum(self.queues)
        collides, joins = self.np_random.random(2) < (1 / 7, 1 / 9)
        if action == 2:
            self.jammed = 0
        elif self.queues[action] and not self.jammed:
            self.jammed = int(collides)
            self.queues[action] -= 1 - self.jammed
        self.queues[0] += int(joins)
        left = sum(self.queues)
        full = self.queues[0] >= 6
        return before - left - 0.2 + 5.0 * (left == 0) - 5.0 * full, left == 0 or full

    def _observe(self) -> NDArray[np.int64]:
        return np.array([*self.queues, self.jammed], np.int64)
