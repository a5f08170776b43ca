"""What descends from this process, for tests that nothing of a program survives.

A sandbox at rest has one worker for either half of the rows of a dataset, and
each worker is three processes: itself, and two that wait for programs.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker

import psutil

WORKERS = 2
PER_WORKER = 3
AT_REST = WORKERS * PER_WORKER


_of_other_tests: set[psutil.Process] = set()


def ignore_running() -> None:
    """Leave the children that other tests started, such as a cluster, out of all counts."""
    _of_other_tests.update(psutil.Process().children())


def processes() -> list[psutil.Process]:
    """Return what descends from this process, without the dead and Python's own helper."""
    found, helper = [], resource_tracker._resource_tracker._pid
    for child in set(psutil.Process().children()) - _of_other_tests:
        with suppress(psutil.NoSuchProcess):
            found += [child, *child.children(recursive=True)]
    alive = []
    for each in sorted(found, key=lambda process: process.pid):
        with suppress(psutil.NoSuchProcess):
            if each.status() != psutil.STATUS_ZOMBIE and each.pid != helper:
                alive.append(each)
    return alive


def children() -> list[psutil.Process]:
    """Return the processes that this process started itself."""
    alive = processes()
    return [child for child in psutil.Process().children() if child in alive]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Return whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def stays(right: Callable[[int], bool], seconds: float = 10.0) -> bool:
    """Return whether the number of processes becomes right, and is still so a moment later."""

    def is_right_for_a_moment() -> bool:
        if not right(len(processes())):
            return False
        time.sleep(0.05)
        return right(len(processes()))

    return wait_until(is_right_for_a_moment, seconds)
