"""Which cores work may use; Linux can say."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def on(cores: int) -> Iterator[None]:
    """Keep this thread, and what it starts, to some cores."""
    os.sched_setaffinity(0, CORES[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)
