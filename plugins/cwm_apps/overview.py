"""How far a run over many problems is, kept up with the problems that change."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

SEARCHING, JUDGING = "searching", "judging"
SOLVED, UNSOLVED, SKIPPED, FAILED = "solved", "unsolved", "skipped", "failed"
OVER = (SOLVED, UNSOLVED, SKIPPED, FAILED)


class Standing(NamedTuple):
    """How far a problem is; `best` is a share of its public tests.

    Completions are counted, or what `unit` says. `reason` says why it was skipped
    or failed. A state that is not one of `OVER` says what is being done.
    """

    id: int
    difficulty: str
    state: str
    completions: int = 0
    budget: int = 0
    best: float | None = None
    cost: float | None = 0.0
    reason: str = ""
    unit: str = "completion"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.state in OVER


class Counts(NamedTuple):
    """How many of all problems are over, and how they ended; cost is None when one is unknown.

    `instant` of them were never in flight: they were over before, or skipped.
    """

    problems: int
    solved: int = 0
    unsolved: int = 0
    skipped: int = 0
    failed: int = 0
    instant: int = 0
    cost: float | None = 0.0

    @property
    def over(self) -> int:
        """The number of problems that are over."""
        return self.solved + self.unsolved + self.skipped + self.failed

    def plus(self, standing: Standing, *, instant: bool) -> "Counts":
        """Count a problem that is over."""
        unknown = self.cost is None or standing.cost is None
        cost = None if unknown else (self.cost or 0.0) + (standing.cost or 0.0)
        changed = {standing.state: getattr(self, standing.state) + 1}
        return self._replace(**changed, instant=self.instant + instant, cost=cost)


class Progress(Protocol):
    """What a view asks again and again: it must not take longer where there are more problems."""

    def counts(self) -> Counts:
        """Count the problems that are over."""

    def working(self) -> Sequence[Standing]:
        """Return how far the problems in flight are."""


@dataclass
class Overview:
    """Remembers the problems in flight and counts the others.

    Threads may tell it what they do while another draws, hence the lock.
    """

    problems: int
    _counts: Counts = field(init=False)
    _working: dict[int, Standing] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._counts = Counts(self.problems)

    def saw(self, standing: Standing) -> None:
        """Take in how far a problem is; one that is over is told once."""
        with self._lock:
            if standing.is_over:
                worked = self._working.pop(standing.id, None) is not None
                self._counts = self._counts.plus(standing, instant=not worked)
            else:
                self._working[standing.id] = standing

    def counts(self) -> Counts:
        """Count the problems that are over."""
        with self._lock:
            return self._counts

    def working(self) -> list[Standing]:
        """Return how far the problems in flight are."""
        with self._lock:
            return list(self._working.values())
