"""How the two sides of a claim are measured: in turn, by the clock or by counting."""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from statistics import median
from types import FrameType
from typing import NamedTuple

from cwm_cli.search import threads

Side = Callable[[int], object]
"""Does the work of one side in the round of a number."""


class Times(NamedTuple):
    """Seconds of both sides, round by round."""

    theirs: list[float]
    ours: list[float]

    @property
    def gains(self) -> list[float]:
        """How many times as long theirs take."""
        return [one / other for one, other in zip(self.theirs, self.ours, strict=True)]

    @property
    def costs(self) -> list[float]:
        """How many times as long ours take."""
        return [1 / gain for gain in self.gains]

    def milliseconds(self, theirs: str = "theirs", ours: str = "ours") -> dict[str, float]:
        """Return the median of each side as a figure."""
        return {
            f"{theirs} ms": 1e3 * median(self.theirs),
            f"{ours} ms": 1e3 * median(self.ours),
        }


def in_turn(
    theirs: Side,
    ours: Side,
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Time both sides, one after the other in every round; the first rounds do not count."""
    times = Times([], [])
    for number in range(warm_up + rounds):
        for side, kept in ((theirs, times.theirs), (ours, times.ours)):
            taken = seconds(partial(side, number), clock)
            if number >= warm_up:
                kept.append(taken)
    return times


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long some work takes."""
    start = clock()
    work()
    return clock() - start


def calls(work: Callable[[], object]) -> int:
    """Count the calls of Python functions in and by this project's code while some work is done.

    Those in threads that begin meanwhile are counted too, those in other processes are
    not. What libraries do among themselves is left out, as it depends on their versions.
    """
    counter, is_done = count(), threading.Event()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if is_done.is_set():
            sys.setprofile(None)  # in a thread that goes on
        elif event == "call" and (_is_ours(frame) or _is_ours(frame.f_back)):
            next(counter)

    threads.free.clear()  # threads that began before would not be counted
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        is_done.set()
        sys.setprofile(None)
        threading.setprofile(None)
    return next(counter)


def _is_ours(frame: FrameType | None) -> bool:
    """Whether a frame belongs to the core or to a built-in plugin."""
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("cwm_")
