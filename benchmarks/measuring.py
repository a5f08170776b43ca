"""Time the two sides of a claim alternately, or count calls."""

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
"""Does the work of one side; the argument is the number of the round."""


class Times(NamedTuple):
    """Seconds of both sides in each round."""

    theirs: list[float]
    ours: list[float]

    @property
    def gains(self) -> list[float]:
        """Ratios of their seconds to ours."""
        return [one / other for one, other in zip(self.theirs, self.ours, strict=True)]

    @property
    def costs(self) -> list[float]:
        """Ratios of our seconds to theirs."""
        return [1 / gain for gain in self.gains]

    def milliseconds(self, theirs: str = "theirs", ours: str = "ours") -> dict[str, float]:
        """Return the median of each side in milliseconds, as figures."""
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
    """Time both sides, one after the other in each round, without the `warm_up` first rounds."""
    times = Times([], [])
    for number in range(warm_up + rounds):
        for side, taken in ((theirs, times.theirs), (ours, times.ours)):
            elapsed = seconds(partial(side, number), clock)
            if number >= warm_up:
                taken.append(elapsed)
    return times


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that some work takes."""
    start = clock()
    work()
    return clock() - start


def calls(work: Callable[[], object]) -> int:
    """Count the calls of Python functions in and by the code of this project during some work.

    This includes calls in threads that start during the work, but not calls in other processes.
    Calls between functions of libraries do not count, because they depend on library versions.
    """
    counter, is_done = count(), threading.Event()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if is_done.is_set():
            sys.setprofile(None)  # the thread outlives the work
        elif event == "call" and (_is_ours(frame) or _is_ours(frame.f_back)):
            next(counter)

    threads.free.clear()  # calls in existing threads would not be counted
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
    """Return whether a frame belongs to the core or to a built-in plugin."""
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("cwm_")
