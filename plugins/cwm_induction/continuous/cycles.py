"""Quantities that begin again where they end: phases, headings, hours."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.writing.rounding import literal

LENGTHS = (2 * np.pi, 1.0, np.pi, 2.0, 360.0, 24.0, 12.0, 60.0, 7.0, 10.0, 100.0, 365.0)
"""Lengths of the usual cycles."""


class Cycle(NamedTuple):
    """The first value of a cycle and its length."""

    start: float
    length: float

    def short(self, change: Array) -> Array:
        """Return changes by at most half a cycle that lead to the same place."""
        turned: Array = change - self.length * np.round(change / self.length)
        return turned

    def text(self, expression: str) -> str:
        """Write an expression, brought back into the cycle."""
        length = _in_turns(self.length)
        if self.start == 0:
            return f"({expression}) % {length}"
        sign, start = ("+", -self.start) if self.start < 0 else ("-", self.start)
        offset = _in_turns(start).removeprefix("(").removesuffix(")")
        back = "-" if sign == "+" else "+"
        return f"({expression} {sign} {offset}) % {length} {back} {offset}"


def cycle_of(now: Array, then: Array, low: float, high: float) -> Cycle | None:
    """Return the cycle that makes every large change a small one, if there is one.

    A range declared as one turn is a cycle though nothing came round.
    """
    change = then - now
    least, most = float(min(now.min(), then.min())), float(max(now.max(), then.max()))
    for cycle in _cycles(least, most, low, high):
        slack = 1e-5 * cycle.length
        inside = cycle.start - slack <= least and most <= cycle.start + cycle.length + slack
        around = np.abs(change) > cycle.length / 2
        short = most - least > cycle.length - 0.5 and _whole(least, most)
        needed = 0 if abs(high - low - 2 * np.pi) < 1e-6 else 2
        if short or not inside or not needed <= around.sum() <= 0.3 * len(change):
            continue
        usual = float(np.abs(change[~around]).max())
        if np.abs(cycle.short(change)[around]).max(initial=0) <= 1.2 * usual + slack:
            return cycle
    return None


def _cycles(least: float, most: float, low: float, high: float) -> Iterator[Cycle]:
    """Yield cycles that may hold all values, the declared one first."""
    whole = _whole(least, most)
    if np.isfinite([low, high]).all() and high - low < 1e6:
        yield _exact(low, high - low + (1 if whole else 0))
    if whole:
        yield Cycle(least, most - least + 1)
    for length in LENGTHS:
        yield Cycle(0.0, length)
        yield Cycle(-length / 2, length)


def _whole(least: float, most: float) -> bool:
    return least % 1 == 0 and most % 1 == 0


def _exact(start: float, length: float) -> Cycle:
    """Return a cycle whose bounds were kept in single precision."""
    turns = round(length / np.pi)
    if turns and abs(length / np.pi - turns) < 1e-6:
        half = round(start / np.pi) * np.pi
        return Cycle(half, turns * np.pi)
    return Cycle(float(f"{start:.7g}"), float(f"{length:.7g}"))


def _in_turns(length: float) -> str:
    """Write a length, multiples of pi as such."""
    turns = round(length / np.pi)
    if turns and abs(length / np.pi - turns) < 1e-9:
        return "np.pi" if turns == 1 else f"({turns} * np.pi)"
    return literal(length)
