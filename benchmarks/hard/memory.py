"""Six deterministic systems whose observations hide a part of the state."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Info = dict[str, Any]


class Moonrover(gymnasium.Env[Floats, np.int64]):
    """A rover on the Moon that receives commands from Earth with a delay.

    The observation holds the position (m), the velocity (m/s) and the battery charge (0 to 1).
    The commands are 0 coast, 1 forward, 2 backward and 3 drill; the rover executes each command
    three steps after it was sent, and coasts before the first one arrives. Driving draws charge
    and accelerates the rover, more weakly while the charge is low. The rover slows by itself. The
    sun charges the battery between 4 m and 7 m. Drilling needs an almost resting rover and draws
    more charge; at each of two sites, around 2 m and 9 m, the first successful drilling in an
    episode earns a prize. Driving costs a little. The episode ends with a prize after both sites,
    with a penalty beyond 0 m or 11.5 m, and when the battery is empty.
    """

    sites, radius, delay = (2.1, 9.2), 0.7, 3

    def __init__(self) -> None:
        """Declare the spaces."""
        low, high = [-5.0, -4.0, 0.0], [16.0, 4.0, 1.0]
        self.observation_space = Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = Discrete(4)
        self.position, self.velocity, self.charge = 0.0, 0.0, 0.0
        self.sent: list[int] = []
        self.drilled: list[bool] = []

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start at rest with no command on its way."""
        super().reset(seed=seed)
        self.position, self.charge = self.np_random.uniform([1.2, 0.4], [10.2, 1.0]).tolist()
        self.velocity = 0.0
        self.sent, self.drilled = [0] * self.delay, [False, False]
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, Info]:
        """Send the command and execute the oldest one."""
        self.sent.append(int(action))
        command = self.sent.pop(0)
        self.velocity *= 0.83
        reward = -0.02
        if command in (1, 2):
            thrust = 0.19 if self.charge > 0.25 else 0.11
            self.velocity += thrust if command == 1 else -thrust
            self.charge -= 0.013
            reward -= 0.03
        elif command == 3:
            self.charge -= 0.027
            for index, site in enumerate(self.sites):
                near = abs(self.position - site) < self.radius and abs(self.velocity) < 0.1
                if near and not self.drilled[index]:
                    self.drilled[index] = True
                    reward += 6.0
        self.position += self.velocity
        self.charge += 0.031 if 4.0 <= self.position <= 7.0 else -0.002
        self.charge = min(max(self.charge, 0.0), 1.0)
        fallen = not 0.0 <= self.position <= 11.5
        done, empty = all(self.drilled), self.charge == 0.0
        reward += 8.0 if done else -8.0 if fallen else -4.0 if empty else 0.0
        return self._observe(), reward, fallen or done or empty, False, {}

    def _observe(self) -> Floats:
        return np.array([self.position, self.velocity, self.charge], np.float32)


class Vault(gymnasium.Env[Ints, np.int64]):
    """A vault with a dial of seven digits and a code of three.

    The observation holds the digit under the mark (0 to 6) and the alarm lamp (0 or 1). The
    actions are 0 turn the dial up by one, 1 turn it down by one and 2 press the handle. The vault
    expects the three digits of a fixed code in order; each press at the expected digit is
    rewarded. The second digit only counts if the last turn of the dial was downward, the first
    and the third only if it was upward. Any other press forgets the digits that were entered and
    counts as an error. The third error in a row without a correct press switches the alarm on
    for six steps: the dial turns, but presses have no effect, and each step costs more. The
    episode ends with a prize when the third digit is entered. The lock remembers the last turn;
    before the first turn none counts.
    """

    code = ((3, 0), (1, 1), (4, 0))

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([7, 2])
        self.action_space = Discrete(3)
        self.digit, self.last_turn, self.entered, self.errors, self.alarm = 0, -1, 0, 0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start at a random digit with nothing entered."""
        super().reset(seed=seed)
        self.digit = int(self.np_random.integers(7))
        self.last_turn, self.entered, self.errors, self.alarm = -1, 0, 0, 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Turn the dial or press the handle."""
        reward = -0.02 if self.alarm == 0 else -0.1
        if action in (0, 1):
            self.digit = (self.digit + (1 if action == 0 else -1)) % 7
            self.last_turn = int(action)
        elif self.alarm == 0:
            if (self.digit, self.last_turn) == self.code[self.entered]:
                self.entered, self.errors = self.entered + 1, 0
                reward += 1.0
            else:
                self.entered, self.errors = 0, self.errors + 1
                reward -= 0.15
        if self.alarm > 0:
            self.alarm -= 1
        elif self.errors == 3:
            self.errors, self.alarm = 0, 6
        opened = self.entered == len(self.code)
        return self._observe(), reward + (12.0 if opened else 0.0), opened, False, {}

    def _observe(self) -> Ints:
        return np.array([self.digit, int(self.alarm > 0)], np.int64)


class Anaesthesia(gymnasium.Env[Floats, Floats]):
    """A patient whose anaesthetic spreads from the blood to the brain and to other tissue.

    The observation holds the depth index (100 awake, 0 no brain activity) and the mean arterial
    pressure (mmHg). The action is the infusion rate as a share of its maximum. The drug enters
    the blood, and a fixed share is cleared per step. Tissue exchanges drug with the blood, and
    the concentration in the brain follows the blood with a lag. The depth index falls
    with the concentration in the brain along a sigmoid curve. The pressure follows, with another
    lag, a target that falls with the concentration in the blood. None of the concentrations is
    shown. Blood and brain start equal, tissue at a fixed share of this value. The reward is
    highest at a depth index of 48 and charges for drug. The episode ends with a penalty when the
    patient wakes up (index above 82) or the pressure falls below 51 mmHg.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        high = np.array([100.0, 150.0], np.float32)
        self.observation_space = Box(np.zeros(2, np.float32), high)
        self.action_space = Box(0.0, 1.0, (1,), np.float32)
        self.blood, self.tissue, self.brain, self.pressure = 0.0, 0.0, 0.0, 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start after the induction, close to the target depth."""
        super().reset(seed=seed)
        self.brain, self.pressure = self.np_random.uniform([2.4, 66.0], [4.6, 92.0]).tolist()
        self.blood, self.tissue = self.brain, 0.3 * self.brain
        return self._observe(), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        """Infuse, then update the concentrations and the pressure."""
        infusion = float(np.clip(action[0], 0.0, 1.0))
        exchange = 0.085 * self.blood - 0.031 * self.tissue
        brain = self.brain + 0.23 * (self.blood - self.brain)
        pressure = self.pressure + 0.34 * (97.0 - 7.4 * self.blood - self.pressure)
        self.blood = max(self.blood + 1.15 * infusion - 0.104 * self.blood - exchange, 0.0)
        self.tissue += exchange
        self.brain, self.pressure = brain, max(pressure, 0.0)
        depth = self._depth()
        awake, shocked = depth > 82.0, self.pressure < 51.0
        reward = 1.0 - abs(depth - 48.0) / 15.0 - 0.2 * infusion
        reward -= 15.0 if awake else 20.0 if shocked else 0.0
        return self._observe(), reward, awake or shocked, False, {}

    def _depth(self) -> float:
        effect = math.pow(self.brain / 3.3, 2.6)
        return 97.0 - 92.0 * effect / (effect + 1.0)

    def _observe(self) -> Floats:
        return np.array([self._depth(), self.pressure], np.float32)


class Courier(gymnasium.Env[Ints, np.int64]):
    """A courier who carries parcels through a town on a hill.

    The observation holds the row (0 to 4) and the column (0 to 4). The actions are 0 north (row
    minus one), 1 south, 2 east, 3 west and 4 handle. Streets end at the edge of the town, and a
    river between columns 2 and 3 can only be crossed in rows 0 and 4. At the depot at (2, 2) the
    handle action loads one parcel, up to three. At each of the three customers at (1, 0), (1, 4)
    and (4, 3) it delivers one parcel for a reward. A customer who was served before keeps another
    parcel without payment, for a penalty. In any other place and without a parcel the handle
    action has no effect. The rows 0 and 1 are on a hill: the courier cannot move from row 2 to
    row 1 with two parcels or more. Neither the parcels nor the served customers are shown. Each
    step costs a little, and more with parcels. The episode ends with a prize after the last
    delivery.
    """

    depot, customers = (2, 2), ((1, 0), (1, 4), (4, 3))

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([5, 5])
        self.action_space = Discrete(5)
        self.row, self.column, self.parcels = 0, 0, 0
        self.served: list[bool] = []

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start close to the depot without a parcel."""
        super().reset(seed=seed)
        self.row, self.column = self.np_random.integers(1, 4, size=2).tolist()
        self.parcels, self.served = 0, [False, False, False]
        return np.array([self.row, self.column], np.int64), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Move one block or handle a parcel."""
        reward = -0.03 - 0.02 * self.parcels
        place = (self.row, self.column)
        if action == 4:
            if place == self.depot:
                self.parcels = min(self.parcels + 1, 3)
            elif place in self.customers and self.parcels > 0:
                self.parcels -= 1
                index = self.customers.index(place)
                reward += -0.7 if self.served[index] else 3.0
                self.served[index] = True
        elif action in (0, 1):
            row = min(max(self.row + (-1 if action == 0 else 1), 0), 4)
            uphill = self.row == 2 and row == 1
            self.row = self.row if uphill and self.parcels >= 2 else row
        else:
            column = min(max(self.column + (1 if action == 2 else -1), 0), 4)
            river = {self.column, column} == {2, 3} and self.row not in (0, 4)
            self.column = self.column if river else column
        done = all(self.served)
        observation = np.array([self.row, self.column], np.int64)
        return observation, reward + (8.0 if done else 0.0), done, False, {}


class Tidemill(gymnasium.Env[Floats, np.int64]):
    """A mill pond beside a sea with unobserved tides.

    The observation holds the pond's level (m) and the power of the mill in the last step (kW).
    The actions are 0 keep the gate closed, 1 open the gate and 2 run the turbine. The sea is at
    3.2 m for six steps and at 0.6 m for five steps, in turn; an episode starts at any time of
    the tide. Through the open gate water flows in either direction with the square root of the
    level difference. The turbine only lets water out and needs a head of 0.5 m; the first step
    of a run only speeds it up, with half of the flow and without power. Power grows with the
    flow and the head and is rewarded. A brook fills the pond, and a part of the pond's
    water seeps away. The episode ends with a penalty when the pond is above 3.45 m or, with dead
    fish, below 0.9 m.
    """

    high_steps, period, tide = 6, 11, (3.2, 0.6)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(0.0, np.array([5.0, 20.0], np.float32), (2,), np.float32)
        self.action_space = Discrete(3)
        self.level, self.power, self.time, self.spinning = 0.0, 0.0, 0, False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start at any time of the tide with the turbine at rest."""
        super().reset(seed=seed)
        self.level = float(self.np_random.uniform(1.3, 3.2))
        self.time = int(self.np_random.integers(self.period))
        self.power, self.spinning = 0.0, False
        return np.array([self.level, self.power], np.float32), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, Info]:
        """Move water for one step and advance the tide."""
        sea = self.tide[0] if self.time < self.high_steps else self.tide[1]
        head = self.level - sea
        flow, self.power = 0.0, 0.0
        if action == 1:
            flow = math.copysign(min(0.43 * math.sqrt(abs(head)), abs(head)), head)
        elif action == 2 and head >= 0.5:
            flow = 0.17 * math.sqrt(head)
            if self.spinning:
                self.power = 7.3 * flow * head
            else:
                flow *= 0.5
        self.spinning = bool(action == 2 and head >= 0.5)
        self.level = max(self.level - flow + 0.088 - 0.019 * self.level, 0.0)
        self.time = (self.time + 1) % self.period
        flooded, dry = self.level > 3.45, self.level < 0.9
        reward = self.power - 0.05 - (8.0 if flooded else 6.0 if dry else 0.0)
        observation = np.array([self.level, self.power], np.float32)
        return observation, reward, flooded or dry, False, {}


class Submarine(gymnasium.Env[Floats, Floats]):
    """A small submarine that controls its depth with a ballast tank.

    The observation holds the depth (m) and the filling of the ballast tank (0 to 1); the vertical
    velocity and the pump's actual rate are hidden. The action between -1 (empty) and 1 (fill) is
    the commanded rate of the pump, which the actual rate follows with a lag. A tank fuller than
    a neutral filling makes the boat sink. The hull is compressed with depth, which also makes the
    boat sink, and below 55 m denser water pushes it up. The water brakes the boat with the square
    of its velocity. At the surface the boat stops. The reward falls with the distance from 42 m
    and charges for pumping. The episode ends with a prize after six steps in a row between 40 m
    and 44 m, and with a penalty at the sea bed at 78 m.
    """

    neutral, dt = 0.47, 1.0

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = Box(0.0, np.array([78.0, 1.0], np.float32), (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.depth, self.filling, self.velocity, self.rate, self.streak = 0.0, 0.0, 0.0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start at rest with the pump switched off."""
        super().reset(seed=seed)
        self.depth, self.filling = self.np_random.uniform([5.0, 0.36], [68.0, 0.55]).tolist()
        self.velocity, self.rate, self.streak = 0.0, 0.0, 0
        return np.array([self.depth, self.filling], np.float32), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, Info]:
        """Pump, then integrate the velocity and the depth."""
        command = float(np.clip(action[0], -1.0, 1.0))
        self.rate += 0.44 * (command - self.rate)
        self.filling = min(max(self.filling + 0.037 * self.rate, 0.0), 1.0)
        weight = 1.9 * (self.filling - self.neutral) + 0.0017 * (self.depth - 40.0)
        weight -= 0.19 if self.depth > 55.0 else 0.0
        self.velocity += self.dt * (weight - 0.21 * self.velocity * abs(self.velocity))
        self.depth += self.dt * self.velocity
        if self.depth < 0.0:
            self.depth, self.velocity = 0.0, 0.0
        aground = self.depth >= 78.0
        self.depth = min(self.depth, 78.0)
        self.streak = self.streak + 1 if 40.0 <= self.depth <= 44.0 else 0
        done = self.streak == 6
        reward = -0.012 * abs(self.depth - 42.0) - 0.05 * command**2
        reward += 14.0 if done else -9.0 if aground else 0.0
        return np.array([self.depth, self.filling], np.float32), reward, aground or done, False, {}
