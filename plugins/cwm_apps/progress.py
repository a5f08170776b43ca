"""How far the problems of a run are, for whoever follows the work on them."""

import threading
from collections import Counter
from typing import NamedTuple

SEARCHING, JUDGING, WAITING = "searching", "judging", "waiting"
SOLVED, UNSOLVED, SKIPPED, FAILED = "solved", "unsolved", "skipped", "failed"
OVER = (SOLVED, UNSOLVED, SKIPPED, FAILED)


class ProblemState(NamedTuple):
    """How far a problem is; `best` is a share of its public tests.

    Completions are counted, or what `unit` says. `reason` says why it was skipped
    or failed, and `note` what the user should know. A state that is not one of
    `OVER` says what is being done.
    """

    id: int
    difficulty: str
    state: str
    completions: int = 0
    budget: int = 0
    best: float | None = None
    cost: float | None = 0.0
    reason: str = ""
    note: str = ""
    unit: str = "completion"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.state in OVER


class ProblemCounts(NamedTuple):
    """How many of all problems are over, by how they ended; cost is None when one is unknown.

    `instant` of them were never in flight: they were over before, or skipped.
    """

    problems: int
    ended: Counter[str]
    instant: int = 0
    cost: float | None = 0.0

    @property
    def over(self) -> int:
        """The number of problems that are over."""
        return self.ended.total()


class CodingProgress:
    """Remembers the problems in flight and counts the others, for whoever draws them.

    Threads may tell it what they do while another draws, hence the lock.
    """

    def __init__(self, title: str, problems: int) -> None:
        self.title = title
        self._counts = ProblemCounts(problems, Counter())
        self._working: dict[int, ProblemState] = {}
        self._lock = threading.Lock()

    def saw(self, problem: ProblemState) -> None:
        """Take in how far a problem is; one that is over is told once."""
        with self._lock:
            if not problem.is_over:
                self._working[problem.id] = problem
                return
            instant = self._working.pop(problem.id, None) is None
            counts = self._counts
            known = counts.cost is not None and problem.cost is not None
            self._counts = counts._replace(
                ended=counts.ended + Counter([problem.state]),
                instant=counts.instant + instant,
                cost=(counts.cost or 0.0) + (problem.cost or 0.0) if known else None,
            )

    def counts(self) -> ProblemCounts:
        """Count the problems that are over."""
        with self._lock:
            return self._counts

    def working(self) -> list[ProblemState]:
        """Return how far the problems in flight are."""
        with self._lock:
            return list(self._working.values())
