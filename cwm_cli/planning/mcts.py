"""Monte Carlo tree search with UCT and random rollouts, for discrete actions."""

from dataclasses import dataclass
from math import inf, log, sqrt
from random import Random
from typing import Any, ClassVar, Self

import numpy as np

from cwm_cli.packing import Space
from cwm_cli.planning.model import Model, key

UNTRIED = 1.0
"""Value of an action that was not tried yet."""

_SMALL = 1e-3


@dataclass(frozen=True)
class Mcts:
    """Plans one action: the one whose simulations returned the most.

    The defaults are the published ones. `rollout` is the number of random
    steps from a new state, at most.
    """

    NEEDS: ClassVar[str] = "discrete actions"

    simulations: int = 25
    rollout: int = 100
    exploration: float = 1.0
    discount: float = 0.99

    def __post_init__(self) -> None:
        if min(self.simulations, self.rollout) < 1:
            raise ValueError("simulations and rollout must be at least 1")
        if not (0 <= self.exploration < inf and 0 <= self.discount <= 1):
            raise ValueError("exploration must not be negative, discount must be from 0 to 1")

    @staticmethod
    def serves(action_space: Space) -> bool:
        """Whether this planner can choose among such actions."""
        return action_space.kind == "discrete"

    def plan(
        self, model: Model, observation: Any, *, horizon: int, rng: np.random.Generator
    ) -> list[Any]:
        """Return the next action; nothing beyond `horizon` steps counts."""
        random = Random(int(rng.integers(2**63)))  # noqa: S311  # four times as fast as numpy's
        search = _Search(self, model, horizon, random)
        root = _Node(observation, len(search.actions))
        for _ in range(self.simulations):
            search.simulate(root)
        return [search.actions[random.choice(root.best())]]


class _Node:
    """A state: its observation, and for every action the visits, the returns and what followed."""

    __slots__ = ("counts", "observation", "outcomes", "reward", "terminated", "totals", "visits")

    def __init__(
        self, observation: Any, actions: int, reward: float = 0.0, *, terminated: bool = False
    ) -> None:
        self.observation = observation
        self.reward = reward
        self.terminated = terminated
        self.visits = 1
        self.counts = [0] * actions
        self.totals = [0.0] * actions
        self.outcomes: list[dict[Any, Self]] = [{} for _ in range(actions)]

    def best(self) -> list[int]:
        """Return the tried actions of the highest mean return."""
        pairs = zip(self.totals, self.counts, strict=True)
        values = [total / count if count else -inf for total, count in pairs]
        return [index for index, value in enumerate(values) if value == max(values)]


class _Search:
    """One tree and the model that it grows in."""

    def __init__(self, options: Mcts, model: Model, horizon: int, random: Random) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self.actions = range(int(low), int(high) + 1)
        self._options = options
        self._model = model
        self._horizon = horizon
        self._random = random.random

    def simulate(self, root: _Node) -> None:
        """Descend to a new state, roll out from it and back up the discounted return."""
        node, new = root, False
        path: list[tuple[_Node, int, float]] = []
        while not (new or node.terminated or len(path) == self._horizon):
            index = self._select(node)
            child, reward, new = self._follow(node, index)
            path.append((node, index, reward))
            node = child
        value = self._rollout(self._horizon - len(path)) if new and not node.terminated else 0.0
        for parent, index, reward in reversed(path):
            value = reward + self._options.discount * value
            parent.totals[index] += value
            parent.counts[index] += 1
            parent.visits += 1

    def _select(self, node: _Node) -> int:
        """Choose the action of the highest upper confidence bound, ties at random."""
        exploration, logarithm = self._options.exploration, log(node.visits)
        highest, ties = -inf, []
        for index, count in enumerate(node.counts):
            value = node.totals[index] / count if count else UNTRIED
            bound = value + exploration * sqrt(logarithm / (count + _SMALL))
            if bound > highest:
                highest, ties = bound, [index]
            elif bound == highest:
                ties.append(index)
        return ties[int(self._random() * len(ties))] if len(ties) > 1 else ties[0]

    def _follow(self, node: _Node, index: int) -> tuple[_Node, float, bool]:
        """Return the state that an action leads to, the reward, and whether the state is new.

        Where the same action always leads to the same state it is not taken again.
        """
        outcomes, model = node.outcomes[index], self._model
        if outcomes and model.deterministic:
            child = outcomes[None]
            return child, child.reward, False
        model.stand(node.observation)
        observation, reward, terminated = model.step(self.actions[index])
        name = None if model.deterministic else key(observation)
        if name in outcomes:
            return outcomes[name], reward, False
        child = _Node(observation, len(self.actions), reward, terminated=terminated)
        outcomes[name] = child
        return child, reward, True

    def _rollout(self, horizon: int) -> float:
        """Return the discounted return of random actions from where the model stands."""
        random, actions, count = self._random, self.actions, len(self.actions)
        steps = range(min(horizon, self._options.rollout))
        drawn = (actions[int(random() * count)] for _ in steps)
        return self._model.play(drawn, self._options.discount)
