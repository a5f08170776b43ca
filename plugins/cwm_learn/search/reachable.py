"""Enumerate the states that a program can reach, and the outcomes of every action in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, combinations, product
from operator import getitem
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model, Step, Unbatched, name

MAX_STEPS = 60_000
"""Steps of the program in one search, which take about a second."""

Outcomes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Next states, rewards and terminations, each (states, actions)."""


def actions_of(space: Space) -> list[Any]:
    """Return all actions of a space of integers, in order."""
    if space.kind == "discrete":
        return list(range(int(space.low[0]), int(space.high[0]) + 1))
    if space.children:
        parts = list(product(*(actions_of(child) for child in space.children)))
        if space.kind == "tuple":
            return parts
        return [dict(zip(space.keys, part, strict=True)) for part in parts]
    bounds = zip(space.low, space.high, strict=True)
    ranges = [range(int(low), int(high) + 1) for low, high in bounds]
    dtype = np.dtype(space.dtype)
    return [np.array(values, dtype).reshape(space.shape) for values in product(*ranges)]


def enumerate_states(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    space: dict[str, Any],
    max_states: int = 6_000,
    width: int = 0,
    partition: Sequence[int] = (),
    target_reward: float | None = None,
) -> dict[str, np.ndarray]:
    """Take every action in every reachable state, breadth first.

    The search ends when no state is left, or after `max_states` states or `MAX_STEPS` steps. The
    novelty filter is iterated width: Lipovetzky and Geffner, Width and serialization of classical
    planning problems, 2012, and Best-first width search, 2017.

    Args:
        model: The program.
        arrays: Observations (rows, ...) of the initial states, by leaf of the `space`.
        space: The observation space as JSON.
        max_states: Number of states to find, including the initial ones.
        width: Expand only states with a new combination of at most this many values; 0: all.
        partition: Positions in the values of a state. Combinations are new separately for each
            combination of the values at these positions.
        target_reward: Stop at a terminal transition with at least this reward.

    Returns:
        The `observations` of the states found, which are numbered after the initial states.
        `expanded` contains the numbers of states whose actions were taken. The rows (actions,) of
        `next_states` (-1 if the program failed), `rewards` and `terminated` belong to them.
    """
    search = _Search(model, Space.from_json(space), arrays)
    filters: defaultdict[Any, _NoveltyFilter] = defaultdict(lambda: _NoveltyFilter(width))

    def is_novel(values: Sequence[Any]) -> bool:
        return filters[tuple(values[place] for place in partition)].add(values)

    empty = np.zeros((0, len(search.actions)))
    tables: list[Outcomes] = [(empty.astype(np.int64), empty, empty.astype(bool))]
    expanded: list[int] = []
    best_end = -np.inf
    # steps of one batch: enough to amortise its overhead, few enough for the memory
    batch_steps = 4_000
    while search.goes_on(max_states) and (target_reward is None or best_end < target_reward):
        size = min(batch_steps // len(search.actions) + 1, max_states - len(search.states))
        states, table = search.expand(size, is_novel if width else None)
        expanded += states
        tables.append(table)
        _, rewards, terminated = table
        best_end = max(best_end, rewards[terminated].max(initial=-np.inf))
    next_states, rewards, terminated = map(np.concatenate, zip(*tables, strict=True))
    return search.observations() | {
        "expanded": np.array(expanded, np.int64),
        "next_states": next_states,
        "rewards": rewards,
        "terminated": terminated,
    }


def enumerate_outcomes(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    space: dict[str, Any],
    max_states: int = 6_000,
) -> dict[str, np.ndarray]:
    """List all outcomes of every action in every reachable state, with their probabilities.

    Arguments, numbers and `observations` are as in `enumerate_states`. The other arrays have
    one entry per outcome: `state`, `action`, `probability`, `next_state`, `reward` and
    `terminated`. If a program only samples, 32 samples are taken of each action.
    """
    search = _Search(model, Space.from_json(space), arrays)
    outcomes: list[tuple[Any, ...]] = []
    while search.goes_on(max_states):
        outcomes += search.expand_outcomes(search.waiting.pop(0))
    columns = zip(*outcomes, strict=True) if outcomes else [()] * 6
    names = ("state", "action", "probability", "next_state", "reward", "terminated")
    dtypes = (np.int64, np.int64, float, np.int64, float, bool)
    return search.observations() | {
        name: np.array(column, dtype)
        for name, column, dtype in zip(names, columns, dtypes, strict=True)
    }


class _Search:
    """The states found so far, by number, and the numbers of the states `waiting` for expansion."""

    def __init__(self, model: Model, space: Space, arrays: Mapping[str, np.ndarray]) -> None:
        self._model, self._space = model, space
        self.actions = actions_of(model.action_space)
        self._is_array = not space.children and space.kind != "text"
        self._batch = model.batch if self._is_array else None
        self._batch_failures = 0
        self._bounds = list(_bounds_of(space))
        self._max_count = model.counter[0] + MAX_STEPS
        self._initial = len(next(iter(arrays.values())))
        self.states = [space.unpack("observations", arrays, row) for row in range(self._initial)]
        self._numbers: dict[Any, int] = {}
        for number, state in enumerate(self.states):
            self._numbers.setdefault(self._key(state), number)
        self.waiting = sorted(self._numbers.values())

    def goes_on(self, max_states: int) -> bool:
        """Return whether states are waiting and no limit is reached."""
        below = len(self.states) < max_states and self._model.counter[0] < self._max_count
        return bool(self.waiting) and below

    def observations(self) -> dict[str, np.ndarray]:
        """Return the observations of all states except the initial ones."""
        columns = self._space.pack("observations", self.states)
        return {name: column[self._initial :] for name, column in columns.items()}

    def expand(
        self, size: int, is_novel: Callable[[Sequence[Any]], bool] | None
    ) -> tuple[list[int], Outcomes]:
        """Take every action in the next waiting states; new states wait if they are novel."""
        states, self.waiting = self.waiting[:size], self.waiting[size:]
        before = len(self.states)
        table = self._step_batch(states) or self._step_each(states)
        next_states, _, terminated = table
        ended = set(next_states[terminated].tolist()) - set(next_states[~terminated].tolist())
        new = [n for n in range(before, len(self.states)) if n not in ended]
        if is_novel is not None:
            new = [n for n in new if is_novel(self._values(self.states[n]))]
        self.waiting += new
        return states, table

    def expand_outcomes(self, number: int) -> list[tuple[Any, ...]]:
        """Return the outcomes of every action in a state; new states wait."""
        outcomes: list[tuple[Any, ...]] = []
        for action_number, action in enumerate(self.actions):
            before = len(self.states)
            try:
                self._model.stand(self.states[number])
                possible = self._possible_steps(number, action)
            except Exception:  # noqa: BLE001, S112  # the program fails in this state
                continue
            for probability, step in possible:
                after = self._number(step.observation)
                outcomes.append(
                    (number, action_number, probability, after, step.reward, step.terminated)
                )
            continued = {after for *_, after, _, ended in outcomes if not ended}
            self.waiting += [n for n in range(before, len(self.states)) if n in continued]
        return outcomes

    def _possible_steps(self, number: int, action: Any) -> list[tuple[float, Step]]:
        """Return probabilities and outcomes of an action: listed, deterministic, or sampled."""
        listed = self._model.outcomes(action)
        if listed is not None:
            return [(each.probability, each.step) for each in listed]
        if self._model.deterministic:
            return [(1.0, self._model.step(action))]
        steps, samples = [], 32  # probabilities are then exact to about 0.1
        for sample in range(samples):
            self._model.draw_from([number, sample])
            self._model.stand(self.states[number])
            steps.append((1 / samples, self._model.step(action)))
        return steps

    def _step_batch(self, states: Sequence[int]) -> Outcomes | None:
        """Take every action in some states with one batch; None if that is not possible."""
        if (batch := self._batch) is None:
            return None
        lanes = np.stack([np.asarray(self.states[n]).ravel() for n in states], -1)
        lanes = np.repeat(lanes, len(self.actions), -1)
        actions = np.stack([np.asarray(action).ravel() for action in self.actions], -1)
        actions = np.tile(actions, len(states))
        components, count = lanes.shape
        is_scalar = self._space.kind == "discrete"
        try:
            batch.stand(lanes[0] if is_scalar else lanes)
            after, rewards, terminated = batch.step(
                actions if self._model.action_space.shape else actions[0]
            )
            after = np.broadcast_to(after, (count,) if is_scalar else (components, count))
            if not np.array_equal(after, np.round(after)):
                raise Unbatched("observations are not whole numbers")
            rows = np.atleast_2d(after).astype(np.int64).T
            unique, place = np.unique(rows, axis=0, return_inverse=True)
            dtype, shape = np.dtype(self._space.dtype), self._space.shape
            found = [
                self._number(int(row[0]) if is_scalar else row.astype(dtype).reshape(shape))
                for row in unique
            ]
            self._model.counter[0] += count
            rewards = np.broadcast_to(np.asarray(rewards, float), (count,))
            terminated = np.broadcast_to(np.asarray(terminated, bool), (count,))
            if not np.isfinite(rewards).all():
                raise Unbatched("a reward is not a finite number")
        except (Unbatched, ArithmeticError, ValueError, IndexError, TypeError):
            self._batch_failures += 1
            self._batch = batch if self._batch_failures < 3 else None
            return None
        table = len(states), len(self.actions)
        next_states = np.array(found, np.int64)[place.reshape(-1)]
        return next_states.reshape(table), rewards.reshape(table), terminated.reshape(table)

    def _step_each(self, states: Sequence[int]) -> Outcomes:
        """Take every action in some states, one step at a time."""
        shape = len(states), len(self.actions)
        next_states, rewards = np.full(shape, -1, np.int64), np.zeros(shape)
        terminated = np.zeros(shape, bool)
        for row, number in enumerate(states):
            for column, action in enumerate(self.actions):
                try:
                    self._model.stand(self.states[number])
                    observation, reward, ended, _ = self._model.step(action)
                    next_states[row, column] = self._number(observation)
                except Exception:  # noqa: BLE001, S112  # the program fails in this state
                    continue
                rewards[row, column], terminated[row, column] = reward, ended
        return next_states, rewards, terminated

    def _number(self, state: Any) -> int:
        """Return the number of a state, a new one if needed; -1 if it is out of bounds."""
        key = self._key(state)
        number = self._numbers.get(key, -1)
        leaves = ((reduce(getitem, path, state), low, high) for path, low, high in self._bounds)
        if number < 0 and all(np.all((low <= v) & (v <= high)) for v, low, high in leaves):
            number = self._numbers[key] = len(self.states)
            self.states.append(state)
        return number

    def _key(self, state: Any) -> Any:
        return np.asarray(state, np.int64).tobytes() if self._is_array else name(state)

    def _values(self, state: Any) -> list[Any]:
        """Return the numbers and texts of a state, in a fixed order."""
        if self._is_array:
            return list(np.asarray(state).ravel().tolist())
        columns = self._space.pack("", [state])
        return list(chain.from_iterable(column.reshape(-1).tolist() for column in columns.values()))


class _NoveltyFilter:
    """Records which values occurred together, up to `width` at a time."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._first: Sequence[Any] | None = None
        self._seen: set[Any] = set()
        self._varying: set[int] = set()

    def add(self, values: Sequence[Any]) -> bool:
        """Record a state; return True if one of its combinations is new.

        To save memory, a combination is recorded only if a value in it differs from the first
        state, and only from positions that ever varied.
        """
        if self._first is None:
            self._first = values
            return True
        before = len(self._seen)
        changed = [(n, v) for n, v in enumerate(values) if v != self._first[n]]
        self._varying.update(place for place, _ in changed)
        same = [(n, self._first[n]) for n in self._varying if values[n] == self._first[n]]
        for count in range(1, self._width + 1):
            rest = [r for n in range(self._width - count + 1) for r in combinations(same, n)]
            self._seen.update(product(combinations(changed, count), rest))
        return len(self._seen) > before


def _bounds_of(
    space: Space, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], np.ndarray, np.ndarray]]:
    """Yield path and bounds of each bounded leaf; `Space.check` ignores the bounds of boxes."""
    keys: Sequence[Any] = space.keys if space.kind == "dict" else range(len(space.children))
    for key, child in zip(keys, space.children, strict=True):
        yield from _bounds_of(child, (*path, key))
    if space.low and not space.children:
        yield path, np.reshape(space.low, space.shape), np.reshape(space.high, space.shape)
