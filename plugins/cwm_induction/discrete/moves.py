"""Nominal moves: the change of each state factor by action, added to it or to a sum of factors.

A tree over the parts of an action selects the sum. Parts generalise: observed actions also
determine the moves of actions that were never taken.
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
"""Most common changes of a factor to consider."""

MAX_KEY = 8
"""Moves may depend on another factor with at most this many values."""

MAX_KEYED = 16
"""Try moves that depend on other factors, or add them, up to this number of factors."""

LEAST_PLACES = 2
"""A factor with steps up and down is a place, not a flag, if it has more values than this."""

CHANGE_BITS = 2
"""Price of a change by an action, in addition to the price of its value."""

KEYED_BITS = 4.0
"""Price of a move that depends on another factor, in addition to its table entries."""

MISS_BITS = 6.0
"""Estimated price of a transition that moves miss and exceptions must explain."""

BLOCKED_WORTH = 0.7
"""Credit of a move for a transition without any change, which an obstacle may explain."""

STOPS_WORTH = 0.01
"""Extra credit of a move for a correct transition that does not meet the bounds."""

SUM_BITS = 8.0
"""Price of a sum other than the factor itself."""

MOST_MULTIPLES = 24
"""Try multiples of a factor that wraps around below this number."""

MOST_PAIRED = 5
"""Try sums of two other factors up to this number of factors, to limit the number of pairs."""

MOST_CELLS = 1_000_000
"""Largest number of counts in memory at the same time."""


@dataclass(frozen=True)
class FactorMove:
    """The nominal change of one factor.

    `deltas` has a row per action. It has a column per value of the factor `key`, or one column
    without a `key`. If `wraps` is set, the factor wraps around at its bounds; otherwise it stops
    there. The change is added to the factor, or with `weights` (a row per action) to the
    weighted sum of all factors.
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
        return _to_range(self.target(factors, action, factor), self.radix, self.wraps)

    def leaves(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Return a mask (rows): whether the move would leave the range."""
        target = self.target(factors, action, factor)
        outside: np.ndarray = (target < 0) | (target >= self.radix)
        return outside & (not self.wraps)

    def target(self, factors: np.ndarray, action: np.ndarray, factor: int) -> np.ndarray:
        """Return the next values of the move without bounds."""
        column = 0 if self.key is None else factors[:, self.key]
        base: np.ndarray = factors[:, factor]
        if self.weights is not None:
            base = (factors * self.weights[action]).sum(axis=1)
        target: np.ndarray = base + self.deltas[action, column]
        return target

    def target_text(self, constants: Constants, names: list[str], factor: int) -> str:
        """Write the next value of the move without bounds."""
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
        """Write the next value of the move within the bounds."""
        wraps = f"({target}) % {self.radix}"
        return wraps if self.wraps else f"min(max({target}, 0), {self.radix - 1})"


def _sum_text(weights: list[int], names: list[str]) -> str:
    """Write a sum of factors, with positive terms first."""
    text = ""
    for weight, name in sorted(zip(weights, names, strict=True), key=lambda pair: -pair[0]):
        if weight:
            part = name if abs(weight) == 1 else f"{abs(weight)} * {name}"
            sign = "-" if weight < 0 else "+"
            text = f"{text} {sign} {part}" if text else part
    return text or "0"


class Fit(NamedTuple):
    """A move, its description length and its misses; blocked transitions count in part."""

    move: FactorMove
    bits: float
    misses: float

    @property
    def cost(self) -> float:
        """Bits of the move, plus the estimated price of its misses."""
        return self.bits + MISS_BITS * self.misses


def fit_moves(
    factors: np.ndarray,
    action: np.ndarray,
    after: np.ndarray,
    radices: tuple[int, ...],
    parts: tuple[int, ...],
) -> list[Fit]:
    """Fit the nominal move with the least cost for each factor.

    `parts` are the sizes of the parts of an action.
    """
    stays = (factors == after).all(axis=1)
    search = _MoveSearch(factors, action, after, stays, radices, parts)
    return [min(search.fits(factor), key=lambda fit: fit.cost) for factor in range(len(radices))]


def plain_cost(
    factors: np.ndarray, action: np.ndarray, after: np.ndarray, radices: tuple[int, ...]
) -> float:
    """Return the bits of moves by action alone, plus the estimated price of their misses."""
    stays, actions = (factors == after).all(axis=1), int(action.max(initial=0)) + 1
    search = _MoveSearch(factors, action, after, stays, radices, (actions,))
    fits = (search.by_action(factor, None) for factor in range(len(radices)))
    return sum(min(fit.cost for fit in both) for both in fits)


class Assumption(NamedTuple):
    """The assumption that an action without any observed effect moves a factor."""

    action: int
    factor: int


def assume_opposites(
    fits: list[Fit], factors: np.ndarray, action: np.ndarray, after: np.ndarray
) -> tuple[list[Fit], tuple[Assumption, ...]]:
    """Complete pairs of opposite moves with actions that may only have met the bounds.

    An action gets a move if its transitions agree with exactly one opposite move that no other
    action makes.
    """
    fits = [fit._replace(move=replace(fit.move, deltas=fit.move.deltas.copy())) for fit in fits]
    idle = np.stack([~fit.move.deltas.any(axis=1) for fit in fits]).all(axis=0)
    left, assumed = np.flatnonzero(idle).tolist(), []
    while left:
        opposites = {number: _opposites(fits, number, factors, action, after) for number in left}
        number = next((number for number in left if len(opposites[number]) == 1), None)
        if number is None:
            break
        factor, delta = opposites[number][0]
        fits[factor].move.deltas[number] = delta
        assumed.append(Assumption(number, factor))
        left.remove(number)
    return fits, tuple(assumed)


def _opposites(
    fits: list[Fit], number: int, factors: np.ndarray, action: np.ndarray, after: np.ndarray
) -> list[tuple[int, int]]:
    """List the missing opposites that agree with all transitions of an idle action."""
    rows = action == number
    if not (factors[rows] == after[rows]).all():
        return []
    return [
        (factor, delta)
        for factor, fit in enumerate(fits)
        for delta in _missing_opposites(fit.move)
        if (
            _to_range(factors[rows, factor] + delta, fit.move.radix, wraps=False)
            == after[rows, factor]
        ).all()
    ]


def _missing_opposites(move: FactorMove) -> list[int]:
    """List the changes that no action makes although another action makes their opposite."""
    if move.wraps or move.key is not None or move.weights is not None:
        return []
    deltas = set(move.deltas.ravel().tolist())
    return sorted(-delta for delta in deltas if delta and -delta not in deltas)


class _MoveSearch(NamedTuple):
    """Distinct transitions, in factors; `stays` marks transitions without any change."""

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
            landing = _to_range(before[:, None] + deltas, radix, wraps)
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
    """Return the most common changes: no change first, then in order of size."""
    values, counts = np.unique(changes, return_counts=True)
    values = values[np.lexsort((values, np.abs(values), -counts))][:MAX_DELTAS]
    values = values[values != 0]
    return np.concatenate([[0], values[np.lexsort((values, np.abs(values)))]])


def _to_range(values: np.ndarray, radix: int, wraps: bool) -> np.ndarray:
    """Wrap or clip values to the range of a factor."""
    result: np.ndarray = values % radix if wraps else np.clip(values, 0, radix - 1)
    return result


class _Sum(NamedTuple):
    """A weighted sum of factors for each action, plus a constant `added` to it."""

    weights: np.ndarray
    added: np.ndarray


class _SumFit(NamedTuple):
    """The sum of each action (an index `places`), a further change `deltas`, and their price."""

    places: np.ndarray
    deltas: np.ndarray
    bits: float
    misses: float

    @property
    def cost(self) -> float:
        """Bits of the sums, plus the estimated price of their misses."""
        return self.bits + MISS_BITS * self.misses


class _SumFits(NamedTuple):
    """The change by action key (sums, keys) for each of several sums, with bits and misses.

    `keys` maps an action to its key.
    """

    deltas: np.ndarray
    keys: np.ndarray
    bits: np.ndarray
    misses: np.ndarray

    @property
    def costs(self) -> np.ndarray:
        """Bits of each sum, plus the estimated price of its misses."""
        costs: np.ndarray = self.bits + MISS_BITS * self.misses
        return costs

    def fit(self, place: int) -> _SumFit:
        """Return one sum, for all actions."""
        places, deltas = np.full(len(self.keys), place), self.deltas[place][self.keys]
        return _SumFit(places, deltas, float(self.bits[place]), float(self.misses[place]))


@dataclass(frozen=True)
class _SumSearch:
    """A search for the sums of factors that give the next values `after` of the factor `own`.

    If `wraps` is set, the factor wraps around at its bounds; otherwise it stops there. `sizes`
    are the sizes of the parts of an action.
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
        sums = self._grow(everything, tuple(range(len(self.sizes))), {})
        chosen = [self._choices[place] for place in sums.places]
        weights = np.stack([choice.weights[n] for n, choice in enumerate(chosen)])
        added = np.array([choice.added[n] for n, choice in enumerate(chosen)])
        deltas = (sums.deltas + added)[:, None]
        plain = (weights == np.eye(len(self.radices), dtype=np.int64)[self.own]).all()
        radix = self.radices[self.own]
        move = FactorMove(radix, self.wraps, None, deltas, None if plain else weights)
        return Fit(move, 2.0 + self.wraps + sums.bits, sums.misses)

    @cached_property
    def parts(self) -> np.ndarray:
        """The parts of each action (actions, parts)."""
        return np.stack(np.unravel_index(np.arange(np.prod(self.sizes)), self.sizes), axis=1)

    @cached_property
    def _choices(self) -> list[_Sum]:
        """Candidate sums: the factor itself, amounts, multiples, and sums with other factors."""
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
        """The value of each candidate sum in each row (sums, rows)."""
        return np.stack(
            [
                (self.factors * choice.weights[self.action]).sum(axis=1) + choice.added[self.action]
                for choice in self._choices
            ]
        )

    def _grow(
        self, actions: np.ndarray, free: tuple[int, ...], known: dict[bytes, _SumFit]
    ) -> _SumFit:
        """Return the cheaper of one sum for all `actions` and one sum per value of a part.

        `known` caches results by mask of actions.
        """
        key = actions.tobytes()
        if key not in known:
            whole = best = self._leaf(actions, free)
            for part in free if whole.misses else ():
                rest = tuple(other for other in free if other != part)
                split = self._split(actions, part, whole, rest, known)
                best = min(best, split, key=lambda found: found.cost)
            known[key] = best
        return known[key]

    def _split(
        self,
        actions: np.ndarray,
        part: int,
        whole: _SumFit,
        free: tuple[int, ...],
        known: dict[bytes, _SumFit],
    ) -> _SumFit:
        """Fit sums for each value of a part; values without rows use the sum `whole`."""
        places, deltas = whole.places.copy(), whole.deltas.copy()
        bits, misses = 1 + log2(len(self.sizes)), 0.0
        for value in range(self.sizes[part]):
            chosen = actions & (self.parts[:, part] == value)
            if chosen[self.action].any():
                sums = self._grow(chosen, free, known)
                places[chosen], deltas[chosen] = sums.places[chosen], sums.deltas[chosen]
                bits, misses = bits + sums.bits, misses + sums.misses
        return _SumFit(places, deltas, bits, misses)

    def _leaf(self, actions: np.ndarray, free: tuple[int, ...]) -> _SumFit:
        """Fit the best sum for some actions; the change may depend on one of the `free` parts."""
        rows = np.flatnonzero(actions[self.action])
        plain = self._fit_changes(rows, None, 1)
        if not plain.costs[0]:
            return plain.fit(0)
        fits = [self._fit_changes(rows, part, len(self._choices)) for part in (None, *free)]
        cheapest = int(np.argmin(np.stack([fit.costs for fit in fits], axis=1)))
        place, part = divmod(cheapest, len(fits))
        return fits[part].fit(place)

    def _fit_changes(self, rows: np.ndarray, part: int | None, count: int) -> _SumFits:
        """Fit the change that is added to each of the first `count` sums."""
        radix, after = self.radices[self.own], self.after[rows]
        base = np.take(self._bases[:count], rows, axis=1)
        size = 1 if part is None else self.sizes[part]
        keys = np.zeros(len(self.parts), dtype=np.int64) if part is None else self.parts[:, part]
        key = keys[self.action[rows]]
        deltas = _most_common((after - base) % radix if self.wraps else after - base, key, size)
        target = base + np.take(deltas, key, axis=1)
        right = (target % radix if self.wraps else np.clip(target, 0, radix - 1)) == after
        misses = np.where(right, 0.0, 1 - BLOCKED_WORTH * self.stays[rows]).sum(axis=1)
        bits = np.count_nonzero(deltas, axis=1) * (log2(radix) + CHANGE_BITS)
        bits += SUM_BITS * (np.arange(count) != 0)
        return _SumFits(deltas, keys, bits, misses)

    def _by_parts(self, own: np.ndarray) -> Iterator[_Sum]:
        """Yield sums with a part of the action as amount, or as index of a factor."""
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
        """Yield weights of the factors that are equal for all actions."""
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


def _most_common(changes: np.ndarray, key: np.ndarray, size: int) -> np.ndarray:
    """Return the most common change of each key (sums, keys); in a tie, prefer no change."""
    low = int(changes.min(initial=0))
    span = int(changes.max(initial=0)) - low + 1
    count = len(changes)
    if count * size * span > MOST_CELLS:
        if count == 1:
            return np.zeros((1, size), dtype=np.int64)
        halves = np.array_split(changes, 2)
        return np.concatenate([_most_common(half, key, size) for half in halves])
    cells = (np.arange(count)[:, None] * size + key) * span + changes - low
    counts = np.bincount(cells.ravel(), minlength=count * size * span).reshape(count, size, span)
    best = counts.max(axis=2) > counts[:, :, -low]
    common: np.ndarray = np.where(best, counts.argmax(axis=2) + low, 0)
    return common
