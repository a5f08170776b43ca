"""The states of one search tree, in arrays."""

from typing import NamedTuple, Self

import numpy as np

from cwm_cli.planning.tree import UNTRIED


class Nodes(NamedTuple):
    """A row for every state, the first for the root, and a column for every action.

    `states` have one element more: whether the episode has ended. `used` is how
    many rows there are. `path` are the rows and the columns of one descent.
    """

    states: np.ndarray
    rewards: np.ndarray
    visits: np.ndarray
    tried: np.ndarray
    totals: np.ndarray
    values: np.ndarray
    children: np.ndarray
    path: np.ndarray
    used: np.ndarray

    @classmethod
    def room(cls, rows: int, actions: int, size: int) -> Self:
        """Make room for some states of a size."""
        return cls(
            states=np.zeros((rows, size + 1)),
            rewards=np.zeros(rows),
            visits=np.zeros(rows, np.int64),
            tried=np.zeros((rows, actions), np.int64),
            totals=np.zeros((rows, actions)),
            values=np.full((rows, actions), UNTRIED),
            children=np.full((rows, actions), -1),
            path=np.zeros((rows, 2), np.int64),
            used=np.zeros(1, np.int64),
        )


class Limits(NamedTuple):
    """How far a tree may grow, what it draws, and how it values what it finds."""

    simulations: int
    steps: int
    rollout: int
    horizon: int
    lowest: int
    actions: int
    exploration: float
    discount: float
    seed: np.uint64
