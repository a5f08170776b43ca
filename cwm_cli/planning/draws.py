"""The random numbers and actions of one decision of a tree search, drawn in blocks."""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from cwm_cli.packing import Space

DEPTHS = 32
"""How many numbers each simulation has for breaking ties; deeper ones use them again."""

BLOCK = 32
"""How many simulations are drawn for at a time."""

REPEATS = 6
"""Mean lengths of repeated actions are 1, 2, 4, ..., so many of them."""

_NUMBERS = 1 << 16
_ROWS = 16
_DROPPED = 0.5


class Draws:
    """Numbers for every simulation, as arrays or as lists.

    They are the same either way, which is why trees that grow side by side
    make the same decisions as one by one.
    """

    def __init__(
        self, rng: np.random.Generator, actions: Space, *, steps: int, simulations: int
    ) -> None:
        self.last = rng.random()
        self._rng = rng
        self._low, self._high = int(actions.low[0]), int(actions.high[0])
        self._bytes = self._low >= 0 and self._high < 256
        self._steps = steps
        self._size = min(BLOCK, simulations)
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []
        self._rows: list[tuple[Sequence[int], list[int]]] = []

    def block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions of some rollouts and 16-bit numbers for ties, a row for each."""
        while number >= len(self._blocks):
            kind = np.uint8 if self._bytes else np.int64
            shape = self._size, self._steps
            actions = self._rng.integers(self._low, self._high + 1, shape, kind)
            ties = self._rng.integers(0, _NUMBERS, (self._size, DEPTHS), np.uint16)
            self._blocks.append((actions, ties))
        return self._blocks[number]

    def row(self, simulation: int) -> tuple[Sequence[int], list[int]]:
        """Return the row of a simulation, quick to go through one by one."""
        if simulation == len(self._rows):
            actions, ties = self.block(simulation // self._size)
            rows = _rows(actions.tobytes(), self._steps) if self._bytes else actions.tolist()
            self._rows.extend(zip(rows, ties.tolist(), strict=True))
        return self._rows[simulation]

    def more(self, count: int) -> list[int]:
        """Draw 16-bit numbers for what is not known beforehand."""
        numbers: list[int] = self._rng.integers(0, _NUMBERS, count, np.uint16).tolist()
        return numbers


def pick(number: int, count: int) -> int:
    """Turn a 16-bit number into one below `count`, all equally likely."""
    return number * count >> 16


def persistent(rng: np.random.Generator, actions: range, length: int) -> Iterator[Sequence[int]]:
    """Yield random actions each of which is repeated, for longer or shorter in different rows."""
    while True:
        lengths = 2.0 ** rng.integers(0, REPEATS, (_ROWS, 1))
        starts = rng.random((_ROWS, length)) * lengths < 1
        places = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
        drawn = rng.integers(actions.start, actions.stop, (_ROWS, length))
        yield from np.take_along_axis(drawn, places, axis=1).tolist()


def changed(plan: Sequence[int], actions: range, random: Random) -> list[int]:
    """Replace, delay or skip the first steps of a plan, or drop all of it as often as that."""
    number, length, mean = random.random, 1, 2 ** int(random.random() * REPEATS)
    while number() * mean > 1:
        length += 1
    if number() < _DROPPED:
        return []
    repeated = [actions[int(number() * len(actions))]] * length
    rest = plan[length:]
    return [*(repeated, (*repeated, *plan[:length]), ())[int(number() * 3)], *rest]


def _rows(data: bytes, size: int) -> list[bytes]:
    """Cut bytes into rows."""
    return [data[start : start + size] for start in range(0, len(data), size)]
