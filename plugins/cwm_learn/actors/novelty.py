"""What is unknown where situations can be counted, the most telling first.

Counting raw situations does not lead a taxi to a delivery. What counts here are small tuples of
factors (width) and relations: that something is where it once had an effect, or is what had one
there. Lipovetzky and Geffner, Best-first width search, 2017, order a search so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, count, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from cwm_learn.actors.numbered_states import Situations

WIDTH = 3
"""Factors that are looked at together: with four nearly every situation is new."""

MOST_TUPLES = 400
"""Tuples of factors of one width that are looked at."""

MOST_WORK = 5_000_000
"""Situations times actions times tuples that one width may cost: less than a tenth of a second."""

IDLE = 0.5
"""An action that changed less than this share of what it was tried in mostly does nothing."""


class Level(NamedTuple):
    """Situations and actions (situations, actions) that are unknown for the same reason."""

    reason: str
    unknown: np.ndarray


class _Steps(NamedTuple):
    """Steps that were taken, as numbers of situations and actions."""

    before: np.ndarray
    action: np.ndarray
    after: np.ndarray
    reward: np.ndarray
    ended: np.ndarray


class Novelty:
    """What was never tried and never reached in some situations, after some steps.

    `factors` (situations, factors) are what situations are made of, and `relations` columns that
    say more. `usual` is the reward that can be had again and again.
    """

    def __init__(
        self,
        situations: Situations,
        factors: np.ndarray,
        steps: Sequence[tuple[int, int, int, float, bool]],
        usual: float,
        relations: np.ndarray | None = None,
    ) -> None:
        self._situations, self._factors, self._usual = situations, factors, usual
        self._given = relations
        columns = list(zip(*steps, strict=True)) or [(), (), (), (), ()]
        kinds = (np.int64, np.int64, np.int64, np.float64, np.bool_)
        self._steps = _Steps(*(np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)))
        self._shape = situations.following.shape
        self._known: list[Level] = []
        self._ordered = self._in_order()

    @cached_property
    def fresh(self) -> np.ndarray:
        """Which actions were never tried in which situations."""
        fresh = np.ones(self._shape, bool)
        fresh[self._steps.before, self._steps.action] = False
        return fresh

    @cached_property
    def idle(self) -> np.ndarray:
        """Which actions mostly did nothing, or were never tried."""
        steps, size = self._steps, self._shape[1]
        tried = np.bincount(steps.action, minlength=size)
        moved = np.bincount(steps.action, steps.after != steps.before, minlength=size)
        return np.asarray((moved < IDLE * tried) | (tried == 0))

    def levels(self) -> Iterator[Level]:
        """Yield what is unknown, the most telling first."""
        for place in count():
            if place == len(self._known):
                self._known.extend(islice(self._ordered, 1))
            if place == len(self._known):
                return
            yield self._known[place]

    def _in_order(self) -> Iterator[Level]:
        yield Level("similar to rewarded transitions", self._analogous())
        yield Level("an untried action", self._untried(0))
        widths = range(1, min(WIDTH, self._columns.shape[1]) + 1)
        for width in widths:
            untried = self._untried(width) & self.idle
            yield Level(
                f"an untried use of an action that rarely has an effect, width {width}", untried
            )
            yield Level(f"an unvisited state, width {width}", self.landings(width))
            if width == 1:
                yield Level("an unvisited state with two extremes", self._extremes())
        for width in widths:
            yield Level(f"an action not tried in such a state, width {width}", self._untried(width))
        yield Level("an action not tried in this state", self.fresh)

    def landings(self, width: int) -> np.ndarray:
        """Return where actions lead to values of so many factors that were never seen together."""
        first = self._relations.shape[1]
        return self._reaching(each for each in self._tuples(width) if min(each) >= first)

    def _reaching(self, tuples: Iterable[tuple[int, ...]]) -> np.ndarray:
        """Return where actions lead to values of some columns that were never seen together."""
        novel, steps = np.zeros(len(self._factors), bool), self._steps
        for columns in tuples:
            code = self._code(columns)
            seen = np.zeros(code.max(initial=0) + 1, bool)
            seen[code[steps.before]] = seen[code[steps.after]] = True
            novel |= ~seen[code]
        return np.asarray(novel[self._situations.following] & self.fresh)

    def _extremes(self) -> np.ndarray:
        """Return where actions lead to places at two extremes that were never seen together.

        As with real numbers extremes tell most, and of whole numbers there are few.
        """
        factors, first = self._factors, self._columns.shape[1] - self._factors.shape[1]
        extreme = (factors == factors.min(axis=0)) | (factors == factors.max(axis=0))
        novel = np.zeros(self._shape, bool)
        for one, two in combinations(self._where.tolist(), 2):
            reached = self._reaching([(first + one, first + two)])
            novel |= reached & (extreme[:, one] & extreme[:, two])[self._situations.following]
        return novel

    @cached_property
    def _where(self) -> np.ndarray:
        """The factors that say where: those that actions change which mostly do something."""
        steps, factors = self._steps, self._factors
        plain = ~self.idle[steps.action] & ~steps.ended
        changed = factors[steps.after[plain]] != factors[steps.before[plain]]
        return np.flatnonzero(changed.any(axis=0))

    def _untried(self, width: int) -> np.ndarray:
        """Return actions that were never tried with some values of so many factors."""
        return self._trying(self._tuples(width))

    def _trying(self, tuples: Iterable[tuple[int, ...]]) -> np.ndarray:
        """Return actions that were never tried with some values of some columns."""
        novel, steps = np.zeros(self._shape, bool), self._steps
        for columns in tuples:
            code, counts = self._code(columns), self._counts(columns)
            tried = np.zeros((code.max(initial=0) + 1, self._shape[1]), bool)
            tried[code[steps.before], steps.action] = True
            novel |= ~tried[code] & counts[:, None]
        return np.asarray(novel & self.fresh)

    def _analogous(self) -> np.ndarray:
        """Return what was never tried where, in a relation, all that was tried succeeded."""
        novel, steps = np.zeros(self._shape, bool), self._steps
        good = self._succeeded
        for width in range(1, WIDTH + 1):
            for columns in self._tuples(width):
                if not self._flags.intersection(columns):
                    continue
                code, counts = self._code(columns), self._counts(columns)
                won, lost = np.zeros((2, code.max(initial=0) + 1, self._shape[1]), bool)
                won[code[steps.before[good]], steps.action[good]] = True
                lost[code[steps.before[~good]], steps.action[~good]] = True
                novel |= (won & ~lost)[code] & counts[:, None]
        return np.asarray(novel & self.fresh)

    @cached_property
    def _succeeded(self) -> np.ndarray:
        """Which steps paid most, or ended an episode at no loss."""
        reward, ended = self._steps.reward, self._steps.ended
        best = (reward > self._usual) & (reward == reward.max(initial=-np.inf))
        middle = np.median(reward) if len(reward) else 0.0
        return np.asarray(best | ended & (reward >= middle))

    def _tuples(self, width: int) -> Iterator[tuple[int, ...]]:
        work = max(1, self._shape[0] * self._shape[1])
        most = max(1, min(MOST_TUPLES, MOST_WORK // work))
        return islice(combinations(range(self._columns.shape[1]), width), most)

    def _code(self, columns: tuple[int, ...]) -> np.ndarray:
        """Return a number for the values of some columns in every situation."""
        code = np.zeros(len(self._columns), np.int64)
        for column in columns:
            code = code * self._sizes[column] + self._columns[:, column]
            if code.max(initial=0) > 8 * len(code):
                code = np.unique(code, return_inverse=True)[1].reshape(-1)
        return code

    def _counts(self, columns: tuple[int, ...]) -> np.ndarray:
        """Return where a tuple counts: relations in it have to hold."""
        related = [column for column in columns if column < self._derived]
        return np.asarray((self._columns[:, related] > 0).all(axis=1))

    @property
    def _derived(self) -> int:
        """How many of the first columns are relations that may not hold."""
        return int(self._relations.shape[1])

    @cached_property
    def _columns(self) -> np.ndarray:
        parts = [self._relations, self._factors]
        return np.concatenate(
            parts if self._given is None else [parts[0], self._given, parts[1]], 1
        )

    @cached_property
    def _sizes(self) -> list[int]:
        sizes: list[int] = (self._columns.max(axis=0, initial=0) + 1).tolist()
        return sizes

    @property
    def _flags(self) -> set[int]:
        """The relations that hold or do not."""
        return {column for column in range(self._derived) if self._sizes[column] == 2}

    @cached_property
    def _relations(self) -> np.ndarray:
        """Columns for places where an idle action had an effect, and for what had to do with it.

        The places are numbered in the first column, and 0 elsewhere. The others say, for each
        factor that is no place, whether it has a value that only this place had to do with.
        """
        steps, factors = self._steps, self._factors
        changed = factors[steps.after] != factors[steps.before]
        where = self._where
        other = np.setdiff1d(np.arange(factors.shape[1]), where)
        if not len(where) or not len(other):
            return np.zeros((len(factors), 0), np.int64)
        usual = np.array([self._commonest(action) for action in range(self._shape[1])])
        effects = (steps.after != steps.before) | steps.ended
        effects |= (steps.reward != usual[steps.action]) & changed[:, other].any(axis=1)
        effects &= self.idle[steps.action]
        cells = np.unique(factors[:, where], axis=0, return_inverse=True)[1].reshape(-1)
        places = np.zeros(cells.max(initial=0) + 1, np.int64)
        met = np.unique(cells[steps.before[effects]])
        places[met] = np.arange(len(met)) + 1
        place = places[cells]
        linked = [
            self._linked(place, column, np.flatnonzero(effects & changed[:, column]))
            for column in other
        ]
        columns = [column for column in (place, *linked) if column.any()]
        return np.stack(columns, 1) if columns else np.zeros((len(factors), 0), np.int64)

    def _linked(self, place: np.ndarray, column: int, effects: np.ndarray) -> np.ndarray:
        """Say where a factor has a value that only effects in the present place had to do with."""
        values, steps = self._factors[:, column], self._steps
        pairs = {
            (int(place[before]), int(values[number]))
            for before, after in zip(steps.before[effects], steps.after[effects], strict=True)
            for number in (before, after)
        }
        often = Counter(value for _, value in pairs)
        table = np.zeros((place.max(initial=0) + 1, values.max(initial=0) + 1), np.int64)
        for where, value in pairs:
            table[where, value] = often[value] == 1
        return np.asarray(table[place, values])

    def _commonest(self, action: int) -> float:
        rewards = self._steps.reward[self._steps.action == action].tolist()
        return Counter(rewards).most_common(1)[0][0] if rewards else 0.0
