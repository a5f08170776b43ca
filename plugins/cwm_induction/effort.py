"""Budgets for the work of an induction."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cwm_cli.search.contracts import unheard

CHECK_UNITS = 2.0
"""Work units between two readings of the clock; a reading takes up to a millisecond."""


@dataclass
class Effort:
    """A budget of work units, with a cap on the processor time.

    A unit is about a million multiplications. Results depend on the work units
    only, unless the cap is reached; `capped` then becomes true. The seconds are
    processor time of this thread, so that other processes have no influence.
    `tell` reports the current activity.
    """

    units: float
    seconds: float
    tell: Callable[[str], None] = unheard
    capped: bool = field(default=False, init=False)
    _start: float = field(default_factory=time.thread_time, init=False)
    _next_check: float = field(default=np.inf, init=False)

    def spend(self, operations: float) -> bool:
        """Take what some arithmetic needs; return whether it may be done."""
        self.units -= operations / 1e6
        if self.units < self._next_check or not operations:
            self._next_check = self.units - CHECK_UNITS
            self.capped = self.capped or time.thread_time() - self._start > self.seconds
        return self.units > 0 and not self.capped

    @property
    def has_time(self) -> bool:
        """Whether the cap on the processor time is not reached, whatever the units."""
        self.spend(0)
        return not self.capped

    def share(self, fraction: float) -> "Share":
        """Return a fraction of the remaining units, for one family of explanations."""
        return Share(self, self.units * fraction)

    def part(self, count: float) -> "Effort":
        """Return one of `count` equal parts of the remaining units; nothing is deducted here."""
        left = self.seconds - (time.thread_time() - self._start)
        return Effort(self.units / count, left, self.tell)

    def extension(self) -> "Effort":
        """Return an effort with half as many seconds more, for simpler results at the end."""
        left = self.seconds - (time.thread_time() - self._start)
        return Effort(self.units, left + 0.5 * self.seconds)

    def alone(self) -> "Effort":
        """Return an equal budget for another process, without progress reports."""
        return Effort(self.units, self.seconds)


@dataclass
class Share:
    """A part of an effort that one family of explanations may spend."""

    whole: Effort
    units: float

    def spend(self, operations: float) -> bool:
        """Take what some arithmetic needs; return whether it may be done."""
        self.units -= operations / 1e6
        return self.whole.spend(operations) and self.units > 0
