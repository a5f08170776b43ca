"""Datasets of random steps in an environment."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.registry import environment


def rows_of(env: gym.Env[Any, Any], rows: int = 700, seed: int = 0) -> Dataset:
    """Record random steps of an environment."""
    env.action_space.seed(seed)
    return recorded(
        space_of(env.observation_space), space_of(env.action_space), played(env, rows, seed)
    )


def played(env: gym.Env[Any, Any], rows: int, seed: int) -> Iterator[Transition]:
    """Play random actions, at most 100 in an episode."""
    total, episode = 0, 0
    while total < rows:
        observation, _ = env.reset(seed=1000 * seed + episode)
        for _ in range(100):
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            yield Transition(
                observation, action, after, float(reward), terminated, truncated, episode
            )
            observation, total = after, total + 1
            if terminated or truncated:
                break
        episode += 1


def recorded(observations: Space, actions: Space, rows: Iterator[Transition]) -> Dataset:
    """Collect rows with these spaces."""
    return Dataset.of(list(rows), observation_space=observations, action_space=actions)


def poles(**arguments) -> Dataset:
    """Record random steps of a cart with a pole that is noisy or half hidden."""
    env = environment("CartPole-v1").make(**arguments)
    try:
        return rows_of(env, 300)
    finally:
        env.close()
