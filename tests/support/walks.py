"""Recorded walks on a board of six cells."""

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space

BOARD = Space("box", shape=(1, 6), low=(0,) * 6, high=(1,) * 6)

WAYS = Space("discrete", low=(0,), high=(1,))


def walks(episodes=40, *, bounces=False, seed=0):
    """Record walks on a board of six cells: left, or right to a reward that ends them.

    Objects that `bounce` move in their direction to a wall and back, without regard to the action.
    """
    rng, rows = np.random.default_rng(seed), []
    for episode in range(episodes):
        at, way = int(rng.integers(1, 5)), 2 * int(rng.integers(2)) - 1
        for _ in range(8):
            action = int(rng.integers(2))
            way = {0: 1, 5: -1}.get(at, way) if bounces else 2 * action - 1
            after = min(max(at + way, 0), 5)
            over = after == 5 and not bounces
            rows.append(
                Transition(board(at), action, board(after), float(over), over, episode=episode)
            )
            at = after
            if over:
                break
    return Dataset.of(rows, observation_space=BOARD, action_space=WAYS)


def board(at):
    """Return a board with one cell set."""
    found = np.zeros((1, 6), np.int64)
    found[0, at] = 1
    return found
