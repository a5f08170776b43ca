"""Random numbers of programs: begun anew for each question, so that answers can be repeated."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from cwm_cli.sandbox.job import Job


def reseeded(pairs: Iterator[tuple[Any, Any]], job: Job) -> Iterator[tuple[Any, Any]]:
    """Seed random numbers by the row, so that the order of the rows does not matter."""
    for row, pair in zip(job.rows.tolist(), pairs, strict=True):
        reseed(job.seed, row)
        yield pair


def reseed_for(job: Job, episode: int, decision: int) -> None:
    """Seed random numbers by the episode and the decision."""
    reseed(job.seed, episode, decision)


def reseed(*key: int) -> None:
    """Begin the random numbers of Python and numpy anew."""
    random.seed(repr(key))
    np.random.seed([part % 2**32 for part in key])
