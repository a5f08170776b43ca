"""How far the jobs of a benchmark are: a standing for each, counts of them, and how long they take.

What is asked for while jobs run costs as much as there are jobs at work, however many there are.
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
"""What a job is doing, by the kind of the task that is at work for it."""

FINISHED, FAILED, WAITING, TO_PLAY = "finished", "failed", "waiting", "to play"

AT_WORK, BROKEN, PREPARED, TO_COME, DONE = range(5)
"""In which order jobs are shown where not all fit: those of which there is most to see first."""


class TrialStanding(NamedTuple):
    """How far a job is; `left_seconds` is what its search may still take at the present pace.

    So many of its completions were `reused`, paid for by an earlier search; `place` is the
    machine that it ran on, where an executor tells it.
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
        """Whether a process works on it."""
        return self.state in WORKING.values()

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.state == FINISHED

    @property
    def is_over(self) -> bool:
        """Whether it was finished or failed."""
        return self.state in (FINISHED, FAILED)

    @property
    def rank(self) -> int:
        """Where it stands among those that are shown."""
        if self.state in (WORKING["search"], WORKING["play"]):
            return AT_WORK
        if self.is_working:  # for its environment, and so for many jobs at a time
            return PREPARED
        if self.is_over:
            return DONE if self.is_finished else BROKEN
        return TO_COME


class StandingCounts(NamedTuple):
    """What all jobs come to so far; `states` counts them by state.

    `cost` leaves out what is unknown, which `has_unknown_cost` tells. `best` is the mean of the
    best scores of those that are over, None without any. `to_search` is how much of the searches
    that wait is left, in whole searches.
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
        """How many there are."""
        return sum(self.states.values())

    @property
    def over(self) -> int:
        """How many were finished or failed."""
        return self.states.get(FINISHED, 0) + self.states.get(FAILED, 0)


class Standings:
    """The standings of all jobs, by their places in the benchmark, and sums over them.

    `budget` is the number of completions of a search.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._all: dict[int, TrialStanding] = {}
        self._ranks: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._states: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._parts: dict[str, float] = dict.fromkeys(("cost", "best", "search"), 0.0)

    def put(self, place: int, standing: TrialStanding) -> TrialStanding | None:
        """Take in how far a job is; return how far it was before."""
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
        """Return how far a job is."""
        return self._all[place]

    def listed(self) -> list[TrialStanding]:
        """Return how far every job is, in their order."""
        return [self._all[place] for place in sorted(self._all)]

    def counts(self) -> StandingCounts:
        """Return what all come to."""
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
        """Choose the jobs that are shown where there is room for so many, in their order.

        Those at work come first, then those that failed, those to come, and what was finished
        last of all.
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
        """Add a standing to the sums, or take it out."""
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
    """How long tasks took, by their kind, for a guess of how long others will."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._count: Counter[str] = Counter()

    def saw(self, kind: str, seconds: float) -> None:
        """Take in how long a task took."""
        self._seconds[kind] += seconds
        self._count[kind] += 1

    def mean(self, *kinds: str) -> float | None:
        """Return how long a task of these kinds takes, None if none was seen."""
        count = sum(self._count[kind] for kind in kinds)
        return sum(self._seconds[kind] for kind in kinds) / count if count else None


class Running(NamedTuple):
    """A task at work: its kind, for how many seconds, and what it may still take, if known."""

    kind: str
    seconds: float
    left: float | None = None


def left_seconds(
    times: TaskTimes,
    running: Sequence[Running],
    *,
    searches: float,
    plays: int,
    errands: int,
    workers: int,
) -> float | None:
    """Guess how long a benchmark takes, from what was over and what is at work; None if unknown.

    `searches` and `plays` are to be begun on the way of jobs, `errands` beside them.
    """
    known = [each for each in running if each.kind == "search" and each.left is not None]
    guesses = [each.seconds + (each.left or 0.0) for each in known]
    search = times.mean("search") or (sum(guesses) / len(guesses) if guesses else None)
    if searches and search is None:
        return None
    play = times.mean("play") or 0.0
    errand = times.mean("ceiling", "oracle") or 0.0
    rests = []
    for each in running:
        usual = search if each.kind == "search" else times.mean(each.kind)
        rest = None if usual is None or each.seconds > usual else usual - each.seconds
        known_rests = [value for value in (rest, each.left) if value is not None]
        rests.append(min(known_rests, default=0.0))
    total = searches * (search or 0.0) + plays * play + errands * errand + sum(rests)
    return max(total / max(1, workers), max(rests, default=0.0))
