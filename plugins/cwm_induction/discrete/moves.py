"""What each action nominally adds to a factor of the state."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2, prod
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.sums import Sums

MAX_DELTAS = 24
MAX_KEY = 8
LEAST_PLACES = 2
MAX_KEYED = 16
MISS_BITS = 6.0
BLOCKED_WORTH = 0.7
"""What a move explains of a transition in which nothing changed, as something was in the way."""


@dataclass(frozen=True)
class Move:
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
        plain = self.weights is None
        return (
            plain
            and self.radix > LEAST_PLACES
            and {-1, 1} <= set(self.deltas.ravel().tolist()) <= {-1, 0, 1}
        )

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


class Fit(NamedTuple):
    """A move, its description length and the transitions it misses, blocked ones in part."""

    move: Move
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
    sides = _Sides(factors, action, after, stays, radices, parts)
    return [min(sides.fits(factor), key=lambda fit: fit.cost) for factor in range(len(radices))]


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


def _missing_opposites(move: Move) -> list[int]:
    """List the moves of which only the opposite is made."""
    if move.wraps or move.key is not None or move.weights is not None:
        return []
    deltas = set(move.deltas.ravel().tolist())
    return sorted(-delta for delta in deltas if delta and -delta not in deltas)


class _Sides(NamedTuple):
    """Different transitions before and after, in factors."""

    factors: np.ndarray
    action: np.ndarray
    after: np.ndarray
    stays: np.ndarray
    radices: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return prod(self.parts)

    def fits(self, factor: int) -> Iterator[Fit]:
        """Yield the moves of one factor: by action alone, then by action and another factor."""
        plain = list(self.fits_by(factor, None))
        yield from plain
        if all(fit.misses for fit in plain) and len(self.radices) <= MAX_KEYED:
            for key, radix in enumerate(self.radices):
                if key != factor and radix <= MAX_KEY:
                    yield from self.fits_by(factor, key)
            yield from (self.summed(factor, wraps=wraps) for wraps in (False, True))

    def summed(self, factor: int, *, wraps: bool) -> Fit:
        """Return the best sums."""
        target, radix = self.after[:, factor], self.radices[factor]
        rows = self.factors, self.action, target, self.stays
        deltas, weights, bits, misses = Sums(*rows, self.radices, self.parts, factor, wraps).fit()
        plain = (weights == np.eye(len(self.radices), dtype=np.int64)[factor]).all()
        return Fit(Move(radix, wraps, None, deltas, None if plain else weights), bits, misses)

    def fits_by(self, factor: int, key: int | None) -> Iterator[Fit]:
        """Yield the best move that stops at the bounds, then the best that wraps around."""
        size = 1 if key is None else self.radices[key]
        group = self.action * size + (0 if key is None else self.factors[:, key])
        before, after, radix = self.factors[:, factor], self.after[:, factor], self.radices[factor]
        deltas = _candidates(after - before)
        for wraps in (False, True):
            landing = _bounded(before[:, None] + deltas, radix, wraps)
            right = landing == after[:, None]
            plain = right & (before[:, None] + deltas == after[:, None])
            worth = np.where(right, 1 + 0.01 * plain, BLOCKED_WORTH * self.stays[:, None])
            support = _sum_by(group, worth, self.actions * size)
            table = deltas[support.argmax(axis=1)].reshape(self.actions, size)
            misses = max(0.0, len(before) - support.max(axis=1).sum())
            bits = 2.0 + wraps + np.count_nonzero(table) * (log2(radix) + 2)
            if key is not None:
                bits += 4.0 + table.size
            yield Fit(Move(radix, wraps, key, table), bits, misses)


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


def _sum_by(group: np.ndarray, columns: np.ndarray, groups: int) -> np.ndarray:
    """Sum the rows of every group."""
    totals = np.zeros((groups, columns.shape[1]))
    np.add.at(totals, group, columns)
    return totals
