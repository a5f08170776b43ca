"""Tasks (an environment, with seeds and step limits of episodes), and suites of environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.spec import EnvironmentSpec


LONGEST = 1000
"""Step limit of an episode if neither the environment nor the user sets one."""

EPISODE_SEED_STRIDE = 1_000_003
"""Distance between seeds of imagined episodes: no episode gets the seed of another's step."""


@dataclass(frozen=True)
class Task:
    """An environment factory, the seed of all episodes, and their step limit.

    `valid` returns the valid actions in the current state of an environment, None if all are valid.
    `turn` is the entry of the observation with the player to move, if it is a game of two players.
    """

    make: Callable[[], gym.Env[Any, Any]]
    seed: int
    limit: int
    valid: Callable[[gym.Env[Any, Any]], Sequence[int] | None] | None = None
    turn: str = ""

    def make_episode(self, number: int) -> gym.Env[Any, Any]:
        """Return the environment of an episode; `number` makes a difference only in matches."""
        return self.make()

    def listed(self, env: gym.Env[Any, Any]) -> tuple[int, ...] | None:
        """Return the valid actions that the environment lists, none at an end; None without."""
        valid = None if self.valid is None else self.valid(env.unwrapped)
        return None if valid is None else tuple(map(int, valid))

    def allowed(self, env: gym.Env[Any, Any]) -> tuple[int, ...] | None:
        """Return the valid actions in the current state, None if all are valid."""
        return self.listed(env) or None


class Setting(NamedTuple):
    """A task as plain data: id and arguments of the environment, seed, and step limit."""

    env: str
    env_args: dict[str, Any]
    seed: int
    limit: int

    def task(self, spec: EnvironmentSpec) -> Task:
        """Return the task; `spec` is the environment with the id."""
        turn = spec.game.turn if spec.game else ""
        return Task(
            lambda: spec.make(**self.env_args), self.seed, self.limit, spec.valid_actions, turn
        )


def step_limit(env: gym.Env[Any, Any], max_steps: int | None = None) -> int:
    """Return the step limit of an episode: the limit of the environment, or a lower one."""
    own = env.spec.max_episode_steps if env.spec else None
    limits = [limit for limit in (own, max_steps) if limit is not None]
    return min(limits, default=LONGEST)


def seeds_of(seed: int, number: int) -> tuple[int, int]:
    """Return the two seeds of an episode: for the environment, and for random actions."""
    # A sum would give episode 1 of seed 0 the same seeds as episode 0 of seed 1.
    reset, random = np.random.SeedSequence([seed, number]).generate_state(2).tolist()
    return reset, random


def random_action(space: gym.Space[Any], allowed: tuple[int, ...] | None) -> Any:
    """Draw a random valid action."""
    if allowed is None:
        return space.sample()
    return allowed[space.np_random.integers(len(allowed))]


def reward_number(reward: Any) -> float:
    """Return a reward as a float; some environments return an array with one element.

    Raises:
        CwmError: The reward is not one finite number.
    """
    if isinstance(reward, int | float) and isfinite(reward):  # without an array, which takes longer
        return float(reward)
    values = np.asarray(reward, dtype=np.float64)
    if values.size != 1 or not np.isfinite(values).all():
        raise CwmError(f"the environment returned the reward {reward}: it must be a finite number")
    return float(values.item())


_CWMB = (
    "Blackjack-v1",
    "CliffWalking-v1",
    "Taxi-v4",
    "CartPole-v1",
    "MountainCar-v0",
    "Acrobot-v1",
    "Pendulum-v1",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Swimmer-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "RTFM-v0",
)

SUITES: Mapping[str, tuple[str, ...]] = {"cwmb": _CWMB, "cwmb-shifted": _CWMB[:-1]}
"""Environments of each suite.

`cwmb` is the Code World Models Benchmark (Dainese et al., NeurIPS 2024) in the order of the paper,
with the ids of current Gymnasium versions. `cwmb-shifted` contains its environments that have
shifted variants.
"""

SHIFTED = ("cwmb-shifted",)
"""Suites of shifted environments; the default seed of the shift is 0."""
