"""Six systems with random outcomes whose observation is the whole state."""

import math
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Info = dict[str, Any]


class Bakery(gymnasium.Env[Ints, np.int64]):
    """A bakery that bakes before it knows how many customers come.

    The observation holds the weekday (0 Monday to 6 Sunday), the weather (0 rain, 1 dry), the
    fresh loaves and the day-old loaves in stock. The action is the number of trays baked, with
    seven loaves per tray; the shelf holds 45 fresh loaves, and the surplus is lost. The number
    of customers is Poisson; its mean depends on the kind of day (working day, Saturday, Sunday)
    and is lower in rain. Each customer takes a fresh loaf. After the fresh loaves are sold out,
    each further customer accepts a cheaper day-old loaf with a fixed probability. In the evening
    unsold fresh loaves become day-old loaves, and the previous day-old loaves are thrown away.
    The weather changes with a probability that depends on the weather. The reward is the income
    minus the cost of the baked loaves and a fee for each loaf thrown away.
    """

    means = (14.3, 14.3, 14.3, 14.3, 14.3, 23.6, 8.2)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([7, 2, 46, 46])
        self.action_space = Discrete(6)
        self.state: Ints = np.zeros(4, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start on any day with a random stock."""
        super().reset(seed=seed)
        self.state = self.np_random.integers([7, 2, 20, 25]).astype(np.int64)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Bake, sell for one day and close."""
        weekday, weather, fresh, old = (int(value) for value in self.state)
        baked = 7 * int(action)
        fresh = min(fresh + baked, 45)
        mean = self.means[weekday] * (1.0 if weather == 1 else 0.68)
        customers = int(self.np_random.poisson(mean))
        sold = min(customers, fresh)
        sold_old = min(int(self.np_random.binomial(customers - sold, 0.45)), old)
        reward = 3.2 * sold + 1.4 * sold_old - 1.15 * baked - 0.25 * (old - sold_old)
        if self.np_random.random() < (0.42 if weather == 0 else 0.21):
            weather = 1 - weather
        self.state = np.array([(weekday + 1) % 7, weather, 0, fresh - sold], np.int64)
        return self.state.copy(), float(reward), False, False, {}


class Ward(gymnasium.Env[Ints, np.int64]):
    """A hospital ward with emergencies, a waiting list and flu seasons.

    The observation holds the occupied beds (at most 18), the patients on the waiting list (at
    most 25) and whether there is flu (0 or 1). The action is the number of waiting patients to
    admit; the ward admits no more than wait and no more than there are free beds. Then each
    patient in a bed is discharged with a probability that is lower during flu. A Poisson number
    of emergencies arrives, more during flu; the ward diverts emergencies without a bed. A binomial
    number of patients joins the waiting list. The flu begins and ends at random. The reward
    counts admitted patients and charges for waiting and, much more, for diverted emergencies.
    The episode ends with a penalty when the ward diverts three or more in one step.
    """

    beds, discharge, emergencies = 18, (0.19, 0.13), (1.35, 2.7)

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([self.beds + 1, 26, 2])
        self.action_space = Discrete(4)
        self.state: Ints = np.zeros(3, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start with a partly filled ward."""
        super().reset(seed=seed)
        self.state = self.np_random.integers([3, 0, 0], [17, 15, 2]).astype(np.int64)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Admit, discharge, receive emergencies and extend the waiting list."""
        occupied, waiting, flu = (int(value) for value in self.state)
        admitted = min(int(action), waiting, self.beds - occupied)
        occupied, waiting = occupied + admitted, waiting - admitted
        occupied -= int(self.np_random.binomial(occupied, self.discharge[flu]))
        arrivals = int(self.np_random.poisson(self.emergencies[flu]))
        diverted = max(occupied + arrivals - self.beds, 0)
        occupied = min(occupied + arrivals, self.beds)
        waiting = min(waiting + int(self.np_random.binomial(4, 0.37)), 25)
        if self.np_random.random() < (0.06 if flu == 0 else 0.14):
            flu = 1 - flu
        self.state = np.array([occupied, waiting, flu], np.int64)
        overwhelmed = diverted >= 3
        reward = 1.6 * admitted - 0.12 * waiting - 4.5 * diverted - (20.0 if overwhelmed else 0.0)
        return self.state.copy(), reward, overwhelmed, False, {}


class Stamping(gymnasium.Env[Ints, np.int64]):
    """A stamping press that wears out and breaks down.

    The observation holds the wear (0 to 9), whether the press is broken (0 or 1) and the backlog
    of ordered parts (0 to 40). The actions are 0 idle, 1 run slowly, 2 run fast and 3 service. A
    slow run stamps three parts and a fast run five; each part is scrap with a probability that
    grows linearly with the wear. Good parts reduce the backlog and are paid; surplus parts are
    worthless. A run may add one unit of wear, more often at high speed, and may break the press
    with a probability that grows by a constant factor per unit of wear and doubles at high speed.
    Service removes three units of wear unless it fails. A broken press only reacts to service,
    which repairs it at random and leaves wear 2. Orders arrive each step with a geometric
    distribution. The backlog costs reward, and the episode ends with a penalty when it is 40.
    """

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([10, 2, 41])
        self.action_space = Discrete(4)
        self.state: Ints = np.zeros(3, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start with a working press of any wear."""
        super().reset(seed=seed)
        wear, backlog = self.np_random.integers([0, 0], [10, 25])
        self.state = np.array([wear, 0, backlog], np.int64)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Run or service the press, then receive orders."""
        wear, broken, backlog = (int(value) for value in self.state)
        reward = -0.06 * backlog
        if action == 3:
            reward -= 2.5 if broken == 0 else 4.0
            if broken == 0 and self.np_random.random() < 0.88:
                wear = max(wear - 3, 0)
            elif broken == 1 and self.np_random.random() < 0.36:
                wear, broken = 2, 0
        elif action in (1, 2) and broken == 0:
            good = int(self.np_random.binomial(1 + 2 * int(action), 0.97 - 0.034 * wear))
            delivered = min(good, backlog)
            backlog -= delivered
            reward += 1.3 * delivered - 0.35
            if self.np_random.random() < (0.22 if action == 1 else 0.51):
                wear = min(wear + 1, 9)
            if self.np_random.random() < 0.006 * int(action) * 1.48**wear:
                broken = 1
        backlog = min(backlog + int(self.np_random.geometric(0.37)) - 1, 40)
        self.state = np.array([wear, broken, backlog], np.int64)
        lost = backlog == 40
        return self.state.copy(), reward - (25.0 if lost else 0.0), lost, False, {}


class Rapids(gymnasium.Env[Ints, np.int64]):
    """A raft that runs a river with fast water, eddies and rocks.

    The observation holds the row (0 at the start to 9 at the landing), the column (0 to 4) and
    the damage (0 to 3). The actions are 0 paddle left, 1 drift, 2 paddle right and 3 paddle back.
    Paddling sideways changes the column with a probability that depends on the water of the
    raft's cell; at the banks it has no effect. The raft then moves one row down; in fast water
    it may move two rows, and in an eddy it may stay. Paddling back often prevents the movement
    down except in fast water. A raft that moves onto a rock takes one unit of damage with a
    probability that is higher after a move of two rows. Time costs reward, damage costs more.
    The episode ends with a penalty at damage 3, with a prize at the landing in columns 1 to 3,
    and with a smaller penalty at the landing in columns 0 and 4.
    """

    water = (
        ".....",
        ".~o..",
        "..~~.",
        "o.~R.",
        "~R.~o",
        "~~..R",
        ".R~..",
        "o.~R~",
        "..~~.",
        ".....",
    )
    steering: ClassVar[dict[str, float]] = {".": 0.91, "~": 0.58, "o": 0.74, "R": 0.35}

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([10, 5, 4])
        self.action_space = Discrete(4)
        self.state: Ints = np.zeros(3, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start undamaged in one of the first three rows."""
        super().reset(seed=seed)
        row, column = self.np_random.integers([3, 5])
        self.state = np.array([row, column, 0], np.int64)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Steer, move down and maybe hit a rock."""
        row, column, damage = (int(value) for value in self.state)
        cell, start = self.water[row][column], (row, column)
        moved, reward = 1, -0.15
        if action in (0, 2) and self.np_random.random() < self.steering[cell]:
            column = min(max(column + int(action) - 1, 0), 4)
        chance = self.np_random.random()
        if cell == "~":
            moved = 2 if chance < 0.37 else 1
        elif action == 3:
            moved = 0 if chance < 0.71 else 1
        elif cell == "o":
            moved = 0 if chance < 0.46 else 1
        row = min(row + moved, 9)
        hit = self.water[row][column] == "R" and (row, column) != start
        if hit and self.np_random.random() < (0.88 if moved == 2 else 0.57):
            damage, reward = damage + 1, reward - 1.4
        self.state = np.array([row, column, damage], np.int64)
        landed = row == 9
        if damage == 3:
            reward -= 8.0
        elif landed:
            reward += 10.0 if 1 <= column <= 3 else -3.0
        return self.state.copy(), reward, damage == 3 or landed, False, {}


class Dicerace(gymnasium.Env[Ints, np.int64]):
    """A race to 60 points with dice against a rival.

    The observation holds the player's points, the pot (at most 30) and the rival's points. The
    actions are 0 bank, 1 roll one die and 2 roll two dice. Banking adds the pot to the player's
    points and empties it. A roll adds its sum to the pot, and equal dice count twice. A roll with
    a one empties the pot instead, and two ones also halve the player's points. The rival moves
    after the player banks or loses the pot: the rival scores two dice with a fixed
    probability, but three dice with a smaller probability while more than 12 points behind. The
    episode ends when one side has 60 points. Winning and losing are rewarded, and each lost
    pot costs a little in proportion to its size.
    """

    goal, pot_limit = 60, 30

    def __init__(self) -> None:
        """Declare the spaces."""
        self.observation_space = MultiDiscrete([self.goal + 1, self.pot_limit + 1, self.goal + 1])
        self.action_space = Discrete(3)
        self.state: Ints = np.zeros(3, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Ints, Info]:
        """Start somewhere in the first half of the race."""
        super().reset(seed=seed)
        own, rival = self.np_random.integers(31, size=2)
        self.state = np.array([own, 0, rival], np.int64)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Ints, float, bool, bool, Info]:
        """Bank or roll, then let the rival move if the turn is over."""
        own, pot, rival = (int(value) for value in self.state)
        reward, turn_over = 0.0, True
        if action == 0:
            own, pot = min(own + pot, self.goal), 0
        else:
            dice = self.np_random.integers(1, 7, size=int(action)).tolist()
            if 1 in dice:
                reward -= 0.02 * pot
                pot = 0
                own = own // 2 if dice == [1, 1] else own
            else:
                twice = len(dice) == 2 and dice[0] == dice[1]
                pot = min(pot + sum(dice) * (2 if twice else 1), self.pot_limit)
                turn_over = False
        if turn_over and own < self.goal:
            behind = own - rival > 12
            if self.np_random.random() < (0.44 if behind else 0.63):
                gain = int(self.np_random.integers(1, 7, size=3 if behind else 2).sum())
                rival = min(rival + gain, self.goal)
        self.state = np.array([own, pot, rival], np.int64)
        won, lost = own == self.goal, rival == self.goal
        reward += 10.0 if won else -10.0 if lost else 0.0
        return self.state.copy(), reward, won or lost, False, {}


class Pasture(gymnasium.Env[Floats, np.int64]):
    """A herd on a pasture whose growth depends on the rain.

    The observation holds the grass (t/ha, at most 6), the number of animals (at most 60), the
    hay in store (t, at most 20) and whether the week is wet (0 or 1). The actions are 0 nothing,
    1 sell six animals, 2 buy six animals, 3 cut hay and 4 feed hay. Cutting moves a share of the
    grass into the store; feeding uses hay in place of grazing if the store suffices. The herd
    grazes an amount per animal; if the grass is too short, the herd starves in that week. The
    grass grows logistically, faster in a wet week, with lognormal noise. The births are binomial
    and occur only without starvation, the deaths are binomial and more likely with starvation.
    Wet and dry weeks alternate at random. Sales earn and purchases cost a price per animal, each
    animal costs upkeep, and the loss of the last animal ends the episode with a penalty.
    """

    grass_limit, price, intake = 6.0, 1.3, 0.021

    def __init__(self) -> None:
        """Declare the spaces."""
        high = np.array([6.0, 60.0, 20.0, 1.0], np.float32)
        self.observation_space = Box(np.zeros(4, np.float32), high)
        self.action_space = Discrete(5)
        self.state: Floats = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Floats, Info]:
        """Start with some grass, animals and hay."""
        super().reset(seed=seed)
        grass, hay = self.np_random.uniform([1.0, 0.0], [5.0, 6.0])
        herd, wet = self.np_random.integers([6, 0], [32, 2])
        self.state = np.array([grass, herd, hay, wet], np.float32)
        return self.state.copy(), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, Info]:
        """Act, graze, grow grass and update the herd."""
        grass, animals, hay, wet = self.state.tolist()
        herd, reward = int(animals), 0.0
        if action == 1:
            sold = min(6, herd)
            herd, reward = herd - sold, self.price * sold
        elif action == 2:
            bought = min(6, 60 - herd)
            herd, reward = herd + bought, -1.15 * self.price * bought
        elif action == 3:
            hay, grass = min(hay + 1.7 * 0.28 * grass, 20.0), 0.72 * grass
        need = self.intake * herd
        starving = False
        if action == 4 and hay >= 2.3 * need:
            hay -= 2.3 * need
        else:
            starving = grass - need < 0.4
            grass = max(grass - need, 0.25)
        growth = (0.31 if wet == 1.0 else 0.09) * grass * (1.0 - grass / self.grass_limit)
        grass = min(grass + growth * math.exp(self.np_random.normal(0.0, 0.24)), 6.0)
        born = 0 if starving else int(self.np_random.binomial(herd, 0.062))
        died = int(self.np_random.binomial(herd, 0.27 if starving else 0.018))
        herd = min(herd + born - died, 60)
        if self.np_random.random() < (0.33 if wet == 1.0 else 0.19):
            wet = 1.0 - wet
        reward -= 0.017 * herd
        self.state = np.array([grass, herd, hay, wet], np.float32)
        gone = herd == 0
        return self.state.copy(), reward - (12.0 if gone else 0.0), gone, False, {}
