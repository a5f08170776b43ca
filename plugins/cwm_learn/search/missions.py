"""Search for plans that fulfil a mission in words, guided by the words of the mission.

The tree search and its shaping follow Tang, Key and Ellis (2024), with one correction: a plan
succeeds only if the model returns a reward and ends the episode, never because of shaping alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import Any

import numpy as np

from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model, name

K1, B = 1.5, 0.75
"""The usual constants of BM25."""

_WORD = re.compile(r"[^\W\d_]+")


def predict_rows(
    model: Model, arrays: Mapping[str, np.ndarray], *, space: Any
) -> dict[str, np.ndarray]:
    """Return the predictions for rows, and the error message of each row, "" without an error.

    `arrays` has the columns of `observations` and `actions`; `space` is the space of observations.
    """
    observations, actions = Space.from_json(space), model.action_space
    count = len(next(iter(arrays.values())))
    rewards, ends, errors, after = np.zeros(count), np.zeros(count, bool), [""] * count, []
    for row in range(count):
        observation = observations.unpack("observations", arrays, row)
        try:
            model.stand(observation)
            step = model.step(actions.unpack("actions", arrays, row))
            rewards[row], ends[row] = step.reward, step.terminated
            after.append(step.observation)
        except Exception as error:  # noqa: BLE001  # a program may raise any exception
            errors[row] = f"{type(error).__name__}: {error}"[:300]
            after.append(observation)
    packed = observations.pack("next_observations", after)
    return {**packed, "rewards": rewards, "terminations": ends, "errors": np.array(errors, np.str_)}


def find_plans(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    space: Any,
    words: Sequence[str] = (),
    actions: Sequence[str] = (),
    schema: Any = None,
    budget: int = 6000,
    depth: int = 30,
    exploration: float = 1.0,
) -> dict[str, np.ndarray]:
    """Search for a plan from each start that gets a reward and ends the episode.

    Args:
        model: The model.
        arrays: Columns of `observations`, the starts.
        space: The space of observations.
        words: The words of the mission.
        actions: The names of the actions, from the first one.
        schema: The schema of objects, if observations have objects.
        budget: Maximum number of nodes per start.
        depth: Maximum length of a plan.
        exploration: Weight of the exploration bonus of UCT.

    Returns:
        `plans` (starts, depth) with the number of valid actions in `lengths`; whether each plan
        `reached` its goal in a second simulation; the number of `nodes` per start. Without
        success the plan is the last one that the search tried.
    """
    observations = Space.from_json(space)
    count = len(next(iter(arrays.values())))
    plans, lengths = np.zeros((count, depth), np.int64), np.zeros(count, np.int64)
    reached, nodes = np.zeros(count, bool), np.zeros(count, np.int64)
    texts = _StepTexts(words, actions, ObjectSchema.from_json(schema) if schema else None)
    for row in range(count):
        start = observations.unpack("observations", arrays, row)
        search = MissionSearch(model, texts, depth=depth, exploration=exploration)
        plan = search.plan(start, budget)
        plans[row, : len(plan)] = plan
        lengths[row], nodes[row] = len(plan), search.nodes
        reached[row] = _reaches_goal(model, start, plan)
    return {"plans": plans, "lengths": lengths, "reached": reached, "nodes": nodes}


def _reaches_goal(model: Model, start: Any, plan: Sequence[int]) -> bool:
    """Return whether the model ends a plan with a reward above 0."""
    try:
        model.stand(start)
        for action in plan:
            step = model.step(action)
            if step.terminated:
                return step.reward > 0
    except Exception:  # noqa: BLE001  # a program may raise any exception
        return False
    return False


class _StepTexts:
    """Words of actions and of changed objects, and the `words` of the mission."""

    def __init__(
        self, words: Sequence[str], actions: Sequence[str], schema: ObjectSchema | None
    ) -> None:
        self.words = [word.lower() for word in words]
        self._actions = [_WORD.findall(each.lower()) for each in actions]
        self._schema = schema
        self._objects: dict[tuple[int, ...], list[str]] = {}

    def action(self, index: int) -> list[str]:
        """Return the words of an action."""
        return self._actions[index] if index < len(self._actions) else []

    def step(self, index: int, before: Any, after: Any) -> list[str]:
        """Return the words of an action, and of objects before and after they changed."""
        words = list(self.action(index))
        if self._schema is None:
            return words
        changed = np.flatnonzero((before[OBJECTS] != after[OBJECTS]).any(axis=1))
        for table in (before[OBJECTS], after[OBJECTS]):
            for row in map(tuple, table[changed].tolist()):
                if row not in self._objects and row[0]:
                    [thing] = self._schema.decode(np.array([row]))
                    text = f"{thing.kind} {' '.join(map(str, thing.properties.values()))}"
                    self._objects[row] = _WORD.findall(text.lower())
                words += self._objects.get(row, [])
        return words


@dataclass(slots=True, eq=False)
class _Node:
    """A state in the tree; it is `done` if all its continuations have been tried.

    `counts` are how often the words of the mission occur in the text of the plan, and `length` is
    the number of words of that text.
    """

    parent: _Node | None
    action: int
    state: Any
    depth: int = 0
    value_sum: float = 0.0
    visits: int = 1
    children: list[_Node] = field(default_factory=list)
    untried: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    length: int = 0
    done: bool = False

    @property
    def plan(self) -> list[int]:
        """The actions from the root."""
        node, actions = self, []
        while node.parent is not None:
            actions.append(node.action)
            node = node.parent
        return actions[::-1]


class MissionSearch:
    """A tree search (UCT) that contains each state once; `nodes` is the number of nodes.

    The value of a new node is its reward plus the BM25 score of the text of its plan for the words
    of the mission. Document frequencies count all plans so far. Actions with more words of the
    mission are tried first.
    """

    def __init__(
        self, model: Model, texts: _StepTexts, *, depth: int = 30, exploration: float = 1.0
    ) -> None:
        self.nodes = 0
        self._model, self._texts = model, texts
        self._depth, self._exploration = depth, exploration
        low, high = int(model.action_space.low[0]), int(model.action_space.high[0])
        self._first = low
        wanted = set(texts.words)
        self._actions = sorted(
            range(low, high + 1), key=lambda a: -sum(w in wanted for w in texts.action(a - low))
        )
        self._visited: set[Any] = set()
        self._plans, self._plans_with, self._total_length = 0, Counter[str](), 0

    def plan(self, start: Any, budget: int) -> list[int]:
        """Return a plan that gets a reward and ends the episode, or the last plan tried."""
        root = last = _Node(None, 0, start)
        root.untried = self._actions[::-1]
        self._visited = {name(start)}
        while self.nodes < budget and not root.done:
            node = self._select(root)
            last = child = _Node(node, node.untried.pop(), None, node.depth + 1)
            node.children.append(child)
            self.nodes += 1
            value, is_goal = self._step(node, child)
            if is_goal:
                return child.plan
            value += self._shaping(child)
            ancestor: _Node | None = child
            while ancestor is not None and not ancestor.untried:
                if not all(each.done for each in ancestor.children):
                    break
                ancestor.done = True
                ancestor = ancestor.parent
            ancestor = child
            while ancestor is not None:
                ancestor.value_sum, ancestor.visits = (
                    ancestor.value_sum + value,
                    ancestor.visits + 1,
                )
                ancestor = ancestor.parent
        return last.plan

    def _select(self, node: _Node) -> _Node:
        """Descend by upper confidence bounds to a node with an untried action."""
        while not node.untried:
            total = log(node.visits)
            node = max(
                (child for child in node.children if not child.done),
                key=lambda each: (
                    each.value_sum / each.visits + self._exploration * sqrt(2 * total / each.visits)
                ),
            )
        return node

    def _step(self, node: _Node, child: _Node) -> tuple[float, bool]:
        """Simulate the step to a child; return the reward, and whether it reaches the goal."""
        try:
            self._model.stand(node.state)
            step = self._model.step(child.action)
        except Exception:  # noqa: BLE001  # a program may raise any exception
            return 0.0, False
        child.state, reward = step.observation, float(step.reward)
        words = self._texts.step(child.action - self._first, node.state, child.state)
        child.counts = node.counts + Counter(w for w in words if w in self._texts.words)
        child.length = node.length + len(words)
        key = name(child.state)
        if not (step.terminated or key in self._visited or child.depth >= self._depth):
            child.untried = self._actions[::-1]
        self._visited.add(key)
        min_reward = 1e-6  # smaller rewards count as zero during the search
        return reward, step.terminated and reward > min_reward

    def _shaping(self, node: _Node) -> float:
        """Return the BM25 score of the text of a plan for the mission, per word of the mission."""
        self._plans, self._total_length = self._plans + 1, self._total_length + node.length
        self._plans_with.update(node.counts.keys())
        if not self._texts.words or not node.length:
            return 0.0
        mean_length = self._total_length / self._plans
        score = 0.0
        for word, count in node.counts.items():
            frequency = self._plans_with[word]
            rarity = log((self._plans - frequency + 0.5) / (frequency + 0.5) + 1)
            normaliser = count + K1 * (1 - B + B * node.length / mean_length)
            score += rarity * count * (K1 + 1) / normaliser
        return score / len(self._texts.words)
