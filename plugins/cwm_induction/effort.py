"""How much work an induction may do."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cwm_cli.search.contracts import unheard

Answer = TypeVar("Answer")


CHECK_UNITS = 2.0
"""Work units between two readings of the clock, which takes up to a millisecond."""


class KnownAnswer(NamedTuple):
    """What a search found, what it spent, and the random numbers that come after it."""

    answer: Any
    spent: list[float]
    after: Mapping[str, Any]


@dataclass
class Effort:
    """A budget of work units, which alone decides the outcome; seconds only cap it.

    A unit is about a million multiplications. The seconds are those of this
    thread on a core, so that a busy machine changes nothing; reaching the cap
    makes the outcome depend on the machine, so it is recorded in `capped`.
    `tell` is told what is being tried. `done` keeps the searches that several attempts
    would make alike.
    """

    units: float
    seconds: float
    tell: Callable[[str], None] = unheard
    done: dict[object, KnownAnswer] = field(default_factory=dict)
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

    def share(self, fraction: float) -> "Share":
        """Return a part of what is left, for one family of explanations."""
        return Share(self, self.units * fraction)

    def part(self, count: float) -> "Effort":
        """Return one of `count` equal parts of the remaining work, which stays counted here."""
        left = self.seconds - (time.thread_time() - self._start)
        return Effort(self.units / count, left, self.tell, self.done)

    def alone(self) -> "Effort":
        """Return the same for a thread of another process, where nobody listens."""
        return Effort(self.units, self.seconds, done=self.done)


@dataclass
class Share:
    """A part of an effort that one family of explanations may spend."""

    whole: Effort
    units: float
    spent: list[float] = field(default_factory=list)

    def spend(self, operations: float) -> bool:
        """Take what some arithmetic needs; return whether it may be done."""
        self.spent.append(operations)
        self.units -= operations / 1e6
        return self.whole.spend(operations) and self.units > 0

    def once(
        self, asked: object, rng: np.random.Generator, search: Callable[["Share"], Answer]
    ) -> Answer:
        """Search with all of this share, or return what the same search has found.

        It is the same if it was asked for with equal words, given the same random numbers, and
        neither then nor now is cut short. What it spent is spent again, as if it were made.
        """
        key = asked, repr(rng.bit_generator.state)
        done = self.whole.done.get(key)
        if done is not None and sum(done.spent) < 1e6 * min(self.units, self.whole.units):
            for operations in done.spent:
                self.spend(operations)
            rng.bit_generator.state = done.after
            return done.answer  # type: ignore[no-any-return]
        answer = search(self)
        if self.spend(0):
            self.whole.done[key] = KnownAnswer(answer, self.spent, rng.bit_generator.state)
        return answer
