"""Machines in workshops, buildings and kitchens."""

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import clamp, wrap
from benchmarks.contracts.base import ContractSystem, box, force


class Turntable(ContractSystem):
    """A heavy turntable that should point at a mark.

    | Num | Observation       | Min | Max |
    |-----|-------------------|-----|-----|
    | 0   | angle             | -pi | pi  |
    | 1   | speed             | -2  | 2   |
    | 2   | angle of the mark | -pi | pi  |

    The action is the torque of the motor. The speed saturates at 2 in both directions. The
    mark turns by 0.02 in a step. Both angles wrap. The reward is minus the angle
    between turntable and mark.
    """

    shown = ("angle", "speed", "mark")

    def __init__(self) -> None:
        self.observation_space = box([-np.pi, -2, -np.pi], [np.pi, 2, np.pi])
        self.action_space = force()
        self.angle = self.speed = self.mark = 0.0

    def _start(self) -> None:
        self.angle, self.mark = self.np_random.uniform(-np.pi, np.pi, 2).tolist()
        self.speed = self.np_random.uniform(-2, 2)

    def _advance(self, action: Any) -> tuple[float, bool]:
        self.speed = clamp(0.97 * self.speed + 0.8 * float(action[0]), -2, 2)
        self.angle = wrap(self.angle + 0.4 * self.speed)
        self.mark = wrap(self.mark + 0.02)
        return -abs(wrap(self.angle - self.mark)), False


class Loom(ContractSystem):
    """A loom that weaves rows of cloth.

    | Num | Observation            | Min | Max |
    |-----|------------------------|-----|-----|
    | 0   | place of the shuttle   | 0   | 11  |
    | 1   | tension of the threads | 0   | 5   |
    | 2   | rows woven             | 0   | 9   |
    | 3   | colour                 | 0   | 2   |

    The shuttle moves one place in each step and returns from 11 to 0, which completes a row
    for a reward of 1 if the tension is 2 or 3. Action 0 does nothing, 1 tightens, 2 loosens
    and 3 takes the next colour if the shuttle is at 0. At tension 5 with colour 2 the
    threads break: rows and tension become 0, for a reward of -2. Row 9 ends the episode.
    """

    shown = ("shuttle", "tension", "rows", "colour")

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([12, 6, 10, 3])
        self.action_space = spaces.Discrete(4)
        self.shuttle = self.tension = self.rows = self.colour = 0

    def _start(self) -> None:
        self.shuttle, self.tension, self.rows, self.colour = self.np_random.integers(
            [12, 5, 8, 3]
        ).tolist()

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action == 1:
            self.tension = min(self.tension + 1, 5)
        elif action == 2:
            self.tension = max(self.tension - 1, 0)
        elif action == 3 and self.shuttle == 0:
            self.colour = (self.colour + 1) % 3
        self.shuttle = (self.shuttle + 1) % 12
        if self.tension == 5 and self.colour == 2:
            self.rows = self.tension = 0
            return -2.0, False
        if self.shuttle == 0 and self.tension in (2, 3):
            self.rows += 1
            return 1.0, self.rows == 9
        return 0.0, False


class Belfry(ContractSystem):
    """A tower clock with two wheels and a weight.

    | Num | Observation              | Min | Max |
    |-----|--------------------------|-----|-----|
    | 0   | tooth of the small wheel | 0   | 16  |
    | 1   | tooth of the large wheel | 0   | 17  |
    | 2   | height of the weight     | 0   | 5   |

    Both wheels turn by a tooth in each step. The weight falls by 1 each time the small
    wheel returns to 0. When both wheels are at 0, once in 306 steps, the bell strikes: the
    weight falls to the ground, and the reward is its height before. Action 1 winds the weight
    up by 1 for -0.1, and action 0 does nothing.
    """

    shown = ("small", "large", "weight")

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([17, 18, 6])
        self.action_space = spaces.Discrete(2)
        self.small = self.large = self.weight = 0

    def _start(self) -> None:
        self.small, self.large, self.weight = self.np_random.integers([17, 18, 6]).tolist()

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action == 1:
            self.weight = min(self.weight + 1, 5)
        self.small, self.large = (self.small + 1) % 17, (self.large + 1) % 18
        if self.small == self.large == 0:
            struck, self.weight = self.weight, 0
            return float(struck), False
        if self.small == 0:
            self.weight = max(self.weight - 1, 0)
        return -0.1 if action == 1 else 0.0, False


class Belt(ContractSystem):
    """A conveyor belt with ten places and a sorting arm at its end.

    | Num    | Observation                                      | Min | Max |
    |--------|--------------------------------------------------|-----|-----|
    | 0 to 9 | place: 0 empty, 1 a good part, 2 a bad part      | 0   | 2   |
    | 10     | arm: 0 passes parts, 1 rejects them              | 0   | 1   |
    | 11     | parts rejected so far, at most 7                 | 0   | 7   |

    In each step the belt moves by one place. Action 0 puts nothing on place 0, 1 a good part,
    2 a bad part, and 3 nothing while the arm changes its position. A part that leaves place 9
    has a reward of 1 if it is good and passes, or bad and rejected, else of -1. The eighth
    rejected part ends the episode.
    """

    shown = ("places", "arm", "rejected")

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([3] * 10 + [2, 8])
        self.action_space = spaces.Discrete(4)
        self.places: tuple[int, ...] = (0,) * 10
        self.arm = self.rejected = 0

    def _observe(self) -> Any:
        return np.array([*self.places, self.arm, self.rejected])

    def place(self, observation: Any) -> None:
        """Set belt, arm and count."""
        *places, self.arm, self.rejected = observation.tolist()
        self.places = tuple(places)

    def _start(self) -> None:
        self.places = tuple(self.np_random.integers(3, size=10).tolist())
        self.arm, self.rejected = self.np_random.integers([2, 3]).tolist()

    def _advance(self, action: Any) -> tuple[float, bool]:
        leaving = self.places[-1]
        self.places = (int(action) if action < 3 else 0, *self.places[:-1])
        if action == 3:
            self.arm = 1 - self.arm
        if leaving == 0:
            return 0.0, False
        full = self.arm == 1 and self.rejected == 7
        self.rejected = min(self.rejected + self.arm, 7)
        return 1.0 if leaving == self.arm + 1 else -1.0, full


class Press(ContractSystem):
    """A press that stamps sheets and sometimes breaks.

    | Num | Observation                      | Min | Max |
    |-----|----------------------------------|-----|-----|
    | 0   | 1 if broken                      | 0   | 1   |
    | 1   | sheets in store                  | 0   | 9   |
    | 2   | stamped parts                    | 0   | 5   |
    | 3   | temperature                      | 0   | 4   |
    | 4   | strokes since service, at most 7 | 0   | 7   |
    | 5   | place of the tool                | 0   | 3   |

    Action 0 stamps: it needs a sheet, heats by 1 and moves the tool; with probability 0.05
    the press breaks instead. Action 1 ships the stamped parts for a reward of 1 each and
    cools by 1. Action 2 buys three sheets for 0.5 and cools. Action 3 services for
    1, which repairs the press.
    """

    shown = ("broken", "sheets", "parts", "heat", "strokes", "tool")

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([2, 10, 6, 5, 8, 4])
        self.action_space = spaces.Discrete(4)
        self.broken = self.sheets = self.parts = self.heat = self.strokes = self.tool = 0

    def _start(self) -> None:
        self.broken, self.sheets, self.parts, self.heat, self.strokes, self.tool = (
            self.np_random.integers([1, 10, 6, 5, 8, 4]).tolist()
        )

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action == 0:
            if self.broken or self.sheets == 0 or self.heat == 4:
                return 0.0, False
            if self.np_random.random() < 0.05:
                self.broken = 1
                return -1.0, False
            self.sheets, self.parts = self.sheets - 1, min(self.parts + 1, 5)
            self.heat, self.tool = self.heat + 1, (self.tool + 1) % 4
            self.strokes = min(self.strokes + 1, 7)
            return 0.0, False
        if action == 3:
            self.broken = self.strokes = 0
            return -1.0, False
        self.heat = max(self.heat - 1, 0)
        if action == 1:
            shipped, self.parts = self.parts, 0
            return float(shipped), False
        self.sheets = min(self.sheets + 3, 9)
        return -0.5, False


class Toaster(ContractSystem):
    """A toaster that ends by itself.

    | Num | Observation                                      | Min | Max |
    |-----|--------------------------------------------------|-----|-----|
    | 0   | 1 if the lever is down                           | 0   | 1   |
    | 1   | slot: 0 empty, 1 bread, 2 toast, 3 burnt toast   | 0   | 3   |

    Action 0 waits, 1 puts bread into an empty slot, 2 presses the lever down and 3 takes the
    slice out while the lever is up, for a reward of 1 for toast and -1 for burnt toast. Four
    steps after the lever was pressed it springs up, and bread has become toast, and toast
    burnt toast.
    """

    shown = ("lever", "slot")
    hidden = ("timer",)

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([2, 4])
        self.action_space = spaces.Discrete(4)
        self.lever = self.slot = self.timer = 0

    def _start(self) -> None:
        self.lever, self.slot, self.timer = 0, int(self.np_random.integers(3)), 0

    def _advance(self, action: Any) -> tuple[float, bool]:
        if self.lever:
            self.timer -= 1
            if self.timer == 0:
                self.lever, self.slot = 0, (0, 2, 3, 3)[self.slot]
            return 0.0, False
        if action == 1 and self.slot == 0:
            self.slot = 1
        elif action == 2:
            self.lever, self.timer = 1, 4
        elif action == 3:
            taken, self.slot = self.slot, 0
            return (0.0, 0.0, 1.0, -1.0)[taken], False
        return 0.0, False


class Lathe(ContractSystem):
    """A lathe whose cutter becomes blunt.

    | Num | Observation               | Min | Max |
    |-----|---------------------------|-----|-----|
    | 0   | diameter of the workpiece | 0   | 1   |
    | 1   | feed                      | 0   | 1   |

    Action 0 cuts: the diameter falls by 0.15 times the feed, times 1 minus the wear of the
    cutter, which rises by 0.12 times the feed up to 0.9. Below 0.3 the workpiece is done: it
    has a reward of 1 and the next one has a diameter of 1. Action 1 raises the feed by 0.2,
    back to 0.2 after 1. Action 2 fits a new cutter for -0.3.
    """

    shown = ("diameter", "feed")
    hidden = ("wear",)

    def __init__(self) -> None:
        self.observation_space = box([0, 0], [1, 1], np.float32)
        self.action_space = spaces.Discrete(3)
        self.diameter, self.feed, self.wear = 1.0, 0.2, 0.0

    def _start(self) -> None:
        self.diameter, self.wear = self.np_random.uniform(0.6, 1), 0.0
        self.feed = 0.2 * int(self.np_random.integers(1, 6))

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action == 1:
            self.feed = 0.2 if self.feed > 0.9 else self.feed + 0.2
        elif action == 2:
            self.wear = 0.0
            return -0.3, False
        else:
            self.diameter -= 0.15 * self.feed * (1 - self.wear)
            self.wear = min(self.wear + 0.12 * self.feed, 0.9)
            if self.diameter < 0.3:
                self.diameter = 1.0
                return 1.0, False
        return 0.0, False


class Crane(ContractSystem):
    """A crane with a queue of commands.

    | Num | Observation                | Min | Max |
    |-----|----------------------------|-----|-----|
    | 0   | place of the trolley       | 0   | 4   |
    | 1   | height of the hook         | 0   | 4   |
    | 2   | 1 if the hook holds a load | 0   | 1   |

    Commands 0 to 3 move the trolley left and right and the hook down and up; 4 is no command.
    The queue holds up to three commands, further ones are lost, and in every second step the
    crane carries out the oldest. On the ground, loads are at place 0 and are put down at
    place 4 for a reward of 2.
    """

    shown = ("trolley", "height", "load")
    hidden = ("queue", "ready")

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([5, 5, 2])
        self.action_space = spaces.Discrete(5)
        self.trolley = self.height = self.load = self.ready = 0
        self.queue: tuple[int, ...] = ()

    def _start(self) -> None:
        self.trolley, self.height, self.load = self.np_random.integers([5, 5, 2]).tolist()
        self.queue, self.ready = (), 0

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action < 4 and len(self.queue) < 3:
            self.queue = (*self.queue, int(action))
        self.ready = 1 - self.ready
        if self.ready or not self.queue:
            return 0.0, False
        command, *rest = self.queue
        self.queue = tuple(rest)
        self.trolley = int(clamp(self.trolley + (-1, 1, 0, 0)[command], 0, 4))
        self.height = int(clamp(self.height + (0, 0, -1, 1)[command], 0, 4))
        if self.height == 0 and self.trolley == 0:
            self.load = 1
        elif self.height == 0 and self.trolley == 4 and self.load:
            self.load = 0
            return 2.0, False
        return 0.0, False


class Lift(ContractSystem):
    """A goods lift that reacts slowly.

    | Num | Observation            | Min | Max |
    |-----|------------------------|-----|-----|
    | 0   | floor                  | 0   | 11  |
    | 1   | 1 if the door is open  | 0   | 1   |
    | 2   | crates in the lift     | 0   | 3   |

    Action 0 goes down a floor, 1 goes up a floor, 2 opens or shuts the door and 3 moves a
    crate: in on the floors 0 to 5, out on those above for a reward of 1. Each action takes
    effect two steps later. With the door open the lift stays, and crates need an open door.
    """

    shown = ("floor", "door", "crates")
    hidden = ("pending",)

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([12, 2, 4])
        self.action_space = spaces.Discrete(4)
        self.floor = self.door = self.crates = 0
        self.pending = (0, 0)

    def _start(self) -> None:
        self.floor, self.door, self.crates = self.np_random.integers([12, 2, 4]).tolist()
        self.pending = (2, 2)

    def _advance(self, action: Any) -> tuple[float, bool]:
        due, following = self.pending
        self.pending = (following, int(action))
        if due == 2:
            self.door = 1 - self.door
        elif due == 3:
            if self.door and self.floor < 6:
                self.crates = min(self.crates + 1, 3)
            elif self.door and self.crates:
                self.crates -= 1
                return 1.0, False
        elif not self.door:
            self.floor = int(clamp(self.floor + 2 * due - 1, 0, 11))
        return 0.0, False
