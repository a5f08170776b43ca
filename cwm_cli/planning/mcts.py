"""Monte Carlo tree search, for discrete actions.

A simulation descends from the root by upper confidence bounds, tries something new
and backs up what that was worth. In the symbols of the papers: N(s) is `visits`,
N(s, a) `tried`, Q(s, a) `values`, c `exploration`, gamma `discount`.

Three searches share that (`TreeSearch`). `PublishedTree` values new states by random
rollouts. By default `PlanTree` keeps, and improves, the best plan that it found, where
a model always answers alike; `StateGraph` serves where states come again or chance
decides. These two go on from decision to decision of an episode.
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
    """Plans one action, by simulating what may follow each.

    A decision ends when `simulations` are done or `budget` steps of the model are taken.
    """

    NEEDS: ClassVar[str] = "discrete actions"
    ALONE: ClassVar[bool] = True
    SEGMENT: ClassVar[int] = 500
    """A tree that is begun anew knows little: every 25 decisions it returns -197 in MountainCar,
    -124 with 100, as good as with no end to them. Few episodes are longer than this.
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
        """Whether actions are discrete."""
        return action_space.kind == "discrete"

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Serve any model; a planner that is exact for some goes before."""
        return 1.0

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next action of each situation."""
        return [[self._decide(model, situation)] for situation in situations]

    def _decide(self, model: Model, situation: Situation) -> int:
        """Search, on from what is remembered of the episode; choose by what was found."""
        search: PublishedTree | PlanTree | StateGraph
        if self.preset == "paper":
            search = PublishedTree(model.anew, self)
        elif situation.memory is not None:
            search = situation.memory
        else:
            repeats = not model.deterministic or countable(situation.state)
            search = situation.memory = (StateGraph if repeats else PlanTree)(model, self)
        found = search.search(situation)
        return choose(found, self.temperature, situation.rng.random())


class ActionValues(NamedTuple):
    """Actions, how often each was tried, and the value of each."""

    actions: Sequence[int]
    tried: Sequence[int]
    values: Sequence[float]


def choose(found: ActionValues, temperature: float, number: float) -> int:
    """Draw an action by the softmax of the values of those tried; `number` is below 1.

    At temperature 0 it is one of those of the highest value.
    """
    tried = [n for n, count in enumerate(found.tried) if count]
    best = max(found.values[n] for n in tried)
    gaps = [found.values[n] - best for n in tried]
    weights = [exp(gap / temperature) if temperature else float(gap == 0) for gap in gaps]
    sums = list(accumulate(weights))
    return found.actions[tried[bisect(sums, number * sums[-1], hi=len(tried) - 1)]]


class TreeNode:
    """A state: for every action how often it was tried, and its value."""

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
    """Simulates from a situation until the effort is spent."""

    def __init__(self, model: Model, options: Mcts) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._actions = range(int(low), int(high) + 1)
        self._model = model
        self._options = options
        self._random = Random(0)  # noqa: S311  # no secret
        self._horizon = 0

    def search(self, situation: Situation) -> ActionValues:
        """Return what is known of the actions at a situation."""
        options, before = self._options, self._spent()
        self._random.seed(int(situation.rng.integers(2**63)))
        root = self._begin(situation)
        for _ in range(options.simulations):
            self._simulate(root)
            if options.budget is not None and self._spent() - before >= options.budget:
                break
        return ActionValues(root.actions, root.tried, self._values(root))

    def _begin(self, situation: Situation) -> N:
        """Return the node of a situation."""
        raise NotImplementedError

    def _simulate(self, root: N) -> None:
        """Try something new, and back up what it was worth."""
        raise NotImplementedError

    def _values(self, root: N) -> list[float]:
        """Return the values of the actions of the root, at the end."""
        return root.values

    def _spent(self) -> int:
        """Return the number of steps that count for the budget."""
        return self._model.counter[0]

    def _play(self, valid: Sequence[int], proposals: Sequence[int]) -> tuple[float, Sequence[int]]:
        """Take actions from where the model stands; those that are not valid become others.

        Return the discounted return and the actions that were taken.
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

UNTRIED = 1.0
"""Q of an action that was not tried yet, as published."""

SMALL = 1e-3
"""Added to N(s, a), so that what was not tried has a bound, too, as published."""


class PublishedNode(TreeNode):
    """A state, by whose observation others that follow the same action are told from it."""

    __slots__ = ("children", "totals")

    def __init__(self, state: Any, actions: Sequence[int]) -> None:
        super().__init__(state, actions, UNTRIED)
        self.totals = [0.0] * len(actions)
        self.children: list[dict[Any, tuple[Self, float]]] = [{} for _ in actions]


class PublishedTree(TreeSearch[PublishedNode]):
    """UCT whose new states are valued by random rollouts (Kocsis and Szepesvari, 2006).

    The tree of Dainese et al. (2024): Q is the mean return, and what lies beyond the end of
    the time counts. What is known of a model that always answers alike is not tried again.
    """

    def _begin(self, situation: Situation) -> PublishedNode:
        self._rng = situation.rng
        root = PublishedNode(situation.state, situation.valid or self._actions)
        root.visits = 1
        return root

    def _simulate(self, root: PublishedNode) -> None:
        path: list[tuple[PublishedNode, int, float]] = []
        node, new = root, False
        while not (new or node.terminated):
            index = self._select(node)
            child, reward, new = self._follow(node, index)
            path.append((node, index, reward))
            node = child
        value = 0.0
        if not node.terminated:
            length = self._options.rollout
            drawn = self._rng.integers(self._actions.start, self._actions.stop, length)
            value, _ = self._play(node.actions, drawn.tolist())
        node.visits += 1
        for parent, index, reward in reversed(path):
            value = reward + self._options.discount * value
            parent.visits += 1
            parent.tried[index] += 1
            parent.totals[index] += value
            parent.values[index] = parent.totals[index] / parent.tried[index]

    def _select(self, node: PublishedNode) -> int:
        """Return the place of the action of the highest Q + c sqrt(ln N(s) / N(s, a))."""
        c, logarithm, tried = self._options.exploration, log(node.visits), node.tried
        bounds = [
            value + c * sqrt(logarithm / (tried[index] + SMALL))
            for index, value in enumerate(node.values)
        ]
        highest = max(bounds)
        if bounds.count(highest) == 1:
            return bounds.index(highest)
        return self._random.choice([i for i, bound in enumerate(bounds) if bound == highest])

    def _follow(self, node: PublishedNode, index: int) -> tuple[PublishedNode, float, bool]:
        """Take an action; return the state that it leads to, the reward, and whether it is new."""
        known, model = node.children[index], self._model
        if known and model.deterministic:
            [(child, reward)] = known.values()
            return child, reward, False
        model.stand(node.state)
        observation, reward, terminated, valid = model.step(node.actions[index])
        named = key(observation)
        if named in known:
            return known[named][0], reward, False
        child = PublishedNode(model.here(), valid or self._actions)
        child.terminated = terminated
        known[named] = child, reward
        return child, reward, True


# What the other two select by.


def optimistic(node: TreeNode, scale: float, random: Random) -> int:
    """Choose an action that was not tried, or else the one of the highest bound, ties at random."""
    values, tried = node.values, node.tried
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


# Plans that are kept and improved.

DEVIATIONS = 0.25
"""Share of the simulations that follow the best plan and leave it somewhere, anywhere."""

REPEATS = 6
"""Mean lengths of repeated actions are 1, 2, 4, ..., so many of them: none serves every task."""

ROWS = 16
"""Rows of repeated actions that are drawn at once, as numpy is slow to draw one."""

DROPPED = 0.5
"""Share of the deviations from a plan that keep nothing of the rest of it."""


class PlanNode(TreeNode):
    """A state: `values` are the best returns found after each action.

    `value` is the best return from here, and `leaf` that of the rollouts that began here.
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
        """Whether a state is what was predicted."""
        seen = state.observation if isinstance(state, Here) else state
        return close(self.observation, seen) or close(self.state, state)


Path = list[tuple[PlanNode, int]]


class PlanTree(TreeSearch[PlanNode]):
    """A tree for models that always answer alike, which lives on with the next decision.

    UCT with normalised values (MuZero; Schrittwieser et al., 2020), where an action is
    worth the best return found after it. Rollouts repeat their actions, and the best
    one becomes part of the tree: it is the plan. Some simulations leave that plan
    somewhere.
    """

    def __init__(self, model: Model, options: Mcts) -> None:
        super().__init__(model, options)
        self.root: PlanNode | None = None
        self._lowest, self._highest = inf, -inf
        self._rate = 0.0

    def _begin(self, situation: Situation) -> PlanNode:
        """Return the node of a situation; the rest of the plan is tried anew if it has none."""
        self._repeated = repeated(situation.rng, self._actions, self._options.rollout)
        before = self.root
        later = situation.horizon >= self._horizon - 1
        self._horizon = situation.horizon
        for child in before.children if before and later else ():
            if child and not child.terminated and child.agrees(situation.state):
                if not self._model.agree(child.state, situation.state):
                    continue
                child.leaf = -inf  # a rollout that is not in the tree cannot be played
                self.root = child
                return child
        plan = self._best(before) if before else []
        self._lowest, self._highest = inf, -inf
        self.root = root = PlanNode(situation.state, situation.valid or self._actions)
        if len(plan) > 1:
            self._keep([], root, [node.actions[index] for node, index in plan[1:]])
        return root

    def _simulate(self, root: PlanNode) -> None:
        """Try something new, roll out from there, and keep what was best as a plan."""
        deviates = any(root.tried) and self._random.random() < DEVIATIONS
        path, proposals = self._deviate(root) if deviates else self._descend(root)
        before = root.value if root.visits else -inf
        parent, index = path[-1]
        node = parent.children[index] or self._expand(parent, index)
        left = self._horizon - len(path)
        taken: Sequence[int] = ()
        if left and not node.visits and not node.terminated:
            taken = self._roll_out(node, proposals[: min(left, self._options.rollout)], left)
        self._back_up(path, node)
        if taken and root.value > before:
            node.leaf = -inf
            self._keep(path, node, taken)

    def _descend(self, root: PlanNode) -> tuple[Path, Sequence[int]]:
        """Take the actions of the highest bounds up to a new one; then come repeated ones."""
        scale = self._options.exploration * max(0.0, self._highest - self._lowest)
        path = self._follow([], root, lambda node: optimistic(node, scale, self._random))
        return path, next(self._repeated)

    def _deviate(self, root: PlanNode) -> tuple[Path, Sequence[int]]:
        """Follow the best plan, leave it, and go on by what the change makes of the rest."""
        plan = self._best(root)
        depth = int(self._random.random() * len(plan))
        rest = [node.actions[index] for node, index in plan[depth:]]
        proposals = chain(changed(rest, self._actions, self._random), next(self._repeated))
        path = self._follow(
            plan[:depth],
            plan[depth][0],
            lambda node: self._index(node, next(proposals, self._actions.stop)),
        )
        return path, list(proposals) or next(self._repeated)

    def _follow(self, path: Path, node: PlanNode, choose: Callable[[PlanNode], int]) -> Path:
        """Extend a path by chosen actions up to a new one, the end, or the horizon."""
        while True:
            index = choose(node)
            path.append((node, index))
            child = node.children[index]
            if child is None or child.terminated or len(path) == self._horizon:
                return path
            node = child

    def _index(self, node: PlanNode, action: int) -> int:
        """Return the place of an action in a state, or of any other where it is not valid."""
        if action in node.actions:
            return node.actions.index(action)
        return int(self._random.random() * len(node.actions))

    def _expand(self, node: PlanNode, index: int) -> PlanNode:
        """Take an action for the first time."""
        self._model.stand(node.state)
        observation, reward, terminated, valid = self._model.step(node.actions[index])
        child = PlanNode(self._model.here(), valid or self._actions, observation)
        child.reward, child.terminated = reward, terminated
        node.children[index] = child
        return child

    def _roll_out(self, node: PlanNode, proposals: Sequence[int], left: int) -> Sequence[int]:
        """Value a state by a rollout and return the actions taken.

        Where the rollout ends before the episode, rewards go on at its rate.
        """
        total, taken = self._play(node.actions, proposals)
        if len(taken) == len(proposals):
            self._rate = total / self._span(len(taken))
            total = self._rate * self._span(left)
        node.value = node.leaf = total
        return taken

    def _span(self, steps: int) -> float:
        """Return the discounted number of steps."""
        discount = self._options.discount
        return steps if discount == 1 else (1 - discount**steps) / (1 - discount)

    def _keep(self, path: Path, node: PlanNode, actions: Sequence[int]) -> None:
        """Add the states that actions lead to; after the last of them, rewards go on at a rate."""
        path = list(path)
        for action in actions:
            if node.terminated or len(path) == self._horizon:
                break
            index = self._index(node, action)
            path.append((node, index))
            node = node.children[index] or self._expand(node, index)
        if not node.terminated and not node.visits:
            node.value = node.leaf = self._rate * self._span(self._horizon - len(path))
        self._back_up(path, node)

    def _back_up(self, path: Path, node: PlanNode) -> None:
        """Count a visit on the way to a state, and make values those of the best that follows."""
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

    def _best(self, node: PlanNode) -> Path:
        """Return the best plan known from a state: states and the places of actions."""
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


def repeated(rng: np.random.Generator, actions: range, length: int) -> Iterator[list[int]]:
    """Yield random actions each of which is repeated, for longer or shorter in different rows."""
    while True:
        lengths = 2.0 ** rng.integers(0, REPEATS, (ROWS, 1))
        starts = rng.random((ROWS, length)) * lengths < 1
        places = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
        drawn = rng.integers(actions.start, actions.stop, (ROWS, length))
        yield from np.take_along_axis(drawn, places, axis=1).tolist()


def changed(plan: Sequence[int], actions: range, random: Random) -> list[int]:
    """Replace, delay or skip the first steps of a plan, or drop all of it as often as that."""
    number, length, mean = random.random, 1, 2 ** int(random.random() * REPEATS)
    while number() * mean > 1:
        length += 1
    if number() < DROPPED:
        return []
    first = [actions[int(number() * len(actions))]] * length
    rest = plan[length:]
    return [*(first, (*first, *plan[:length]), ())[int(number() * 3)], *rest]


# A graph of states that come again.

LARGEST = 10_000
"""With more states than this a graph is begun anew, so that memory stays bounded."""

WORK = 1_000_000
"""Outcomes that are backed up for a decision; with more, values are begun with those of walks."""


FEWEST_APART = 3
"""Draws that have to differ from each other before states count as such that never come again."""


class GraphNode(TreeNode):
    """A state: for every action its rewards in sum, and how often each state followed.

    Of one that was told of these are the mean of its rewards, and probabilities.
    """

    __slots__ = ("outcomes", "rewards", "told", "value")

    def __init__(self, state: Any, actions: Sequence[int]) -> None:
        super().__init__(state, actions)
        self.value = 0.0
        self.rewards = [0.0] * len(actions)
        self.outcomes: list[dict[Self, float]] = [{} for _ in actions]
        self.told = [False] * len(actions)


class StateGraph(TreeSearch[GraphNode]):
    """What walks through a model have found: equal states are one, whatever led to them.

    A walk takes the action of the highest upper confidence bound of its
    value, and before those any that was not tried yet. What is known of a
    model that always answers alike, or that tells what can follow, is not tried again, but counts
    for the budget. Of states that never come again few are drawn, so that walks return to them
    (progressive widening; Couetoux et al., Continuous upper confidence trees, 2011).
    A decision is made by backward induction, so that nothing beyond the horizon counts.
    """

    def __init__(self, model: Model, options: Mcts) -> None:
        super().__init__(model, options)
        self.states: dict[Any, GraphNode] = {}
        self._lowest, self._highest = inf, -inf
        self._walked = 0

    def _begin(self, situation: Situation) -> GraphNode:
        """Return the state of a situation, by the name that steps would give it."""
        if len(self.states) > LARGEST:
            self.states.clear()
        self._horizon, state = situation.horizon, situation.state
        if self._model.deterministic:
            self._model.stand(state)
            state = self._model.here()
        return self._known(name((state, False)), state, situation.valid)

    def _simulate(self, root: GraphNode) -> None:
        """Walk as far as a rollout, or to the end of the episode, and back up values."""
        state, path, stands = root, list[tuple[GraphNode, int]](), False
        length = min(self._options.rollout, self._horizon)
        scale = self._options.exploration * max(0.0, self._highest - self._lowest)
        while len(path) < length and not state.terminated:
            index = optimistic(state, scale, self._random)
            path.append((state, index))
            state.visits += 1
            state.tried[index] += 1
            if not state.outcomes[index] and not self._model.deterministic:
                if not stands:
                    self._model.stand(state.state)
                self._note_told(state, index)
                stands = True
            known = self._again(state, index)
            if known is not None:
                state, stands = known, False
                continue
            if not stands:
                self._model.stand(state.state)
            state, stands = self._step(state, index), True
        for state, index in reversed(path):
            self._back_up(state, index)
        self._walked += len(path)

    def _again(self, state: GraphNode, index: int) -> GraphNode | None:
        """Return what an action leads to by what is known of it, None where it is to be tried."""
        outcomes = state.outcomes[index]
        if not outcomes:
            return None
        if self._model.deterministic:
            [only] = outcomes
            return only
        if not state.told[index]:
            several = len(outcomes) >= FEWEST_APART and not countable(state.state)
            never_again = several and len(outcomes) == sum(outcomes.values())
            if not (never_again and len(outcomes) ** 2 > state.tried[index]):
                return None
        [drawn] = self._random.choices(list(outcomes), list(outcomes.values()))
        return drawn

    def _note_told(self, state: GraphNode, index: int) -> None:
        """Note all that can follow an action from where the model stands, if it tells that."""
        told = self._model.outcomes(state.actions[index])
        state.told[index] = bool(told)
        for probability, (observation, reward, terminated, valid), here in told or ():
            child = self._known(name((observation, terminated)), here, valid)
            child.terminated = terminated
            state.outcomes[index][child] = state.outcomes[index].get(child, 0.0) + probability
            state.rewards[index] += probability * reward

    def _spent(self) -> int:
        return self._walked

    def _step(self, state: GraphNode, index: int) -> GraphNode:
        """Take an action from where the model stands; return the state that it leads to."""
        observation, reward, terminated, valid = self._model.step(state.actions[index])
        here = self._model.here()
        alike = here if self._model.deterministic or self._model.hides else observation
        child = self._known(name((alike, terminated)), here, valid)
        child.terminated = terminated
        outcomes = state.outcomes[index]
        outcomes[child] = outcomes.get(child, 0) + 1
        state.rewards[index] += reward
        return child

    def _known(self, named: Any, state: Any, valid: tuple[int, ...] | None) -> GraphNode:
        """Return the state of a name, a new one if it was not met before."""
        if named not in self.states:
            self.states[named] = GraphNode(state, valid or self._actions)
        return self.states[named]

    def _back_up(self, state: GraphNode, index: int) -> None:
        """Value an action by what followed it so far."""
        outcomes = state.outcomes[index]
        total = sum(outcomes.values())
        following = sum(count * child.value for child, count in outcomes.items())
        value = (state.rewards[index] + self._options.discount * following) / total
        state.values[index] = value
        state.value = max(state.values)
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)

    def _values(self, root: GraphNode) -> list[float]:
        """Return the values of the root's actions when nothing counts beyond the horizon.

        Where nothing was tried yet, rewards go on at their mean.
        """
        states, discount = list(self.states.values()), self._options.discount
        known = _outcomes(states)
        leaves = np.array([not (state.terminated or state.visits) for state in states])
        sweeps = min(self._horizon, max(1, WORK // len(known.following)))
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


def _outcomes(states: Sequence[GraphNode]) -> OutcomeArrays:
    """Put what followed the actions that were tried into arrays."""
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
