"""Stalls, farms, buses and accounts."""

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import clamp
from benchmarks.contracts.base import ContractSystem, box


class Bazaar(ContractSystem):
    """Prices of four goods that swing wildly.

    | Num    | Observation | Min | Max |
    |--------|-------------|-----|-----|
    | 0 to 3 | price       | 0   | 1   |

    A price p becomes r p (1 - p), mixed with a tenth of the mean of all prices. The action
    chooses r of 3.6, 3.75 and 3.9 for the first two goods, and r is 3.8 for the last two. The
    reward is the last price less the first.
    """

    shown = ("prices",)

    def __init__(self) -> None:
        self.observation_space = box([0] * 4, [1] * 4)
        self.action_space = spaces.Discrete(3)
        self.prices: tuple[float, ...] = (0.5,) * 4

    def _observe(self) -> Any:
        return np.array(self.prices)

    def place(self, observation: Any) -> None:
        """Set the prices."""
        self.prices = tuple(observation.tolist())

    def _start(self) -> None:
        self.prices = tuple(self.np_random.uniform(0.1, 0.9, 4).tolist())

    def _advance(self, action: Any) -> tuple[float, bool]:
        rate = 3.6 + 0.15 * int(action)
        grown = [
            r * price * (1 - price)
            for r, price in zip((rate, rate, 3.8, 3.8), self.prices, strict=True)
        ]
        mean = sum(grown) / 4
        self.prices = tuple(0.9 * price + 0.1 * mean for price in grown)
        return self.prices[3] - self.prices[0], False


class Stall(ContractSystem):
    """A stall at a fair with cans on shelves.

    | Num | Observation          | Min | Max |
    |-----|----------------------|-----|-----|
    | 0   | distance to the cans | 0   | 5   |
    | 1   | shelf aimed at       | 0   | 3   |

    Action 0 throws a ball, which has a reward of 1 if it hits, with probability
    0.8 - 0.12 times the distance, and steps back by 1 after it. Action 1 steps forward by 2,
    and action 2 aims at the next shelf.
    """

    shown = ("distance", "shelf")

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([6, 4])
        self.action_space = spaces.Discrete(3)
        self.distance = self.shelf = 0

    def _start(self) -> None:
        self.distance, self.shelf = self.np_random.integers([6, 4]).tolist()

    def _advance(self, action: Any) -> tuple[float, bool]:
        if action == 1:
            self.distance = max(self.distance - 2, 0)
        elif action == 2:
            self.shelf = (self.shelf + 1) % 4
        else:
            hit = self.np_random.random() < 0.8 - 0.12 * self.distance
            self.distance = min(self.distance + 1, 5)
            return float(hit), False
        return 0.0, False


class Shuttle(ContractSystem):
    """A traveller and a bus that circles between six stops.

    The observation is the stop of the traveller, from 0 to 5. The bus begins each episode at stop
    0 and goes to the next stop in each step, and from 5 to 0. Action 0 walks back by a stop,
    1 waits and 2 boards: if the bus is at the stop of the traveller, it carries the traveller
    two stops ahead for a reward of 1, else the fare of 0.1 is lost.
    """

    shown = ("stop",)
    hidden = ("bus",)

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(6)
        self.action_space = spaces.Discrete(3)
        self.stop = self.bus = 0

    def _observe(self) -> Any:
        return self.stop

    def _start(self) -> None:
        self.stop, self.bus = int(self.np_random.integers(6)), 0

    def _advance(self, action: Any) -> tuple[float, bool]:
        boarded = action == 2 and self.bus == self.stop
        self.bus = (self.bus + 1) % 6
        if boarded:
            self.stop = (self.stop + 2) % 6
            return 1.0, False
        if action == 0:
            self.stop = (self.stop - 1) % 6
        return -0.1 if action == 2 else 0.0, False


class Vineyard(ContractSystem):
    """A vineyard that sells to a merchant who pays late.

    | Num | Observation                 | Min | Max |
    |-----|-----------------------------|-----|-----|
    | 0   | grapes                      | 0   | 5   |
    | 1   | season, 3 is the winter     | 0   | 3   |

    The season changes in each step. Action 0 tends the vines: one more grape, except in
    winter, at a cost of 0.1. Action 1 sells all grapes for 1 each, and the merchant pays
    three steps later. Action 2 rests, and half of the grapes, rounded down, remain.
    """

    shown = ("grapes", "season")
    hidden = ("payments",)

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([6, 4])
        self.action_space = spaces.Discrete(3)
        self.grapes = self.season = 0
        self.payments: tuple[int, ...] = (0, 0, 0)

    def _start(self) -> None:
        self.grapes, self.season = self.np_random.integers([6, 4]).tolist()
        self.payments = (0, 0, 0)

    def _advance(self, action: Any) -> tuple[float, bool]:
        paid, *rest = self.payments
        sold = self.grapes if action == 1 else 0
        self.payments = (*rest, sold)
        if action == 1:
            self.grapes = 0
        elif action == 2:
            self.grapes //= 2
        elif self.season < 3:
            self.grapes = min(self.grapes + 1, 5)
        self.season = (self.season + 1) % 4
        return paid - (0.1 if action == 0 else 0.0), False


class Ledger(ContractSystem):
    """The balances of eight accounts of a club.

    | Num    | Observation                                 | Min | Max |
    |--------|---------------------------------------------|-----|-----|
    | 0 to 6 | balance of the account                      | 0   | 15  |
    | 7      | balance of the savings one step ago         | 0   | 15  |

    Actions 0 to 6 move a fifth of the balance of that account to the next of the accounts 0 to
    6, in a circle. Action 7 pays 1 into the savings from outside, action 8 moves half of the
    savings to account 0, and action 9 does nothing. No account holds more than 15. The bank
    shows the savings one step late. The reward is the balance of account 0 divided by 15.
    """

    shown = ("accounts", "statement")
    hidden = ("savings",)

    def __init__(self) -> None:
        self.observation_space = box([0] * 8, [15] * 8, np.float32)
        self.action_space = spaces.Discrete(10)
        self.accounts: tuple[float, ...] = (5.0,) * 7
        self.savings = self.statement = 5.0

    def _observe(self) -> Any:
        return np.array([*self.accounts, self.statement], np.float32)

    def _start(self) -> None:
        *accounts, self.savings = self.np_random.uniform(1, 8, 8).tolist()
        self.accounts, self.statement = tuple(accounts), self.savings

    def _advance(self, action: Any) -> tuple[float, bool]:
        self.statement = self.savings
        accounts = list(self.accounts)
        if action < 7:
            moved = accounts[action] / 5
            accounts[action] -= moved
            accounts[(action + 1) % 7] += moved
        elif action == 7:
            self.savings = min(self.savings + 1, 15.0)
        elif action == 8:
            self.savings /= 2
            accounts[0] += self.savings
        self.accounts = tuple(clamp(balance, 0, 15) for balance in accounts)
        return self.accounts[0] / 15, False
