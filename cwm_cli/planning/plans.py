"""Tree search for models that always answer alike: it keeps, and improves, the best plan found.

UCT with normalised values (MuZero; Schrittwieser et al., 2020). An action is
worth the best return found after it, and the tree lives on with the next decision.
"""

from collections.abc import Sequence
from itertools import chain
from math import inf
from random import Random
from typing import Any, Self

from cwm_cli.planning.draws import changed, persistent
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.states import close
from cwm_cli.planning.tree import Effort, Tried, optimistic

DEVIATIONS = 0.25
"""Share of the simulations that follow the best plan and leave it somewhere, anywhere."""

Path = list[tuple["Node", int]]


class Node:
    """A state: for every action the visits, the best return and what followed.

    `value` is the best return from here, and `leaf` that of the rollouts that began here.
    """

    __slots__ = (
        "actions",
        "children",
        "leaf",
        "observation",
        "reward",
        "state",
        "terminated",
        "tried",
        "value",
        "values",
        "visits",
    )

    def __init__(self, state: Any, actions: Sequence[int], observation: Any = None) -> None:
        self.state = state
        self.observation = observation
        self.actions = actions
        self.reward = 0.0
        self.terminated = False
        self.visits = 0
        self.value = 0.0
        self.leaf = -inf
        self.tried = [0] * len(actions)
        self.values = [-inf] * len(actions)
        self.children: list[Self | None] = [None] * len(actions)


class PlanTree:
    """A tree that is grown from decision to decision of one episode."""

    def __init__(self, model: Model, effort: Effort) -> None:
        low, high = model.action_space.low[0], model.action_space.high[0]
        self._actions = range(int(low), int(high) + 1)
        self._model = model
        self._effort = effort
        self.root: Node | None = None
        self._lowest, self._highest = inf, -inf
        self._rate = 0.0
        self._horizon = 0

    def search(self, situation: Situation) -> Tried:
        """Simulate until the effort is spent; return what was tried at the root."""
        effort, counter = self._effort, self._model.counter
        last = inf if effort.budget is None else counter[0] + effort.budget
        self._random = Random(int(situation.rng.integers(2**63)))  # noqa: S311  # no secret
        self._persistent = persistent(situation.rng, self._actions, effort.rollout)
        root = self.root = self._stand(situation)
        for _ in range(effort.simulations):
            self._simulate(root)
            if counter[0] >= last:
                break
        return Tried(root.actions, root.tried, root.values)

    def _stand(self, situation: Situation) -> Node:
        """Return the node of a situation; the rest of the plan is tried anew if it has none."""
        before = self.root
        later = situation.horizon >= self._horizon - 1
        self._horizon = situation.horizon
        for child in before.children if before and later else ():
            if child and not child.terminated and _agrees(child, situation.state):
                child.leaf = -inf  # a rollout that is not in the tree cannot be played
                return child
        plan = self._best(before) if before else []
        self._lowest, self._highest = inf, -inf
        root = Node(situation.state, situation.valid or self._actions)
        if len(plan) > 1:
            self._keep([], root, [node.actions[index] for node, index in plan[1:]])
        return root

    def _simulate(self, root: Node) -> None:
        """Try something new, roll out from there, and keep what was best as a plan."""
        deviates = any(root.tried) and self._random.random() < DEVIATIONS
        path, proposals = self._deviate(root) if deviates else self._descend(root)
        before = root.value if root.visits else -inf
        parent, index = path[-1]
        node = parent.children[index] or self._expand(parent, index)
        left = self._horizon - len(path)
        taken: Sequence[int] = ()
        if left and not node.visits and not node.terminated:
            taken = self._rollout(node, proposals[: min(left, self._effort.rollout)], left)
        self._back_up(path, node)
        if taken and root.value > before:
            node.leaf = -inf
            self._keep(path, node, taken)

    def _descend(self, root: Node) -> tuple[Path, Sequence[int]]:
        """Take the actions of the highest bounds up to a new one; then come persistent ones."""
        node, path = root, Path()
        scale = self._effort.exploration * max(0.0, self._highest - self._lowest)
        while True:
            index = optimistic(node.values, node.tried, scale, self._random)
            path.append((node, index))
            child = node.children[index]
            if child is None or child.terminated or len(path) == self._horizon:
                return path, next(self._persistent)
            node = child

    def _deviate(self, root: Node) -> tuple[Path, Sequence[int]]:
        """Follow the best plan, leave it, and go on by what the change makes of the rest."""
        path = self._best(root)
        depth = int(self._random.random() * len(path))
        rest = [node.actions[index] for node, index in path[depth:]]
        proposals = chain(changed(rest, self._actions, self._random), next(self._persistent))
        node = path[depth][0]
        del path[depth:]
        while True:
            index = self._index(node, next(proposals, self._actions.stop))
            path.append((node, index))
            child = node.children[index]
            if child is None or child.terminated or len(path) == self._horizon:
                return path, list(proposals) or next(self._persistent)
            node = child

    def _index(self, node: Node, action: int) -> int:
        """Return the place of an action in a state, or of any other where it is not valid."""
        if action in node.actions:
            return node.actions.index(action)
        return int(self._random.random() * len(node.actions))

    def _expand(self, node: Node, index: int) -> Node:
        """Take an action for the first time."""
        self._model.stand(node.state)
        observation, reward, terminated, valid = self._model.step(node.actions[index])
        child = Node(self._model.here(), valid or self._actions, observation)
        child.reward, child.terminated = reward, terminated
        node.children[index] = child
        return child

    def _rollout(self, node: Node, proposals: Sequence[int], left: int) -> Sequence[int]:
        """Value a state by a rollout and return the actions taken.

        Where the rollout ends before the episode, rewards go on at its rate.
        """
        discount, before = self._effort.discount, self._model.counter[0]
        if node.actions is self._actions:
            total = self._model.play(proposals, discount)
        else:
            proposals = list(proposals)
            total = self._walk(node.actions, proposals)
        steps = self._model.counter[0] - before
        if steps == len(proposals):
            self._rate = total / self._span(steps)
            total = self._rate * self._span(left)
        node.value = node.leaf = total
        return proposals[:steps]

    def _walk(self, valid: Sequence[int], proposals: list[int]) -> float:
        """Return the discounted return of actions; those that are not valid become others."""
        total, factor = 0.0, 1.0
        for place, action in enumerate(proposals):
            if action not in valid:
                proposals[place] = valid[int(self._random.random() * len(valid))]
            _, reward, terminated, following = self._model.step(proposals[place])
            total += factor * reward
            if terminated:
                break
            factor *= self._effort.discount
            valid = following or self._actions
        return total

    def _span(self, steps: int) -> float:
        """Return the discounted number of steps."""
        discount = self._effort.discount
        return steps if discount == 1 else (1 - discount**steps) / (1 - discount)

    def _keep(self, path: Path, node: Node, actions: Sequence[int]) -> None:
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

    def _back_up(self, path: Path, node: Node) -> None:
        """Count a visit on the way to a state, and make values those of the best that follows."""
        discount, lowest, highest = self._effort.discount, self._lowest, self._highest
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

    def _best(self, node: Node) -> Path:
        """Return the best plan known from a state: states and the places of actions."""
        path: Path = []
        following: Node | None = node
        while following:
            best = max(following.values)
            if best == -inf or following.leaf > best:
                break
            index = following.values.index(best)
            path.append((following, index))
            following = following.children[index]
        return path


def _agrees(node: Node, state: Any) -> bool:
    """Whether a state is what was predicted."""
    return close(node.observation, state) or close(node.state, state)
