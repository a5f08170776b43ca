"""What each action nominally adds to a factor of the state, or to a sum of factors.

A tree over the parts of an action says which sum holds, so that what was seen
with some actions also speaks of those that were never taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from math import log2, prod
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.expressions import Constants

MAX_DELTAS = 24
"""Different changes of a factor that are considered, the commonest."""

MAX_KEY = 8
"""Values of a factor up to which moves of others may depend on it."""

MAX_KEYED = 16
"""Factors up to which moves that depend on others, or add them, are tried, to save time."""

LEAST_PLACES = 2
"""Values that a factor has more of where steps up and down make it a place, and no flag."""

CHANGE_BITS = 2
"""Price of what an action adds, beside that of the value."""

KEYED_BITS = 4.0
"""Price of a move that depends on another factor, beside an entry for each of its values."""

MISS_BITS = 6.0
"""A guess at the price of a transition that the moves miss and exceptions must explain."""

BLOCKED_WORTH = 0.7
"""What a move explains of a transition in which nothing changed, as something was in the way."""

STOPS_WORTH = 0.01
"""What a move explains more of a transition in which it does not meet the bounds."""

SUM_BITS = 8.0
"""Price of a sum other than the factor itself."""

MOST_MULTIPLES = 24
"""Multiples of a factor that wraps around up to which they are tried."""

MOST_PAIRED = 5
"""Factors up to which sums of any two others are tried: with more there are too many pairs."""

MOST_CELLS = 1_000_000
"""Counts that are kept in memory at once."""


@dataclass(frozen=True)
class FactorMove:
    """The nominal change of one factor.

    `deltas` has a row per action and, where the change also depends on the
    factor `key`, a column per value of that; otherwise one column. `wraps`
    says whether the factor leaves its range by wrapping around or stops. With
    `weights`, a row per action, the sum of all factors times these is what
    the change is added to, instead of the factor itself.
    """

    radix: int
    wraps: bool
    key: int | None
    deltas: np.ndarray
    weights: np.ndarray | None = None

    @property
    def moves(self) -> bool:
        """Whether any action changes the factor."""
        return self.weights is not None or bool(self.deltas.any())

    @property
    def steps(self) -> bool:
        """Whether actions move the factor to its neighbours, up and down."""
        deltas = set(self.deltas.ravel().tolist())
        unit = {-1, 1} <= deltas <= {-1, 0, 1}
        return self.weights is None and self.radix > LEAST_PLACES and unit

    def apply(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Return the factor's nominal next values."""
        return _bounded(self.target(factors, action, factor), self.radix, self.wraps)

    def leaves(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Say where the move would lead out of the range."""
        target = self.target(factors, action, factor)
        outside: np.ndarray = (target < 0) | (target >= self.radix)
        return outside & (not self.wraps)

    def target(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Return where the move would lead without bounds."""
        column = 0 if self.key is None else factors[:, self.key]
        base: np.ndarray = factors[:, factor]
        if self.weights is not None:
            base = (factors * self.weights[action]).sum(axis=1)
        target: np.ndarray = base + self.deltas[action, column]
        return target

    def target_text(self, constants: Constants, names: list[str], factor: int) -> str:
        """Write where the move leads without bounds."""
        name, base = names[factor], names[factor]
        if self.weights is not None:
            sums = [_sum_text(row, names) for row in self.weights.tolist()]
            changed = [f"{action}: {text}" for action, text in enumerate(sums) if text != name]
            alike = len(set(sums)) == 1
            base = sums[0] if alike else f"{{{', '.join(changed)}}}.get(action, {name})"
        key = "action" if self.key is None else f"(action, {names[self.key]})"
        entries = [
            f"{action if self.key is None else (action, column)}: {delta}"
            for action, row in enumerate(self.deltas.tolist())
            for column, delta in enumerate(row)
            if delta
        ]
        if not entries:
            return base
        display, comment = "{" + ", ".join(entries) + "}", f"change of {name} by {key}"
        step = constants.add(f"{name.upper()}_STEP", display, comment)
        return f"{base} + {step}.get({key}, 0)"

    def bounded_text(self, target: str) -> str:
        """Write where the move leads within the bounds."""
        wraps = f"({target}) % {self.radix}"
        return wraps if self.wraps else f"min(max({target}, 0), {self.radix - 1})"


def _sum_text(weights: list[int], names: list[str]) -> str:
    """Write a sum of factors, those that are added before those that are subtracted."""
    text = ""
    for weight, name in sorted(zip(weights, names, strict=True), key=lambda pair: -pair[0]):
        if weight:
            part = name if abs(weight) == 1 else f"{abs(weight)} * {name}"
            sign = "-" if weight < 0 else "+"
            text = f"{text} {sign} {part}" if text else part
    return text or "0"


class Fit(NamedTuple):
    """A move, its description length and the transitions it misses, blocked ones in part."""

    move: FactorMove
    bits: float
    misses: float

    @property
    def cost(self) -> float:
        """Bits of the move and of a guess at what it misses."""
        return self.bits + MISS_BITS * self.misses


def fit_moves(
    factors: np.ndarray,
    action: np.ndarray,
    after: np.ndarray,
    radices: tuple[int, ...],
    parts: tuple[int, ...],
) -> list[Fit]:
    """Find for every factor the change per action that explains most transitions.

    `parts` are the sizes of the parts of an action.
    """
    stays = (factors == after).all(axis=1)
    search = _MoveSearch(factors, action, after, stays, radices, parts)
    return [min(search.fits(factor), key=lambda fit: fit.cost) for factor in range(len(radices))]


def plain_cost(
    factors: np.ndarray, action: np.ndarray, after: np.ndarray, radices: tuple[int, ...]
) -> float:
    """Return the bits of changes by action alone, and of a guess at what they miss."""
    stays, actions = (factors == after).all(axis=1), int(action.max(initial=0)) + 1
    search = _MoveSearch(factors, action, after, stays, radices, (actions,))
    fits = (search.by_action(factor, None) for factor in range(len(radices)))
    return sum(min(fit.cost for fit in both) for both in fits)


class Assumption(NamedTuple):
    """An action that was never seen to change anything is taken for a move of a factor."""

    action: int
    factor: int


def assume_opposites(
    fits: list[Fit], factors: np.ndarray, action: np.ndarray, after: np.ndarray
) -> tuple[list[Fit], tuple[Assumption, ...]]:
    """Complete pairs of opposite moves with actions that may only have met the bounds.

    An action is completed when what was seen of it agrees with exactly one
    opposite move that no other action makes.
    """
    fits = [fit._replace(move=replace(fit.move, deltas=fit.move.deltas.copy())) for fit in fits]
    idle = np.stack([~fit.move.deltas.any(axis=1) for fit in fits]).all(axis=0)
    left, assumed = np.flatnonzero(idle).tolist(), []
    while left:
        found = {number: _opposites(fits, number, factors, action, after) for number in left}
        number = next((number for number in left if len(found[number]) == 1), None)
        if number is None:
            break
        factor, delta = found[number][0]
        fits[factor].move.deltas[number] = delta
        assumed.append(Assumption(number, factor))
        left.remove(number)
    return fits, tuple(assumed)


def _opposites(
    fits: list[Fit], number: int, factors: np.ndarray, action: np.ndarray, after: np.ndarray
) -> list[tuple[int, int]]:
    """List the missing opposites with which everything that was seen of an idle action agrees."""
    rows = action == number
    if not (factors[rows] == after[rows]).all():
        return []
    return [
        (factor, delta)
        for factor, fit in enumerate(fits)
        for delta in _missing_opposites(fit.move)
        if (
            _bounded(factors[rows, factor] + delta, fit.move.radix, wraps=False)
            == after[rows, factor]
        ).all()
    ]


def _missing_opposites(move: FactorMove) -> list[int]:
    """List the moves of which only the opposite is made."""
    if move.wraps or move.key is not None or move.weights is not None:
        return []
    deltas = set(move.deltas.ravel().tolist())
    return sorted(-delta for delta in deltas if delta and -delta not in deltas)


class _MoveSearch(NamedTuple):
    """Different transitions before and after, in factors."""

    factors: np.ndarray
    action: np.ndarray
    after: np.ndarray
    stays: np.ndarray
    radices: tuple[int, ...]
    parts: tuple[int, ...]

    def fits(self, factor: int) -> Iterator[Fit]:
        """Yield the moves of one factor: by action alone, then by action and another factor."""
        plain = list(self.by_action(factor, None))
        yield from plain
        if all(fit.misses for fit in plain) and len(self.radices) <= MAX_KEYED:
            for key, radix in enumerate(self.radices):
                if key != factor and radix <= MAX_KEY:
                    yield from self.by_action(factor, key)
            rows = self.factors, self.action, self.after[:, factor], self.stays
            for wraps in (False, True):
                yield _SumSearch(*rows, self.radices, self.parts, factor, wraps).fit()

    def by_action(self, factor: int, key: int | None) -> Iterator[Fit]:
        """Yield the best move that stops at the bounds, then the best that wraps around."""
        size, actions = 1 if key is None else self.radices[key], prod(self.parts)
        group = self.action * size + (0 if key is None else self.factors[:, key])
        before, after, radix = self.factors[:, factor], self.after[:, factor], self.radices[factor]
        deltas = _candidates(after - before)
        for wraps in (False, True):
            landing = _bounded(before[:, None] + deltas, radix, wraps)
            right = landing == after[:, None]
            plain = right & (before[:, None] + deltas == after[:, None])
            worth = np.where(right, 1 + STOPS_WORTH * plain, BLOCKED_WORTH * self.stays[:, None])
            support = np.zeros((actions * size, len(deltas)))
            np.add.at(support, group, worth)
            table = deltas[support.argmax(axis=1)].reshape(actions, size)
            misses = max(0.0, len(before) - support.max(axis=1).sum())
            bits = 2.0 + wraps + np.count_nonzero(table) * (log2(radix) + CHANGE_BITS)
            if key is not None:
                bits += KEYED_BITS + table.size
            yield Fit(FactorMove(radix, wraps, key, table), bits, misses)


def _candidates(changes: np.ndarray) -> np.ndarray:
    """Return the commonest changes, no change first, then small before large."""
    values, counts = np.unique(changes, return_counts=True)
    values = values[np.lexsort((values, np.abs(values), -counts))][:MAX_DELTAS]
    values = values[values != 0]
    return np.concatenate([[0], values[np.lexsort((values, np.abs(values)))]])


def _bounded(values: np.ndarray, radix: int, wraps: bool) -> np.ndarray:
    """Bring values back into the range of a factor."""
    result: np.ndarray = values % radix if wraps else np.clip(values, 0, radix - 1)
    return result


class _Sum(NamedTuple):
    """Weights of the factors and what is added to their sum, for every action."""

    weights: np.ndarray
    added: np.ndarray


class _FoundSums(NamedTuple):
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

    def found(self, place: int) -> _FoundSums:
        """Return one of the sums, for all actions."""
        places, deltas = np.full(len(self.keys), place), self.deltas[place][self.keys]
        return _FoundSums(places, deltas, float(self.bits[place]), float(self.misses[place]))


@dataclass(frozen=True)
class _SumSearch:
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

    def fit(self) -> Fit:
        """Find the tree of sums with the least cost."""
        everything = np.ones(len(self.parts), dtype=bool)
        found = self._grow(everything, tuple(range(len(self.sizes))), {})
        chosen = [self._choices[place] for place in found.places]
        weights = np.stack([choice.weights[n] for n, choice in enumerate(chosen)])
        added = np.array([choice.added[n] for n, choice in enumerate(chosen)])
        deltas = (found.deltas + added)[:, None]
        plain = (weights == np.eye(len(self.radices), dtype=np.int64)[self.own]).all()
        radix = self.radices[self.own]
        move = FactorMove(radix, self.wraps, None, deltas, None if plain else weights)
        return Fit(move, 2.0 + self.wraps + found.bits, found.misses)

    @cached_property
    def parts(self) -> np.ndarray:
        """The parts of every action."""
        return np.stack(np.unravel_index(np.arange(np.prod(self.sizes)), self.sizes), axis=1)

    @cached_property
    def _choices(self) -> list[_Sum]:
        """The factor itself, then amounts, multiples, other factors and sums with them."""
        count, own = len(self.parts), np.eye(len(self.radices), dtype=np.int64)[self.own]
        nothing = np.zeros(count, dtype=np.int64)
        return [
            _Sum(np.tile(own, (count, 1)), nothing),
            *(self._by_parts(own) if len(self.sizes) > 1 else ()),
            _Sum(np.tile(0 * own, (count, 1)), nothing),
            *(_Sum(np.tile(weights, (count, 1)), nothing) for weights in self._weights(own)),
        ]

    @cached_property
    def _bases(self) -> np.ndarray:
        """What every choice gives in every row (choices, rows)."""
        return np.stack(
            [
                (self.factors * choice.weights[self.action]).sum(axis=1) + choice.added[self.action]
                for choice in self._choices
            ]
        )

    def _grow(
        self, actions: np.ndarray, free: tuple[int, ...], known: dict[bytes, _FoundSums]
    ) -> _FoundSums:
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
        whole: _FoundSums,
        free: tuple[int, ...],
        known: dict[bytes, _FoundSums],
    ) -> _FoundSums:
        """Find sums for every value of a part; those never taken follow the whole."""
        places, deltas = whole.places.copy(), whole.deltas.copy()
        bits, misses = 1 + log2(len(self.sizes)), 0.0
        for value in range(self.sizes[part]):
            chosen = actions & (self.parts[:, part] == value)
            if chosen[self.action].any():
                found = self._grow(chosen, free, known)
                places[chosen], deltas[chosen] = found.places[chosen], found.deltas[chosen]
                bits, misses = bits + found.bits, misses + found.misses
        return _FoundSums(places, deltas, bits, misses)

    def _leaf(self, actions: np.ndarray, free: tuple[int, ...]) -> _FoundSums:
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
        bits = np.count_nonzero(deltas, axis=1) * (log2(radix) + CHANGE_BITS)
        bits += SUM_BITS * (np.arange(count) != 0)
        return _Tried(deltas, keys, bits, misses)

    def _by_parts(self, own: np.ndarray) -> Iterator[_Sum]:
        """Yield sums with an amount that is a part of the action, or with a factor it names."""
        unit, count = np.eye(len(self.radices), dtype=np.int64), len(self.parts)
        for part, size in enumerate(self.sizes):
            amount = self.parts[:, part]
            for sign in (-1, 1):
                yield _Sum(np.tile(own, (count, 1)), sign * amount)
            yield _Sum(np.tile(0 * own, (count, 1)), amount)
            for start in range(len(unit) - size + 1):
                if len(set(self.radices[start : start + size])) == 1:
                    named = unit[start + amount]
                    nothing = np.zeros(count, dtype=np.int64)
                    yield from (_Sum(w, nothing) for w in (named, own + named, own - named))

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
