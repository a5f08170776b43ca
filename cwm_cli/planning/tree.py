"""Tree search as published: UCT whose new states are valued by random rollouts."""

from collections.abc import Sequence
from functools import cache
from math import inf, log, sqrt
from random import Random
from typing import Any, NamedTuple, Self

from cwm_cli.planning.draws import DEPTHS, Draws, pick
from cwm_cli.planning.model import Model, key
from cwm_cli.planning.planner import Situation

UNTRIED = 1.0
"""Value of an action that was not tried yet."""

_SMALL = 1e-3


class Effort(NamedTuple):
    """How much is simulated for a decision, and how returns are counted."""

    simulations: int
    budget: int | None
    rollout: int
    exploration: float
    discount: float
    temperature: float


class Tried(NamedTuple):
    """Actions, how often each was tried, and the value of each."""

    actions: Sequence[int]
    visits: Sequence[int]
    values: Sequence[float]


class Bonuses(NamedTuple):
    """Factors of the exploration bonus by visits of a state and by visits of an action."""

    state: list[float]
    action: list[float]


@cache
def bonuses(exploration: float, most: int) -> Bonuses:
    """Return the factors of `exploration * sqrt(log(state) / (action + 0.001))`."""
    state = [0.0, *(exploration * sqrt(log(visits)) for visits in range(1, most + 2))]
    return Bonuses(state, [1 / sqrt(visits + _SMALL) for visits in range(most + 2)])


def highest(values: list[float], number: int) -> int:
    """Return the place of the highest value; a 16-bit number decides between equal ones."""
    best = max(values)
    ties = values.count(best)
    place = values.index(best)
    for _ in range(pick(number, ties) if ties > 1 else 0):
        place = values.index(best, place + 1)
    return place


def optimistic(values: Sequence[float], tried: Sequence[int], scale: float, random: Random) -> int:
    """Choose an action that was not tried, or else the one of the highest bound, ties at random."""
    if 0 in tried:
        untried = [index for index, count in enumerate(tried) if not count]
        return untried[int(random.random() * len(untried))]
    factor, best = scale * sqrt(log(sum(tried))), -inf
    ties: list[int] = []
    for index, count in enumerate(tried):  # millions of times in an episode
        bound = values[index] + factor / sqrt(count)
        if not ties or bound > best:
            best, ties = bound, [index]
        elif bound == best:
            ties.append(index)
    return ties[0] if len(ties) == 1 else ties[int(random.random() * len(ties))]


class Node:
    """A state: for every action the visits, the mean return, the bonus and what followed."""

    __slots__ = (
        "actions",
        "bonuses",
        "children",
        "outcomes",
        "reward",
        "state",
        "terminated",
        "totals",
        "tried",
        "values",
        "visits",
    )

    def __init__(self, state: Any, actions: Sequence[int], bonus: float) -> None:
        count = len(actions)
        self.state = state
        self.actions = actions
        self.reward = 0.0
        self.terminated = False
        self.visits = 0
        self.tried = [0] * count
        self.totals = [0.0] * count
        self.values = [UNTRIED] * count
        self.bonuses = [bonus] * count
        self.children: list[Self | None] = [None] * count
        self.outcomes: list[dict[Any, Self]] = []


class Tree:
    """A tree that grows from a situation, a new state with every simulation.

    Where the same action always leads to the same state it is not taken
    again. Otherwise it is taken whenever it is chosen, and equal observations
    are one state.
    """

    def __init__(self, model: Model, situation: Situation, effort: Effort, draws: Draws) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._actions = range(int(low), int(high) + 1)
        self._model = model
        self._horizon = situation.horizon
        self._effort = effort
        self._draws = draws
        self._bonuses = bonuses(effort.exploration, effort.simulations)
        self._root = self._node(situation.state, situation.valid)
        self._root.visits = 1

    def search(self) -> Tried:
        """Simulate until the effort is spent; return what was tried at the root."""
        effort, counter = self._effort, self._model.counter
        last = inf if effort.budget is None else counter[0] + effort.budget
        for number in range(effort.simulations):
            if counter[0] >= last:
                break
            self._simulate(number)
        return Tried(self._root.actions, self._root.tried, self._root.values)

    def _simulate(self, number: int) -> None:
        """Descend to a new state, roll out from it and back up the discounted return."""
        node, left = self._root, self._horizon
        path: list[tuple[Node, int]] = []
        rollout, ties = self._draws.row(number)
        factors, value = self._bonuses.state, 0.0
        while left and not node.terminated:
            factor = factors[node.visits]
            pairs = zip(node.values, node.bonuses, strict=True)
            bounds = [mean + factor * bonus for mean, bonus in pairs]
            index = highest(bounds, ties[len(path) % DEPTHS])
            path.append((node, index))
            left -= 1
            child = node.children[index]
            if child is None:
                node = self._follow(node, index)
                if node.visits:
                    continue
                if left and not node.terminated:
                    value = self._rollout(node, rollout[:left])
                break
            node = child
        self._back_up(path, node, value)

    def _back_up(self, path: list[tuple[Node, int]], node: Node, value: float) -> None:
        """Count a return for every action that led to it."""
        discount, factors = self._effort.discount, self._bonuses.action
        node.visits += 1
        for parent, index in reversed(path):
            value = node.reward + discount * value
            parent.visits += 1
            parent.tried[index] = tried = parent.tried[index] + 1
            parent.totals[index] = total = parent.totals[index] + value
            parent.values[index] = total / tried
            parent.bonuses[index] = factors[tried]
            node = parent

    def _follow(self, node: Node, index: int) -> Node:
        """Take an action; return the state that it leads to, not visited yet if it is new."""
        model = self._model
        model.stand(node.state)
        observation, reward, terminated, valid = model.step(node.actions[index])
        name = key(observation) if node.outcomes else None
        child = node.outcomes[index].get(name) if node.outcomes else None
        if child is None:
            child = self._node(model.here(), valid)
            child.terminated = terminated
            if node.outcomes:
                node.outcomes[index][name] = child
            else:
                node.children[index] = child
        child.reward = reward
        return child

    def _node(self, state: Any, valid: tuple[int, ...] | None) -> Node:
        """Make a state in which nothing was tried."""
        node = Node(state, valid or self._actions, self._bonuses.action[0])
        if not self._model.deterministic:
            node.outcomes = [{} for _ in node.actions]
        return node

    def _rollout(self, node: Node, actions: Sequence[int]) -> float:
        """Return the discounted return of random actions from where the model stands."""
        discount, model = self._effort.discount, self._model
        if node.actions is self._actions:
            return model.play(actions, discount)
        total, factor, valid = 0.0, 1.0, node.actions
        for number in self._draws.more(len(actions)):
            _, reward, terminated, following = model.step(valid[pick(number, len(valid))])
            total += factor * reward
            if terminated:
                break
            factor *= discount
            valid = following or self._actions
        return total
