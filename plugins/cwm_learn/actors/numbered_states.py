"""Situations that can be counted, by number: where actions lead, values, and the ways between them.

What was seen outranks what the program says of the same situation and action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.worlds.remote import NO_PLAN, ProgramFailed
from cwm_learn.actors.base import Actor
from cwm_learn.search.reachable import actions_of

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition
    from cwm_cli.data.spaces import Space
    from cwm_learn.imagination import SearchImagination

MAX_ACTIONS = 512
"""Largest number of actions: with more, most actions would never be tried."""

MOST = 6_000
"""New situations at once; where there are more, those with new pairs of numbers are followed."""

ROUNDS = 4
"""So often it is gone on from where rows, unlike the program, lead."""

FULL = 10_000
"""Situations from which on those that were not visited are given up for others."""

WIDTH = 2
"""Numbers that have to be together for the first time there, where there are too many."""

LARGE = 2_000
"""Situations of one table above which it costs seconds, and a narrow one some hundredths."""

NARROW, WHOLE = 1, 2
"""How far it was gone on from a situation: as far as new pairs of numbers lead, or everywhere."""

MOST_VALUES = 4_000_000
"""Values that are remembered for different numbers of steps to go."""

HASTE, TRUST = 2.0**-39, 2.0**-31
"""Shares of the largest reward that a step costs, and one that was never taken: where returns are
equal, and nowhere else, what is known wins, and then what is sooner."""


class Ways(NamedTuple):
    """The shortest ways from a situation: how many steps, from where, and by which action.

    Where a situation cannot be reached the number of steps is negative.
    """

    steps: np.ndarray
    parent: np.ndarray
    action: np.ndarray

    def first(self, number: int, action: int) -> int:
        """Return the first action of the way to a situation, to take an action there."""
        while self.steps[number]:
            number, action = int(self.parent[number]), int(self.action[number])
        return action


class Situations:
    """What every action leads to in every situation that can be reached, as far as is known.

    `following`, `rewards` and `terminated` are (situations, actions); where nothing is known, as
    `answered` says, an action leads nowhere and pays what is `usual`. `taken` is what was tried.
    `expanded` is `NARROW` or `WHOLE` where the program was asked. Where tables were `large`, a
    narrow one may do. Pairs are new apart for each combination of the numbers in places `apart`.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.space, self.actions = observation_space, actions_of(action_space)
        self.usual = 0.0
        self.large = False
        self.apart: list[int] = []
        self._action_numbers = {_plain(action): n for n, action in enumerate(self.actions)}
        self._texts: dict[str, int] = {}
        self._recorded: dict[tuple[int, int], tuple[int, float, bool]] = {}
        self._clear()

    def _clear(self) -> None:
        size = len(self.actions)
        self._numbers: dict[bytes, int] = {}
        self._columns: dict[str, np.ndarray] = {}
        self.values = np.zeros((0, 0), np.int64)
        self.following = np.zeros((0, size), np.int64)
        self.rewards = np.zeros((0, size))
        self.terminated = np.zeros((0, size), bool)
        self.answered = np.zeros((0, size), bool)
        self.taken = np.zeros((0, size), bool)
        self.expanded = np.zeros(0, np.int8)
        self._levels: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.following)

    def number(self, observation: Any) -> int:
        """Return the number of a situation; one that was not met before gets a new one."""
        return int(self.numbered(self.space.pack("observations", [observation]))[0])

    def action_number(self, action: Any) -> int:
        """Return the number of an action."""
        return self._action_numbers[_plain(action)]

    def numbers_of(self, row: Transition) -> tuple[int, int, int, float, bool]:
        """Return a step by numbers: situation, action, what followed, the reward and the end."""
        before, after = self.number(row.observation), self.number(row.next_observation)
        action = self.action_number(row.action)
        return before, action, after, float(row.reward), bool(row.terminated)

    def observation(self, number: int) -> Any:
        """Return a situation as it is observed."""
        return self.space.unpack("observations", self._columns, number)

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """The observations of all situations, by leaf."""
        return self._columns

    def column(self, name: str) -> np.ndarray:
        """Return a leaf of the observations of all situations."""
        return self._columns[name]

    def forget(self) -> None:
        """Forget everything, before what was seen is recorded anew."""
        self._recorded.clear()
        self._clear()

    @property
    def full(self) -> bool:
        """Whether there are so many situations that it is time to begin anew."""
        return len(self) > FULL

    def explore(
        self,
        imagination: SearchImagination,
        start: int,
        extent: int = WHOLE,
        enough: float | None = None,
    ) -> None:
        """Ask the program for what can be reached from a situation, and from where rows lead.

        Where a narrow table is asked for, an end with a reward of `enough` is.
        """
        for _ in range(ROUNDS):
            near = self.ways(start, len(self) + 1).steps >= 0
            seen = {after for after, _, ended in self._recorded.values() if not ended} | {start}
            roots = np.array(
                [n for n in sorted(seen) if near[n] and self.expanded[n] < extent], np.int64
            )
            if not len(roots):
                return
            narrowly = bool((self.expanded[roots] >= NARROW).all())
            if extent == NARROW:
                self._ask(imagination, roots, WIDTH, NARROW, enough)
            elif not self._ask(imagination, roots, 0) and not narrowly:
                self._ask(imagination, roots, WIDTH)
            for (before, action), (after, reward, ended) in self._recorded.items():
                self._set(before, action, after, reward, ended)

    def record(self, before: int, action: int, after: int, reward: float, ended: bool) -> bool:
        """Take note of what was seen; return whether another reward or end was expected."""
        self._recorded[before, action] = after, reward, ended
        place = before, action
        paid = self.rewards[place] == reward and bool(self.terminated[place]) == ended
        if not (self.answered[place] and paid and (ended or self.following[place] == after)):
            self._levels = []
        expected = bool(self.answered[place])
        self._set(before, action, after, reward, ended)
        return expected and not paid

    def values_to_go(self, steps: int) -> np.ndarray:
        """Return what every situation is worth with so many steps to go, by Bellman's equation."""
        if not self._levels:
            self._levels = [np.zeros(len(self))]
            scale = max(1e-9, np.abs(self.rewards).max(initial=0.0))
            self._net = self.rewards - scale * np.where(self.taken, HASTE, TRUST)
        levels = self._levels
        room = max(2, MOST_VALUES // max(1, len(self)))
        while len(levels) <= steps and len(levels) < room:
            improved = self._backed_up(levels[-1]).max(axis=1)
            if np.array_equal(improved, levels[-1]):
                break
            levels.append(improved)
        return levels[min(steps, len(levels) - 1)]

    def worth(self, number: int, steps: int) -> np.ndarray:
        """Return what every action in a situation is worth with so many steps to go."""
        values = self.values_to_go(steps - 1)
        after = np.where(self.terminated[number], 0.0, values[self.following[number]])
        worth: np.ndarray = self._net[number] + after
        return worth

    def ways(self, start: int, most: int) -> Ways:
        """Return the shortest ways from a situation, of so many steps at most."""
        steps = np.full(len(self), -1)
        parent, action = np.full((2, len(self)), -1)
        steps[start], front = 0, np.array([start])
        for length in range(1, most):
            after = np.where(self.terminated[front], -1, self.following[front])
            places = np.flatnonzero((after >= 0) & (steps[after] < 0))
            reached, first = np.unique(after.ravel()[places], return_index=True)
            if not len(reached):
                break
            rows, columns = np.divmod(places[first], len(self.actions))
            steps[reached], parent[reached], action[reached] = length, front[rows], columns
            front = reached
        return Ways(steps, parent, action)

    def _backed_up(self, values: np.ndarray) -> np.ndarray:
        after = np.where(self.terminated, 0.0, values[self.following])
        backed_up: np.ndarray = self._net + after
        return backed_up

    def _set(self, before: int, action: int, after: int, reward: float, ended: bool) -> None:
        place = before, action
        self.following[place], self.rewards[place] = after, reward
        self.terminated[place] = ended
        self.answered[place] = self.taken[place] = True

    def _ask(
        self,
        imagination: SearchImagination,
        roots: np.ndarray,
        width: int,
        extent: int = WHOLE,
        enough: float | None = None,
    ) -> bool:
        """Ask the program, and add what it says; return whether that was all there is."""
        found = imagination.ask(
            "reachable:reachable",
            {name: column[roots] for name, column in self._columns.items()},
            space=self.space.to_json(),
            most=MOST + len(roots),
            width=width,
            apart=self.apart if width else [],
            enough=enough,
        )
        try:
            self._merge(roots, found, extent)
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise ProgramFailed(NO_PLAN) from error
        self.large |= self._fresh > LARGE
        ends = np.unique(found["following"][found["terminated"]])
        return len(found["tried"]) + len(ends) >= len(roots) + self._fresh

    def _merge(self, roots: np.ndarray, found: Mapping[str, np.ndarray], extent: int) -> None:
        """Add what a program says, which may make no sense."""
        leaves = [leaf.name for leaf in self.space.leaves("observations")]
        new = self.numbered({name: found[name] for name in leaves})
        numbers, after = np.concatenate([roots, new]), found["following"]
        self._fresh = len(new)
        tried, answered = numbers[found["tried"]], after >= 0
        self.answered[tried] = answered
        self.following[tried] = np.where(answered, numbers[after], tried[:, None])
        self.rewards[tried] = np.where(answered, found["rewards"], self.usual)
        self.terminated[tried] = answered & found["terminated"]
        self.expanded[tried] = np.maximum(self.expanded[tried], extent)
        self._levels = []

    def numbered(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of observations in columns; those not met before get new ones."""
        rows = self._coded(columns)
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

    def _grow(self, rows: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        count, size = len(rows), len(self.actions)
        fresh = np.repeat(np.arange(len(self), len(self) + count)[:, None], size, 1)
        self.values = np.concatenate([self.values.reshape(-1, rows.shape[1]), rows])
        self._columns = {
            name: np.concatenate([self._columns[name], column]) if self._columns else column
            for name, column in columns.items()
        }
        self.following = np.concatenate([self.following, fresh])
        self.rewards = np.concatenate([self.rewards, np.full((count, size), self.usual)])
        self.terminated = np.concatenate([self.terminated, np.zeros((count, size), bool)])
        self.answered = np.concatenate([self.answered, np.zeros((count, size), bool)])
        self.taken = np.concatenate([self.taken, np.zeros((count, size), bool)])
        self.expanded = np.concatenate([self.expanded, np.zeros(count, np.int8)])
        self._levels = []

    def _coded(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return observations as rows of whole numbers; texts are numbered as they come."""
        parts = []
        for leaf in self.space.leaves("observations"):
            column = columns[leaf.name]
            if column.dtype.kind == "U":
                texts = [self._texts.setdefault(str(t), len(self._texts)) for t in column.ravel()]
                column = np.array(texts, np.int64)
            parts.append(column.reshape(len(column), leaf.space.size).astype(np.int64))
        return np.concatenate(parts, axis=1)


class TabularActor(Actor):
    """Base class of actors that number all observations and actions."""

    OVERRIDES_PROGRAM = True

    @classmethod
    def supports(cls, observation_space: Space, action_space: Space) -> bool:
        """Return True if observations have no real numbers, and there are few actions."""
        real = any(leaf.space.is_float for leaf in observation_space.leaves(""))
        return not real and action_space.cardinality <= MAX_ACTIONS


def _plain(action: Any) -> Any:
    """Return an action as something to look up."""
    if isinstance(action, np.ndarray):
        return tuple(action.ravel().tolist())
    if isinstance(action, Sequence):
        return tuple(map(_plain, action))
    return tuple(map(_plain, action.values())) if isinstance(action, dict) else int(action)
