"""Restrict work to some cores (Linux only)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def on(cores: int) -> Iterator[None]:
    """Restrict this thread, and the threads and processes that it starts, to `cores` cores."""
    os.sched_setaffinity(0, CORES[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)
