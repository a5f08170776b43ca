"""Search in a graph of states that walks discover: equal states are one, whatever led to them."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any, Self

import numpy as np

from cwm_cli.planning.induction import Dynamics
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.states import name
from cwm_cli.planning.tree import Effort, Tried, optimistic

LARGEST = 10_000
"""With more states than this a graph is begun anew, so that memory stays bounded."""

WORK = 1_000_000
"""Outcomes that are backed up for a decision; with more, values are begun with those of walks."""


class State:
    """What is known of a state: for every action the visits, the value and what followed."""

    __slots__ = (
        "actions",
        "outcomes",
        "rewards",
        "state",
        "terminated",
        "tried",
        "value",
        "values",
        "visits",
    )

    def __init__(self, state: Any, actions: Sequence[int]) -> None:
        count = len(actions)
        self.state = state
        self.actions = actions
        self.terminated = False
        self.value = 0.0
        self.visits = 0
        self.tried = [0] * count
        self.values = [-inf] * count
        self.rewards = [0.0] * count
        self.outcomes: list[dict[Self, int]] = [{} for _ in range(count)]


class Graph:
    """What walks through a model have found, from decision to decision of one episode.

    A walk takes the action of the highest upper confidence bound of its
    value, and before those any that was not tried yet. What is known of a
    model that always answers alike is not tried again. A decision is made by
    backward induction, so that nothing beyond the horizon counts.
    """

    def __init__(self, model: Model, effort: Effort) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._actions = range(int(low), int(high) + 1)
        self._model = model
        self._effort = effort
        self.states: dict[Any, State] = {}
        self._lowest, self._highest = inf, -inf

    def search(self, situation: Situation) -> Tried:
        """Walk until the effort is spent; return what is known at the situation.

        Steps that need not be taken again are counted as those that are.
        """
        if len(self.states) > LARGEST:
            self.states.clear()
        self._random = Random(int(situation.rng.integers(2**63)))  # noqa: S311  # no secret
        root = self._root(situation)
        left = inf if self._effort.budget is None else self._effort.budget
        for _ in range(self._effort.simulations):
            left -= self._walk(root, min(self._effort.rollout, situation.horizon))
            if left <= 0:
                break
        return Tried(root.actions, root.tried, self._induce(root, situation.horizon))

    def _root(self, situation: Situation) -> State:
        """Return the state of a situation, by the name that steps would give it."""
        state = situation.state
        if self._model.deterministic:
            self._model.stand(state)
            state = self._model.here()
        return self._known(name((state, False)), state, situation.valid)

    def _walk(self, state: State, length: int) -> int:
        """Walk so many steps, or to the end of the episode; back up values; count the steps."""
        path: list[tuple[State, int]] = []
        stands = False
        scale = self._effort.exploration * max(0.0, self._highest - self._lowest)
        while len(path) < length and not state.terminated:
            index = optimistic(state.values, state.tried, scale, self._random)
            path.append((state, index))
            state.visits += 1
            state.tried[index] += 1
            outcomes = state.outcomes[index]
            if outcomes and self._model.deterministic:
                (state,), stands = outcomes, False
                continue
            if not stands:
                self._model.stand(state.state)
            state, stands = self._step(state, index), True
        for state, index in reversed(path):
            self._back_up(state, index)
        return len(path)

    def _step(self, state: State, index: int) -> State:
        """Take an action from where the model stands; return the state that it leads to."""
        observation, reward, terminated, valid = self._model.step(state.actions[index])
        here = self._model.here()
        alike = here if self._model.deterministic else observation
        child = self._known(name((alike, terminated)), here, valid)
        child.terminated = terminated
        outcomes = state.outcomes[index]
        outcomes[child] = outcomes.get(child, 0) + 1
        state.rewards[index] += reward
        return child

    def _known(self, named: Any, state: Any, valid: tuple[int, ...] | None) -> State:
        """Return the state of a name, a new one if it was not met before."""
        if named not in self.states:
            self.states[named] = State(state, valid or self._actions)
        return self.states[named]

    def _back_up(self, state: State, index: int) -> None:
        """Value an action by what followed it so far."""
        outcomes = state.outcomes[index]
        count = sum(outcomes.values())
        following = sum(count * child.value for child, count in outcomes.items())
        value = (state.rewards[index] + self._effort.discount * following) / count
        state.values[index] = value
        state.value = max(state.values)
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)

    def _induce(self, root: State, horizon: int) -> list[float]:
        """Return the values of the root's actions when nothing counts beyond the horizon.

        Where nothing was tried yet, rewards go on at their mean.
        """
        states, discount = list(self.states.values()), self._effort.discount
        dynamics = _dynamics(states)
        leaves = np.array([not (state.terminated or state.visits) for state in states])
        sweeps = min(horizon, max(1, WORK // len(dynamics.following)))
        whole = sweeps == horizon
        values = np.array([0.0 if whole else state.value for state in states])
        gain = 0.0
        for _ in range(sweeps - 1):
            gain = dynamics.rewards.mean() + discount * gain
            values[leaves] = gain
            values = dynamics.improve(values, discount)
        backed_up = dynamics.back_up(values, discount)
        number = states.index(root)
        start = dynamics.actions[np.searchsorted(dynamics.states, number)]
        tried = iter(backed_up[start:].tolist())
        return [next(tried) if count else -inf for count in root.tried]


def _dynamics(states: Sequence[State]) -> Dynamics:
    """Put what followed the actions that were tried into arrays."""
    numbers = {state: number for number, state in enumerate(states)}
    tried = [
        (reward, outcomes)
        for state in states
        for reward, outcomes in zip(state.rewards, state.outcomes, strict=True)
        if outcomes
    ]
    totals = [sum(outcomes.values()) for _, outcomes in tried]
    return Dynamics.of(
        actions=[sum(map(bool, state.outcomes)) for state in states],
        rewards=[reward / total for (reward, _), total in zip(tried, totals, strict=True)],
        outcomes=[len(outcomes) for _, outcomes in tried],
        following=[numbers[child] for _, outcomes in tried for child in outcomes],
        shares=[
            count / total
            for (_, outcomes), total in zip(tried, totals, strict=True)
            for count in outcomes.values()
        ],
    )
