"""The progress of the problems of a run, for an observer of the work."""

import threading
from collections import Counter
from typing import NamedTuple

SEARCHING, JUDGING, WAITING = "searching", "judging", "waiting"
SOLVED, UNSOLVED, SKIPPED, FAILED = "solved", "unsolved", "skipped", "failed"
FINAL_STATES = (SOLVED, UNSOLVED, SKIPPED, FAILED)


class ProblemState(NamedTuple):
    """The progress of a problem.

    Attributes:
        state: One of `FINAL_STATES`, or the current activity.
        completions: Number of completions, or of the things that `unit` names.
        best: Best share of public tests passed.
        cost: Cost in US dollars, None if it is unknown.
        reason: Why the problem was skipped or failed.
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
        """Whether no work is left for the problem."""
        return self.state in FINAL_STATES


class ProblemCounts(NamedTuple):
    """Counts of finished problems by result. The cost is None if one cost is unknown.

    `instant` problems were never in flight: they were finished before, or were skipped.
    """

    problems: int
    ended: Counter[str]
    instant: int = 0
    cost: float | None = 0.0

    @property
    def over(self) -> int:
        """The number of finished problems."""
        return self.ended.total()


class CodingProgress:
    """The problems in flight and the counts of the finished problems, for a display.

    Several threads may update it while another thread draws, so it has a lock.
    """

    def __init__(self, title: str, problems: int) -> None:
        self.title = title
        self._counts = ProblemCounts(problems, Counter())
        self._working: dict[int, ProblemState] = {}
        self._lock = threading.Lock()

    def record(self, problem: ProblemState) -> None:
        """Record the state of a problem. The final state of a problem is recorded once."""
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
        """Return the counts of finished problems."""
        with self._lock:
            return self._counts

    def working(self) -> list[ProblemState]:
        """Return the states of the problems in flight."""
        with self._lock:
            return list(self._working.values())
