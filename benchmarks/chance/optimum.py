"""Exact returns of policies in finite environments with known probabilities."""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.worlds import ProgramModel


class Dynamics(NamedTuple):
    """The outcomes of a finite environment, with one entry per outcome of each state and action.

    Attributes:
        pair: Index of state and action: state * actions + action.
        probability: Probability of the outcome; the sum over a pair is 1.
        state: Next state.
        reward: Reward.
        ended: Whether the episode ends.
        states: Number of states.
        actions: Number of actions.
    """

    pair: np.ndarray
    probability: np.ndarray
    state: np.ndarray
    reward: np.ndarray
    ended: np.ndarray
    states: int
    actions: int

    def action_values(self, values: np.ndarray) -> np.ndarray:
        """Return the values of actions, shape (states, actions), given values of next states."""
        worth = self.probability * (self.reward + ~self.ended * values[self.state])
        pairs = np.bincount(self.pair, worth, minlength=self.states * self.actions)
        return pairs.reshape(self.states, self.actions)


def true_dynamics(env: gym.Env[Any, Any]) -> Dynamics:
    """Return the outcomes of an environment of Gymnasium from its table `P`."""
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


def program_dynamics(model: ProgramModel, env: gym.Env[Any, Any], truth: Dynamics) -> Dynamics:
    """Return the outcomes that a program predicts for all states and actions of `truth`."""
    rows = [
        Transition(state, action, state, 0.0, False, episode=state * truth.actions + action)
        for state in range(truth.states)
        for action in range(truth.actions)
    ]
    data = Dataset.of(
        rows,
        observation_space=space_of(env.observation_space),
        action_space=space_of(env.action_space, "actions"),
    )
    found = model.predict(data, draws=64)
    if found.failure is not None:
        raise SystemExit(f"the program fails at a state: {found.failure.message}")
    lines = []
    for columns, shares in found.answers():
        known = np.flatnonzero(shares > 0)
        parts = columns["next_observations"], columns["rewards"], columns["terminations"]
        lines.append([known, shares[known], *(part[known] for part in parts)])
    joined = [np.concatenate(parts) for parts in zip(*lines, strict=True)]
    return Dynamics(*joined, truth.states, truth.actions)


def plan_return(model: Dynamics, truth: Dynamics, starts: np.ndarray, limit: int) -> float:
    """Return the expected return in `truth` of the optimal policy of `model`.

    Args:
        model: Dynamics for planning.
        truth: Dynamics for acting.
        starts: Probability of each initial state.
        limit: Number of steps. The policy is optimal for the number of remaining steps.
    """
    believed, true = np.zeros(truth.states), np.zeros(truth.states)
    every = np.arange(truth.states)
    for _ in range(limit):
        values = model.action_values(believed)
        chosen = values.argmax(axis=1)
        believed = values[every, chosen]
        true = truth.action_values(true)[every, chosen]
    return float(starts @ true)


def share(value: float, best: float) -> float:
    """Return 1 minus the loss as a fraction of the absolute best value."""
    return 1.0 - (best - value) / max(abs(best), 1e-12)
