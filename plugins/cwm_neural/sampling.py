"""Random segments of episodes for batches."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError

RECENCY = (0.125, 0.125, 0.25, 0.5)
"""Sampling probability of each quarter of the episodes, from oldest to newest (`recent`)."""


class Segments(NamedTuple):
    """Row indices (count, length) of segments, and the mask of rows that are not padding.

    Padding repeats the first or last row of a segment.
    """

    rows: np.ndarray
    mask: np.ndarray


class EpisodeSampler:
    """Samples segments of the episodes of a dataset; all episodes are equally likely.

    With `recent`, the probability of an episode depends on its quarter (`RECENCY`).

        sampler = EpisodeSampler(rows)
        places, mask = sampler.draw(rng, 16, 10)
        rows.columns["rewards"][places][mask]
    """

    def __init__(self, rows: Dataset, *, recent: bool = False) -> None:
        if not len(rows):
            raise CwmError("there are no rows to train on: record some with `cwm collect`")
        episodes = rows.columns["episodes"]
        self._order = np.argsort(episodes, kind="stable")
        _, self._first, self._length = np.unique(
            episodes[self._order], return_index=True, return_counts=True
        )
        count = len(self._first)
        self._chances = np.full(count, 1 / count)
        if recent:
            quarter = np.arange(count) * len(RECENCY) // count
            sizes = np.bincount(quarter, minlength=len(RECENCY))
            weights = np.array(RECENCY)[quarter] / sizes[quarter]
            self._chances = weights / weights.sum()

    def draw(
        self,
        rng: np.random.Generator,
        count: int,
        length: int,
        *,
        anchor: Literal["start", "end"] = "start",
    ) -> Segments:
        """Sample `count` segments.

        Each segment starts (or ends, with `anchor="end"`) at a random row of a random episode.
        Segments that exceed their episode are padded.
        """
        episode = rng.choice(len(self._first), size=count, p=self._chances)
        within = rng.integers(self._length[episode])
        steps = np.arange(length) - (0 if anchor == "start" else length - 1)
        places = within[:, None] + steps
        last = self._length[episode][:, None] - 1
        mask = (places >= 0) & (places <= last)
        inside = self._first[episode][:, None] + places.clip(0, last)
        return Segments(self._order[inside], mask)
