"""A table of numbered states: outcomes of actions, values by dynamic programming, and paths.

Recorded transitions override what the program predicts for the same state and action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.worlds.remote import NO_PLAN, ProgramFailed
from cwm_learn.actors.base import Actor
from cwm_learn.search.reachable import actions_of

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.spaces import Space
    from cwm_learn.imagination import SearchImagination

PARTIAL, COMPLETE = 1, 2
"""Extent of the search from a state: novel states only, or all reachable states."""

STEP_COST, UNRECORDED_COST = 2.0**-39, 2.0**-31
"""Cost of a step that was recorded, and of one that was not, as fractions of the largest reward.
They only break ties: of equal returns, recorded transitions win, then the shorter path."""


class NumberedStep(NamedTuple):
    """A transition with numbers for its states and its action."""

    state: int
    action: int
    next_state: int
    reward: float
    terminated: bool


class ShortestPaths(NamedTuple):
    """Shortest paths from one state: by state, the length, the predecessor and its action.

    The length of an unreachable state is negative.
    """

    length: np.ndarray
    parent: np.ndarray
    action: np.ndarray

    def first_action(self, state: int, action: int) -> int:
        """Return the first action of the path to a state; at the start, the given action."""
        while self.length[state]:
            state, action = int(self.parent[state]), int(self.action[state])
        return action


class NumberedStates:
    """The known outcome of every action in every reachable state.

    An action without a known outcome stays in its state for the `usual_reward`.

    Attributes:
        values: All states as rows of integers.
        columns: The observations of all states, by leaf of the space.
        next_states, rewards, terminated: Outcomes, (states, actions).
        known: Mask of the outcomes that are predicted or recorded.
        recorded: Mask of the outcomes that are recorded.
        expanded: Extent of the search from each state; 0 if there was none.
        is_large: Whether a full search is slow, so that a partial one should be tried first.
        partition: Positions in `values`. A partial search counts novelty separately for each
            combination of the values at these positions.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.space, self.actions = observation_space, actions_of(action_space)
        self.usual_reward = 0.0
        self.is_large = False
        self.partition: list[int] = []
        self._action_numbers = {_hashable(action): n for n, action in enumerate(self.actions)}
        self._text_numbers: dict[str, int] = {}
        self.clear()

    def clear(self) -> None:
        """Remove all states and transitions."""
        size = len(self.actions)
        self._recorded: dict[tuple[int, int], NumberedStep] = {}
        self._numbers: dict[bytes, int] = {}
        self.columns: dict[str, np.ndarray] = {}
        self.values = np.zeros((0, 0), np.int64)
        self.next_states = np.zeros((0, size), np.int64)
        self.rewards = np.zeros((0, size))
        self.terminated, self.known, self.recorded = np.zeros((3, 0, size), bool)
        self.expanded = np.zeros(0, np.int8)
        self._levels: list[np.ndarray] = []  # state values by number of remaining steps

    def __len__(self) -> int:
        return len(self.next_states)

    @property
    def is_full(self) -> bool:
        """Whether to discard the table, to make room for states that the agent visits."""
        return len(self) > 10_000

    def state_number(self, observation: Any) -> int:
        """Return the number of a state; a new state gets the next number."""
        return int(self.state_numbers(self.space.pack("observations", [observation]))[0])

    def state_numbers(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of observations in columns; new states get the next numbers."""
        rows = self._encode(columns)
        numbers = np.empty(len(rows), np.int64)
        new: list[int] = []
        for place, row in enumerate(rows):
            number = self._numbers.setdefault(row.tobytes(), len(self._numbers))
            if number == len(self) + len(new):
                new.append(place)
            numbers[place] = number
        if new:
            self._grow(rows[new], {name: column[new] for name, column in columns.items()})
        return numbers

    def action_number(self, action: Any) -> int:
        """Return the number of an action."""
        return self._action_numbers[_hashable(action)]

    def number_step(self, row: Transition) -> NumberedStep:
        """Return a transition by numbers."""
        state, after = self.state_number(row.observation), self.state_number(row.next_observation)
        action = self.action_number(row.action)
        return NumberedStep(state, action, after, float(row.reward), bool(row.terminated))

    def observation(self, state: int) -> Any:
        """Return the observation of a state."""
        return self.space.unpack("observations", self.columns, state)

    def ask(
        self, imagination: SearchImagination, function: str, roots: np.ndarray, **options: Any
    ) -> dict[str, np.ndarray]:
        """Call a function of `search.reachable` with some states as initial states."""
        arrays = {name: column[roots] for name, column in self.columns.items()}
        return imagination.ask(function, arrays, space=self.space.to_json(), **options)

    def add_states(self, roots: np.ndarray, found: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of the initial states and of the states found."""
        leaves = [leaf.name for leaf in self.space.leaves("observations")]
        return np.concatenate([roots, self.state_numbers({name: found[name] for name in leaves})])

    def expand(
        self,
        imagination: SearchImagination,
        start: int,
        extent: int = COMPLETE,
        target_reward: float | None = None,
    ) -> None:
        """Search the program from a state, and from all states that recorded transitions reach.

        A partial search stops at a terminal transition with at least the `target_reward`.
        """
        for _ in range(4):  # recorded transitions that contradict the program add new roots
            near = self.shortest_paths(start, len(self) + 1).length >= 0
            seen = {s.next_state for s in self._recorded.values() if not s.terminated} | {start}
            roots = np.array(
                [n for n in sorted(seen) if near[n] and self.expanded[n] < extent], np.int64
            )
            if not len(roots):
                return
            has_partial = bool((self.expanded[roots] >= PARTIAL).all())
            if extent == PARTIAL:
                self._search(imagination, roots, 2, PARTIAL, target_reward)
            elif not self._search(imagination, roots, 0) and not has_partial:
                self._search(imagination, roots, 2)
            for step in self._recorded.values():
                self._write(step)

    def record(self, step: NumberedStep) -> bool:
        """Record a transition; return True if another reward or termination was predicted."""
        self._recorded[step[:2]] = step
        place = step.state, step.action
        was_known = bool(self.known[place])
        same = self.rewards[place] == step.reward and self.terminated[place] == step.terminated
        reaches = step.terminated or self.next_states[place] == step.next_state
        if not (was_known and same and reaches):
            self._levels = []
        self._write(step)
        return was_known and not same

    def state_values(self, steps: int) -> np.ndarray:
        """Return the value of every state with a number of steps left, by Bellman backups."""
        if not self._levels:
            self._levels = [np.zeros(len(self))]
            scale = max(1e-9, np.abs(self.rewards).max(initial=0.0))
            self._net_rewards = self.rewards - scale * np.where(
                self.recorded, STEP_COST, UNRECORDED_COST
            )
        levels = self._levels
        max_levels = max(2, 4_000_000 // max(1, len(self)))  # limits the memory
        while len(levels) <= steps and len(levels) < max_levels:
            after = np.where(self.terminated, 0.0, levels[-1][self.next_states])
            values = (self._net_rewards + after).max(axis=1)
            if np.array_equal(values, levels[-1]):
                break
            levels.append(values)
        return levels[min(steps, len(levels) - 1)]

    def action_values(self, state: int, steps: int) -> np.ndarray:
        """Return the value of every action in a state with a number of steps left."""
        values = self.state_values(steps - 1)
        after = np.where(self.terminated[state], 0.0, values[self.next_states[state]])
        return np.asarray(self._net_rewards[state] + after)

    def shortest_paths(self, start: int, limit: int) -> ShortestPaths:
        """Return the shortest paths of fewer than `limit` steps from a state."""
        lengths = np.full(len(self), -1)
        parent, action = np.full((2, len(self)), -1)
        lengths[start], front = 0, np.array([start])
        for length in range(1, limit):
            after = np.where(self.terminated[front], -1, self.next_states[front])
            places = np.flatnonzero((after >= 0) & (lengths[after] < 0))
            reached, first = np.unique(after.ravel()[places], return_index=True)
            if not len(reached):
                break
            rows, columns = np.divmod(places[first], len(self.actions))
            lengths[reached], parent[reached], action[reached] = length, front[rows], columns
            front = reached
        return ShortestPaths(lengths, parent, action)

    def _write(self, step: NumberedStep) -> None:
        place = step.state, step.action
        self.next_states[place], self.rewards[place] = step.next_state, step.reward
        self.terminated[place] = step.terminated
        self.known[place] = self.recorded[place] = True

    def _search(
        self,
        imagination: SearchImagination,
        roots: np.ndarray,
        width: int,
        extent: int = COMPLETE,
        target_reward: float | None = None,
    ) -> bool:
        """Add the states that the program reaches; return True if the search was complete."""
        options = {
            "max_states": 6_000 + len(roots),
            "width": width,
            "partition": self.partition if width else [],
            "target_reward": target_reward,
        }
        found = self.ask(imagination, "reachable:enumerate_states", roots, **options)
        with check_reply():
            numbers, after = self.add_states(roots, found), found["next_states"]
            expanded, known = numbers[found["expanded"]], after >= 0
            self.known[expanded] = known
            self.next_states[expanded] = np.where(known, numbers[after], expanded[:, None])
            self.rewards[expanded] = np.where(known, found["rewards"], self.usual_reward)
            self.terminated[expanded] = known & found["terminated"]
            self.expanded[expanded] = np.maximum(self.expanded[expanded], extent)
        self._levels = []
        # A full search of more states takes seconds, a partial one hundredths of a second.
        self.is_large |= len(numbers) - len(roots) > 2_000
        ends = np.unique(after[found["terminated"]])
        return len(expanded) + len(ends) >= len(numbers)

    def _grow(self, rows: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """Add states with unknown outcomes."""
        own = np.arange(len(self), len(self) + len(rows))[:, None]
        own = np.repeat(own, len(self.actions), 1)
        more = ((0, len(rows)), (0, 0))
        self.values = np.concatenate([self.values.reshape(-1, rows.shape[1]), rows])
        self.columns = {
            name: np.concatenate([self.columns[name], column]) if self.columns else column
            for name, column in columns.items()
        }
        self.next_states = np.concatenate([self.next_states, own])
        self.rewards = np.pad(self.rewards, more, constant_values=self.usual_reward)
        self.terminated = np.pad(self.terminated, more)
        self.known, self.recorded = np.pad(self.known, more), np.pad(self.recorded, more)
        self.expanded = np.pad(self.expanded, more[0])
        self._levels = []

    def _encode(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return observations as rows of integers; texts are numbered by first appearance."""
        parts = []
        for leaf in self.space.leaves("observations"):
            column = columns[leaf.name]
            if column.dtype.kind == "U":
                texts = self._text_numbers
                column = np.array([texts.setdefault(str(t), len(texts)) for t in column.ravel()])
            parts.append(column.reshape(len(column), leaf.space.size).astype(np.int64))
        return np.concatenate(parts, axis=1)


@contextmanager
def check_reply() -> Iterator[None]:
    """Raise `ProgramFailed` if the reply of a program is malformed."""
    try:
        yield
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise ProgramFailed(NO_PLAN) from error


class DiscreteActor(Actor):
    """Base class of actors that number all observations and actions.

    While the program is misleading, they plan with the recorded transitions only.
    """

    OVERRIDES_PROGRAM = True

    @property
    def _imagination(self) -> SearchImagination | None:
        """The program to search; None without one, or if it is misleading."""
        return None if self.known.is_misleading else self.known.imagination

    @classmethod
    def supports(cls, observation_space: Space, action_space: Space) -> bool:
        """Return True if observations have no real numbers, and there are few actions."""
        real = any(leaf.space.is_float for leaf in observation_space.leaves(""))
        max_actions = 512  # largest number of actions: with more, most actions would never be tried
        return not real and action_space.cardinality <= max_actions


def _hashable(action: Any) -> Any:
    """Return an action as a dictionary key."""
    if isinstance(action, np.ndarray):
        return tuple(action.ravel().tolist())
    if isinstance(action, Sequence):
        return tuple(map(_hashable, action))
    return tuple(map(_hashable, action.values())) if isinstance(action, dict) else int(action)
