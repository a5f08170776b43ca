"""Decompose an integer state into digits, e.g. the cell of a grid into a row and a column.

The radices are inferred from recorded steps by description length: they are good if a short list
of changes, one per action and digit and clipped to the digit's range, explains the steps.
"""

from collections.abc import Iterator
from math import log2

import numpy as np

DIGIT_BITS, INEXACT_BITS, CHANGE_BITS, MISS_BITS = 4.0, 4.0, 2.0, 2.0
"""Bits for a digit, for a radix that is no divisor, for the sign of a nonzero change of an action,
and for a step that the change does not explain, in addition to the bits of the digit's value."""


def digits_of(
    before: np.ndarray, action: np.ndarray, after: np.ndarray, size: int
) -> tuple[int, ...]:
    """Return the radices with the shortest description of some steps, the highest digit first.

    Args:
        before: States (steps,) from 0 to `size` - 1.
        action: Action numbers (steps,).
        after: Next states (steps,).
        size: Number of states.

    Returns:
        `(size,)`, which is a single digit, if the steps support no decomposition.
    """
    if size > 100_000 or not (before != after).any():
        return (size,)
    before, action, after = np.unique(np.stack([before, action, after]), axis=1)
    return min(
        (_step_bits(before, action, after, radices) + bits, radices)
        for radices, bits in _candidates(size)
    )[1]


def split(values: np.ndarray, radices: tuple[int, ...]) -> np.ndarray:
    """Return the digits (rows, digits) of numbers (rows,)."""
    columns, rest = [], values
    for radix in radices[:0:-1]:
        rest, digit = np.divmod(rest, radix)
        columns.append(digit)
    return np.stack([rest, *columns[::-1]], 1)


def _candidates(size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield radices and their description length in bits."""
    # Large numbers have too many factorisations into four digits.
    for radices in _factorisations(size, 4 if size <= 2_000 else 3):
        yield radices, DIGIT_BITS * len(radices)
    if size < 200:  # the radix of the low digit need not divide the size
        for width in range(3, size // 2 + 1):
            if size % width:
                yield (-(-size // width), width), 2 * DIGIT_BITS + INEXACT_BITS + log2(size)


def _factorisations(size: int, digits: int) -> Iterator[tuple[int, ...]]:
    yield (size,)
    for first in range(2, size // 2 + 1) if digits > 1 else ():
        if size % first == 0:
            for rest in _factorisations(size // first, digits - 1):
                yield (first, *rest)


def _step_bits(
    before: np.ndarray, action: np.ndarray, after: np.ndarray, radices: tuple[int, ...]
) -> float:
    """Return the bits for the change of every digit by every action, and for unexplained steps."""
    old, new, total = split(before, radices), split(after, radices), 0.0
    for chosen in np.unique(action):
        rows = np.flatnonzero(action == chosen)
        stays = (before == after)[rows]
        for digit, radix in enumerate(radices):
            total += _change_bits(old[rows, digit], new[rows, digit], stays, radix)
    return total


def _change_bits(old: np.ndarray, new: np.ndarray, stays: np.ndarray, radix: int) -> float:
    """Return the bits for the best change of a digit by an action, and for unexplained steps."""
    deltas, place = np.unique([0, *(new - old).tolist()], return_inverse=True)

    def missed(rows: np.ndarray) -> np.ndarray:
        """Count the steps that each delta does not explain, (deltas,).

        A step to the lowest digit is explained by its change and by all lower ones, which are
        clipped; a step to the highest digit by all higher ones.
        """

        def count(chosen: np.ndarray) -> np.ndarray:
            return np.bincount(place[1:][rows & chosen], minlength=len(deltas))

        lowest = new == 0
        highest = ~lowest & (new == radix - 1)
        explained = count(~lowest & ~highest) + np.cumsum(count(highest))
        explained += np.cumsum(count(lowest)[::-1])[::-1]
        unexplained: np.ndarray = rows.sum() - explained
        return unexplained

    # A change explains 0.7 of a step without effect: an obstacle may be the reason.
    misses = missed(~stays) + 0.3 * missed(stays)
    # An integer without an upper bound takes about 2 log2(n) bits (Elias, 1975).
    bits = np.where(deltas == 0, 0.0, 2 * np.log2(np.maximum(abs(deltas), 1)) + CHANGE_BITS)
    return float((bits + (log2(radix) + MISS_BITS) * misses).min())
