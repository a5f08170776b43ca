"""The function `step` in JAX: it draws from the outcomes that `program.py` lists."""

import jax
import jax.numpy as jnp

from .outcomes_batched import CUMULATIVE, NEXT_ENDS, NEXT_REWARDS, NEXT_STATES, WIDTH
from .outcomes_single import ACTIONS, FIRST_ACTION, FIRST_STATE

TABLES = [jnp.array(table) for table in (NEXT_STATES, NEXT_REWARDS, NEXT_ENDS)]
CHANCES = jnp.array(CUMULATIVE)


def step(
    state: jax.Array, action: jax.Array, draw: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Take an action in one environment; use `jax.vmap` for many.

    `draw` is a random number from 0 to 1. Returns the next state, the reward, and whether the
    episode ended. The reward is NaN where only `program.py` can compute the step.
    """
    row = (state - FIRST_STATE) * ACTIONS + action - FIRST_ACTION
    outcome = jnp.minimum((CHANCES[row] <= draw).sum(), WIDTH - 1)
    states, rewards, ends = (table[row, outcome] for table in TABLES)
    return states, rewards, ends
