"""Monte Carlo tree search for discrete actions.

A simulation descends from the root by upper confidence bounds, expands a new node, and backs up
the value of this node. Symbols of the papers: N(s) is `visits`, N(s, a) is `tried`, Q(s, a) is
`values`, c is `exploration`, gamma is `discount`.

`TreeSearch` is the base of three searches. `PublishedTree` values new nodes by random rollouts.
By default `PlanTree` keeps and improves the best plan found, if the model is deterministic with
real-valued states. `StateGraph` searches if states recur or the model is stochastic. The last two
are reused for the next decision of an episode.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import exp, inf, log, sqrt
from random import Random
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Here, Model, close, countable, key, name
from cwm_cli.planning.planner import Planner, Situation
from cwm_cli.planning.tabular import OutcomeArrays
from cwm_cli.presets import FROM_PRESET


@dataclass(frozen=True)
class Mcts(Planner):
    """Monte Carlo tree search, which plans one action per decision.

    A decision ends after `simulations` simulations or `budget` steps of the model.
    """

    NEEDS: ClassVar[str] = "discrete actions"
    ALONE: ClassVar[bool] = True
    SEGMENT: ClassVar[int] = 500
    """A new tree has little information. MountainCar returns -197 with a new tree every 25
    decisions, and -124 with one every 100, the same as without a limit. Few episodes are longer
    than 500 decisions.
    """
    PRESETS: ClassVar[Mapping[str, dict[str, Any]]] = {
        "default": {"simulations": 1000, "budget": 1000, "rollout": 200, "temperature": 0.0},
        "paper": {
            "simulations": 25,
            "budget": None,
            "rollout": 100,
            "temperature": 0.01,
            "planning.doubt": "ignore",
        },
    }

    preset: Literal["default", "paper"] = "default"
    """Search variant and values of unset options. The published variant has no time limit."""
    simulations: int = FROM_PRESET
    """Maximum number of simulations per decision. Paper: 25."""
    budget: int | None = FROM_PRESET
    """Number of model steps after which a decision ends. Paper: no limit."""
    rollout: int = FROM_PRESET
    """Maximum number of steps in a rollout. Paper: 100."""
    exploration: float = 1.0
    """Weight of the exploration term for actions with few visits (c)."""
    discount: float = 0.99
    """Discount factor per step (gamma)."""
    temperature: float = FROM_PRESET
    """Temperature for drawing the action; 0 takes the best one. Paper: 0.01."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.simulations, self.rollout, 1 if self.budget is None else self.budget) < 1:
            raise ValueError("simulations, budget and rollout must be at least 1")
        if not (0 <= self.exploration < inf and 0 <= self.temperature < inf):
            raise ValueError("exploration and temperature must not be negative")
        if not 0 <= self.discount <= 1:
            raise ValueError("discount must be from 0 to 1")

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether actions are discrete."""
        return action_space.kind == "discrete"

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return 1: it serves any model, but a planner with exact values has priority."""
        return 1.0

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next action of each situation."""
        return [[self._decide(model, situation)] for situation in situations]

    def _decide(self, model: Model, situation: Situation) -> int:
        search: PublishedTree | PlanTree | StateGraph
        if self.preset == "paper":
            search = PublishedTree(model.memoryless, self)
        elif situation.memory is not None:
            search = situation.memory
        else:
            # A model with memory names its states differently inside and outside the sandbox, so
            # a repeated decision agrees only in a tree of plans.
            states_recur = not model.deterministic or (
                countable(situation.state) and not model.remembers
            )
            search = situation.memory = (StateGraph if states_recur else PlanTree)(model, self)
        found = search.search(situation)
        return choose(found, self.temperature, situation.rng.random())


class ActionValues(NamedTuple):
    """The actions at a node, with the number of trials and the value of each."""

    actions: Sequence[int]
    tried: Sequence[int]
    values: Sequence[float]


def choose(found: ActionValues, temperature: float, number: float) -> int:
    """Draw an action by the softmax of the values of the tried actions.

    Args:
        found: Actions with trials and values; at least one action has been tried.
        temperature: Temperature of the softmax; 0 draws among the actions of the highest value.
        number: Random number in [0, 1).

    Returns:
        The action.
    """
    tried = [n for n, count in enumerate(found.tried) if count]
    best = max(found.values[n] for n in tried)
    gaps = [found.values[n] - best for n in tried]
    weights = [exp(gap / temperature) if temperature else float(gap == 0) for gap in gaps]
    sums = list(accumulate(weights))
    # Rounding could lead to a place after the last action, which `hi` excludes.
    return found.actions[tried[bisect(sums, number * sums[-1], hi=len(tried) - 1)]]


class TreeNode:
    """A state, with the number of trials and the value of each action."""

    __slots__ = ("actions", "state", "terminated", "tried", "values", "visits")

    def __init__(self, state: Any, actions: Sequence[int], value: float = -inf) -> None:
        self.state = state
        self.actions = actions
        self.terminated = False
        self.visits = 0
        self.tried = [0] * len(actions)
        self.values = [value] * len(actions)


N = TypeVar("N", bound=TreeNode)


class TreeSearch(Generic[N]):
    """A loop of simulations from a root until simulations or budget are spent."""

    def __init__(self, model: Model, options: Mcts) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._actions = range(int(low), int(high) + 1)
        self._model = model
        self._options = options
        self._random = Random(0)  # noqa: S311  # no secret
        self._horizon = 0
        self._lowest, self._highest = inf, -inf  # of all values so far

    def search(self, situation: Situation) -> ActionValues:
        """Return the values of the actions in a situation."""
        options, before = self._options, self._spent()
        self._random.seed(int(situation.rng.integers(2**63)))
        root = self._begin(situation)
        for _ in range(options.simulations):
            self._simulate(root)
            if options.budget is not None and self._spent() - before >= options.budget:
                break
        return ActionValues(root.actions, root.tried, self._values(root))

    def _begin(self, situation: Situation) -> N:
        """Return the root node."""
        raise NotImplementedError

    def _simulate(self, root: N) -> None:
        """Select, expand, evaluate and back up."""
        raise NotImplementedError

    def _values(self, root: N) -> list[float]:
        """Return the final values of the actions of the root."""
        return root.values

    def _spent(self) -> int:
        """Return the number of steps that count for the budget."""
        return self._model.counter[0]

    def _exploration(self) -> float:
        """Return the factor of the exploration term, in units of the values."""
        return self._options.exploration * max(0.0, self._highest - self._lowest)

    def _play(self, valid: Sequence[int], proposals: Sequence[int]) -> tuple[float, Sequence[int]]:
        """Take actions from the current state; a random valid action replaces an invalid one.

        Returns:
            The discounted return, and the actions taken.
        """
        model, discount, before = self._model, self._options.discount, self._model.counter[0]
        if valid is self._actions:
            total = model.play(proposals, discount)
            return total, proposals[: model.counter[0] - before]
        total, factor, taken = 0.0, 1.0, list[int]()
        for action in proposals:
            taken.append(action if action in valid else self._random.choice(valid))
            _, reward, terminated, following = model.step(taken[-1])
            total += factor * reward
            if terminated:
                break
            factor *= discount
            valid = following or self._actions
        return total, taken


# The published search.


class PublishedNode(TreeNode):
    """A state; `children` has the next node and reward by action and observation."""

    __slots__ = ("children", "totals")

    def __init__(self, state: Any, actions: Sequence[int]) -> None:
        super().__init__(state, actions, value=1.0)  # Q of an untried action, as published
        self.totals = [0.0] * len(actions)
        self.children: list[dict[Any, tuple[Self, float]]] = [{} for _ in actions]


class PublishedTree(TreeSearch[PublishedNode]):
    """UCT that values new nodes by random rollouts (Kocsis and Szepesvari, 2006).

    This is the tree of Dainese et al. (2024): Q is the mean return, and steps beyond the time
    limit count. A known step of a deterministic model is not repeated.
    """

    def _begin(self, situation: Situation) -> PublishedNode:
        self._rng = situation.rng
        root = PublishedNode(situation.state, situation.valid or self._actions)
        root.visits = 1  # the first selection takes its logarithm
        return root

    def _simulate(self, root: PublishedNode) -> None:
        path: list[tuple[PublishedNode, int, float]] = []
        node, is_new = root, False
        while not (is_new or node.terminated):
            index = self._select(node)
            child, reward, is_new = self._follow(node, index)
            path.append((node, index, reward))
            node = child
        value = 0.0
        if not node.terminated:
            length = self._options.rollout
            actions = self._rng.integers(self._actions.start, self._actions.stop, length)
            value, _ = self._play(node.actions, actions.tolist())
        node.visits += 1
        for parent, index, reward in reversed(path):
            value = reward + self._options.discount * value
            parent.visits += 1
            parent.tried[index] += 1
            parent.totals[index] += value
            parent.values[index] = parent.totals[index] / parent.tried[index]

    def _select(self, node: PublishedNode) -> int:
        """Return the index of the action with the highest Q + c sqrt(ln N(s) / N(s, a))."""
        c, logarithm, tried = self._options.exploration, log(node.visits), node.tried
        bounds = [
            value + c * sqrt(logarithm / (tried[index] + 1e-3))  # finite if untried, as published
            for index, value in enumerate(node.values)
        ]
        highest = max(bounds)
        if bounds.count(highest) == 1:
            return bounds.index(highest)
        return self._random.choice([i for i, bound in enumerate(bounds) if bound == highest])

    def _follow(self, node: PublishedNode, index: int) -> tuple[PublishedNode, float, bool]:
        """Take an action; return the child, the reward, and whether the child is new."""
        known, model = node.children[index], self._model
        if known and model.deterministic:
            [(child, reward)] = known.values()
            return child, reward, False
        model.stand(node.state)
        observation, reward, terminated, valid = model.step(node.actions[index])
        child_key = key(observation)
        if child_key in known:
            return known[child_key][0], reward, False
        child = PublishedNode(model.here(), valid or self._actions)
        child.terminated = terminated
        known[child_key] = child, reward
        return child, reward, True


def select_ucb(node: TreeNode, scale: float, random: Random) -> int:
    """Return the index of a random untried action, or else of the highest UCB1 bound.

    Args:
        node: The node to select at.
        scale: Factor of the exploration term, in units of the values.
        random: Generator that breaks ties.

    Returns:
        The index of the action in `node.actions`.
    """
    values, tried = node.values, node.tried
    if 0 in tried:
        untried = [index for index, count in enumerate(tried) if not count]
        return untried[int(random.random() * len(untried))]
    factor, best = scale * sqrt(log(sum(tried))), -inf
    ties: list[int] = []
    for index, count in enumerate(tried):  # this loop runs millions of times in an episode
        bound = values[index] + factor / sqrt(count)
        if not ties or bound > best:
            best, ties = bound, [index]
        elif bound == best:
            ties.append(index)
    return ties[0] if len(ties) == 1 else ties[int(random.random() * len(ties))]


# Deterministic models with real-valued states: keep and improve the best plan.


class PlanNode(TreeNode):
    """A state; `values` are the best returns found after each action.

    `value` is the best return from this state, and `leaf` the return of the rollout that began
    here. `observation` and `reward` are the prediction of the step that led here.
    """

    __slots__ = ("children", "leaf", "observation", "reward", "value")

    def __init__(self, state: Any, actions: Sequence[int], observation: Any = None) -> None:
        super().__init__(state, actions)
        self.observation = observation
        self.reward = 0.0
        self.value = 0.0
        self.leaf = -inf
        self.children: list[Self | None] = [None] * len(actions)

    def agrees(self, state: Any) -> bool:
        """Return whether a state equals the prediction, within the tolerance."""
        seen = state.observation if isinstance(state, Here) else state
        return close(self.observation, seen) or close(self.state, state)


Path = list[tuple[PlanNode, int]]
"""Nodes, each with the index of the action taken there."""


class PlanTree(TreeSearch[PlanNode]):
    """A tree for deterministic models, which is reused for the next decision.

    Selection is UCT with values scaled to their range (MuZero; Schrittwieser et al., 2020). The
    value of an action is the best return found after it. Rollouts repeat their actions. The best
    rollout is added to the tree, as the plan. A quarter of the simulations deviate from this plan
    at a random step.
    """

    def __init__(self, model: Model, options: Mcts) -> None:
        super().__init__(model, options)
        self.root: PlanNode | None = None
        self._rate = 0.0  # reward per step of the latest rollout that did not end

    def _begin(self, situation: Situation) -> PlanNode:
        """Reuse the child that agrees with the situation, or replay the plan in a new root."""
        self._rollouts = repeat_random_actions(situation.rng, self._actions, self._options.rollout)
        before = self.root
        is_next = situation.horizon >= self._horizon - 1
        self._horizon = situation.horizon
        for child in before.children if before and is_next else ():
            if child and not child.terminated and child.agrees(situation.state):
                if not self._model.agree(child.state, situation.state):
                    continue
                child.leaf = -inf  # a rollout outside the tree cannot be played
                self.root = child
                return child
        plan = self._best_path(before) if before else []
        self._lowest, self._highest = inf, -inf
        self.root = root = PlanNode(situation.state, situation.valid or self._actions)
        if len(plan) > 1:
            self._add_path([], root, [node.actions[index] for node, index in plan[1:]])
        return root

    def _simulate(self, root: PlanNode) -> None:
        deviates = any(root.tried) and self._random.random() < 0.25
        path, proposals = self._deviate(root) if deviates else self._descend(root)
        before = root.value if root.visits else -inf
        parent, index = path[-1]
        node = parent.children[index] or self._expand(parent, index)
        left = self._horizon - len(path)
        taken: Sequence[int] = ()
        if left and not node.visits and not node.terminated:
            taken = self._roll_out(node, proposals[: min(left, self._options.rollout)], left)
        self._back_up(path, node)
        if taken and root.value > before:  # the rollout is the new plan
            node.leaf = -inf
            self._add_path(path, node, taken)

    def _descend(self, root: PlanNode) -> tuple[Path, Sequence[int]]:
        """Select by upper confidence bounds; return the path and a rollout to continue with."""
        scale = self._exploration()
        path = self._follow([], root, lambda node: select_ucb(node, scale, self._random))
        return path, next(self._rollouts)

    def _deviate(self, root: PlanNode) -> tuple[Path, Sequence[int]]:
        """Follow the best plan to a random step, then a mutation of the rest of the plan."""
        plan = self._best_path(root)
        depth = int(self._random.random() * len(plan))
        rest = [node.actions[index] for node, index in plan[depth:]]
        proposals = chain(mutate_plan(rest, self._actions, self._random), next(self._rollouts))
        path = self._follow(
            plan[:depth],
            plan[depth][0],
            lambda node: self._index(node, next(proposals, self._actions.stop)),
        )
        return path, list(proposals) or next(self._rollouts)

    def _follow(self, path: Path, node: PlanNode, select: Callable[[PlanNode], int]) -> Path:
        """Extend a path until a new node, the end of the episode, or the horizon."""
        while True:
            index = select(node)
            path.append((node, index))
            child = node.children[index]
            if child is None or child.terminated or len(path) == self._horizon:
                return path
            node = child

    def _index(self, node: PlanNode, action: int) -> int:
        """Return the index of an action, or a random index if the action is invalid."""
        if action in node.actions:
            return node.actions.index(action)
        return int(self._random.random() * len(node.actions))

    def _expand(self, node: PlanNode, index: int) -> PlanNode:
        self._model.stand(node.state)
        observation, reward, terminated, valid = self._model.step(node.actions[index])
        child = PlanNode(self._model.here(), valid or self._actions, observation)
        child.reward, child.terminated = reward, terminated
        node.children[index] = child
        return child

    def _roll_out(self, node: PlanNode, proposals: Sequence[int], left: int) -> Sequence[int]:
        """Value a node by a rollout; return the actions taken.

        If the rollout ends before the episode, its mean reward per step extends to the horizon.
        """
        total, taken = self._play(node.actions, proposals)
        if len(taken) == len(proposals):
            self._rate = total / self._discounted_steps(len(taken))
            total = self._rate * self._discounted_steps(left)
        node.value = node.leaf = total
        return taken

    def _discounted_steps(self, steps: int) -> float:
        """Return the sum of the discount factors of n steps."""
        discount = self._options.discount
        return steps if discount == 1 else (1 - discount**steps) / (1 - discount)

    def _add_path(self, path: Path, node: PlanNode, actions: Sequence[int]) -> None:
        """Add the nodes of a sequence of actions, and back up from the last node."""
        path = list(path)
        for action in actions:
            if node.terminated or len(path) == self._horizon:
                break
            index = self._index(node, action)
            path.append((node, index))
            node = node.children[index] or self._expand(node, index)
        if not node.terminated and not node.visits:
            node.value = node.leaf = self._rate * self._discounted_steps(self._horizon - len(path))
        self._back_up(path, node)

    def _back_up(self, path: Path, node: PlanNode) -> None:
        """Count visits, and set each value on the path to the best return after it."""
        discount, lowest, highest = self._options.discount, self._lowest, self._highest
        node.visits += 1
        for parent, index in reversed(path):
            value = node.reward + discount * node.value
            parent.visits += 1
            parent.tried[index] += 1
            parent.values[index] = value
            best = max(parent.values)
            parent.value = best if best > parent.leaf else parent.leaf
            if value < lowest:
                lowest = value
            if value > highest:
                highest = value
            node = parent
        self._lowest, self._highest = lowest, highest

    def _best_path(self, node: PlanNode) -> Path:
        """Return the best known plan from a node."""
        path: Path = []
        following: PlanNode | None = node
        while following:
            best = max(following.values)
            if best == -inf or following.leaf > best:
                break
            index = following.values.index(best)
            path.append((following, index))
            following = following.children[index]
        return path


MAX_REPEAT_EXPONENT = 6
"""Actions are repeated 1, 2, 4, ..., 32 times on average: no single length serves every task."""


def repeat_random_actions(
    rng: np.random.Generator, actions: range, length: int
) -> Iterator[list[int]]:
    """Yield rows of random actions; the mean length of a repetition differs between rows."""
    rows = 16  # numpy is slow to draw a single row
    while True:
        lengths = 2.0 ** rng.integers(0, MAX_REPEAT_EXPONENT, (rows, 1))
        starts = rng.random((rows, length)) * lengths < 1
        places = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
        drawn = rng.integers(actions.start, actions.stop, (rows, length))
        yield from np.take_along_axis(drawn, places, axis=1).tolist()


def mutate_plan(plan: Sequence[int], actions: range, random: Random) -> list[int]:
    """Return nothing (half of the time), or a plan whose first steps change.

    A change replaces the first steps by one repeated action, inserts this action before them, or
    skips them. The number of steps is geometrically distributed with a random mean.
    """
    number, length, mean = random.random, 1, 2 ** int(random.random() * MAX_REPEAT_EXPONENT)
    while number() * mean > 1:
        length += 1
    if number() < 0.5:
        return []
    first = [actions[int(number() * len(actions))]] * length
    rest = plan[length:]
    return [*(first, (*first, *plan[:length]), ())[int(number() * 3)], *rest]


# Models whose states recur, and stochastic models: a graph of states.

MAX_STATES = 10_000
"""A graph with more states is cleared before the next decision, so that memory stays bounded."""


class GraphNode(TreeNode):
    """A state; for each action the sum of its rewards, and the count of each next state.

    For an `exact` action, `rewards` has the expected reward and `outcomes` the probabilities.
    """

    __slots__ = ("exact", "outcomes", "rewards", "value")

    def __init__(self, state: Any, actions: Sequence[int]) -> None:
        super().__init__(state, actions)
        self.value = 0.0
        self.rewards = [0.0] * len(actions)
        self.outcomes: list[dict[Self, float]] = [{} for _ in actions]
        self.exact = [False] * len(actions)


class StateGraph(TreeSearch[GraphNode]):
    """A graph of all states seen; equal states share one node.

    A walk tries each untried action first, then selects by UCB1. Known steps of a deterministic
    model, or of a model that returns its outcomes, are not repeated, but count for the budget. If
    states never recur, few outcomes are drawn per action, so that walks return to them
    (progressive widening; Couetoux et al., Continuous upper confidence trees, 2011). Backward
    induction computes the final values, so that no reward beyond the horizon counts.
    """

    def __init__(self, model: Model, options: Mcts) -> None:
        super().__init__(model, options)
        self.states: dict[Any, GraphNode] = {}
        self._walked = 0

    def _begin(self, situation: Situation) -> GraphNode:
        if len(self.states) > MAX_STATES:
            self.states.clear()
        self._horizon, state = situation.horizon, situation.state
        if self._model.deterministic:  # name it as `_step` names states
            self._model.stand(state)
            state = self._model.here()
        return self._node(name((state, False)), state, situation.valid)

    def _simulate(self, root: GraphNode) -> None:
        """Walk for the length of a rollout, or to the end of the episode, and back up."""
        # `is_set` says that the model is already in the state of `node`.
        node, path, is_set = root, list[tuple[GraphNode, int]](), False
        length, scale = min(self._options.rollout, self._horizon), self._exploration()
        while len(path) < length and not node.terminated:
            index = select_ucb(node, scale, self._random)
            path.append((node, index))
            node.visits += 1
            node.tried[index] += 1
            if not node.outcomes[index] and not self._model.deterministic:
                if not is_set:
                    self._model.stand(node.state)
                self._add_exact_outcomes(node, index)
                is_set = True
            known = self._known_outcome(node, index)
            if known is not None:
                node, is_set = known, False
                continue
            if not is_set:
                self._model.stand(node.state)
            node, is_set = self._step(node, index), True
        for node, index in reversed(path):
            self._back_up(node, index)
        self._walked += len(path)

    def _known_outcome(self, node: GraphNode, index: int) -> GraphNode | None:
        """Return a known next state, drawn by its share, or None to take a new step."""
        outcomes = node.outcomes[index]
        if not outcomes:
            return None
        if self._model.deterministic:
            [only] = outcomes
            return only
        if not node.exact[index]:
            # States never recur if at least 3 real-valued outcomes all differ. Then the number
            # of outcomes may grow as the square root of the number of trials.
            all_differ = len(outcomes) == sum(outcomes.values())
            seen = node.state.observation if isinstance(node.state, Here) else node.state
            never_recur = len(outcomes) >= 3 and all_differ and not countable(seen)
            if not (never_recur and len(outcomes) ** 2 > node.tried[index]):
                return None
        [drawn] = self._random.choices(list(outcomes), list(outcomes.values()))
        return drawn

    def _add_exact_outcomes(self, node: GraphNode, index: int) -> None:
        """Add all outcomes of an action with probabilities, if the model returns them."""
        outcomes = self._model.outcomes(node.actions[index])
        node.exact[index] = bool(outcomes)
        for probability, (observation, reward, terminated, valid), state in outcomes or ():
            child = self._node(name((observation, terminated)), state, valid)
            child.terminated = terminated
            node.outcomes[index][child] = node.outcomes[index].get(child, 0.0) + probability
            node.rewards[index] += probability * reward

    def _spent(self) -> int:
        return self._walked

    def _step(self, node: GraphNode, index: int) -> GraphNode:
        """Take an action in the current state of the model; return the next state."""
        observation, reward, terminated, valid = self._model.step(node.actions[index])
        here = self._model.here()
        identity = here if self._model.deterministic or self._model.hides else observation
        child = self._node(name((identity, terminated)), here, valid)
        child.terminated = terminated
        outcomes = node.outcomes[index]
        outcomes[child] = outcomes.get(child, 0) + 1
        node.rewards[index] += reward
        return child

    def _node(self, node_name: Any, state: Any, valid: tuple[int, ...] | None) -> GraphNode:
        if node_name not in self.states:
            self.states[node_name] = GraphNode(state, valid or self._actions)
        return self.states[node_name]

    def _back_up(self, node: GraphNode, index: int) -> None:
        """Set the value of an action to the mean over its outcomes so far."""
        outcomes = node.outcomes[index]
        total = sum(outcomes.values())
        following = sum(count * child.value for child, count in outcomes.items())
        value = (node.rewards[index] + self._options.discount * following) / total
        node.values[index] = value
        node.value = max(node.values)
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)

    def _values(self, root: GraphNode) -> list[float]:
        """Return the values of the root's actions by backward induction to the horizon.

        States without a tried action continue at the mean reward. At most a million outcomes are
        backed up. If that is less than the horizon, the induction begins with the values of the
        walks instead of 0.
        """
        states, discount = list(self.states.values()), self._options.discount
        known = _outcome_arrays(states)
        leaves = np.array([not (state.terminated or state.visits) for state in states])
        sweeps = min(self._horizon, max(1, 1_000_000 // len(known.following)))
        whole = sweeps == self._horizon
        values = np.array([0.0 if whole else state.value for state in states])
        gain = 0.0
        for _ in range(sweeps - 1):
            gain = known.rewards.mean() + discount * gain
            values[leaves] = gain
            values = known.improve(values, discount)
        backed_up = known.back_up(values, discount)
        first = known.actions[np.searchsorted(known.states, states.index(root))]
        tried = iter(backed_up[first:].tolist())
        return [next(tried) if count else -inf for count in root.tried]


def _outcome_arrays(states: Sequence[GraphNode]) -> OutcomeArrays:
    """Return the outcomes of all tried actions as arrays."""
    numbers = {state: number for number, state in enumerate(states)}
    tried = [
        (reward, outcomes, sum(outcomes.values()))
        for state in states
        for reward, outcomes in zip(state.rewards, state.outcomes, strict=True)
        if outcomes
    ]
    return OutcomeArrays.of(
        actions=[sum(map(bool, state.outcomes)) for state in states],
        rewards=[reward / total for reward, _, total in tried],
        outcomes=[len(outcomes) for _, outcomes, _ in tried],
        following=[numbers[child] for _, outcomes, _ in tried for child in outcomes],
        shares=[count / total for _, outcomes, total in tried for count in outcomes.values()],
    )
