"""Rank untried actions and unvisited states of a state table, the most informative first.

Counting whole states does not lead a taxi to a delivery. Novelty here is about combinations of a
few factors of a state (width), and about relations: the agent is at a place where an action once
had an effect, or a factor has a value that was involved in that effect. Novelty of small width
orders searches in Lipovetzky and Geffner, Best-first width search, 2017.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, islice, tee
from typing import NamedTuple

import numpy as np

from cwm_learn.actors.numbered_states import NumberedStates, NumberedStep

MAX_WIDTH = 3
"""Factors to combine: with four, almost every state is new."""


class NoveltyLevel(NamedTuple):
    """A mask (states, actions) of actions to try for the same reason."""

    reason: str
    unknown: np.ndarray


class Novelty:
    """The untried actions and unvisited states, given the steps so far.

    Args:
        table: The states and their predicted outcomes.
        factors: Components of the states (states, factors), numbered from 0.
        steps: All steps so far.
        usual_reward: The reward that an agent can collect again and again.
        sizes: Number of possible values of each factor; default: of the values that occur.
    """

    def __init__(
        self,
        table: NumberedStates,
        factors: np.ndarray,
        steps: Sequence[NumberedStep],
        usual_reward: float,
        sizes: Sequence[int] = (),
    ) -> None:
        self._table, self._factors, self._usual_reward = table, factors, usual_reward
        columns = list(zip(*steps, strict=True)) or [()] * 5
        self._before, self._action, self._after = (np.array(c, np.int64) for c in columns[:3])
        self._reward, self._ended = np.array(columns[3], float), np.array(columns[4], bool)
        self._moved = self._after != self._before
        self._shape = table.next_states.shape
        self._untaken = np.ones(self._shape, bool)
        self._untaken[self._before, self._action] = False
        self._tries = np.bincount(self._action, minlength=self._shape[1])
        self._effects = np.bincount(self._action, self._moved, minlength=self._shape[1])
        # an action is idle (rarely has an effect) if it changed the state in fewer of its steps
        min_effect_fraction = 0.5
        rare = self._effects < min_effect_fraction * self._tries
        self._is_idle = rare | (self._tries == 0)
        regular = ~self._is_idle[self._action] & ~self._ended
        changed = factors[self._after[regular]] != factors[self._before[regular]]
        self._positions = np.flatnonzero(changed.any(axis=0))  # factors that describe the position
        relations = self._infer_relations()
        self._relation_count = relations.shape[1]
        self._columns = np.concatenate([relations, factors], 1)
        self._sizes: list[int] = (self._columns.max(axis=0, initial=0) + 1).tolist()
        self._sizes[self._relation_count :] = sizes or self._sizes[self._relation_count :]
        self._ranking = self._rank()

    def levels(self) -> Iterator[NoveltyLevel]:
        """Yield the levels of novelty, the most informative first; they are computed only once."""
        self._ranking, levels = tee(self._ranking)
        return levels

    def new_landings(self, width: int) -> np.ndarray:
        """Return a mask of actions that lead to a new combination of `width` factors."""
        tuples = (each for each in self._tuples(width) if min(each) >= self._relation_count)
        return self._new_combinations(tuples)

    def _rank(self) -> Iterator[NoveltyLevel]:
        yield NoveltyLevel("similar to rewarded transitions", self._similar_to_success())
        yield NoveltyLevel("an untried action", self._untried_actions(self._tuples(0)))
        widths = range(1, min(MAX_WIDTH, self._columns.shape[1]) + 1)
        for width in widths:
            yield NoveltyLevel(
                f"an untried use of an action that rarely has an effect, width {width}",
                self._untried_actions(self._tuples(width)) & self._is_idle & ~self._futile_uses(),
            )
            landings = self.new_landings(width)
            if width == 1:
                landings |= self._new_usual_values()
            yield NoveltyLevel(f"an unvisited state, width {width}", landings)
            if width == 1:
                yield NoveltyLevel("an unvisited state with two extremes", self._new_corners())
        for width in widths:
            untried = self._untried_actions(self._tuples(width))
            yield NoveltyLevel(f"an action not tried in such a state, width {width}", untried)
        yield NoveltyLevel("an action not tried in this state", self._untaken)

    def _new_combinations(self, tuples: Iterable[tuple[int, ...]]) -> np.ndarray:
        """Return a mask of untaken actions that lead to a new combination of some columns."""
        new = np.zeros(self._shape[0], bool)
        for columns in tuples:
            code = self._code(columns)
            seen = np.zeros(code.max(initial=0) + 1, bool)
            seen[code[self._before]] = seen[code[self._after]] = True
            new |= ~seen[code]
        return np.asarray(new[self._table.next_states] & self._untaken)

    def _untried_actions(self, tuples: Iterable[tuple[int, ...]]) -> np.ndarray:
        """Return a mask of actions that were never taken with the same values of some columns."""
        new = np.zeros(self._shape, bool)
        for columns in tuples:
            code = self._code(columns)
            tried = np.zeros((code.max(initial=0) + 1, self._shape[1]), bool)
            tried[code[self._before], self._action] = True
            new |= ~tried[code] & self._are_related(columns)[:, None]
        return np.asarray(new & self._untaken)

    def _new_corners(self) -> np.ndarray:
        """Return a mask of actions that lead to a new pair of extreme positions.

        Extremes are the most informative positions, and there are few.
        """
        factors, usual = self._factors, self._usual_landings
        highest = np.array(self._sizes[self._relation_count :]) - 1
        visited = np.union1d(self._before, self._after)
        new = np.zeros(self._shape, bool)
        for one, two in combinations(self._positions.tolist(), 2):
            pair, code = [one, two], np.array([highest[two] + 1, 1])
            seen = np.zeros((highest[one] + 1) * (highest[two] + 1), bool)
            seen[factors[visited][:, pair] @ code] = True
            for landing in (factors[self._table.next_states][..., pair], usual[..., pair]):
                extreme = ((landing == 0) | (landing == highest[pair])).all(axis=-1)
                moves = (landing != factors[:, None, pair]).any(axis=-1)
                new |= extreme & moves & ~seen[landing @ code]
        return np.asarray(new & self._untaken)

    def _new_usual_values(self) -> np.ndarray:
        """Return a mask of actions whose usual change leads to a new value of a factor."""
        new, visited = np.zeros(self._shape, bool), np.union1d(self._before, self._after)
        for factor, size in enumerate(self._sizes[self._relation_count :]):
            seen = np.zeros(size, bool)
            seen[self._factors[visited, factor]] = True
            new |= ~seen[self._usual_landings[..., factor]]
        return np.asarray(new & self._untaken)

    def _futile_uses(self) -> np.ndarray:
        """Return a mask of actions that had an effect only for other values of a factor.

        A dropoff without a passenger fails everywhere, so it need not be tried in every place.
        """
        futile, moved = np.zeros(self._shape, bool), self._moved | self._ended
        # Tries without effect at a value of a factor, after which an action with effects at other
        # values is tried later in combinations with this value. No other number was measured.
        min_failed_tries = 8
        for column in self._factors.T:
            tries, effects = np.zeros((2, column.max(initial=0) + 1, self._shape[1]), np.int64)
            np.add.at(tries, (column[self._before], self._action), 1)
            np.add.at(effects, (column[self._before], self._action), moved)
            failed = (tries >= min_failed_tries) & (effects == 0) & (effects.sum(axis=0) > 0)
            futile |= failed[column]
        return futile

    @cached_property
    def _usual_landings(self) -> np.ndarray:
        """Factors (states, actions, factors) after the usual change by each action.

        The program often predicts an exception too early, because of few similar steps.
        """
        factors = self._factors
        changes = np.zeros((self._shape[1], factors.shape[1]), np.int64)
        for action in np.flatnonzero(~self._is_idle).tolist():
            rows = (self._action == action) & self._moved
            delta = factors[self._after[rows]] - factors[self._before[rows]]
            changes[action] = [Counter(column).most_common(1)[0][0] for column in delta.T.tolist()]
        highest = np.array(self._sizes[self._relation_count :]) - 1
        return np.clip(factors[:, None] + changes, 0, highest)

    def _similar_to_success(self) -> np.ndarray:
        """Return a mask of untaken actions that always succeeded in the same relation.

        A step succeeds if it earns the highest reward so far, above the usual one, or if it ends
        the episode with at least the median reward.
        """
        reward = self._reward
        best = (reward > self._usual_reward) & (reward == reward.max(initial=-np.inf))
        median = np.median(reward) if len(reward) else 0.0
        success = best | self._ended & (reward >= median)
        binary = {n for n in range(self._relation_count) if self._sizes[n] == 2}
        similar = np.zeros(self._shape, bool)
        for width in range(1, MAX_WIDTH + 1):
            for columns in self._tuples(width):
                if not binary.intersection(columns):
                    continue
                code = self._code(columns)
                won, lost = np.zeros((2, code.max(initial=0) + 1, self._shape[1]), bool)
                won[code[self._before[success]], self._action[success]] = True
                lost[code[self._before[~success]], self._action[~success]] = True
                similar |= (won & ~lost)[code] & self._are_related(columns)[:, None]
        return np.asarray(similar & self._untaken)

    def _tuples(self, width: int) -> Iterator[tuple[int, ...]]:
        """Yield combinations of columns within the limits on number and work."""
        work = max(1, self._shape[0] * self._shape[1])
        max_tuples = 400  # combinations of one width to examine
        # states times actions times combinations of one width, which takes less than 0.1 seconds
        max_work = 5_000_000
        limit = max(1, min(max_tuples, max_work // work))
        return islice(combinations(range(self._columns.shape[1]), width), limit)

    def _code(self, columns: tuple[int, ...]) -> np.ndarray:
        """Return a number for the combined values of some columns in every state."""
        code = np.zeros(len(self._columns), np.int64)
        for column in columns:
            code = code * self._sizes[column] + self._columns[:, column]
            if code.max(initial=0) > 8 * len(code):
                code = np.unique(code, return_inverse=True)[1].reshape(-1)
        return code

    def _are_related(self, columns: tuple[int, ...]) -> np.ndarray:
        """Return a mask of the states where all relations among some columns are true."""
        relations = [column for column in columns if column < self._relation_count]
        return np.asarray((self._columns[:, relations] > 0).all(axis=1))

    def _infer_relations(self) -> np.ndarray:
        """Return relations (states, relations) to the effects of idle actions; 0 if false.

        The first column numbers, from 1, the places where an idle action had an effect. There is
        one more column for each factor that is not a position. It is 1 if the factor has a value
        that was involved in effects at this place and at no other.
        """
        factors, position = self._factors, self._positions
        other = np.setdiff1d(np.arange(factors.shape[1]), position)
        none = np.zeros((len(factors), 0), np.int64)
        if not len(position) or not len(other):
            return none
        changed = factors[self._after] != factors[self._before]
        rewards = [self._reward[self._action == action] for action in range(self._shape[1])]
        usual = [Counter(r.tolist()).most_common(1)[0][0] if len(r) else 0.0 for r in rewards]
        effects = self._moved | self._ended
        effects |= (self._reward != np.array(usual)[self._action]) & changed[:, other].any(axis=1)
        effects &= self._is_idle[self._action]
        cells = np.unique(factors[:, position], axis=0, return_inverse=True)[1].reshape(-1)
        place_of_cell = np.zeros(cells.max(initial=0) + 1, np.int64)
        active = np.unique(cells[self._before[effects]])
        place_of_cell[active] = np.arange(len(active)) + 1
        place = place_of_cell[cells]
        columns = [place]
        for factor in other:
            steps, values = np.flatnonzero(effects & changed[:, factor]), factors[:, factor]
            involved = {
                (int(place[before]), int(values[state]))
                for before, after in zip(self._before[steps], self._after[steps], strict=True)
                for state in (before, after)
            }
            places_of_value = Counter(value for _, value in involved)
            is_linked = np.zeros((place.max(initial=0) + 1, values.max(initial=0) + 1), np.int64)
            for number, value in involved:
                is_linked[number, value] = places_of_value[value] == 1
            columns.append(is_linked[place, values])
        columns = [column for column in columns if column.any()]
        return np.stack(columns, 1) if columns else none
