"""How much work an induction may do."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cwm_cli.llm import unheard


@dataclass
class Effort:
    """A budget of work units, which alone decides the outcome; seconds only cap it.

    A unit is about a million multiplications. The seconds are those of this
    thread on a core, so that a busy machine changes nothing; reaching the cap
    makes the outcome depend on the machine, so it is recorded in `capped`.
    `tell` is told what is being tried.
    """

    units: float
    seconds: float
    tell: Callable[[str], None] = unheard
    capped: bool = field(default=False, init=False)
    _start: float = field(default_factory=time.thread_time, init=False)

    def spend(self, operations: float) -> bool:
        """Take what some arithmetic needs; return whether it may be done."""
        self.units -= operations / 1e6
        if time.thread_time() - self._start > self.seconds:
            self.capped = True
        return self.units > 0 and not self.capped

    def share(self, fraction: float) -> "Share":
        """Return a part of what is left, for one family of explanations."""
        return Share(self, self.units * fraction)

    def part(self, count: int) -> "Effort":
        """Return one of several equal parts of what is left, to be used at the same time."""
        left = self.seconds - (time.thread_time() - self._start)
        return Effort(self.units / count, left, self.tell)

    def alone(self) -> "Effort":
        """Return the same for a thread of another process, where nobody listens."""
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
