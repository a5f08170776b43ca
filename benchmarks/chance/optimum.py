"""Values of finite worlds with known probabilities: the best policy, and what a plan is worth."""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.worlds import ProgramModel


class Dynamics(NamedTuple):
    """All that can follow in a finite world, one line for each outcome of each pair.

    `pair` is the number of state and action (state * actions + action), `state` what follows;
    those of a pair have probabilities that sum to 1.
    """

    pair: np.ndarray
    probability: np.ndarray
    state: np.ndarray
    reward: np.ndarray
    ended: np.ndarray
    states: int
    actions: int

    def backed_up(self, values: np.ndarray) -> np.ndarray:
        """Return what every action is worth in every state, if states are worth `values` then."""
        worth = self.probability * (self.reward + ~self.ended * values[self.state])
        pairs = np.bincount(self.pair, worth, minlength=self.states * self.actions)
        return pairs.reshape(self.states, self.actions)


def true_dynamics(env: gym.Env[Any, Any]) -> Dynamics:
    """Read the probabilities that an environment of Gymnasium holds in its table `P`."""
    table: Any = env.unwrapped.P  # type: ignore[attr-defined]
    states, actions = len(table), len(table[0])
    lines = [
        (state * actions + action, *outcome)
        for state in range(states)
        for action in range(actions)
        for outcome in table[state][action]
    ]
    pair, probability, after, reward, ended = map(np.array, zip(*lines, strict=True))
    return Dynamics(
        pair, probability, after, reward.astype(float), ended.astype(bool), states, actions
    )


def told_dynamics(model: ProgramModel, env: gym.Env[Any, Any], truth: Dynamics) -> Dynamics:
    """Ask a program what can follow in every state that the environment has, in the sandbox."""
    rows = [
        Transition(state, action, state, 0.0, False, episode=state * truth.actions + action)
        for state in range(truth.states)
        for action in range(truth.actions)
    ]
    asked = Dataset.of(
        rows,
        observation_space=space_of(env.observation_space),
        action_space=space_of(env.action_space, "actions"),
    )
    found = model.predict(asked, draws=64)
    if found.failure is not None:
        raise SystemExit(f"the program fails at a state: {found.failure.message}")
    lines = []
    for columns, shares in found.answers():
        known = np.flatnonzero(shares > 0)
        parts = columns["next_observations"], columns["rewards"], columns["terminations"]
        lines.append([known, shares[known], *(part[known] for part in parts)])
    joined = [np.concatenate(parts) for parts in zip(*lines, strict=True)]
    return Dynamics(*joined, truth.states, truth.actions)


def planned(told: Dynamics, truth: Dynamics, starts: np.ndarray, limit: int) -> float:
    """Return what the plans of one are worth in the other, from starts with their chances.

    In `limit` steps, the best action of those left being taken each time.
    """
    believed, true = np.zeros(truth.states), np.zeros(truth.states)
    every = np.arange(truth.states)
    for _ in range(limit):
        worth = told.backed_up(believed)
        chosen = worth.argmax(axis=1)
        believed = worth[every, chosen]
        true = truth.backed_up(true)[every, chosen]
    return float(starts @ true)


def share(value: float, best: float) -> float:
    """Return a value as a share of the best one; below nothing it is how little is lost of it."""
    return 1.0 - (best - value) / max(abs(best), 1e-12)
