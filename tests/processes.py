"""What descends from this process, for tests that nothing of a program survives.

A worker of the sandbox at rest is two processes: itself, and one that waits
for the next program.
"""

import time
from collections.abc import Callable

import psutil


def processes() -> list[psutil.Process]:
    """Return what descends from this process, the dead among them left out."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Return whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def stays(right: Callable[[int], bool]) -> bool:
    """Whether the number of processes becomes right, and is still so a moment later."""
    reached = wait_until(lambda: right(len(processes())))
    time.sleep(0.03)
    return reached and right(len(processes()))
