"""Next values that are sums or multiples of values before, as the parts of an action choose.

A tree over the parts of the action says which sum holds, so that what was
seen with some actions also speaks of those that were never taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations
from math import log2
from typing import NamedTuple

import numpy as np

MOST_MULTIPLES = 24
MOST_PAIRED = 5
SUM_BITS = 8.0
MISS_BITS = 6.0
BLOCKED_WORTH = 0.7
MOST_CELLS = 1_000_000

Fitted = tuple[np.ndarray, np.ndarray, float, float]
"""What is added and the weights, by action; their bits, the transitions missed."""


class Sum(NamedTuple):
    """Weights of the factors and what is added to their sum, for every action."""

    weights: np.ndarray
    added: np.ndarray


class Found(NamedTuple):
    """The sums of some actions by their place, what is added besides, and their price."""

    places: np.ndarray
    deltas: np.ndarray
    bits: float
    misses: float

    @property
    def cost(self) -> float:
        """Bits of the sums and of what they miss."""
        return self.bits + MISS_BITS * self.misses


class _Tried(NamedTuple):
    """What is added to each of several sums by some key of the action, their bits and misses."""

    deltas: np.ndarray
    keys: np.ndarray
    bits: np.ndarray
    misses: np.ndarray

    @property
    def costs(self) -> np.ndarray:
        """Bits of every sum and of what it misses."""
        costs: np.ndarray = self.bits + MISS_BITS * self.misses
        return costs

    def found(self, place: int) -> Found:
        """Return one of the sums, for all actions."""
        places, deltas = np.full(len(self.keys), place), self.deltas[place][self.keys]
        return Found(places, deltas, float(self.bits[place]), float(self.misses[place]))


@dataclass(frozen=True)
class Sums:
    """Transitions in factors and the next values of the factor `own`, which wrap around or stop.

    `parts` has a row per action and a column per part of it, `sizes` their sizes.
    """

    factors: np.ndarray
    action: np.ndarray
    after: np.ndarray
    stays: np.ndarray
    radices: tuple[int, ...]
    sizes: tuple[int, ...]
    own: int
    wraps: bool

    def fit(self) -> Fitted:
        """Find the tree of sums with the least cost."""
        everything = np.ones(len(self.parts), dtype=bool)
        found = self._grow(everything, tuple(range(len(self.sizes))), {})
        chosen = [self._choices[place] for place in found.places]
        weights = np.stack([chosen[n].weights[n] for n in range(len(chosen))])
        added = np.array([chosen[n].added[n] for n in range(len(chosen))])
        return (found.deltas + added)[:, None], weights, 2.0 + self.wraps + found.bits, found.misses

    @cached_property
    def parts(self) -> np.ndarray:
        """The parts of every action."""
        return np.stack(np.unravel_index(np.arange(np.prod(self.sizes)), self.sizes), axis=1)

    @cached_property
    def _choices(self) -> list[Sum]:
        return list(self._sums())

    @cached_property
    def _bases(self) -> np.ndarray:
        """What every choice gives in every row (choices, rows)."""
        return np.stack(
            [
                (self.factors * choice.weights[self.action]).sum(axis=1) + choice.added[self.action]
                for choice in self._choices
            ]
        )

    def _grow(self, actions: np.ndarray, free: tuple[int, ...], known: dict[bytes, Found]) -> Found:
        """Return the cheaper of one sum for some actions and one for every value of a part.

        `known` holds the answers for actions that were asked about already.
        """
        asked = actions.tobytes()
        if asked not in known:
            whole = best = self._leaf(actions, free)
            for part in free if whole.misses else ():
                rest = tuple(other for other in free if other != part)
                split = self._split(actions, part, whole, rest, known)
                best = min(best, split, key=lambda found: found.cost)
            known[asked] = best
        return known[asked]

    def _split(
        self,
        actions: np.ndarray,
        part: int,
        whole: Found,
        free: tuple[int, ...],
        known: dict[bytes, Found],
    ) -> Found:
        """Find sums for every value of a part; those never taken follow the whole."""
        places, deltas = whole.places.copy(), whole.deltas.copy()
        bits, misses = 1 + log2(len(self.sizes)), 0.0
        for value in range(self.sizes[part]):
            chosen = actions & (self.parts[:, part] == value)
            if chosen[self.action].any():
                found = self._grow(chosen, free, known)
                places[chosen], deltas[chosen] = found.places[chosen], found.deltas[chosen]
                bits, misses = bits + found.bits, misses + found.misses
        return Found(places, deltas, bits, misses)

    def _leaf(self, actions: np.ndarray, free: tuple[int, ...]) -> Found:
        """Find the best sum for some actions; what is added may depend on one part that is free."""
        rows = np.flatnonzero(actions[self.action])
        plain = self._tried(rows, None, 1)
        if not plain.costs[0]:
            return plain.found(0)
        tried = [self._tried(rows, part, len(self._choices)) for part in (None, *free)]
        cheapest = int(np.argmin(np.stack([one.costs for one in tried], axis=1)))
        place, part = divmod(cheapest, len(tried))
        return tried[part].found(place)

    def _tried(self, rows: np.ndarray, part: int | None, count: int) -> _Tried:
        """Fit what is added to each of the first sums."""
        radix, after = self.radices[self.own], self.after[rows]
        base = np.take(self._bases[:count], rows, axis=1)
        size = 1 if part is None else self.sizes[part]
        keys = np.zeros(len(self.parts), dtype=np.int64) if part is None else self.parts[:, part]
        key = keys[self.action[rows]]
        deltas = _commonest((after - base) % radix if self.wraps else after - base, key, size)
        target = base + np.take(deltas, key, axis=1)
        right = (target % radix if self.wraps else np.clip(target, 0, radix - 1)) == after
        misses = np.where(right, 0.0, 1 - BLOCKED_WORTH * self.stays[rows]).sum(axis=1)
        bits = np.count_nonzero(deltas, axis=1) * (log2(radix) + 2)
        bits += SUM_BITS * (np.arange(count) != 0)
        return _Tried(deltas, keys, bits, misses)

    def _sums(self) -> Iterator[Sum]:
        """Yield the factor itself, then amounts, multiples, other factors and sums with them."""
        count, own = len(self.parts), np.eye(len(self.radices), dtype=np.int64)[self.own]
        nothing = np.zeros(count, dtype=np.int64)
        yield Sum(np.tile(own, (count, 1)), nothing)
        if len(self.sizes) > 1:
            yield from self._by_parts(own)
        yield Sum(np.tile(0 * own, (count, 1)), nothing)
        for weights in self._weights(own):
            yield Sum(np.tile(weights, (count, 1)), nothing)

    def _by_parts(self, own: np.ndarray) -> Iterator[Sum]:
        """Yield sums with an amount that is a part of the action, or with a factor it names."""
        unit, count = np.eye(len(self.radices), dtype=np.int64), len(self.parts)
        for part, size in enumerate(self.sizes):
            amount = self.parts[:, part]
            for sign in (-1, 1):
                yield Sum(np.tile(own, (count, 1)), sign * amount)
            yield Sum(np.tile(0 * own, (count, 1)), amount)
            for start in range(len(unit) - size + 1):
                if len(set(self.radices[start : start + size])) == 1:
                    named = unit[start + amount]
                    nothing = np.zeros(count, dtype=np.int64)
                    yield from (Sum(w, nothing) for w in (named, own + named, own - named))

    def _weights(self, own: np.ndarray) -> Iterator[np.ndarray]:
        """Yield weights that all actions share."""
        unit = np.eye(len(self.radices), dtype=np.int64)
        if self.wraps:
            multiples = range(2, min(self.radices[self.own], MOST_MULTIPLES))
            yield from (own * multiple for multiple in multiples)
        others = [other for other in range(len(unit)) if other != self.own]
        for other in others:
            yield from (unit[other], own + unit[other], own - unit[other])
        if len(unit) <= MOST_PAIRED:
            yield from (unit[one] + unit[two] for one, two in combinations(others, 2))
            yield from (unit[one] - unit[two] for one, two in permutations(others, 2))


def _commonest(changes: np.ndarray, key: np.ndarray, size: int) -> np.ndarray:
    """Return the commonest change of every key (sums, keys), no change where that is as common."""
    low = int(changes.min(initial=0))
    span = int(changes.max(initial=0)) - low + 1
    count = len(changes)
    if count * size * span > MOST_CELLS:
        if count == 1:
            return np.zeros((1, size), dtype=np.int64)
        halves = np.array_split(changes, 2)
        return np.concatenate([_commonest(half, key, size) for half in halves])
    cells = (np.arange(count)[:, None] * size + key) * span + changes - low
    counts = np.bincount(cells.ravel(), minlength=count * size * span).reshape(count, size, span)
    best = counts.max(axis=2) > counts[:, :, -low]
    common: np.ndarray = np.where(best, counts.argmax(axis=2) + low, 0)
    return common
