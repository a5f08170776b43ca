"""Ways to a mission in words: a tree search that shaping leads by the words of the mission.

The search is that of Tang, Key and Ellis (2024) with one thing put right: it succeeds where the
model pays and ends, never where shaping alone does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log, sqrt
from typing import Any

import numpy as np

from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model, name

PAYS = 1e-6
"""A reward above this is one."""

K1, B = 1.5, 0.75
"""The usual constants of BM25."""

LONGEST_ERROR = 300
"""Characters of what an error says that are kept."""

_WORD = re.compile(r"[^\W\d_]+")


def answers(model: Model, arrays: Mapping[str, np.ndarray], *, space: Any) -> dict[str, np.ndarray]:
    """Return what the model says to each row, and what it raised where it did.

    `arrays` are columns of `observations` and `actions`; `errors` are "" where there was none.
    """
    observations, actions = Space.from_json(space), model.action_space
    count = len(next(iter(arrays.values())))
    rewards, ends, errors, seen = np.zeros(count), np.zeros(count, bool), [""] * count, []
    for row in range(count):
        observation = observations.unpack("observations", arrays, row)
        try:
            model.stand(observation)
            step = model.step(actions.unpack("actions", arrays, row))
            rewards[row], ends[row] = step.reward, step.terminated
            seen.append(step.observation)
        except Exception as error:  # noqa: BLE001  # whatever a stranger's program raises
            errors[row] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
            seen.append(observation)
    found = observations.pack("next_observations", seen)
    return {**found, "rewards": rewards, "terminations": ends, "errors": np.array(errors, np.str_)}


def seek(  # what a search takes, by keyword
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
    """Search a way to be paid and done from each start; `arrays` are columns of `observations`.

    `words` are those of the mission, `actions` the names of actions. Returns `plans` (starts,
    depth), of which `lengths` count, whether each has `reached` its end when it is played in the
    model anew, and how many `nodes` each search made. A plan that does not reach it is the last
    that was tried.
    """
    observations = Space.from_json(space)
    count = len(next(iter(arrays.values())))
    found = {
        "plans": np.zeros((count, depth), np.int64),
        "lengths": np.zeros(count, np.int64),
        "reached": np.zeros(count, bool),
        "nodes": np.zeros(count, np.int64),
    }
    texts = _Texts(words, actions, ObjectSchema.from_json(schema) if schema else None)
    for row in range(count):
        start = observations.unpack("observations", arrays, row)
        search = MissionSearch(model, texts, depth=depth, exploration=exploration)
        plan = search.plan(start, budget)
        found["plans"][row, : len(plan)] = plan
        found["lengths"][row], found["nodes"][row] = len(plan), search.nodes
        found["reached"][row] = _reaches(model, start, plan)
    return found


def _reaches(model: Model, start: Any, plan: Sequence[int]) -> bool:
    """Whether a plan is paid and done at once, as the model has it; an end without pay is none."""
    try:
        model.stand(start)
        for action in plan:
            step = model.step(action)
            if step.terminated:
                return step.reward > 0
    except Exception:  # noqa: BLE001  # whatever a stranger's program raises
        return False
    return False


class _Texts:
    """What steps are called in words, of which those of the mission count."""

    def __init__(
        self, words: Sequence[str], actions: Sequence[str], schema: ObjectSchema | None
    ) -> None:
        self.words = [word.lower() for word in words]
        self.actions = [_WORD.findall(each.lower()) for each in actions]
        self._schema = schema
        self._rows: dict[tuple[int, ...], list[str]] = {}

    def action(self, place: int) -> list[str]:
        """Return the words of an action."""
        return self.actions[place] if place < len(self.actions) else []

    def step(self, place: int, before: Any, after: Any) -> list[str]:
        """Return the words of an action and of what it changed."""
        said = list(self.action(place))
        if self._schema is None:
            return said
        changed = np.flatnonzero((before[OBJECTS] != after[OBJECTS]).any(axis=1))
        for table in (before[OBJECTS], after[OBJECTS]):
            for row in map(tuple, table[changed].tolist()):
                said += self._said(row)
        return said

    def _said(self, row: tuple[int, ...]) -> list[str]:
        """Return the words of a thing."""
        if row not in self._rows and self._schema and row[0]:
            table = np.array([row])
            [thing] = self._schema.decode(table)
            said = f"{thing.kind} {' '.join(map(str, thing.properties.values()))}"
            self._rows[row] = _WORD.findall(said.lower())
        return self._rows.get(row, [])


class _Node:
    """A situation in the tree; `terminal` where nothing follows, or what follows is elsewhere."""

    __slots__ = ("action", "children", "counts", "depth", "done", "length", "n", "parent", "q",
                 "state", "terminal", "untried")  # fmt: skip

    def __init__(self, parent: _Node | None, action: int, state: Any) -> None:
        self.parent, self.action, self.state = parent, action, state
        self.depth: int = parent.depth + 1 if parent else 0
        self.q, self.n = 0.0, 1
        self.children: list[_Node] = []
        self.untried: list[int] = []
        self.counts: Counter[str] = Counter()
        self.length = 0
        self.terminal = self.done = False

    @property
    def path(self) -> list[int]:
        """The actions that lead here."""
        node, actions = self, []
        while node.parent is not None:
            actions.append(node.action)
            node = node.parent
        return actions[::-1]


class MissionSearch:
    """A tree over situations, each of which is in it once; `nodes` counts them.

    A new situation is worth what the model pays for it plus how well the text of the way to it
    fits the mission (BM25, with the frequencies of the ways so far). Actions are tried in
    the order of how many words of the mission they have.
    """

    def __init__(
        self, model: Model, texts: _Texts, *, depth: int = 30, exploration: float = 1.0
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
        self._ways, self._ways_with, self._lengths = 0, Counter[str](), 0

    def plan(self, start: Any, budget: int) -> list[int]:
        """Return the actions of a way that is paid and done, or of the last way that was tried."""
        root = _Node(None, 0, start)
        root.untried = self._actions[::-1]
        self._visited = {name(start)}
        last = root
        while self.nodes < budget and not root.done:
            node = self._descend(root)
            last = child = self._expand(node)
            value, ended = self._entered(node, child)
            if ended:
                return child.path
            value += self._shaping(child)
            self._close(child)
            above: _Node | None = child
            while above is not None:
                above.q, above.n = above.q + value, above.n + 1
                above = above.parent
        return last.path

    def _descend(self, node: _Node) -> _Node:
        """Go to a situation in which something was not tried; where all was, none is done."""
        while not node.untried:
            total = log(node.n)
            node = max(
                (child for child in node.children if not child.done),
                key=lambda c: c.q / c.n + self._exploration * sqrt(2 * total / c.n),
            )
        return node

    def _expand(self, node: _Node) -> _Node:
        """Add what follows the next action."""
        self.nodes += 1
        child = _Node(node, node.untried.pop(), None)
        node.children.append(child)
        return child

    def _entered(self, node: _Node, child: _Node) -> tuple[float, bool]:
        """Step to a situation; return what the model pays, and whether that is the end wanted."""
        try:
            self._model.stand(node.state)
            step = self._model.step(child.action)
        except Exception:  # noqa: BLE001  # whatever a stranger's program raises
            child.terminal = True
            return 0.0, False
        child.state, reward = step.observation, float(step.reward)
        said = self._texts.step(child.action - self._first, node.state, child.state)
        child.counts = node.counts + Counter(w for w in said if w in self._texts.words)
        child.length = node.length + len(said)
        known = name(child.state)
        child.terminal = step.terminated or known in self._visited or child.depth >= self._depth
        self._visited.add(known)
        child.untried = [] if child.terminal else self._actions[::-1]
        return reward, step.terminated and reward > PAYS

    def _shaping(self, node: _Node) -> float:
        """Return how well the text of the way to a situation fits the mission."""
        self._ways, self._lengths = self._ways + 1, self._lengths + node.length
        self._ways_with.update(node.counts.keys())
        if not self._texts.words or not node.length:
            return 0.0
        usual = self._lengths / self._ways
        total = 0.0
        for word, times in node.counts.items():
            having = self._ways_with[word]
            rarity = log((self._ways - having + 0.5) / (having + 0.5) + 1)
            total += rarity * times * (K1 + 1) / (times + K1 * (1 - B + B * node.length / usual))
        return total / len(self._texts.words)

    def _close(self, node: _Node) -> None:
        """Note where everything that can follow was tried."""
        above: _Node | None = node
        while above is not None and not above.untried and all(c.done for c in above.children):
            above.done = True
            above = above.parent
