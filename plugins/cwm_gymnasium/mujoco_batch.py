"""Returns of many plans in a MuJoCo environment of Gymnasium, all at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from math import prod
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from cwm_gymnasium.mujoco_formulas import rewards_of
from cwm_gymnasium.mujoco_lanes import Lanes, lanes, state_of
from cwm_gymnasium.mujoco_rewards import Rewards

MOST = 4096
"""Simulations side by side."""

TOLERANCE = 1e-6

WANDERED = (0, 2, 10)
"""Steps before the states from which a batch is compared with the environment."""

PLANS, STEPS = 4, 30


class Played(NamedTuple):
    """The sums of rewards of plans, and after how many steps each was over."""

    returns: np.ndarray
    steps: np.ndarray


class Rewinder(Protocol):
    """Saves and restores an environment."""

    def save(self) -> Any:
        """Return a state, whose `data` is an `MjData`."""

    def load(self, state: Any) -> None:
        """Go on from a state."""


class Plays:
    """Plays plans in as many simulations, and computes the rewards of all of them together."""

    def __init__(self, env: Any, rewards: Rewards, threads: int) -> None:
        self._env = env
        self._rewards = rewards
        self._threads = threads
        self._lanes: Lanes | None = None

    @classmethod
    def of(cls, env: Any) -> Self | None:
        """Return what plays in an environment, if the rules of its rewards are known."""
        rewards = rewards_of(env)
        return cls(env, rewards, _cores()) if rewards else None

    def __call__(self, starts: Sequence[Any], plans: np.ndarray) -> Played:
        """Play plans (starts, plans, steps, components) from each start, an `MjData`."""
        owners = np.repeat(np.arange(len(starts)), plans.shape[1])
        flat = plans.reshape(len(owners), *plans.shape[2:])
        shares = range(0, len(owners), MOST)
        parts = [self._play(starts, owners[i : i + MOST], flat[i : i + MOST]) for i in shares]
        returns, steps = (
            np.concatenate(part).reshape(plans.shape[:2]) for part in zip(*parts, strict=True)
        )
        return Played(returns, steps)

    def _play(self, starts: Sequence[Any], owners: np.ndarray, plans: np.ndarray) -> Played:
        """Play one plan from each of the owners' starts, side by side."""
        count, horizon = plans.shape[:2]
        rewards, many = self._rewards, self._enough(count)
        many.states[:count] = np.array([state_of(self._env.model, s) for s in starts])[owners]
        view = {f: np.array([getattr(s, f) for s in starts])[owners] for f in rewards.fields}
        measured = rewards.measure(view)
        returns, steps = np.zeros(count), np.full(count, horizon)
        live = np.arange(count, dtype=np.int32)
        for step in range(horizon):
            actions = plans[live, step]
            before, (view, measured) = measured, self._step(many, live, actions)
            gained, ended = rewards.judge(view, before, measured, actions)
            returns[live] += gained
            if ended is not None and ended.any():
                steps[live[ended]] = step + 1
                live, measured = live[~ended], measured[~ended]
                if not len(live):
                    break
        return Played(returns, steps)

    def _step(
        self, many: Lanes, live: np.ndarray, actions: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Take actions in the simulations that live; return what the rewards read."""
        everyone = len(live) == many.count
        many.controls[live] = actions
        many.step(None if everyone else live)
        fields = many.fields
        view = {f: fields[f] if everyone else fields[f][live] for f in self._rewards.fields}
        measured = self._rewards.measure(view)
        return view, measured.copy()

    def _enough(self, count: int) -> Lanes:
        """Return at least as many lanes."""
        if self._lanes is None or self._lanes.count < count:
            rewards = self._rewards
            self._lanes = lanes(
                self._env, count, rewards.fields, forces=rewards.forces, threads=self._threads
            )
        return self._lanes


def difference(rewinder: Rewinder, env: Any, plays: Plays | None) -> str:
    """Say how a batch differs from stepping the environment, nothing where it does not."""
    if plays is None:
        return "its rewards are not known in a form for many simulations"
    space = deepcopy(env.action_space)
    space.seed(0)
    home = rewinder.save()
    starts = [_wander(rewinder, env, space, length) for length in WANDERED]
    shape = (len(starts), PLANS, STEPS)
    plans = np.array([space.sample() for _ in range(prod(shape))], float).reshape(*shape, -1)
    played = plays([start.data for start in starts], plans)
    expected = [
        _stepped(rewinder, env, s, plan)
        for s, own in zip(starts, plans, strict=True)
        for plan in own
    ]
    rewinder.load(home)
    returns, steps = zip(*expected, strict=True)
    if played.steps.ravel().tolist() != list(steps):
        return "a batch terminates at other steps than the environment"
    if not np.allclose(played.returns.ravel(), returns, rtol=TOLERANCE, atol=0):
        return "a batch has other returns than the environment"
    return ""


def _wander(rewinder: Rewinder, env: Any, space: Any, length: int) -> Any:
    """Return the state after a few random steps."""
    env.reset()
    for _ in range(length):
        env.step(space.sample())
    return rewinder.save()


def _stepped(rewinder: Rewinder, env: Any, state: Any, plan: np.ndarray) -> tuple[float, int]:
    """Return the sum of rewards of a plan, and after how many steps it was over."""
    rewinder.load(state)
    returned = 0.0
    for step, action in enumerate(plan):
        _, reward, terminated, _, _ = env.step(action)
        returned += reward
        if terminated:
            return returned, step + 1
    return returned, len(plan)


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
