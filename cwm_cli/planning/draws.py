"""The random numbers and actions of one decision of a tree search, drawn in blocks."""

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space

DEPTHS = 32
"""How many numbers each simulation has for breaking ties; deeper ones use them again."""

BLOCK = 32
"""For how many simulations one tree draws at a time."""

REPEATS = 6
"""Mean lengths of repeated actions are 1, 2, 4, ..., so many of them."""

_STEP = 0x9E3779B97F4A7C15
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = 30, 27, 31
_PIECES = 4
_AFTERWARDS = 2**40
_NUMBERS = 1 << 16
_ROWS = 16
_DROPPED = 0.5


class Draws:
    """Numbers for every simulation of one tree: those of `numbers`, quick to go through."""

    def __init__(self, seed: int, actions: Space, *, steps: int, simulations: int) -> None:
        self.seed = seed
        self.last = (_one(seed) >> 11) / 2**53
        self._low, self._high = int(actions.low[0]), int(actions.high[0])
        self._steps = steps
        self._size = min(BLOCK, simulations)
        self._rows: list[tuple[Sequence[int], Sequence[int]]] = []
        self._more = 0

    def row(self, simulation: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the actions of a rollout and 16-bit numbers for ties."""
        if simulation == len(self._rows):
            block = np.arange(simulation, simulation + self._size)
            seeds = np.full(len(block), self.seed, np.uint64)
            ties, actions = numbers(seeds, block, (self._low, self._high), self._steps)
            self._rows.extend(zip(_quick(actions), _cut(ties), strict=True))
        return self._rows[simulation]

    def more(self, count: int) -> list[int]:
        """Draw 16-bit numbers for what is not known beforehand."""
        self._more += 1
        seeds, places = np.array([self.seed], np.uint64), np.array([_AFTERWARDS + self._more])
        drawn: list[int] = _pieces(seeds, places, count)[0].tolist()
        return drawn


def numbers(
    seeds: np.ndarray, simulations: np.ndarray, actions: tuple[int, int], steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw for simulations, one of each seed: ties (seeds, DEPTHS) and actions (seeds, steps).

    Ties are 16-bit numbers, actions are between the lowest and the highest. The
    numbers are those of SplitMix64 (Steele et al., 2014), four of each output, so that
    whichever are wanted can be drawn without those before.
    """
    drawn = _pieces(seeds, simulations, DEPTHS + steps)
    low, high = actions
    kind = np.dtype(np.uint8 if low >= 0 and high < 256 else np.int64)
    taken = (drawn[:, DEPTHS:] * np.uint64(high - low + 1) >> np.uint64(16)).astype(kind)
    return drawn[:, :DEPTHS], np.add(taken, low, dtype=kind, casting="unsafe")


def _pieces(seeds: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Return 16-bit numbers of some rows, one of each seed; rows are numbered and equally long."""
    words = -(-count // _PIECES)
    places = (rows.astype(np.uint64) * np.uint64(words) + np.uint64(1))[:, None] + _counted(words)
    pieces: np.ndarray = _mixed(seeds[:, None] + places * np.uint64(_STEP)).view("<u2")[:, :count]
    return pieces


def _one(state: int) -> int:
    """Return the output of SplitMix64 at one state."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        state = (state ^ (state >> shift)) * factor % 2**64
    return state ^ (state >> _SHIFTS[-1])


@cache
def _counted(count: int) -> np.ndarray:
    """Return the numbers from 0."""
    return np.arange(count, dtype=np.uint64)


def _mixed(states: np.ndarray) -> np.ndarray:
    """Return the outputs of SplitMix64 at some states, which are overwritten."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        states ^= states >> np.uint64(shift)
        states *= np.uint64(factor)
    states ^= states >> np.uint64(_SHIFTS[-1])
    return states


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


def _quick(actions: np.ndarray) -> Sequence[Sequence[int]]:
    """Return rows of actions, as bytes where they are."""
    if actions.dtype == np.uint8:
        return _cut(actions)
    rows: list[list[int]] = actions.tolist()
    return rows


def _cut(rows: np.ndarray) -> list[Any]:
    """Cut rows of small numbers into what gives them one by one."""
    data: Any = rows.tobytes()
    if rows.dtype != np.uint8:
        data = array("H", data)
    size = rows.shape[1]
    return [data[start : start + size] for start in range(0, len(data), size)]
