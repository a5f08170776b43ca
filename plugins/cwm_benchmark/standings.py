"""The states of a benchmark's jobs, totals over the jobs, and the estimated time left.

The cost of a query during the benchmark depends on the number of running jobs, not of all jobs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cwm_benchmark.configuration import Trial

WORKING = {
    "search": "searching",
    "play": "playing",
    "prepare": "collecting",
    "write": "writing",
}
"""The state of a job by the kind of its running task."""

FINISHED, FAILED, WAITING, TO_PLAY = "finished", "failed", "waiting", "to play"

AT_WORK, BROKEN, PREPARED, TO_COME, DONE = range(5)
"""Ranks of jobs for display if there is no room for all; the first ones change most."""


class TrialStanding(NamedTuple):
    """The state of a job.

    Attributes:
        completions: Number of completions so far.
        best: Best score so far.
        cost: Cost in US dollars, None if unknown.
        left_seconds: Estimated time left of its search at its current rate.
        reason: Why the job failed.
        reused: Number of completions that an earlier search paid for.
        place: Machine that runs the job, if the executor reports it.
    """

    trial: Trial
    state: str
    completions: int
    best: float | None
    cost: float | None
    left_seconds: float | None
    reason: str | None
    reused: int = 0
    place: str = ""

    @property
    def is_working(self) -> bool:
        """Whether a process works on the job."""
        return self.state in WORKING.values()

    @property
    def is_finished(self) -> bool:
        """Whether the job has no remaining task."""
        return self.state == FINISHED

    @property
    def is_over(self) -> bool:
        """Whether the job has finished or failed."""
        return self.state in (FINISHED, FAILED)

    @property
    def rank(self) -> int:
        """The rank of the job for display."""
        if self.state in (WORKING["search"], WORKING["play"]):
            return AT_WORK
        if self.is_working:  # on its environment, which many jobs may share
            return PREPARED
        if self.is_over:
            return DONE if self.is_finished else BROKEN
        return TO_COME


class StandingCounts(NamedTuple):
    """The totals of all jobs so far.

    Attributes:
        states: Number of jobs by state.
        cost: Known cost in US dollars.
        has_unknown_cost: Whether some cost is unknown.
        best: Mean best score of the jobs that are over, None without any.
        to_search: Remaining work of waiting searches, as a number of whole searches.
    """

    states: Mapping[str, int]
    completions: int
    cost: float
    has_unknown_cost: bool
    reused: int
    best: float | None
    to_search: float

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return sum(self.states.values())

    @property
    def over(self) -> int:
        """The number of finished and failed jobs."""
        return self.states.get(FINISHED, 0) + self.states.get(FAILED, 0)


class Standings:
    """The states of all jobs by their position in the benchmark, and their totals.

    `budget` is the number of completions of a search.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._all: dict[int, TrialStanding] = {}
        self._ranks: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._states: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._parts: dict[str, float] = dict.fromkeys(("cost", "best", "search"), 0.0)

    def update(self, place: int, standing: TrialStanding) -> TrialStanding | None:
        """Set the state of a job; return its previous state."""
        before = self._all.get(place)
        if before is not None:
            self._count(before, -1)
            if before.rank != standing.rank:
                del self._ranks[before.rank][place]
        self._all[place] = standing
        self._ranks[standing.rank][place] = None
        self._count(standing, 1)
        return before

    def at(self, place: int) -> TrialStanding:
        """Return the state of a job."""
        return self._all[place]

    def listed(self) -> list[TrialStanding]:
        """Return the states of all jobs in their order."""
        return [self._all[place] for place in sorted(self._all)]

    def counts(self) -> StandingCounts:
        """Return the totals of all jobs."""
        scored = self._sums["scored"]
        return StandingCounts(
            states={state: count for state, count in self._states.items() if count},
            completions=self._sums["completions"],
            cost=self._parts["cost"],
            has_unknown_cost=self._sums["unknown"] > 0,
            reused=self._sums["reused"],
            best=self._parts["best"] / scored if scored else None,
            to_search=self._parts["search"],
        )

    def shown(self, room: int) -> list[TrialStanding]:
        """Return at most `room` jobs to show, in their order.

        Running jobs have priority, then failed, waiting and finished jobs.
        """
        chosen: list[int] = []
        for rank in (AT_WORK, BROKEN, PREPARED, TO_COME, DONE):
            places: Iterable[int] = self._ranks[rank]
            for place in reversed(self._ranks[rank]) if rank == DONE else places:
                if len(chosen) >= room:
                    break
                chosen.append(place)
        return [self._all[place] for place in sorted(chosen)]

    def _count(self, standing: TrialStanding, sign: int) -> None:
        """Add a state to the totals (sign 1), or remove it (sign -1)."""
        self._states[standing.state] += sign
        self._sums["completions"] += sign * standing.completions
        self._sums["reused"] += sign * standing.reused
        self._sums["unknown"] += sign * (standing.cost is None)
        self._parts["cost"] += sign * (standing.cost or 0.0)
        if standing.is_over and standing.best is not None:
            self._sums["scored"] += sign
            self._parts["best"] += sign * standing.best
        if standing.state == WAITING:
            self._parts["search"] += sign * max(0.0, 1 - standing.completions / self._budget)


class TaskTimes:
    """The durations of tasks by kind, to estimate the time left."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._count: Counter[str] = Counter()

    def record(self, kind: str, seconds: float) -> None:
        """Record the duration of a task."""
        self._seconds[kind] += seconds
        self._count[kind] += 1

    def mean(self, *kinds: str) -> float | None:
        """Return the mean seconds of tasks of some kinds, None if there was none."""
        count = sum(self._count[kind] for kind in kinds)
        return sum(self._seconds[kind] for kind in kinds) / count if count else None


class Running(NamedTuple):
    """A running task: its kind, its seconds so far, and its estimated seconds left, if known."""

    kind: str
    seconds: float
    left: float | None = None


def left_seconds(
    times: TaskTimes,
    running: Sequence[Running],
    *,
    searches: float,
    plays: int,
    environment_tasks: int,
    workers: int,
) -> float | None:
    """Estimate the seconds left of a benchmark, None if unknown.

    Args:
        times: Durations of finished tasks.
        running: The running tasks.
        searches: Searches to start, where a started search counts in part.
        plays: Plays to start.
        environment_tasks: Optional tasks for environments to start.
        workers: Number of tasks that run at a time.
    """
    known = [each for each in running if each.kind == "search" and each.left is not None]
    guesses = [each.seconds + (each.left or 0.0) for each in known]
    search = times.mean("search") or (sum(guesses) / len(guesses) if guesses else None)
    if searches and search is None:
        return None
    play = times.mean("play") or 0.0
    environment_task = times.mean("ceiling", "oracle") or 0.0
    rests = []
    for each in running:
        usual = search if each.kind == "search" else times.mean(each.kind)
        rest = None if usual is None or each.seconds > usual else usual - each.seconds
        known_rests = [value for value in (rest, each.left) if value is not None]
        rests.append(min(known_rests, default=0.0))
    total = (
        searches * (search or 0.0)
        + plays * play
        + environment_tasks * environment_task
        + sum(rests)
    )
    return max(total / max(1, workers), max(rests, default=0.0))
