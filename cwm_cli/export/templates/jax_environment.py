"""The world model as pure functions of JAX, for `jit`, `vmap` and `lax.scan`.

    keys = jax.random.split(jax.random.key(0), 1024)
    observations, states = jax.vmap(reset)(keys)
    observations, states, rewards, dones, infos = jax.vmap(step)(keys, states, actions)

Numbers have the precision of JAX, which is single by default
(`jax.config.update("jax_enable_x64", True)` makes it double).
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .values import plain, space_of, typed_bounds

WORLD = json.loads(Path(__file__).with_name("world.json").read_text(encoding="utf-8"))
SPACE = space_of(WORLD["observation_space"], WORLD["characters"])
STARTS = jnp.array([np.ravel(plain(SPACE)(start["observation"])) for start in WORLD["starts"]])
LOW, HIGH = (jnp.array(bound) for bound in typed_bounds(SPACE))
LIMIT = WORLD["max_episode_steps"]

take_step = import_module(f"{__package__}.{WORLD['jax']}").step


class WorldModelState(NamedTuple):
    """The numbers of an environment, and the steps of its episode so far."""

    numbers: jax.Array
    time: jax.Array


def reset(key: jax.Array) -> tuple[jax.Array, WorldModelState]:
    """Start an episode at a recorded initial observation; return the observation and the state."""
    start = jax.random.choice(key, STARTS)
    numbers = start if SPACE.shape else start[0]
    state = WorldModelState(numbers, jnp.zeros((), int))
    return observe(state), state


def step(
    key: jax.Array, state: WorldModelState, action: jax.Array
) -> tuple[jax.Array, WorldModelState, jax.Array, jax.Array, dict[str, Any]]:
    """Take an action; an episode that ends is followed by the start of another one.

    Returns:
        The observation (of the next episode if this one ends), the state, the reward, whether the
        episode ended, and `terminated` (as opposed to the time limit) with the last `observation`.
        The reward is NaN where only `program.py` can compute the step.
    """
    key, draw_key = jax.random.split(key)
    draw = (jax.random.uniform(draw_key),) if WORLD["abilities"]["tells"] else ()
    numbers, reward, terminated = take_step(state.numbers, action, *draw)
    following = WorldModelState(numbers, state.time + 1)
    done = terminated if LIMIT is None else terminated | (following.time >= LIMIT)
    last = observe(following)
    first, fresh = reset(key)
    chosen = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, following)
    info = {"terminated": terminated, "observation": last}
    return jnp.where(done, first, last), chosen, reward, done, info


def observe(state: WorldModelState) -> jax.Array:
    """Return the observation of a state, clipped to the bounds of its space."""
    clipped = jnp.clip(state.numbers, LOW, HIGH)
    return clipped.reshape(SPACE.shape) if SPACE.shape else clipped
