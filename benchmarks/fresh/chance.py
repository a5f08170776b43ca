"""Systems with random counts whose whole state is observed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Result = tuple[Ints, float, bool, bool, dict[str, Any]]


class Callcentre(gymnasium.Env[Ints, np.int64]):
    """A telephone help line with agents, a short queue and changing demand.

    Observation (6 integers):
        0. demand: 0 quiet, 1 normal, 2 rush
        1. agents on duty
        2. agents who are in a call (at most the agents on duty)
        3. callers in the queue
        4. calls that were completed in the last interval
        5. callers who hung up in the last interval

    Actions: 0 send an agent home, 1 keep the staff, 2 call an agent in.

    An agent goes home only if an agent is idle and more than the minimum staff is on duty. An
    agent who is called in arrives in the same interval or does not arrive at all, at random;
    the number of desks is limited.
    Then the demand may change. Each call in progress ends with a probability that depends on
    the demand. Each caller in the queue hangs up with a probability that is larger in a long
    queue. New callers arrive in random number; the mean depends on the demand. Idle agents
    answer waiting and new callers. The others wait in the queue, which has few places. Callers
    who find no place get a busy tone and nobody counts them.
    Completed calls earn money, wages are due for all agents on duty, and each caller who hangs
    up costs a refund. If too many callers get a busy tone in one interval, the client cancels
    the contract: the episode ends with a penalty.
    """

    _MIN_AGENTS = 2
    _MAX_AGENTS = 9
    _PLACES = 8
    _CHANGE = ((0.83, 0.14, 0.03), (0.12, 0.75, 0.13), (0.02, 0.26, 0.72))
    _ARRIVALS = (0.92, 2.37, 4.68)
    _ENDS = (0.51, 0.43, 0.34)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = spaces.MultiDiscrete([3, 10, 10, 9, 10, 9])
        self.action_space = spaces.Discrete(3)
        self.state: Ints = np.array([1, 4, 2, 0, 0, 0], dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ints, dict[str, Any]]:
        """Start with random demand, staff and queue."""
        super().reset(seed=seed)
        draw = self.np_random.integers
        agents = int(draw(self._MIN_AGENTS, 8))
        busy = int(draw(0, agents + 1))
        queue = int(draw(0, 5)) if busy == agents else 0
        self.state = np.array([draw(3), agents, busy, queue, 0, 0], dtype=np.int64)
        return self.state.copy(), {}

    def _staff(self, agents: int, busy: int, action: int) -> int:
        """Return the number of agents on duty after the decision."""
        if action == 0 and agents > self._MIN_AGENTS and busy < agents:
            return agents - 1
        if action == 2 and agents < self._MAX_AGENTS and self.np_random.random() < 0.64:
            return agents + 1
        return agents

    def step(self, action: np.int64) -> Result:
        """Advance the help line by one interval."""
        demand, agents, busy, queue, _, _ = (int(value) for value in self.state)
        agents = self._staff(agents, busy, int(action))
        demand = int(self.np_random.choice(3, p=self._CHANGE[demand]))
        completed = int(self.np_random.binomial(busy, self._ENDS[demand]))
        impatience = 0.29 if queue > 4 else 0.11
        hung_up = int(self.np_random.binomial(queue, impatience))
        callers = queue - hung_up + int(self.np_random.poisson(self._ARRIVALS[demand]))
        busy -= completed
        answered = min(agents - busy, callers)
        waiting = callers - answered
        reward = 3.1 * completed - 0.87 * agents - 1.4 * hung_up
        terminated = False
        if waiting > self._PLACES + 2:
            reward, terminated = reward - 35.0, True
        queue = min(waiting, self._PLACES)
        values = [demand, agents, busy + answered, queue, completed, hung_up]
        self.state = np.array(values, dtype=np.int64)
        return self.state.copy(), reward, terminated, False, {}


class Excavation(gymnasium.Env[Ints, np.int64]):
    """An archaeological trench that is emptied square by square.

    Observation (6 integers):
        0. square (0 to 5)
        1. sherds left in the square (a radar counts them)
        2. coins left in the square
        3. stones left in the square
        4. strength of the trench wall (0 to 9)
        5. rain: 0 dry, 1 rain

    Actions: 0 dig with the trowel, 1 dig with the spade, 2 shore up the wall, 3 move on to the
    next square.

    A dig lifts a fixed number of the remaining objects, at random and without replacement: few
    with the trowel, more with the spade, or all objects if fewer remain. Each sherd that
    the spade lifts may break; broken sherds are worthless. Whole sherds and coins pay a reward.
    Each stone that is lifted may weaken the wall by one unit. After the dig the wall may
    collapse; the probability depends on its strength. A collapse ends the episode with a
    penalty.
    Shoring costs a little and strengthens the wall by a random number of units. A move costs
    work; the new square has its own random contents and a random wall. The mean number of
    sherds and the probability of coins depend on the square, and stones follow a die. A move
    from the last square completes the excavation and ends the episode with a bonus.
    Rain starts and stops at random. In the rain the wall may lose one more unit in any step.
    """

    _SHERDS = (3.4, 6.7, 2.1, 8.8, 5.3, 4.2)
    _COINS = (0.08, 0.13, 0.47, 0.06, 0.31, 0.58)
    _COLLAPSE = (0.58, 0.34, 0.21, 0.12, 0.061, 0.027, 0.009, 0.0, 0.0, 0.0)

    def __init__(self) -> None:
        """Declare the spaces."""
        high = np.array([5, 30, 5, 10, 9, 1], dtype=np.int64)
        self.observation_space = spaces.Box(np.zeros(6, dtype=np.int64), high, dtype=np.int64)
        self.action_space = spaces.Discrete(4)
        self.state: Ints = np.array([0, 4, 1, 6, 7, 0], dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ints, dict[str, Any]]:
        """Start in one of the first three squares."""
        super().reset(seed=seed)
        rain = int(self.np_random.random() < 0.3)
        self.state = self._open_square(int(self.np_random.integers(3)), rain)
        return self.state.copy(), {}

    def _open_square(self, square: int, rain: int) -> Ints:
        """Return the state at the beginning of a square."""
        sherds = min(30, int(self.np_random.poisson(self._SHERDS[square])))
        coins = int(self.np_random.binomial(5, self._COINS[square]))
        stones = 4 + int(self.np_random.integers(1, 7))
        wall = 3 + int(self.np_random.binomial(6, 0.44))
        return np.array([square, sherds, coins, stones, wall, rain], dtype=np.int64)

    def _dig(self, spade: bool) -> float:
        """Lift objects from the square and return the reward of the finds."""
        left = self.state[1:4]
        count = min(7 if spade else 3, int(left.sum()))
        lifted = self.np_random.multivariate_hypergeometric(left, count)
        self.state[1:4] = left - lifted
        whole = int(lifted[0])
        if spade:
            whole = int(self.np_random.binomial(whole, 0.57))
        weakened = int(self.np_random.binomial(int(lifted[2]), 0.39))
        self.state[4] = max(0, int(self.state[4]) - weakened)
        return 1.3 * whole + 6.4 * int(lifted[1])

    def _change_weather(self) -> None:
        """Weaken the wall in the rain, then start or stop the rain."""
        if self.state[5] == 1:
            if self.np_random.random() < 0.38:
                self.state[4] = max(0, int(self.state[4]) - 1)
            if self.np_random.random() < 0.29:
                self.state[5] = 0
        elif self.np_random.random() < 0.16:
            self.state[5] = 1

    def step(self, action: np.int64) -> Result:
        """Dig, shore up or move on."""
        self.state = np.array(self.state, dtype=np.int64)
        reward, terminated = 0.0, False
        if action in (0, 1):
            reward = self._dig(spade=bool(action == 1))
            if self.np_random.random() < self._COLLAPSE[int(self.state[4])]:
                reward, terminated = reward - 17.0, True
        elif action == 2:
            reward = -0.8
            timbers = 1 + int(self.np_random.binomial(2, 0.42))
            self.state[4] = min(9, int(self.state[4]) + timbers)
        elif self.state[0] == 5:
            reward, terminated = 14.0, True
        else:
            reward = -1.7
            self.state = self._open_square(int(self.state[0]) + 1, int(self.state[5]))
        self._change_weather()
        return self.state.copy(), reward, terminated, False, {}


class Apiary(gymnasium.Env[Floats, np.int64]):
    """A bee colony through spells of weather.

    Observation (5 numbers, all but the last are whole numbers):
        0. weather: 0 fair, 1 cloudy, 2 rain
        1. days left of the present spell of weather
        2. bees, in hundreds
        3. mites, in dozens
        4. honey, in kg

    Actions: 0 leave the hive alone, 1 feed syrup, 2 treat against mites, 3 harvest honey.

    Syrup adds a fixed mass to the honey and costs money. A treatment costs money; each mite
    survives it with a small probability, and it kills a few bees. A harvest takes all honey
    above a fixed reserve and earns money by the kilogram; in the rain the open hive also kills
    some of the bees.
    Then the bees collect nectar. The mean gain is proportional to the number of bees and depends
    on the weather; the noise is proportional to the mean gain. The colony eats honey in
    proportion to its size, and the hive holds a limited mass. If the honey runs out, each bee
    starves with a fixed probability.
    Births have a random number with a mean proportional to the bees; the rate is much lower if
    honey is short. Each bee dies with a probability that grows with the number of mites per
    bee. Mites breed at random in proportion to their number, and a few enter from outside.
    A large colony may swarm on a fair day; each bee then leaves with a fixed probability, and
    this costs money.
    The days left count down by one. After the last day a new weather is drawn, which depends on
    the old weather, and a random length of the new spell. A colony that becomes too small is
    lost and ends the episode with a penalty.
    """

    _NECTAR_KG = (0.0138, 0.0067, 0.0004)
    _SPELL_END = (0.29, 0.43, 0.37)
    _NEXT = ((0.08, 0.57, 0.35), (0.49, 0.09, 0.42), (0.31, 0.62, 0.07))

    def __init__(self) -> None:
        """Declare the spaces."""
        low = np.array([0, 1, 0, 0, 0], dtype=np.float32)
        high = np.array([2, 12, 420, 250, 47.5], dtype=np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Discrete(4)
        self.state: Floats = np.array([0, 3, 100, 20, 9], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start with a colony of random size and health."""
        super().reset(seed=seed)
        draw = self.np_random.integers
        honey = self.np_random.uniform(1.0, 22.0)
        values = [draw(3), draw(1, 6), draw(60, 290), draw(0, 130), honey]
        self.state = np.array(values, dtype=np.float32)
        return self.state.copy(), {}

    def _treat(self, bees: int, mites: int) -> tuple[int, int]:
        """Return bees and mites after a treatment."""
        survivors = int(self.np_random.binomial(mites, 0.24))
        return bees - int(self.np_random.binomial(bees, 0.036)), survivors

    def _harvest(self, weather: int, bees: int, honey: float) -> tuple[int, float, float]:
        """Return bees, honey and the price of the harvest."""
        price = 1.63 * max(0.0, honey - 5.4)
        if weather == 2:
            bees -= int(self.np_random.binomial(bees, 0.14))
        return bees, min(honey, 5.4), price

    def _forage(self, weather: int, bees: int, honey: float) -> tuple[int, float]:
        """Return bees and honey after collection and consumption."""
        noise = max(0.0, 1.0 + 0.23 * float(self.np_random.normal()))
        honey += self._NECTAR_KG[weather] * bees * noise - 0.0059 * bees
        if honey <= 0.0:
            return bees - int(self.np_random.binomial(bees, 0.19)), 0.0
        return bees, min(47.5, honey)

    def _breed(self, bees: int, mites: int, honey: float) -> tuple[int, int]:
        """Return bees and mites after births and deaths."""
        birth_rate = 0.086
        if honey < 3.3:
            birth_rate = 0.024
        births = int(self.np_random.poisson(birth_rate * bees))
        infested = min(1.0, mites / max(1, bees))
        deaths = int(self.np_random.binomial(bees, 0.041 + 0.187 * infested))
        mites = min(250, mites + int(self.np_random.poisson(0.067 * mites + 0.4)))
        return min(420, bees + births - deaths), mites

    def _pass_day(self, weather: int, days: int) -> tuple[int, int]:
        """Return the weather and the days left on the next day."""
        if days > 1:
            return weather, days - 1
        weather = int(self.np_random.choice(3, p=self._NEXT[weather]))
        return weather, min(12, int(self.np_random.geometric(self._SPELL_END[weather])))

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Advance the colony by one day."""
        weather, days, bees, mites = (int(value) for value in self.state[:4])
        honey, reward, terminated = float(self.state[4]), 0.0, False
        if action == 1:
            honey, reward = honey + 1.85, -1.2
        elif action == 2:
            bees, mites = self._treat(bees, mites)
            reward = -2.7
        elif action == 3:
            bees, honey, reward = self._harvest(weather, bees, honey)
        bees, honey = self._forage(weather, bees, honey)
        bees, mites = self._breed(bees, mites, honey)
        if bees > 215 and weather == 0 and self.np_random.random() < 0.18:
            bees -= int(self.np_random.binomial(bees, 0.47))
            reward -= 8.5
        if bees < 54:
            reward, terminated = reward - 30.0, True
        weather, days = self._pass_day(weather, days)
        self.state = np.array([weather, days, bees, mites, honey], dtype=np.float32)
        return self.state.copy(), reward, terminated, False, {}
