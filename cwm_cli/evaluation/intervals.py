"""Confidence intervals of mean returns by the bootstrap (Efron and Tibshirani, 1993)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
"""Number of resamples: enough for two digits of the 2.5 % quantile."""


class MeanInterval(NamedTuple):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def mean_interval(groups: Sequence[Sequence[float]], *, seed: int = 0) -> MeanInterval:
    """Return the mean of values in groups, such as the returns of each trained agent.

    Args:
        groups: Groups of the same size, which are independent of each other.
        seed: Seed of the resampling.
    """
    return _interval(float(np.mean(groups)), _resampled_means(groups, seed))


def difference_interval(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> MeanInterval:
    """Return the difference of two means of groups, as for `mean_interval`."""
    means = _resampled_means(ours, 0) - _resampled_means(theirs, 1)
    return _interval(float(np.mean(ours) - np.mean(theirs)), means)


def _resampled_means(groups: Sequence[Sequence[float]], seed: int) -> np.ndarray:
    """Return means (resamples,) of groups drawn with replacement, then of values in each group."""
    values, rng = np.asarray(groups, float), np.random.default_rng(seed)
    count, size = values.shape
    chosen = rng.integers(count, size=(RESAMPLES, count))
    means = np.zeros(RESAMPLES)
    for place in range(count):
        inside = rng.integers(size, size=(RESAMPLES, size))
        means += values[chosen[:, place, None], inside].mean(axis=1)
    return np.asarray(means / count)


def _interval(mean: float, means: np.ndarray) -> MeanInterval:
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return MeanInterval(mean, low, high)
