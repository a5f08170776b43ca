"""What whole numbers are made of: the cell of a grid, counted row by row, is a row and a column.

Only the rows that were seen say so: a reading is good where what every action adds to each factor,
stopped at its bounds, is short to say and explains them.
"""

from collections.abc import Iterator
from math import log2

import numpy as np

MOST_VALUES = 100_000
"""Values of a number above which it is not read as several."""

MANY_VALUES = 2_000
"""Values above which a number hides a digit fewer: it has very many factorisations."""

ANY_WIDTH = 200
"""Values up to which the higher of two digits need not use its whole range."""

DIGIT_BITS, ODD_BITS, CHANGE_BITS, MISS_BITS = 4.0, 4.0, 2.0, 2.0
"""Prices of a digit, of a width that does not divide, of what an action adds and of a miss, the
last two beside that of a value."""

STAYS = 0.7
"""What a move explains of a step in which nothing changed, as something was in the way."""


def digits_of(
    before: np.ndarray, action: np.ndarray, after: np.ndarray, size: int
) -> tuple[int, ...]:
    """Return the radices, the highest digit first, in which steps (rows,) of a number are shortest.

    `size` is how many values the number has. That it is one digit is the answer as well where
    nothing speaks for more.
    """
    if size > MOST_VALUES or not (before != after).any():
        return (size,)
    before, action, after = np.unique(np.stack([before, action, after]), axis=1)
    priced = (
        (_bits(before, action, after, radices) + bits, radices) for radices, bits in _readings(size)
    )
    return min(priced)[1]


def split(values: np.ndarray, radices: tuple[int, ...]) -> np.ndarray:
    """Write numbers (rows,) as digits (rows, digits)."""
    columns, rest = [], values
    for radix in radices[:0:-1]:
        rest, digit = np.divmod(rest, radix)
        columns.append(digit)
    return np.stack([rest, *columns[::-1]], 1)


def _readings(size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield ways to read a number as digits, with their price in bits."""
    for radices in _factorisations(size, 4 if size <= MANY_VALUES else 3):
        yield radices, DIGIT_BITS * len(radices)
    if size < ANY_WIDTH:
        for width in range(3, size // 2 + 1):
            if size % width:
                yield (-(-size // width), width), 2 * DIGIT_BITS + ODD_BITS + log2(size)


def _factorisations(size: int, digits: int) -> Iterator[tuple[int, ...]]:
    yield (size,)
    for first in range(2, size // 2 + 1) if digits > 1 else ():
        if size % first == 0:
            for rest in _factorisations(size // first, digits - 1):
                yield (first, *rest)


def _bits(
    before: np.ndarray, action: np.ndarray, after: np.ndarray, radices: tuple[int, ...]
) -> float:
    """Price what every action adds to every digit, and what that misses."""
    old, new, total = split(before, radices), split(after, radices), 0.0
    stays = before == after
    for digit, radix in enumerate(radices):
        changes = new[:, digit] - old[:, digit]
        for chosen in set(action.tolist()):
            rows = action == chosen
            costs = []
            for delta in {0, *changes[rows].tolist()}:
                right = np.clip(old[rows, digit] + delta, 0, radix - 1) == new[rows, digit]
                missed = np.where(right, 0.0, np.where(stays[rows], 1 - STAYS, 1.0)).sum()
                price = (delta != 0) * (log2(radix) + CHANGE_BITS)
                costs.append(price + (log2(radix) + MISS_BITS) * missed)
            total += min(costs)
    return total
