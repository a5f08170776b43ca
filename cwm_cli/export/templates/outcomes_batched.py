"""The function `step` in NumPy: it draws from the outcomes that `program.py` lists."""

import numpy as np

from .outcomes_single import ACTIONS, CHANCES, ENDS, FIRST_ACTION, FIRST_STATE, REWARDS, STATES

WIDTH = max(map(len, CHANCES))


def _filled(rows: list[list[float]], fill: float) -> np.ndarray:
    """Return rows as an array with `WIDTH` columns."""
    return np.array([[*row, *[fill] * (WIDTH - len(row))] for row in rows])


CUMULATIVE, NEXT_STATES = _filled(CHANCES, np.inf), _filled(STATES, 0).astype(np.int64)
NEXT_REWARDS, NEXT_ENDS = _filled(REWARDS, np.nan), _filled(ENDS, 0).astype(np.bool_)


def step(
    state: np.ndarray, action: np.ndarray, draws: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take an action in each environment; all arrays are (environments,).

    `draws` are random numbers from 0 to 1. Returns the next states, the rewards, and whether each
    episode ended. The reward is NaN where only `program.py` can compute the step.
    """
    row = (state - FIRST_STATE) * ACTIONS + action - FIRST_ACTION
    outcome = (CUMULATIVE[row] <= draws[:, None]).sum(axis=1).clip(max=WIDTH - 1)
    return NEXT_STATES[row, outcome], NEXT_REWARDS[row, outcome], NEXT_ENDS[row, outcome]
