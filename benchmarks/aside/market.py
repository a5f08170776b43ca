"""A merchant of grain with a store, a purse and a loan."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.aside.base import Simulator, Vector


class GrainTrader(Simulator):
    """A merchant buys and sells grain week by week.

    ## Action Space

    | Num | Action                                 |
    |-----|----------------------------------------|
    | 0   | Hold                                   |
    | 1   | Buy 3 sacks                            |
    | 2   | Buy 1 sack                             |
    | 3   | Sell 1 sack                            |
    | 4   | Sell 3 sacks                           |
    | 5   | Take the loan of 60, or pay back 66    |

    ## Observation Space

    | Num | Observation              | Min  | Max |
    |-----|--------------------------|------|-----|
    | 0   | Price of a sack          | 0    | Inf |
    | 1   | Sacks in store           | 0    | 20  |
    | 2   | Cash                     | -Inf | Inf |
    | 3   | Week of the year         | 0    | 51  |
    | 4   | Loan (0 none, 1 taken)   | 0    | 1   |

    Orders are cut to what the store holds and the cash pays. The price follows the season and
    moves with every trade. Rent, storage and interest are due each week. The reward is the change
    of the wealth (cash, grain at its price, less 60 for a loan). The episode ends with cash
    below zero, or at 170 and more.
    """

    ORDERS = (0, 3, 1, -1, -3, 0)

    def __init__(self) -> None:
        low = np.array([0.0, 0.0, -np.inf, 0.0, 0.0])
        high = np.array([np.inf, 20.0, np.inf, 51.0, 1.0])
        self.observation_space = spaces.Box(low, high, dtype=np.float64)
        self.action_space = spaces.Discrete(6)
        self.price, self.cash = 11.3, 50.0
        self.sacks, self.week, self.loan = 0, 0, 0

    def _start(self) -> None:
        self.price, self.cash = self.np_random.uniform((7.0, 20.0), (16.0, 120.0)).tolist()
        self.sacks = int(self.np_random.integers(13))
        self.week = int(self.np_random.integers(52))
        self.loan = int(self.np_random.integers(2))

    def _wealth(self) -> float:
        return self.cash + self.price * self.sacks - 60.0 * self.loan

    def _advance(self, action: Any) -> tuple[float, bool]:
        before = self._wealth()
        traded = self._trade(self.ORDERS[action])
        if action == 5:
            self._borrow()
        self.cash -= 2.4 + 0.12 * self.sacks + 0.9 * self.loan
        season = 11.3 + 3.4 * math.sin(2 * math.pi * self.week / 26)
        self.price = (self.price + 0.22 * (season - self.price)) * (1 + 0.021 * traded) ** 1.4
        self.week = (self.week + 1) % 52
        return self._wealth() - before, self.cash < 0.0 or self.cash >= 170.0

    def _trade(self, order: int) -> int:
        affordable = int(max(self.cash, 0.0) // self.price)
        traded = max(min(order, 20 - self.sacks, affordable), -self.sacks)
        self.sacks += traded
        self.cash -= traded * self.price
        return traded

    def _borrow(self) -> None:
        if not self.loan:
            self.cash, self.loan = self.cash + 60.0, 1
        elif self.cash >= 66.0:
            self.cash, self.loan = self.cash - 66.0, 0

    def _observe(self) -> Vector:
        return np.array([self.price, self.sacks, self.cash, self.week, self.loan], np.float64)
