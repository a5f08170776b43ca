"""Deterministic systems with hidden latches, clocks, lags and delays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Result = tuple[Ints, float, bool, bool, dict[str, Any]]


class Irrigation(gymnasium.Env[Floats, np.int64]):
    """A field that a canal and a pump supply with water.

    Observation (4 numbers):
        0. moisture of the upper soil, in percent
        1. flow that reaches the field in this hour, in litres per second
        2. vigour of the crop (0 dead, 1 ripe)
        3. pump alarm lamp: 1 if the pump has tripped, 0 if the pump is available

    Actions: pump level 0 (off), 1 (low), 2 (middle), 3 (high).

    The water needs some hours to travel along the canal, so that the field receives an earlier
    pump level. The pump warms up at high level, less at middle level, and cools down otherwise;
    no instrument shows its temperature. A hot pump trips: the lamp lights, and the pump
    delivers nothing for some hours, at any level.
    The flow wets the upper soil, and the sun dries it, more in the hot hours of the day; no
    clock is shown. Water moves slowly between the upper soil and the root zone, in proportion
    to the difference of their moistures. The crop takes water from the root zone; a vigorous
    crop takes more. The moisture of the root zone is not measured.
    The vigour grows while the root zone is neither too dry nor too wet, and declines otherwise;
    it declines faster in a wet root zone. A ripe crop is cut: it pays a large reward, and the
    field starts again with a young crop. A dead crop ends the episode with a penalty. Pumping
    costs energy.
    """

    _FLOWS = (0.0, 2.6, 5.3, 8.9)
    _DELAY = 2

    def __init__(self) -> None:
        """Declare the spaces."""
        high = np.array([70, 9, 1, 1], dtype=np.float32)
        self.observation_space = spaces.Box(np.zeros(4, dtype=np.float32), high, dtype=np.float32)
        self.action_space = spaces.Discrete(4)
        self._upper, self._root, self._vigour = 30.0, 30.0, 0.5
        self._canal: list[float] = [0.0] * self._DELAY
        self._heat, self._rest, self._hour = 0.0, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start with an empty canal, a cold pump and balanced soil at a random hour."""
        super().reset(seed=seed)
        self._upper = float(self.np_random.uniform(17.0, 46.0))
        self._root = self._upper
        self._vigour = float(self.np_random.uniform(0.25, 0.85))
        self._canal = [0.0] * self._DELAY
        self._heat, self._rest = 0.0, 0
        self._hour = int(self.np_random.integers(9))
        return self._observe(0.0), {}

    def _observe(self, flow: float) -> Floats:
        """Return the observation for the flow that reached the field."""
        lamp = float(self._rest > 0)
        return np.array([self._upper, flow, self._vigour, lamp], dtype=np.float32)

    def _pump(self, level: int) -> float:
        """Return the flow that enters the canal, and update the temperature of the pump."""
        if self._rest > 0:
            self._rest -= 1
            self._heat = 0.0
            return 0.0
        self._heat = max(0.0, self._heat + (-1.4, -0.6, 0.5, 1.7)[level])
        if self._heat > 4.2:
            self._rest = 4
            return 0.0
        return self._FLOWS[level]

    def _grow(self) -> tuple[float, bool]:
        """Update the vigour and return its reward and the end of the episode."""
        if self._root > 34.2:
            self._vigour -= 0.057
        elif self._root < 20.7:
            self._vigour -= 0.031
        else:
            self._vigour += 0.034
        if self._vigour >= 1.0:
            self._vigour = 0.37
            return 24.0, False
        if self._vigour <= 0.0:
            self._vigour = 0.0
            return -16.0, True
        return 0.0, False

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Advance the field by one hour."""
        delivered = self._pump(int(action))
        self._canal.append(delivered)
        flow = self._canal.pop(0)
        sun = 0.94
        if self._hour in (3, 4, 5):
            sun = 3.27
        self._hour = (self._hour + 1) % 9
        seepage = 0.173 * (self._upper - self._root)
        self._upper += 1.12 * flow - sun * (0.4 + self._upper / 50.0) - seepage
        self._upper = min(70.0, max(0.0, self._upper))
        self._root = max(0.0, self._root + 0.71 * seepage - 0.55 - 0.83 * self._vigour)
        reward, terminated = self._grow()
        reward -= 0.064 * delivered
        return self._observe(flow), reward, terminated, False, {}


class Squirrel(gymnasium.Env[Ints, np.int64]):
    """A squirrel that gathers and buries acorns along a hedge.

    Observation (4 integers):
        0. place along the hedge (0 to 6)
        1. hunger
        2. acorns on the ground at this place
        3. shadow of the hawk: 1 if visible, 0 if not

    Actions: 0 run left, 1 run right, 2 pick up an acorn, 3 bury an acorn, 4 eat.

    Two oaks have fixed places. Each drops an acorn at regular intervals, as long as not too
    many acorns are on the ground below it. The squirrel carries a few acorns in its cheeks;
    the cheeks are not shown. It can bury a carried acorn, which pays a little, but each place
    has room for few. If it eats, it eats a carried acorn first. If it carries none, it digs up
    an acorn that it buried at this place; a seasoned acorn pays and satisfies more.
    Buried acorns are not shown.
    Hunger grows with each step, faster with full cheeks. A starving squirrel ends the episode
    with a penalty. A hawk returns at regular intervals. Its shadow is visible just before it
    strikes. A squirrel in the gap of the hedge at the strike is caught, which ends the episode
    with a penalty; elsewhere it is safe.
    """

    _PLACES = 7
    _OAKS = (1, 5)
    _GAP = (3,)
    _DROP_STEPS = 4
    _HAWK_STEPS = 13
    _MAX_HUNGER = 46

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = spaces.MultiDiscrete([7, self._MAX_HUNGER + 1, 4, 2])
        self.action_space = spaces.Discrete(5)
        self._place, self._hunger, self._carried = 0, 0, 0
        self._ground = [0] * self._PLACES
        self._buried = [0] * self._PLACES
        self._oak_clock, self._hawk_clock = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ints, dict[str, Any]]:
        """Start at a random place with empty cheeks and random phases of oak and hawk."""
        super().reset(seed=seed)
        draw = self.np_random.integers
        self._place, self._hunger, self._carried = int(draw(7)), int(draw(0, 16)), 0
        self._ground = [2 * int(place in self._OAKS) for place in range(self._PLACES)]
        self._buried = [0] * self._PLACES
        self._oak_clock = int(draw(self._DROP_STEPS))
        self._hawk_clock = int(draw(1, self._HAWK_STEPS - 1))
        return self._observe(), {}

    def _observe(self) -> Ints:
        """Return the observation of the present place."""
        shadow = int(self._hawk_clock == self._HAWK_STEPS - 1)
        values = [self._place, self._hunger, self._ground[self._place], shadow]
        return np.array(values, dtype=np.int64)

    def _eat(self) -> float:
        """Eat a carried or a buried acorn and return the reward."""
        if self._carried > 0:
            self._carried -= 1
            self._hunger = max(0, self._hunger - 9)
            return 2.2
        if self._buried[self._place] > 0:
            self._buried[self._place] -= 1
            self._hunger = max(0, self._hunger - 13)
            return 5.7
        return 0.0

    def _act(self, action: int) -> float:
        """Carry out the action and return the reward."""
        place = self._place
        if action == 0:
            self._place = max(0, place - 1)
        elif action == 1:
            self._place = min(self._PLACES - 1, place + 1)
        elif action == 2 and self._ground[place] > 0 and self._carried < 2:
            self._ground[place] -= 1
            self._carried += 1
        elif action == 3 and self._carried > 0 and self._buried[place] < 2:
            self._carried -= 1
            self._buried[place] += 1
            return 0.6
        elif action == 4:
            return self._eat()
        return 0.0

    def _drop_acorns(self) -> None:
        """Drop an acorn below each oak when the clock is due."""
        self._oak_clock = (self._oak_clock + 1) % self._DROP_STEPS
        if self._oak_clock == 0:
            for oak in self._OAKS:
                self._ground[oak] = min(3, self._ground[oak] + 1)

    def step(self, action: np.int64) -> Result:
        """Advance the hedge by one step."""
        reward, terminated = self._act(int(action)), False
        self._hunger += 1
        if self._carried == 2:
            self._hunger += 1
        self._drop_acorns()
        self._hawk_clock = (self._hawk_clock + 1) % self._HAWK_STEPS
        if self._hawk_clock == 0 and self._place in self._GAP:
            reward, terminated = reward - 18.0, True
        elif self._hunger >= self._MAX_HUNGER:
            self._hunger = self._MAX_HUNGER
            reward, terminated = reward - 12.0, True
        return self._observe(), reward, terminated, False, {}


class Crossing(gymnasium.Env[Ints, np.int64]):
    """A pedestrian crossing with a push button on a busy road.

    Observation (3 integers):
        0. signal: 0 green for cars, 1 amber, 2 walk (red for cars)
        1. cars that wait at the stop line
        2. pedestrians who wait

    Actions: 0 nothing, 1 press the walk button, 2 ask for a longer green.

    The controller reads the button one step late and stores the request until the next walk
    phase; a press that it reads during the walk phase has no effect. The cars keep green for a
    minimum time. After that, a stored request turns the signal to amber for a fixed time and
    then to walk. The walk phase has a fixed length, but it is longer if many pedestrians wait
    at its beginning. Then the cars get green again.
    Each request for a longer green during green adds a step to the minimum time of this green
    phase, up to a limit. Timers, stored requests and extensions are not shown.
    Cars arrive in platoons: an upstream signal sends several cars in each of some successive
    steps and none in other steps, in a fixed cycle. Pedestrians arrive in a fixed cycle too,
    sometimes several at a time. In green, cars leave at a fixed rate, but fewer leave in the
    first step of green and in amber. In walk, several pedestrians cross per step.
    Each served car and pedestrian pays a reward, and each one who waits costs a little. If the
    line of cars blocks the junction behind it, or if too many pedestrians wait and run, the
    episode ends with a penalty.
    """

    _MIN_GREEN = 6
    _MAX_EXTENSION = 3
    _AMBER_STEPS = 2
    _CAR_CYCLE = 8
    _WALKER_CYCLE = 6
    _MAX_CARS = 11
    _MAX_WALKERS = 8

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = spaces.MultiDiscrete([3, self._MAX_CARS + 1, 11])
        self.action_space = spaces.Discrete(3)
        self._signal, self._cars, self._walkers = 0, 0, 0
        self._timer, self._extension, self._walk_steps = 0, 0, 3
        self._pressed, self._request = False, False
        self._car_clock, self._walker_clock = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ints, dict[str, Any]]:
        """Start at the beginning of green with random queues and random phases of arrival."""
        super().reset(seed=seed)
        draw = self.np_random.integers
        self._signal, self._cars, self._walkers = 0, int(draw(0, 8)), int(draw(0, 5))
        self._timer, self._extension, self._walk_steps = 0, 0, 3
        self._pressed, self._request = False, False
        self._car_clock = int(draw(self._CAR_CYCLE))
        self._walker_clock = int(draw(self._WALKER_CYCLE))
        return self._observe(), {}

    def _observe(self) -> Ints:
        """Return the observation."""
        return np.array([self._signal, self._cars, self._walkers], dtype=np.int64)

    def _read_inputs(self, action: int) -> None:
        """Store the request of the previous step and count the extension of this step."""
        if self._pressed and self._signal != 2:
            self._request = True
        self._pressed = action == 1
        if action == 2 and self._signal == 0:
            self._extension = min(self._MAX_EXTENSION, self._extension + 1)

    def _switch(self) -> None:
        """Advance the timer and change the signal if its time is over."""
        self._timer += 1
        if self._signal == 0:
            if self._request and self._timer >= self._MIN_GREEN + self._extension:
                self._signal, self._timer = 1, 0
        elif self._signal == 1:
            if self._timer >= self._AMBER_STEPS:
                self._signal, self._timer, self._request = 2, 0, False
                self._walk_steps = 3
                if self._walkers > 4:
                    self._walk_steps = 5
        elif self._timer >= self._walk_steps:
            self._signal, self._timer, self._extension = 0, 0, 0

    def _serve(self) -> tuple[int, int]:
        """Return the cars and pedestrians who leave in this step."""
        if self._signal == 2:
            return 0, min(self._walkers, 2)
        if self._signal == 1 or self._timer == 0:
            return min(self._cars, 1), 0
        return min(self._cars, 2), 0

    def _arrive(self) -> None:
        """Add the cars and pedestrians who arrive in this step."""
        self._car_clock = (self._car_clock + 1) % self._CAR_CYCLE
        if self._car_clock < 3:
            self._cars += 3
        self._walker_clock = (self._walker_clock + 1) % self._WALKER_CYCLE
        if self._walker_clock == 0:
            self._walkers += 2
        elif self._walker_clock == 3:
            self._walkers += 1

    def step(self, action: np.int64) -> Result:
        """Advance the crossing by one step."""
        self._read_inputs(int(action))
        self._switch()
        cars, walkers = self._serve()
        self._cars -= cars
        self._walkers -= walkers
        self._arrive()
        reward = 0.45 * cars + 0.72 * walkers - 0.06 * self._cars - 0.11 * self._walkers
        terminated = False
        if self._cars >= self._MAX_CARS:
            self._cars = self._MAX_CARS
            reward, terminated = reward - 21.0, True
        elif self._walkers >= self._MAX_WALKERS:
            reward, terminated = reward - 14.0, True
        return self._observe(), reward, terminated, False, {}
