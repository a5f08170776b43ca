"""Learning curves: means over many runs with confidence bands."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from scipy.stats import trim_mean

from cwm_cli.text import share

RESAMPLES = 2000
LEVELS = (2.5, 97.5)
"""Percentiles of the bootstrap means that bound a 95 % band."""

TRIMMED = 0.25
"""Fraction of the lowest and of the highest values that an interquartile mean excludes."""


class Band(NamedTuple):
    """A mean and the bounds of its confidence band."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, strata: np.ndarray) -> Self:
        """Average rows; bounds are from a bootstrap of rows within each stratum.

        Differences between strata do not widen the band, because strata are fixed, not sampled.
        """
        rng = np.random.default_rng(0)
        total = np.zeros((RESAMPLES, *values.shape[1:]))
        for stratum in np.unique(strata):
            rows = values[strata == stratum]
            counts = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), RESAMPLES)
            total += counts @ rows
        low, high = np.percentile(total / len(values), LEVELS, axis=0)
        return cls(values.mean(axis=0), low, high)

    @classmethod
    def interquartile(cls, values: np.ndarray, strata: np.ndarray) -> Self:
        """Average the middle half of rows, which is robust to a few very good or bad runs.

        Bounds are from a stratified bootstrap, as in `of`. Agarwal et al. (2021) report
        normalised returns of several runs in this way, with tasks as strata.
        """
        rng = np.random.default_rng(0)
        places = np.empty((RESAMPLES, len(values)), np.int64)
        for stratum in np.unique(strata):
            within = np.flatnonzero(strata == stratum)
            places[:, within] = rng.choice(within, size=(RESAMPLES, len(within)))
        means = trim_mean(values[places], TRIMMED, axis=1)
        low, high = np.percentile(means, LEVELS, axis=0)
        return cls(trim_mean(values, TRIMMED, axis=0), low, high)


class Curve(NamedTuple):
    """A strategy: the score of its best program so far, and the share of runs with score 1."""

    name: str
    scores: Band
    solved: Band

    def cells(self, band: Band, places: Sequence[int]) -> list[str]:
        """Return the points at some indices of a band as text."""
        points = (tuple(values[place] for values in band) for place in places)
        return [
            f"{share(mean, 2)} ({share(low, 2)}-{share(high, 2)})" for mean, low, high in points
        ]


def curve(name: str, scores: np.ndarray, strata: np.ndarray) -> Curve:
    """Return the curve of scores with shape (runs, completions)."""
    solved = Band.of((scores >= 1.0).astype(float), strata)
    return Curve(name, Band.of(scores, strata), solved)
