"""What is played: an environment, and the seeds and lengths of its episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.spec import EnvironmentSpec

LONGEST = 1000
"""Steps of an episode where neither the environment nor the user sets a limit."""

EPISODE_SEED_STRIDE = 1_000_003
"""Distance between seeds of imagined episodes: no episode gets the seed of another's step."""


@dataclass(frozen=True)
class Task:
    """How the environment is made, the seed of all episodes, and their most steps.

    `valid` names the actions that an environment allows where it stands, None where all are.
    """

    make: Callable[[], gym.Env[Any, Any]]
    seed: int
    limit: int
    valid: Callable[[gym.Env[Any, Any]], Sequence[int] | None] | None = None

    def allowed(self, env: gym.Env[Any, Any]) -> tuple[int, ...] | None:
        """Return the actions that are allowed where an environment stands, None where all are."""
        valid = None if self.valid is None else self.valid(env.unwrapped)
        return None if valid is None else tuple(map(int, valid)) or None


class Setting(NamedTuple):
    """A task in plain data: the environment by name, its arguments, the seed and the most steps."""

    env: str
    env_args: dict[str, Any]
    seed: int
    limit: int

    def task(self, spec: EnvironmentSpec) -> Task:
        """Return the task; `spec` is what the name stands for."""
        return Task(lambda: spec.make(**self.env_args), self.seed, self.limit, spec.valid_actions)


def step_limit(env: gym.Env[Any, Any], max_steps: int | None = None) -> int:
    """Return after how many steps an episode ends: the environment's own limit or a lower one."""
    own = env.spec.max_episode_steps if env.spec else None
    limits = [limit for limit in (own, max_steps) if limit is not None]
    return min(limits, default=LONGEST)


def seeds_of(seed: int, number: int) -> tuple[int, int]:
    """Return the seeds of an episode: of the environment, and of random actions."""
    reset, random = np.random.SeedSequence([seed, number]).generate_state(2).tolist()
    return reset, random


def random_action(space: gym.Space[Any], allowed: tuple[int, ...] | None) -> Any:
    """Draw an action from those that are allowed."""
    if allowed is None:
        return space.sample()
    return allowed[space.np_random.integers(len(allowed))]


def reward_number(reward: Any) -> float:
    """Return a reward, which some environments give as an array of one."""
    values = np.asarray(reward, dtype=np.float64)
    if values.size != 1 or not np.isfinite(values).all():
        raise CwmError(f"the environment returned the reward {reward}: it must be a finite number")
    return float(values.item())
