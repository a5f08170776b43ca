"""What the true environment does when it is timed."""

from collections.abc import Iterator
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.bench.speed.pace import Walk
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec, Rewinder
from cwm_cli.envs.tasks import Task, seeds_of

if TYPE_CHECKING:
    import gymnasium as gym

ALONE, MANY = "environment", "environments"
"""Names of walks."""

LANES, STEPS = 1000, 10
"""Plans that are played side by side, and their steps, where an environment can do that."""


def walks_of(
    spec: EnvironmentSpec, env: "gym.Env[Any, Any]", task: Task, rows: Dataset
) -> dict[str, Walk]:
    """Return what steps an environment, one by one and, where it can, many copies at once.

    It takes the actions of the rows, from one episode to the next; neither
    resets nor what wrappers do is timed.
    """
    walks = {ALONE: _stepping(env, task, rows)}
    if (rewinder := spec.rewinder(env) if spec.rewinder else None) is not None:
        walks[MANY] = _batched(env, rewinder, task.seed)
    return walks


def _stepping(env: "gym.Env[Any, Any]", task: Task, rows: Dataset) -> Walk:
    """Return what takes steps, from one episode to the next."""
    acts = _acts(env, task, rows)

    def walk(steps: int) -> tuple[int, float]:
        return steps, sum(next(acts) for _ in range(steps))

    return walk


def _acts(env: "gym.Env[Any, Any]", task: Task, rows: Dataset) -> Iterator[float]:
    """Yield the seconds of one step after the other; an action that is not allowed is replaced."""
    actions = cycle([row.action for row in rows])
    bare, episode = env.unwrapped, 0
    while True:
        env.reset(seed=seeds_of(task.seed, episode)[0])
        episode += 1
        for _ in range(task.limit):
            action, allowed = next(actions), task.allowed(env)
            if allowed is not None and action not in allowed:
                action = allowed[0]
            started = perf_counter()
            _, _, terminated, truncated, _ = bare.step(action)
            yield perf_counter() - started
            if terminated or truncated:
                break


def _batched(env: "gym.Env[Any, Any]", rewinder: Rewinder, seed: int) -> Walk:
    """Return what plays random plans in many copies at once, from where an episode begins."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    actions = np.array([env.action_space.sample() for _ in range(LANES * STEPS)])
    state, plans = rewinder.save(), actions.reshape(1, LANES, STEPS, *actions.shape[1:])

    def walk(steps: int) -> tuple[int, float]:
        transitions, started = 0, perf_counter()
        for _ in range(steps):
            played = rewinder.returns([state], plans)
            transitions += played[1] if played else 0
        return transitions, perf_counter() - started

    return walk
