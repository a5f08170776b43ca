"""Vehicles, boats and bodies that move."""

from math import cos, hypot, sin
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import clamp, wrap
from benchmarks.contracts.base import ContractSystem, box, force


class Puck(ContractSystem):
    """A puck on an air table with a round post in the middle.

    | Num | Observation      | Min | Max |
    |-----|------------------|-----|-----|
    | 0   | x                | -1  | 1   |
    | 1   | y                | -1  | 1   |
    | 2   | velocity along x | -5  | 5   |
    | 3   | velocity along y | -5  | 5   |

    The two components of the action push the puck. The cushions at -1 and 1 reflect it and
    keep 0.9 of the velocity across them, and the post with radius 0.25 reflects it fully. The
    reward is 1 for a contact with the post, less a tenth of the push.
    """

    shown = ("x", "y", "u", "v")

    def __init__(self) -> None:
        self.observation_space = box([-1, -1, -5, -5], [1, 1, 5, 5])
        self.action_space = force(2)
        self.x = self.y = self.u = self.v = 0.0

    def _start(self) -> None:
        sides = self.np_random.choice([-1, 1], 2)
        self.x, self.y = (sides * self.np_random.uniform(0.3, 1, 2)).tolist()
        self.u, self.v = self.np_random.uniform(-1, 1, 2).tolist()

    @staticmethod
    def _cushion(place: float, speed: float) -> tuple[float, float]:
        if abs(place) > 1:
            return float(np.sign(place)) * (2 - abs(place)), -0.9 * speed
        return place, speed

    def _advance(self, action: Any) -> tuple[float, bool]:
        self.u = clamp(self.u + 0.2 * float(action[0]), -3, 3)
        self.v = clamp(self.v + 0.2 * float(action[1]), -3, 3)
        self.x, self.u = self._cushion(self.x + 0.1 * self.u, self.u)
        self.y, self.v = self._cushion(self.y + 0.1 * self.v, self.v)
        distance = hypot(self.x, self.y)
        struck = 0 < distance < 0.25
        if struck:
            across, along = self.x / distance, self.y / distance
            self.x, self.y = 0.25 * across, 0.25 * along
            inward = min(self.u * across + self.v * along, 0.0)
            self.u, self.v = self.u - 2 * inward * across, self.v - 2 * inward * along
        return float(struck) - 0.1 * hypot(float(action[0]), float(action[1])), False


class Buoy(ContractSystem):
    """A buoy that bobs on small waves.

    | Num | Observation | Min | Max |
    |-----|-------------|-----|-----|
    | 0   | height      | -5  | 5   |
    | 1   | speed       | -5  | 5   |

    The action is the force of a winch. Water drives the buoy back to height 0 and damps it,
    and each step adds normal noise with a standard deviation of 0.02 to the speed. The
    reward is minus the distance from height 1.
    """

    shown = ("height", "speed")

    def __init__(self) -> None:
        self.observation_space = box([-5, -5], [5, 5])
        self.action_space = force()
        self.height = self.speed = 0.0

    def _start(self) -> None:
        self.height, self.speed = self.np_random.uniform(-2, 2, 2).tolist()

    def _advance(self, action: Any) -> tuple[float, bool]:
        push = 0.3 * float(action[0]) - 0.2 * self.height - 0.1 * self.speed
        self.speed = clamp(self.speed + push + self.np_random.normal(0, 0.02), -5, 5)
        self.height = clamp(self.height + 0.3 * self.speed, -5, 5)
        return -abs(self.height - 1), False


class Glider(ContractSystem):
    """A glider above rough ground.

    | Num | Observation | Min | Max |
    |-----|-------------|-----|-----|
    | 0   | altitude    | 0   | 6   |
    | 1   | airspeed    | 0.5 | 3   |
    | 2   | distance    | 0   | 500 |

    Actions 0, 1 and 2 dive, keep level and climb, which trades airspeed for altitude. Below
    altitude 2 turbulence adds normal noise to the altitude, with a standard deviation of
    0.1 times the depth below 2; above it the air is calm. The reward is the airspeed, and
    landing ends the episode with -5.
    """

    shown = ("altitude", "airspeed", "distance")

    def __init__(self) -> None:
        self.observation_space = box([0, 0.5, 0], [6, 3, 500], np.float32)
        self.action_space = spaces.Discrete(3)
        self.altitude, self.airspeed, self.distance = 3.0, 1.0, 0.0

    def _start(self) -> None:
        self.altitude = self.np_random.uniform(1, 5)
        self.airspeed, self.distance = self.np_random.uniform(1, 2), 0.0

    def _advance(self, action: Any) -> tuple[float, bool]:
        climb = 0.3 * (int(action) - 1) * self.airspeed
        self.airspeed = clamp(self.airspeed - 0.3 * climb, 0.5, 3)
        rough = 0.1 * max(2 - self.altitude, 0.0)
        self.altitude = clamp(self.altitude + climb - 0.02 + self.np_random.normal(0, rough), 0, 6)
        self.distance += self.airspeed
        landed = self.altitude <= 0
        return -5.0 if landed else self.airspeed, landed


class Trolley(ContractSystem):
    """A trolley on a rail with one pedal.

    | Num | Observation       | Min | Max |
    |-----|-------------------|-----|-----|
    | 0   | place on the rail | 0   | 10  |
    | 1   | charge            | 0   | 1   |

    Action 0 drives by 0.3 and action 1 by 0.8, which drains the charge by a hundredth of this;
    the gear decides between forward and backward. Action 2 shifts the gear, which is
    forward at the start. The buffers at 0 and 10 stop the trolley. The reward is the
    distance moved to the right.
    """

    shown = ("spot", "charge")
    hidden = ("gear",)

    def __init__(self) -> None:
        self.observation_space = box([0, 0], [10, 1], np.float32)
        self.action_space = spaces.Discrete(3)
        self.spot, self.charge, self.gear = 5.0, 1.0, 1

    def _start(self) -> None:
        self.spot, self.charge = self.np_random.uniform(0, 10), self.np_random.uniform(0.8, 1)
        self.gear = 1

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action == 2:
            self.gear = -self.gear
            return 0.0, False
        before, way = self.spot, (0.3, 0.8)[int(action)]
        self.spot = clamp(self.spot + self.gear * way, 0, 10)
        self.charge = max(self.charge - way / 100, 0.0)
        return self.spot - before, False


class Swing(ContractSystem):
    """A swing with a motor.

    | Num | Observation         | Min | Max |
    |-----|---------------------|-----|-----|
    | 0   | cosine of the angle | -1  | 1   |
    | 1   | sine of the angle   | -1  | 1   |

    The action is the torque of the motor. Gravity pulls the swing to the angle 0. The reward
    is minus the cosine of the angle.
    """

    shown = ("angle",)
    hidden = ("speed",)

    def __init__(self) -> None:
        self.observation_space = box([-1, -1], [1, 1])
        self.action_space = force()
        self.angle = self.speed = 0.0

    def _observe(self) -> Any:
        return np.array([cos(self.angle), sin(self.angle)])

    def _start(self) -> None:
        self.angle, self.speed = self.np_random.uniform(-2, 2), 0.0

    def _advance(self, action: Any) -> tuple[float, bool]:
        self.speed += 0.1 * (-2 * sin(self.angle) + 1.5 * float(action[0]) - 0.05 * self.speed)
        self.angle = wrap(self.angle + 0.1 * self.speed)
        return -cos(self.angle), False


class Rover(ContractSystem):
    """A rover on another planet, steered over a slow radio link.

    | Num | Observation           | Min | Max |
    |-----|-----------------------|-----|-----|
    | 0   | x                     | -5  | 5   |
    | 1   | y                     | -5  | 5   |
    | 2   | cosine of the heading | -1  | 1   |
    | 3   | sine of the heading   | -1  | 1   |

    The action has the speed and the turn. Both take effect one step later. Rocks at
    -5 and 5 stop the rover. The reward is minus the distance from the centre.
    """

    shown = ("x", "y", "heading")
    hidden = ("received",)

    def __init__(self) -> None:
        self.observation_space = box([-5, -5, -1, -1], [5, 5, 1, 1], np.float32)
        self.action_space = force(2)
        self.x = self.y = self.heading = 0.0
        self.received = (0.0, 0.0)

    def _observe(self) -> Any:
        return np.array([self.x, self.y, cos(self.heading), sin(self.heading)], np.float32)

    def _start(self) -> None:
        self.x, self.y = self.np_random.uniform(-4, 4, 2).tolist()
        self.heading, self.received = self.np_random.uniform(-np.pi, np.pi), (0.0, 0.0)

    def _advance(self, action: Any) -> tuple[float, bool]:
        speed, turn = self.received
        self.received = (float(action[0]), float(action[1]))
        self.heading = wrap(self.heading + 0.6 * turn)
        self.x = clamp(self.x + 0.5 * speed * cos(self.heading), -5, 5)
        self.y = clamp(self.y + 0.5 * speed * sin(self.heading), -5, 5)
        return -hypot(self.x, self.y), False


class Barge(ContractSystem):
    """A barge on a canal with a slow positioning system.

    | Num | Observation          | Min | Max |
    |-----|----------------------|-----|-----|
    | 0   | place, two steps ago | 0   | 100 |
    | 1   | speed, two steps ago | -3  | 3   |

    Actions 0, 1 and 2 drive backward, not at all and forward. The barge stops at the locks at 0
    and 100. The reward is minus the shown distance from place 50, divided by 50.
    """

    shown = ("shown_spot", "shown_speed")
    hidden = ("track",)

    def __init__(self) -> None:
        self.observation_space = box([0, -3], [100, 3])
        self.action_space = spaces.Discrete(3)
        self.shown_spot, self.shown_speed = 50.0, 0.0
        self.track = ((50.0, 0.0), (50.0, 0.0))

    def _start(self) -> None:
        self.shown_spot, self.shown_speed = self.np_random.uniform(5, 95), 0.0
        self.track = ((self.shown_spot, 0.0),) * 2

    def _advance(self, action: Any) -> tuple[float, bool]:
        earlier, (spot, speed) = self.track
        speed = clamp(0.9 * speed + 0.4 * (int(action) - 1), -3, 3)
        moved = clamp(spot + speed, 0, 100)
        self.track = (self.track[1], (moved, speed if 0 < moved < 100 else 0.0))
        self.shown_spot, self.shown_speed = earlier
        return -abs(self.shown_spot - 50) / 50, False


class Tug(ContractSystem):
    """A tug that carries cargo from the quay to the ship.

    The observation is the place of the tug, from 0 to 1. The action moves it by up to 0.25,
    and by 0.6 of this with cargo. Left of 0.15 the tug takes cargo on board; right of 0.85
    it delivers the cargo for a reward of 5. Each step costs a tenth of its length.
    """

    shown = ("spot",)
    hidden = ("cargo",)

    def __init__(self) -> None:
        self.observation_space = box([0], [1], np.float32)
        self.action_space = force()
        self.spot, self.cargo = 0.5, 0

    def _start(self) -> None:
        self.spot, self.cargo = self.np_random.uniform(0.2, 0.8), 0

    def _advance(self, action: Any) -> tuple[float, bool]:
        way = 0.25 * float(action[0]) * (0.6 if self.cargo else 1.0)
        self.spot = clamp(self.spot + way, 0, 1)
        delivered = self.cargo == 1 and self.spot > 0.85
        if self.spot < 0.15:
            self.cargo = 1
        elif delivered:
            self.cargo = 0
        return (5.0 if delivered else 0.0) - 0.1 * abs(way), False
