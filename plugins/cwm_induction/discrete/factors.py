"""The ways to read the numbers in an observation as several factors each."""

from collections.abc import Iterator
from math import log2

import numpy as np

Layout = tuple[tuple[int, ...], ...]
"""For every component of an observation the radices of its digits, the highest digit first."""

MAX_DIGITS = 4
FEWER_DIGITS_ABOVE = 2_000
ANY_WIDTH_BELOW = 200
SPLIT_FROM = 48


def split(values: np.ndarray, layout: Layout) -> np.ndarray:
    """Write every component as the digits of the layout, one column per digit."""
    columns = []
    for component, radices in enumerate(layout):
        rest, digits = values[:, component], []
        for radix in radices[:0:-1]:
            rest, digit = np.divmod(rest, radix)
            digits.append(digit)
        columns += [rest, *digits[::-1]]
    return np.stack(columns, axis=1)


def join(factors: np.ndarray, layout: Layout) -> np.ndarray:
    """Undo `split`."""
    columns, start = [], 0
    for radices in layout:
        digits = factors[:, start : start + len(radices)]
        columns.append(number(digits, radices))
        start += len(radices)
    return np.stack(columns, axis=1)


def number(digits: np.ndarray, radices: tuple[int, ...]) -> np.ndarray:
    """Read digits as one number, the highest digit first."""
    total = np.zeros(len(digits), dtype=np.int64)
    for column, radix in enumerate(radices):
        total = total * radix + digits[:, column]
    return total


def layouts(sizes: tuple[int, ...]) -> Iterator[tuple[Layout, float]]:
    """Yield layouts with their description length in bits, the plainest first.

    A number alone may hide several digits; of several components one at a
    time may.
    """
    plain: Layout = tuple((size,) for size in sizes)
    yield plain, 3.0 * len(sizes)
    for component, size in enumerate(sizes):
        if len(sizes) > 1 and size < SPLIT_FROM:
            continue
        for radices, bits in _digits(size):
            layout = (*plain[:component], radices, *plain[component + 1 :])
            yield layout, 3.0 * (len(sizes) - 1 + len(radices)) + bits


def _digits(size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield the ordered factorisations of a number, then two digits of any width."""
    digits = MAX_DIGITS if size <= FEWER_DIGITS_ABOVE else MAX_DIGITS - 1
    for radices in _factorisations(size, digits):
        if len(radices) > 1:
            yield radices, 0.0
    if size < ANY_WIDTH_BELOW:
        for width in range(3, size // 2 + 1):
            if size % width:
                yield (-(-size // width), width), 4 + log2(size)


def _factorisations(size: int, digits: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as an ordered product of factors above 1."""
    yield (size,)
    if digits > 1:
        for first in range(2, size // 2 + 1):
            if size % first == 0:
                for rest in _factorisations(size // first, digits - 1):
                    yield (first, *rest)
