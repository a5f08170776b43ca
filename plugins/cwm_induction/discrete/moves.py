"""Nominal moves: the change of each state factor by action, and perhaps by another factor."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.expressions import Constants

MAX_DELTAS = 24
"""Most common changes of a factor to consider."""

MAX_KEY = 8
"""Moves may depend on another factor with at most this many values."""

MAX_KEYED = 16
"""Try moves that depend on other factors up to this number of factors."""

LEAST_PLACES = 2
"""A factor with steps up and down is a place, not a flag, if it has more values than this."""

CHANGE_BITS = 2
"""Price of a change by an action, in addition to the price of its value."""

KEYED_BITS = 4.0
"""Price of a move that depends on another factor, in addition to its table entries."""

SET_BITS = 8.0
"""Price of a move that sets a factor to a value, instead of a change that is added to it."""

MISS_BITS = 6.0
"""Estimated price of a transition that moves miss and exceptions must explain."""

BLOCKED_WORTH = 0.7
"""Credit of a move for a transition without any change, which an obstacle may explain."""

STOPS_WORTH = 0.01
"""Extra credit of a move for a correct transition that does not meet the bounds."""


@dataclass(frozen=True)
class FactorMove:
    """The nominal change of one factor.

    `deltas` has a row per action. It has a column per value of the factor `key`, or one column
    without a `key`. If `wraps` is set, the factor wraps around at its bounds; otherwise it stops
    there. If `sets` is set, `deltas` are the next values themselves.
    """

    radix: int
    wraps: bool
    key: int | None
    deltas: np.ndarray
    sets: bool = False

    @property
    def moves(self) -> bool:
        """Whether any action changes the factor."""
        return self.sets or bool(self.deltas.any())

    @property
    def steps(self) -> bool:
        """Whether actions move the factor to its neighbours, up and down."""
        deltas = set(self.deltas.ravel().tolist())
        unit = {-1, 1} <= deltas <= {-1, 0, 1}
        return self.radix > LEAST_PLACES and unit and not self.sets

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
        deltas: np.ndarray = self.deltas[action, column]
        target: np.ndarray = deltas if self.sets else factors[:, factor] + deltas
        return target

    def target_text(self, constants: Constants, names: list[str], factor: int) -> str:
        """Write the next value of the move without bounds."""
        name, word = names[factor], "next value" if self.sets else "change"
        key = "action" if self.key is None else f"(action, {names[self.key]})"
        entries = [
            f"{action if self.key is None else (action, column)}: {delta}"
            for action, row in enumerate(self.deltas.tolist())
            for column, delta in enumerate(row)
            if delta
        ]
        display, comment = "{" + ", ".join(entries) + "}", f"{word} of {name} by {key}"
        step = constants.add(f"{name.upper()}_STEP", display, comment)
        return f"{step}.get({key}, 0)" if self.sets else f"{name} + {step}.get({key}, 0)"

    def bounded_text(self, target: str) -> str:
        """Write the next value of the move within the bounds."""
        if self.sets:
            return target
        wraps = f"({target}) % {self.radix}"
        return wraps if self.wraps else f"min(max({target}, 0), {self.radix - 1})"


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
    actions: int,
) -> list[Fit]:
    """Fit the nominal move with the least cost for each factor."""
    stays = (factors == after).all(axis=1)
    search = _MoveSearch(factors, action, after, stays, radices, actions)
    return [min(search.fits(factor), key=lambda fit: fit.cost) for factor in range(len(radices))]


class _MoveSearch(NamedTuple):
    """Distinct transitions, in factors; `stays` marks transitions without any change."""

    factors: np.ndarray
    action: np.ndarray
    after: np.ndarray
    stays: np.ndarray
    radices: tuple[int, ...]
    actions: int

    def fits(self, factor: int) -> Iterator[Fit]:
        """Yield the moves of one factor: by action alone, then by action and another factor."""
        plain = list(self.by_action(factor, None))
        yield from plain
        if not all(fit.misses for fit in plain):
            return
        yield self._setting(factor)
        if len(self.radices) <= MAX_KEYED:
            for key, radix in enumerate(self.radices):
                if key != factor and radix <= MAX_KEY:
                    yield from self.by_action(factor, key)

    def by_action(self, factor: int, key: int | None) -> Iterator[Fit]:
        """Yield the best move that stops at the bounds, then the best that wraps around."""
        size, actions = 1 if key is None else self.radices[key], self.actions
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

    def _setting(self, factor: int) -> Fit:
        """Return the move that sets the factor to a value by action."""
        factors = self.factors.copy()
        factors[:, factor] = 0
        still = self._replace(factors=factors)
        fit = next(still.by_action(factor, None))
        return Fit(replace(fit.move, sets=True), fit.bits + SET_BITS, fit.misses)


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
