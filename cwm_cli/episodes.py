"""Play episodes of an environment with planned or random actions."""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.programs import Failure
from cwm_cli.sandbox import Session

if TYPE_CHECKING:
    import gymnasium as gym

LONGEST = 1000
"""Steps of an episode where neither the environment nor the user sets a limit."""

Policy = Callable[[Any, int], Sequence[Any]]
"""Returns the next actions at an observation with so many steps to go, at least one."""


class Episode(NamedTuple):
    """What an episode came to."""

    returned: float
    length: int


class Contest(NamedTuple):
    """Two episodes from the same start: one of a policy, one of random actions."""

    planned: Episode
    random: Episode


class Mean(NamedTuple):
    """A mean and its standard error, None when there is one value only."""

    mean: float
    stderr: float | None


def play(env: "gym.Env[Any, Any]", policy: Policy, *, seed: int, limit: int) -> Episode:
    """Play one episode, asking for more actions whenever they are used up."""
    observation, _ = env.reset(seed=seed)
    returned, length = 0.0, 0
    while length < limit:
        for action in policy(observation, limit - length):
            observation, reward, terminated, truncated, _ = env.step(action)
            returned, length = returned + np.asarray(reward).item(), length + 1
            if terminated or truncated:
                return Episode(returned, length)
    return Episode(returned, length)


def contests(
    env: "gym.Env[Any, Any]", policy: Policy, episodes: int, *, seed: int, limit: int
) -> Iterator[Contest]:
    """Play episodes, each also at random; a start does not depend on how many there are."""
    for number in range(episodes):
        reset, actions = np.random.SeedSequence([seed, number]).generate_state(2).tolist()
        planned = play(env, policy, seed=reset, limit=limit)
        yield Contest(planned, play(env, uniform(env, actions), seed=reset, limit=limit))


def step_limit(env: "gym.Env[Any, Any]", max_steps: int | None = None) -> int:
    """Return after how many steps an episode ends: the environment's own limit or a lower one."""
    own = env.spec.max_episode_steps if env.spec else None
    limits = [limit for limit in (own, max_steps) if limit is not None]
    return min(limits, default=LONGEST)


def uniform(env: "gym.Env[Any, Any]", seed: int) -> Policy:
    """Return the policy that draws every action from the action space."""
    space = deepcopy(env.action_space)
    space.seed(seed)
    return lambda observation, horizon: [space.sample()]


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of values and how sure it is."""
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(mean, None if spread is None else spread / len(values) ** 0.5)


@dataclass
class Pilot:
    """Plans in a sandbox; where the program fails it acts by `fallback` and counts that."""

    session: Session
    fallback: Policy
    decisions: int = 0
    model_steps: int = 0
    seconds: float = 0.0
    failures: int = 0
    first_failure: Failure | None = None

    def __call__(self, observation: Any, horizon: int) -> Sequence[Any]:
        """Return the next actions."""
        began = time.perf_counter()
        try:
            plan = self.session.plan(observation, horizon=horizon)
        except ValueError as error:
            raise CwmError(f"the environment breaks its own rules: {error}") from error
        self.seconds += time.perf_counter() - began
        self.decisions += 1
        self.model_steps += plan.steps
        if plan.failure is None:
            return plan.actions
        self.failures += 1
        self.first_failure = self.first_failure or plan.failure
        return self.fallback(observation, horizon)
