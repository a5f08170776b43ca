"""Values of known states, from the last step of an episode backwards."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

Numbers = Sequence[float] | np.ndarray


class Dynamics(NamedTuple):
    """What actions lead to, in arrays: states have actions, and actions have outcomes.

    A state without actions keeps its value.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    outcomes: np.ndarray
    following: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(
        cls,
        actions: Numbers,
        rewards: Numbers,
        outcomes: Numbers,
        following: Numbers,
        shares: Numbers,
    ) -> Self:
        """Say how many actions each state has, and how many outcomes each of these."""
        counts = np.array(actions)
        return cls(
            np.flatnonzero(counts),
            _starts(counts[counts > 0]),
            np.array(rewards),
            _starts(np.array(outcomes)),
            np.array(following),
            np.array(shares),
        )

    def back_up(self, values: np.ndarray, discount: float) -> np.ndarray:
        """Return the values of all actions, given those of the states that follow."""
        expected = np.add.reduceat(self.shares * values[self.following], self.outcomes)
        backed_up: np.ndarray = self.rewards + discount * expected
        return backed_up

    def improve(self, values: np.ndarray, discount: float) -> np.ndarray:
        """Return the values of states with one step more to go."""
        improved = values.copy()
        improved[self.states] = np.maximum.reduceat(self.back_up(values, discount), self.actions)
        return improved


def _starts(counts: np.ndarray) -> np.ndarray:
    """Return where parts of these lengths start."""
    starts: np.ndarray = np.cumsum(counts) - counts
    return starts
