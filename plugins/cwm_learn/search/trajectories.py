"""Trajectories through a model: actions, and the predicted observations and rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from cwm_learn.search.rollouts import LaneSimulator, discount_outside_data


class ImaginedTrajectory(NamedTuple):
    """Actions (steps, ...), and the observations (steps, components) and rewards that follow.

    `ended` is whether the episode ends with the last action. `gains` (steps, action, components)
    are feedback gains: the change of an action per deviation of the observation before it.
    """

    actions: np.ndarray
    observations: np.ndarray
    rewards: np.ndarray
    ended: bool
    gains: np.ndarray | None = None

    @property
    def value(self) -> float:
        """The return; minus infinity without steps."""
        return float(self.rewards.sum()) if len(self.rewards) else -np.inf

    def cautious_value(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Compute the return with rewards reduced outside the visited range."""
        if not len(self.rewards):
            return -np.inf
        return float(discount_outside_data(self.rewards, self.observations.T, arrays).sum())


EMPTY = ImaginedTrajectory(np.empty(0), np.empty(0), np.empty(0), ended=False)


def simulate(
    simulator: LaneSimulator,
    start: np.ndarray,
    choose: Callable[[int, np.ndarray], np.ndarray],
    horizon: int,
) -> ImaginedTrajectory:
    """Simulate one lane until the episode ends, the program diverges or the horizon is reached.

    `choose` returns the action (..., 1) for a step number and an observation (components, 1).
    """
    now, ended = start[:, None], False
    actions: list[np.ndarray] = []
    observations: list[np.ndarray] = []
    rewards: list[float] = []
    while len(actions) < horizon and not ended:
        action = choose(len(actions), now)
        now, reward, ends, diverged = simulator.step(now, action)
        if diverged[0]:
            break
        actions.append(action[..., 0])
        observations.append(now[:, 0])
        rewards.append(float(reward[0]))
        ended = bool(ends[0])
    return ImaginedTrajectory(np.array(actions), np.array(observations), np.array(rewards), ended)


def simulate_plan(
    simulator: LaneSimulator, start: np.ndarray, actions: np.ndarray
) -> ImaginedTrajectory:
    """Simulate given actions (steps, ...)."""
    return simulate(simulator, start, lambda step, _: actions[step][..., None], len(actions))
