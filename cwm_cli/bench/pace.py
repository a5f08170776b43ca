"""How long one of many alike things takes: rounds, a median and what lies around it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

ROUND_SECONDS = 0.01
"""How long a round takes at least: the clock and whatever is around a round count for nothing."""

ROUNDS = 40
FEWEST_ROUNDS = 3
MOST_SECONDS = 2.0
"""After so long there are enough rounds, even if they are few."""

QUANTILES = (0.05, 0.95)

Walk = Callable[[int], tuple[int, float]]
"""Takes so many steps; returns how many transitions those were, and how many seconds they took."""


class Pace(NamedTuple):
    """Seconds per transition: the median of rounds, and their quantiles of 5 and 95 %.

    `warm_up` is what the very first transition took, which counts for nothing.
    """

    median: float
    low: float
    high: float
    rounds: int
    transitions: int
    warm_up: float

    @classmethod
    def of(cls, seconds: Sequence[float], transitions: int, warm_up: float) -> Self:
        """Summarise rounds by their seconds per transition."""
        low, high = np.quantile(seconds, QUANTILES).tolist()
        return cls(float(np.median(seconds)), low, high, len(seconds), transitions, warm_up)


def paces(walks: Mapping[str, Walk]) -> dict[str, Pace]:
    """Time rounds of several walks in turn, so that what slows the machine down slows them all.

    A first walk finds how many steps make a round. Those without any transition are left out.
    """
    timed = {name: _Rounds(walk) for name, walk in walks.items()}
    at_work = [rounds for rounds in timed.values() if rounds.warm_up()]
    while at_work:
        for rounds in at_work:
            rounds.turn()
        at_work = [rounds for rounds in at_work if not rounds.is_done]
    return {name: rounds.pace for name, rounds in timed.items() if rounds.seconds}


class _Rounds:
    """Times a walk, round by round."""

    def __init__(self, walk: Walk) -> None:
        self.seconds: list[float] = []
        self._walk = walk
        self._steps = 1
        self._first, self._taken, self._transitions = 0.0, 0.0, 0

    def warm_up(self) -> bool:
        """Find how many steps make a round; say whether there are any transitions at all."""
        transitions, self._first = self._walk(1)
        seconds = 0.0
        while transitions and seconds < ROUND_SECONDS:
            _, seconds = self._walk(self._steps)
            self._steps *= 1 if seconds >= ROUND_SECONDS else 2
        return transitions > 0

    def turn(self) -> None:
        """Time a round."""
        transitions, seconds = self._walk(self._steps)
        self.seconds.append(seconds / transitions)
        self._transitions += transitions
        self._taken += seconds

    @property
    def is_done(self) -> bool:
        """Whether there are rounds enough."""
        count = len(self.seconds)
        return count >= ROUNDS or (count >= FEWEST_ROUNDS and self._taken >= MOST_SECONDS)

    @property
    def pace(self) -> Pace:
        """What the rounds come to."""
        return Pace.of(self.seconds, self._transitions, self._first)
