"""Ten systems as correct programs, with possible faults of each.

The method `step` of a program begins by unpacking the observation; conditions of regions use these
names. A region with another law can replace the line `# here`.
"""

from dataclasses import dataclass

import numpy as np

from cwm_cli.data.spaces import Space

HERE = "        # here\n"


@dataclass(frozen=True)
class System:
    """A correct program, its spaces, initial states and possible faults.

    Attributes:
        name: Name of the system.
        program: Text of the correct program.
        observation: Observation space.
        action: Action space.
        names: Names of the components of the observation in `step`.
        low: Lower bounds of the initial states.
        high: Upper bounds of the initial states.
        axes: Names that regions may use, with the number of decimals of their bounds.
        laws: Statements of other laws, with a number `{c}`.
        numbers: Range of that number.
        discs: Pairs of names in the same units.
        dropped: Pairs of correct and faulty text without a term.
        unclamped: Pairs of correct and faulty text without a clamp.
        swapped: Pairs of correct and faulty text with another order of updates.
        misruled: Pairs of correct and faulty text with a wrong rule.
        chart: Characters for wrong cells of the map, if it may be wrong.
    """

    name: str
    program: str
    observation: Space
    action: Space
    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    axes: dict[str, int]
    laws: tuple[str, ...]
    numbers: tuple[float, float] = (0.2, 0.8)
    discs: tuple[tuple[str, str], ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    unclamped: tuple[tuple[str, str], ...] = ()
    swapped: tuple[tuple[str, str], ...] = ()
    misruled: tuple[tuple[str, str], ...] = ()
    chart: str = ""

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """Draw an initial state."""
        if self.observation.is_float:
            drawn: np.ndarray = rng.uniform(self.low, self.high)
            return drawn
        return rng.integers(np.array(self.low, int), np.array(self.high, int), endpoint=True)


def _real(*bounds: float) -> Space:
    """Return the space of real vectors between the negative and the positive bounds."""
    low, high = tuple(-bound for bound in bounds), tuple(bounds)
    return Space("box", "float64", (len(bounds),), low, high)


def _whole(*highest: int) -> Space:
    """Return the space of vectors of whole numbers between 0 and the given values."""
    return Space("box", "int64", (len(highest),), (0.0,) * len(highest), tuple(highest))


def _moves(count: int) -> Space:
    return Space("discrete", low=(0,), high=(count - 1,))


INF = float("inf")

CARTPOLE = System(
    "cartpole",
    '''import math


class Environment:
    """A pole on a cart that is pushed to the left or to the right."""

    GRAVITY = 9.8
    PUSH = 10.0
    LENGTH = 0.5
    DRAG = 0.4
    TRACK = 1.6

    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        x, v, angle, spin = self.state
        force = self.PUSH if action == 1 else -self.PUSH
        # here
        force = force - self.DRAG * v
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.1 * self.LENGTH * spin**2 * sin) / 1.1
        twist = self.GRAVITY * sin - cos * push
        twist = twist / (self.LENGTH * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        pull = push - 0.1 * self.LENGTH * twist * cos / 1.1
        x = x + 0.02 * v
        v = v + 0.02 * pull
        angle = angle + 0.02 * spin
        spin = spin + 0.02 * twist
        if abs(x) > self.TRACK:
            v = 0.0
        x = min(max(x, -self.TRACK), self.TRACK)
        self.state = [x, v, angle, spin]
        reward = 1.0 if abs(angle) < 0.1 else 0.0
        return [x, v, angle, spin], reward, abs(angle) > 0.4
''',
    _real(2.0, INF, INF, INF),
    _moves(2),
    ("x", "v", "angle", "spin"),
    (-1.6, -1.0, -0.25, -1.0),
    (1.6, 1.0, 0.25, 1.0),
    {"x": 1, "v": 1, "angle": 2, "spin": 1},
    ("force = {c} * force", "force = force + 10 * {c}", "v = {c} * v"),
    dropped=(
        ("        force = force - self.DRAG * v\n", ""),
        (" + 0.1 * self.LENGTH * spin**2 * sin", ""),
    ),
    unclamped=(
        ("        x = min(max(x, -self.TRACK), self.TRACK)\n", ""),
        ("        if abs(x) > self.TRACK:\n            v = 0.0\n", ""),
    ),
    swapped=(
        (
            "        angle = angle + 0.02 * spin\n        spin = spin + 0.02 * twist\n",
            "        spin = spin + 0.02 * twist\n        angle = angle + 0.02 * spin\n",
        ),
        (
            "        x = x + 0.02 * v\n        v = v + 0.02 * pull\n",
            "        v = v + 0.02 * pull\n        x = x + 0.02 * v\n",
        ),
    ),
)

MOUNTAIN_CAR = System(
    "mountain car",
    '''import math


class Environment:
    """A weak car between two hills."""

    FORCE = 0.012
    GRAVITY = 0.025
    GOAL = 0.5

    def set_state(self, observation):
        self.position, self.velocity = float(observation[0]), float(observation[1])

    def step(self, action):
        position, velocity = self.position, self.velocity
        engine = (action - 1) * self.FORCE
        reward = -1.0
        # here
        velocity = velocity + engine - self.GRAVITY * math.cos(3 * position)
        velocity = min(max(velocity, -0.12), 0.12)
        position = position + velocity
        position = min(max(position, -1.2), 0.6)
        if position == -1.2 and velocity < 0:
            velocity = 0.0
        self.position, self.velocity = position, velocity
        return [position, velocity], reward, position >= self.GOAL
''',
    _real(1.2, 0.2),
    _moves(3),
    ("position", "velocity"),
    (-1.2, -0.1),
    (0.4, 0.1),
    {"position": 1, "velocity": 2},
    (
        "engine = {c} * engine",
        "velocity = {c} * velocity",
        "reward = reward - {c}",
        "engine = engine + 0.1 * {c}",
    ),
    (0.3, 0.7),
    dropped=((" - self.GRAVITY * math.cos(3 * position)", ""), (" + engine -", " -")),
    unclamped=(
        ("        velocity = min(max(velocity, -0.12), 0.12)\n", ""),
        ("        position = min(max(position, -1.2), 0.6)\n", ""),
        ("        if position == -1.2 and velocity < 0:\n            velocity = 0.0\n", ""),
    ),
    swapped=(
        (
            "        velocity = velocity + engine - self.GRAVITY * math.cos(3 * position)\n"
            "        velocity = min(max(velocity, -0.12), 0.12)\n"
            "        position = position + velocity\n",
            "        before = velocity\n"
            "        velocity = velocity + engine - self.GRAVITY * math.cos(3 * position)\n"
            "        velocity = min(max(velocity, -0.12), 0.12)\n"
            "        position = position + before\n",
        ),
    ),
)

PENDULUM = System(
    "pendulum",
    '''import math


class Environment:
    """A rod on a motor; its angle is 0 upright and is not wrapped."""

    GRAVITY = 15.0
    GEAR = 3.0
    FRICTION = 0.3

    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        angle, spin = self.state
        torque = min(max(float(action[0]), -2.0), 2.0)
        friction = self.FRICTION
        # here
        cost = angle**2 + 0.1 * spin**2 + 0.01 * torque**2
        spin = spin + 0.05 * (self.GRAVITY * math.sin(angle) + self.GEAR * torque - friction * spin)
        spin = min(max(spin, -6.0), 6.0)
        angle = angle + 0.05 * spin
        self.state = [angle, spin]
        return [angle, spin], -cost, abs(angle) > 4.0
''',
    _real(INF, 8.0),
    Space("box", "float64", (1,), (-3.0,), (3.0,)),
    ("angle", "spin"),
    (-3.0, -6.0),
    (3.0, 6.0),
    {"angle": 1, "spin": 1},
    ("torque = {c} * torque", "friction = friction + 2 * {c}", "spin = {c} * spin"),
    dropped=((" - friction * spin", ""), (" + 0.01 * torque**2", ""), (" + 0.1 * spin**2", "")),
    unclamped=(
        ("        spin = min(max(spin, -6.0), 6.0)\n", ""),
        ("min(max(float(action[0]), -2.0), 2.0)", "float(action[0])"),
    ),
    swapped=(
        (
            "        angle = angle + 0.05 * spin\n        self.state",
            "        angle = angle + 0.05 * self.state[1]\n        self.state",
        ),
    ),
)

PUCK = System(
    "puck",
    '''class Environment:
    """A puck on a table of air is driven to the middle; cushions throw it back."""

    FRICTION = 0.15
    DRIVE = 0.6
    BOUNCE = 0.7

    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        x, y, u, v = self.state
        ax, ay = self.DRIVE * float(action[0]), self.DRIVE * float(action[1])
        friction = self.FRICTION
        # here
        u = u + 0.1 * (ax - friction * u)
        v = v + 0.1 * (ay - friction * v)
        x, y = x + 0.1 * u, y + 0.1 * v
        if abs(x) > 2.0:
            u = -self.BOUNCE * u
        if abs(y) > 2.0:
            v = -self.BOUNCE * v
        x, y = min(max(x, -2.0), 2.0), min(max(y, -2.0), 2.0)
        self.state = [x, y, u, v]
        reward = -(x**2 + y**2) - 0.05 * (ax**2 + ay**2)
        return [x, y, u, v], reward, x**2 + y**2 < 0.04
''',
    _real(2.0, 2.0, INF, INF),
    Space("box", "float64", (2,), (-1.0, -1.0), (1.0, 1.0)),
    ("x", "y", "u", "v"),
    (-2.0, -2.0, -2.0, -2.0),
    (2.0, 2.0, 2.0, 2.0),
    {"x": 1, "y": 1, "u": 1, "v": 1},
    (
        "friction = friction + 4 * {c}",
        "ax = ax + {c}",
        "ay = ay - {c}",
        "ax, ay = {c} * ax, {c} * ay",
    ),
    discs=(("x", "y"), ("u", "v")),
    dropped=((" - friction * v", ""), (" - 0.05 * (ax**2 + ay**2)", "")),
    unclamped=(
        ("        x, y = min(max(x, -2.0), 2.0), min(max(y, -2.0), 2.0)\n", ""),
        ("        if abs(x) > 2.0:\n            u = -self.BOUNCE * u\n", ""),
    ),
    swapped=(
        (
            "        x, y = x + 0.1 * u, y + 0.1 * v\n",
            "        x, y = x + 0.1 * self.state[2], y + 0.1 * self.state[3]\n",
        ),
    ),
)

BOAT = System(
    "boat",
    '''import math


class Environment:
    """A boat steers over a lake with a steady current."""

    THRUST = 0.8
    DRAG = 0.5
    CURRENT = 0.3
    RUDDER = 0.4

    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        x, y, heading, speed = self.state
        thrust = self.THRUST if action != 0 else 0.0
        turn = self.RUDDER * (int(action == 2) - int(action == 3))
        drift, lift = self.CURRENT, 0.0
        # here
        heading = heading + turn * speed
        x = x + 0.2 * (speed * math.cos(heading) + drift)
        y = y + 0.2 * (speed * math.sin(heading) + lift)
        speed = speed + 0.2 * (thrust - self.DRAG * speed**2)
        x = min(max(x, -4.0), 4.0)
        y = min(max(y, -3.0), 3.0)
        self.state = [x, y, heading, speed]
        reward = -math.hypot(x - 3.0, y) - 0.1 * float(action != 0)
        return [x, y, heading, speed], reward, x >= 4.0
''',
    _real(4.0, 3.0, INF, INF),
    _moves(4),
    ("x", "y", "heading", "speed"),
    (-4.0, -3.0, -3.0, 0.1),
    (2.5, 3.0, 3.0, 1.5),
    {"x": 1, "y": 1, "heading": 1, "speed": 1},
    ("lift = lift - 2 * {c}", "drift = drift + 2 * {c}", "thrust = {c} * thrust"),
    discs=(("x", "y"),),
    dropped=(
        (" + drift)", ")"),
        (" - self.DRAG * speed**2", ""),
        (" * speed\n        x", "\n        x"),
    ),
    unclamped=(
        ("        y = min(max(y, -3.0), 3.0)\n", ""),
        ("        x = min(max(x, -4.0), 4.0)\n", ""),
    ),
    swapped=(
        (
            "        heading = heading + turn * speed\n"
            "        x = x + 0.2 * (speed * math.cos(heading) + drift)\n"
            "        y = y + 0.2 * (speed * math.sin(heading) + lift)\n",
            "        x = x + 0.2 * (speed * math.cos(heading) + drift)\n"
            "        y = y + 0.2 * (speed * math.sin(heading) + lift)\n"
            "        heading = heading + turn * speed\n",
        ),
    ),
)

TANKS = System(
    "tanks",
    '''import math


class Environment:
    """A pump fills a tank that drains into a warm one."""

    INFLOW = 0.6
    DRAIN = 0.5
    HEATER = 8.0
    LOSS = 0.2

    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        upper, lower, heat = self.state
        inflow = self.INFLOW if action in (1, 3) else 0.0
        heater = self.HEATER if action in (2, 3) else 0.0
        loss = self.LOSS
        # here
        between = self.DRAIN * math.sqrt(upper)
        upper = upper + 0.2 * (inflow - between)
        lower = lower + 0.2 * (between - 0.3 * lower)
        heat = heat + 0.2 * (heater - loss * (heat - 15.0) - 6.0 * between)
        upper = min(max(upper, 0.0), 2.0)
        lower = max(lower, 0.0)
        heat = min(heat, 60.0)
        self.state = [upper, lower, heat]
        reward = -abs(lower - 1.0) - 0.01 * abs(heat - 30.0)
        return [upper, lower, heat], reward, lower > 2.2
''',
    _real(2.0, INF, 60.0),
    _moves(4),
    ("upper", "lower", "heat"),
    (0.0, 0.0, 5.0),
    (2.0, 2.0, 60.0),
    {"upper": 1, "lower": 1, "heat": 0},
    (
        "inflow = inflow + {c}",
        "loss = loss + {c}",
        "heater = {c} * heater",
        "inflow = {c} * inflow",
    ),
    discs=(("upper", "lower"),),
    dropped=((" - 6.0 * between", ""), (" - 0.01 * abs(heat - 30.0)", ""), (" - 0.3 * lower", "")),
    unclamped=(
        ("        upper = min(max(upper, 0.0), 2.0)\n", "        upper = max(upper, 0.0)\n"),
        ("        heat = min(heat, 60.0)\n", ""),
    ),
    swapped=(
        (
            "        between = self.DRAIN * math.sqrt(upper)\n"
            "        upper = upper + 0.2 * (inflow - between)\n",
            "        upper = upper + 0.2 * (inflow - self.DRAIN * math.sqrt(upper))\n"
            "        between = self.DRAIN * math.sqrt(max(upper, 0.0))\n",
        ),
    ),
)

MINE = System(
    "mine",
    '''class Environment:
    """A cart in a mine gathers ore; ice carries it on, a pit ends the shift."""

    MAP = [
        "..#....o..",
        "..#..~....",
        "....~~..#.",
        ".o......#.",
        "###.....#o",
        "...~..O...",
        ".o.~......",
        "......##..",
        ".~~.......",
        "..o...o..G",
    ]

    def set_state(self, observation):
        self.state = [int(value) for value in observation]

    def step(self, action):
        row, column, load = self.state
        down, right = [(-1, 0), (0, 1), (1, 0), (0, -1)][action]
        reward = -1
        # here
        row, column = self.moved(row, column, down, right)
        if self.MAP[row][column] == "~":
            row, column = self.moved(row, column, down, right)
        cell = self.MAP[row][column]
        if cell == "o":
            load = min(load + 1, 4)
        if cell == "G":
            reward = reward + 5 * load
        self.state = [row, column, load]
        return [row, column, load], float(reward), cell in "OG"

    def moved(self, row, column, down, right):
        new_row = min(max(row + down, 0), 9)
        new_column = min(max(column + right, 0), 9)
        if self.MAP[new_row][new_column] == "#":
            return row, column
        return new_row, new_column
''',
    _whole(9, 9, 4),
    _moves(4),
    ("row", "column", "load"),
    (0, 0, 0),
    (9, 9, 4),
    {"row": 0, "column": 0, "load": 0},
    ("right = right + 1", "down, right = right, down", "reward = reward - 2", "down = -down"),
    discs=(("row", "column"),),
    dropped=((" + 5 * load", ""), ("min(load + 1, 4)", "load")),
    unclamped=(("min(load + 1, 4)", "load + 1"),),
    swapped=(
        (
            "        row, column = self.moved(row, column, down, right)\n"
            '        if self.MAP[row][column] == "~":\n'
            "            row, column = self.moved(row, column, down, right)\n"
            "        cell = self.MAP[row][column]\n",
            "        cell = self.MAP[row][column]\n"
            "        row, column = self.moved(row, column, down, right)\n"
            '        if self.MAP[row][column] == "~":\n'
            "            row, column = self.moved(row, column, down, right)\n",
        ),
    ),
    misruled=(
        ('if self.MAP[row][column] == "~":', "if False:"),
        ('if cell == "o":', 'if cell == "O":'),
        ('cell in "OG"', 'cell == "G"'),
    ),
    chart=".#~o",
)

LIFT = System(
    "lift",
    '''class Environment:
    """A lift serves a caller; it has to stop before its door opens, and heat stops its motor."""

    TOP = 11

    def set_state(self, observation):
        self.state = [int(value) for value in observation]

    def step(self, action):
        floor, speed, door, riders, heat = self.state
        fare, power = 3, 1
        reward = -1
        # here
        if action == 0 and door == 0 and heat < 8:
            speed = speed - power
        elif action == 1 and door == 0 and heat < 8:
            speed = speed + power
        elif action == 2 and speed == 2:
            door = 1 - door
        speed = min(max(speed, 0), 4)
        floor = floor + speed - 2
        if floor < 0 or floor > self.TOP:
            speed = 2
        floor = min(max(floor, 0), self.TOP)
        if speed != 2:
            heat = heat + 1
        else:
            heat = heat - 2
        heat = min(max(heat, 0), 9)
        if door == 1 and floor == self.TOP and riders > 0:
            reward = reward + fare * riders
            riders = 0
        elif door == 1 and floor == 0:
            riders = min(riders + 1, 5)
        self.state = [floor, speed, door, riders, heat]
        return [floor, speed, door, riders, heat], float(reward), heat == 9
''',
    _whole(11, 4, 1, 5, 9),
    _moves(4),
    ("floor", "speed", "door", "riders", "heat"),
    (0, 2, 0, 0, 0),
    (11, 2, 1, 5, 8),
    {"floor": 0, "riders": 0, "heat": 0},
    ("reward = reward - 2", "power = 2", "heat = heat + 1", "riders = max(riders - 1, 0)"),
    dropped=((" + fare * riders", ""), ("heat = heat - 2", "heat = heat - 1")),
    unclamped=(
        ("        floor = min(max(floor, 0), self.TOP)\n", ""),
        ("        if floor < 0 or floor > self.TOP:\n            speed = 2\n", ""),
        ("        heat = min(max(heat, 0), 9)\n", "        heat = min(heat, 9)\n"),
    ),
    swapped=(
        (
            "        floor = floor + speed - 2\n",
            "        floor = floor + self.state[1] - 2\n",
        ),
    ),
    misruled=(
        ("door == 1 and floor == self.TOP and", "door == 1 and"),
        ("elif action == 2 and speed == 2:", "elif action == 2:"),
    ),
)

STORE = System(
    "store",
    '''class Environment:
    """A store orders goods that come a day later; demand follows the day of the week."""

    DEMAND = [2, 3, 3, 4, 6, 8, 1]
    PRICE = 5
    ROOM = 30

    def set_state(self, observation):
        self.state = [int(value) for value in observation]

    def step(self, action):
        stock, coming, day, trust = self.state
        ordered = 4 * int(action)
        demand = self.DEMAND[day] + trust // 3
        cost = 1
        # here
        stock = min(stock + coming, self.ROOM)
        sold = min(stock, demand)
        stock = stock - sold
        if sold < demand:
            trust = trust - 1
        else:
            trust = trust + 1
        trust = min(max(trust, 0), 9)
        reward = self.PRICE * sold - cost * stock - 2 * ordered
        day = (day + 1) % 7
        self.state = [stock, ordered, day, trust]
        return [stock, ordered, day, trust], float(reward), stock == 0 and trust == 0
''',
    _whole(30, 16, 6, 9),
    _moves(5),
    ("stock", "coming", "day", "trust"),
    (0, 0, 0, 0),
    (30, 16, 6, 9),
    {"stock": 0, "coming": 0, "day": 0, "trust": 0},
    ("demand = demand + 2", "cost = 2", "ordered = min(ordered, 8)", "stock = max(stock - 1, 0)"),
    discs=(("stock", "coming"),),
    dropped=((" + trust // 3", ""), (" - cost * stock", ""), (" - 2 * ordered", "")),
    unclamped=(
        ("min(stock + coming, self.ROOM)", "stock + coming"),
        ("        trust = min(max(trust, 0), 9)\n", "        trust = max(trust, 0)\n"),
    ),
    swapped=(
        (
            "        stock = min(stock + coming, self.ROOM)\n"
            "        sold = min(stock, demand)\n"
            "        stock = stock - sold\n",
            "        sold = min(stock, demand)\n"
            "        stock = min(stock - sold + coming, self.ROOM)\n",
        ),
    ),
    misruled=(("3, 4, 6, 8, 1]", "3, 4, 6, 6, 1]"), ("[2, 3, 3,", "[2, 3, 5,")),
)

CELLS = System(
    "cells",
    '''class Environment:
    """A ring of cells whose neighbours decide the next state; the action first flips one cell."""

    RULE = {
        (0, 0, 0): 0,
        (0, 0, 1): 1,
        (0, 1, 0): 0,
        (0, 1, 1): 1,
        (1, 0, 0): 0,
        (1, 0, 1): 1,
        (1, 1, 0): 1,
        (1, 1, 1): 0,
    }

    def set_state(self, observation):
        self.cells = [int(value) for value in observation]

    def step(self, action):
        cells = list(self.cells)
        chosen = int(action)
        cells[chosen] = 1 - cells[chosen]
        cells = [self.RULE[cells[i - 1], cells[i], cells[(i + 1) % 10]] for i in range(10)]
        self.cells = cells
        reward = sum(cells) - 5
        return list(cells), float(reward), sum(cells) == 0
''',
    _whole(*[1] * 10),
    _moves(10),
    tuple(f"c{place}" for place in range(10)),
    (0,) * 10,
    (1,) * 10,
    {},
    (),
    dropped=(("        cells[chosen] = 1 - cells[chosen]\n", ""),),
    swapped=(
        (
            "        cells[chosen] = 1 - cells[chosen]\n"
            "        cells = ["
            "self.RULE[cells[i - 1], cells[i], cells[(i + 1) % 10]] for i in range(10)]\n",
            "        cells = ["
            "self.RULE[cells[i - 1], cells[i], cells[(i + 1) % 10]] for i in range(10)]\n"
            "        cells[chosen] = 1 - cells[chosen]\n",
        ),
    ),
    misruled=(
        ("(0, 0, 1): 1", "(0, 0, 1): 0"),
        ("(0, 1, 1): 1", "(0, 1, 1): 0"),
        ("(1, 0, 0): 0", "(1, 0, 0): 1"),
        ("(1, 1, 1): 0", "(1, 1, 1): 1"),
        ("cells[(i + 1) % 10]", "cells[min(i + 1, 9)]"),
    ),
)

SYSTEMS: tuple[System, ...] = (
    CARTPOLE,
    MOUNTAIN_CAR,
    PENDULUM,
    PUCK,
    BOAT,
    TANKS,
    MINE,
    LIFT,
    STORE,
    CELLS,
)
