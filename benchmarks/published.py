"""The planners as the paper describes them: the reference of each ratio.

As published, they copy the state of the model with `deepcopy` for each node and each restore, and
set a program to its last observation before each step. Everything else is efficient.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import exp, inf, log, sqrt
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np


class Saved(Protocol):
    """A model whose state can be saved, and restored exactly."""

    def save(self) -> Any:
        """Return the state."""

    def load(self, state: Any) -> None:
        """Restore a state, which can be loaded again."""

    def step(self, action: Any, /) -> tuple[Any, ...]:
        """Take an action; return observation, reward, terminated and further values."""


class Copied:
    """A program, or an environment in plain Python, whose state is all of its attributes."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.step = environment.step

    def save(self) -> Any:
        """Return a copy of the attributes."""
        return deepcopy(vars(self.environment))

    def load(self, state: Any) -> None:
        """Restore a copy of saved attributes."""
        self.environment.__dict__ = deepcopy(state)


class ResetProgram(Copied):
    """A program that is set to its last observation before each step."""

    def __init__(self, environment: Any, observation: Any) -> None:
        super().__init__(environment)
        self.observation = observation
        self.step = self._step

    def save(self) -> Any:
        """Return a copy of the attributes, and the observation."""
        return super().save(), self.observation

    def load(self, state: Any) -> None:
        """Restore a copy of saved attributes, and the observation."""
        attributes, self.observation = state
        super().load(attributes)

    def _step(self, action: Any) -> tuple[Any, ...]:
        """Take an action from the last observation."""
        self.environment.set_state(self.observation)
        answers: tuple[Any, ...] = self.environment.step(action)
        self.observation = answers[0]
        return answers


class Decision(NamedTuple):
    """The actions until the next decision, and the number of model steps to find them."""

    actions: list[Any]
    steps: int


class Entropy(NamedTuple):
    """Options of the cross-entropy method."""

    horizon: int = 100
    iterations: int = 20
    samples: int = 1000
    elites: int = 100


class Tree(NamedTuple):
    """Options of Monte Carlo tree search; `rollout` is the maximum length of a rollout."""

    simulations: int = 25
    rollout: int = 100
    exploration: float = 1.0
    discount: float = 0.99
    temperature: float = 0.01


ENTROPY = Entropy()
TREE = Tree()


def cem(
    model: Saved,
    bounds: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
    options: Entropy = ENTROPY,
) -> Decision:
    """Return the best plan of the last iteration of the cross-entropy method."""
    low, high = bounds
    horizon, iterations, samples, elites = options
    ones = [1] * low.ndim
    mean = np.tile((low + high) / 2, (horizon, *ones))
    spread = np.tile(np.maximum(np.abs(low), np.abs(high)) / 2, (horizon, *ones))
    start, scores, steps, best = model.save(), np.empty(samples), 0, mean
    for _ in range(iterations):
        plans = np.clip(rng.normal(mean, spread, (samples, *mean.shape)), low, high)
        for index, each in enumerate(plans):
            model.load(start)
            scores[index], taken = _score(model, each)
            steps += taken
        best = plans[np.argsort(-scores)[:elites]]
        mean, spread = best.mean(axis=0), best.std(axis=0)
    model.load(start)
    return Decision(list(best[0]), steps)


def _score(model: Saved, plan: np.ndarray) -> tuple[float, int]:
    """Return the sum of the rewards of a plan, and its number of steps."""
    total = 0.0
    for steps, action in enumerate(plan, 1):
        _, reward, terminated, *_ = model.step(action)
        total += reward
        if terminated:
            return total, steps
    return total, len(plan)


class Node:
    """An observation, a copy of the model's state there, and statistics of the actions."""

    def __init__(self, state: Any, actions: int, *, terminated: bool = False) -> None:
        self.state = state
        self.terminated = terminated
        self.visits = 0
        self.counts = [0] * actions
        self.totals = [0.0] * actions
        self.children: list[dict[str, Node]] = [{} for _ in range(actions)]


def mcts(
    model: Saved,
    actions: Sequence[Any],
    rng: Random,
    options: Tree = TREE,
) -> Decision:
    """Return an action drawn from the softmax of the values of Monte Carlo tree search."""
    root, steps = Node(model.save(), len(actions)), 0
    root.visits = 1
    for _ in range(options.simulations):
        path, leaf = _descend(model, root, actions, options.exploration, rng)
        value, taken = 0.0, 0
        if not leaf.terminated:
            value, taken = _roll_out(model, actions, options, rng)
        steps += len(path) + taken
        leaf.visits += 1
        for node, index, reward in reversed(path):
            value = reward + options.discount * value
            node.totals[index] += value
            node.counts[index] += 1
            node.visits += 1
    model.load(root.state)
    return Decision([actions[_draw(root, options.temperature, rng)]], steps)


def _descend(
    model: Saved, node: Node, actions: Sequence[Any], exploration: float, rng: Random
) -> tuple[list[tuple[Node, int, float]], Node]:
    """Follow the upper confidence bounds to a new or terminal node; return path and node."""
    path: list[tuple[Node, int, float]] = []
    while True:
        index = _select(node, exploration, rng)
        model.load(node.state)
        observation, reward, terminated, *_ = model.step(actions[index])
        path.append((node, index, reward))
        known, name = node.children[index], str(observation)
        if name not in known:
            known[name] = Node(model.save(), len(actions), terminated=terminated)
            return path, known[name]
        node = known[name]
        if node.terminated:
            return path, node


def _select(node: Node, exploration: float, rng: Random) -> int:
    """Return the action of the highest upper confidence bound, ties at random."""
    logarithm = log(node.visits)
    bounds = [
        (total / count if count else 1.0) + exploration * sqrt(logarithm / (count + 1e-3))
        for total, count in zip(node.totals, node.counts, strict=True)
    ]
    highest = max(bounds)
    return rng.choice([index for index, bound in enumerate(bounds) if bound == highest])


def _roll_out(
    model: Saved, actions: Sequence[Any], options: Tree, rng: Random
) -> tuple[float, int]:
    """Return the discounted return of random actions, and their number."""
    total, factor = 0.0, 1.0
    for steps in range(1, options.rollout + 1):
        _, reward, terminated, *_ = model.step(rng.choice(actions))
        total += factor * reward
        factor *= options.discount
        if terminated:
            return total, steps
    return total, options.rollout


def _draw(root: Node, temperature: float, rng: Random) -> int:
    """Draw an action from the softmax of the values, among actions that were tried."""
    pairs = zip(root.totals, root.counts, strict=True)
    values = [total / count if count else -inf for total, count in pairs]
    highest = max(values)
    weights = [exp((value - highest) / temperature) for value in values]
    return rng.choices(range(len(weights)), weights)[0]
