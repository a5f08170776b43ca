"""Calibration: whether what a model says is so likely comes about so often."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.metric import MOST_CLASSES, close

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions

BINS = 10
"""Bins of probabilities, and of the ranks of what came about."""

LEAST_SPREAD = 1e-4
"""Answers that lie closer, of the number's deviation in the rows, are one: float32 rounds so."""

LEAST_RANKED = 20
"""Rows below which a test of uniformity says nothing."""


@dataclass(frozen=True)
class Reliability:
    """How often something came about, by how likely it was said to be.

    For each bin of probabilities: their mean, the share of what came about, and how many there
    are; bins in which nothing is are left out. `brier` is the mean over rows of squared
    differences, summed over the values that there are.
    """

    what: str
    brier: float
    said: tuple[float, ...]
    came: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Ranks:
    """Where a real number came about in the distribution that was said: the integral transform.

    `shares` are those of the rows in each tenth. Where the distribution is right all tenths are
    equally likely, and `uniformity` is the chance that their like deviates as much (Kolmogorov
    and Smirnov; None for a few rows).
    """

    what: str
    shares: tuple[float, ...]
    rows: int
    uniformity: float | None


@dataclass(frozen=True)
class ForecastCalibration:
    """How probabilities of rewards and ends, and distributions of real numbers, came true."""

    reliability: tuple[Reliability, ...]
    ranks: tuple[Ranks, ...]

    @property
    def brier(self) -> dict[str, float]:
        """The Brier score of each part."""
        return {one.what: one.brier for one in self.reliability}

    @property
    def uniformity(self) -> float | None:
        """The least chance among the numbers, times how many there are; None without one."""
        found = [one.uniformity for one in self.ranks if one.uniformity is not None]
        return min(1.0, min(found) * len(found)) if found else None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "reliability": [vars(one) for one in self.reliability],
            "ranks": [vars(one) for one in self.ranks],
        }


def calibration(predictions: "Predictions", rows: Dataset) -> ForecastCalibration:
    """Compare what was said with what came about, where the model had an answer."""
    if (answered := predictions.answered) is not None:
        predictions, rows = predictions[answered], rows[answered]
    if not len(rows):
        return ForecastCalibration((), ())
    return ForecastCalibration(
        tuple(_reliabilities(predictions, rows)), tuple(_ranks(predictions, rows, seed=0))
    )


def uniformity(values: np.ndarray) -> float:
    """Return the chance that so many uniform numbers deviate as much (Kolmogorov and Smirnov).

    By the limit of many, with the correction of Stephens (1970) for few.
    """
    from scipy.special import kolmogorov

    count, ordered = len(values), np.sort(values)
    places = np.arange(count)
    far = max(np.max((places + 1) / count - ordered), np.max(ordered - places / count))
    root = np.sqrt(count)
    return float(kolmogorov((root + 0.12 + 0.11 / root) * far))


def _reliabilities(predictions: "Predictions", rows: Dataset) -> Iterator[Reliability]:
    """Yield how often rewards, where they are few, and ends came about as they were said to."""
    values = np.unique(rows.columns["rewards"].round(9))
    if len(values) <= MOST_CLASSES:
        said = np.zeros((len(rows), len(values)))
        for columns, shares in predictions.answers():
            for place, value in enumerate(values):
                known = close(columns["rewards"], np.full(len(rows), value))
                said[:, place] += shares * known
        came = close(np.broadcast_to(values, said.shape), rows.columns["rewards"][:, None])
        yield _reliability("reward", said, came)
    ends = np.zeros((len(rows), 1))
    for columns, shares in predictions.answers():
        ends[:, 0] += shares * columns["terminations"]
    yield _reliability("terminated", ends, rows.columns["terminations"][:, None])


def _reliability(what: str, said: np.ndarray, came: np.ndarray) -> Reliability:
    """Put probabilities and what came about into bins."""
    said = said.clip(0, 1)
    bins = np.minimum((said * BINS).astype(int), BINS - 1).ravel()
    counts = np.bincount(bins, minlength=BINS)
    filled = np.flatnonzero(counts)
    means = [
        np.bincount(bins, each.ravel().astype(float), BINS)[filled] / counts[filled]
        for each in (said, came)
    ]
    return Reliability(
        what,
        float(((said - came) ** 2).sum(axis=1).mean()),
        tuple(means[0].tolist()),
        tuple(means[1].tolist()),
        tuple(counts[filled].tolist()),
    )


def _ranks(predictions: "Predictions", rows: Dataset, *, seed: int) -> Iterator[Ranks]:
    """Yield where each real number that the model lets vary came about."""
    if predictions.shape == "certain":
        return
    for what, name, terms in _numbers(rows):
        drawn = predictions.columns[name].reshape(*predictions.columns["rewards"].shape, -1)
        recorded = rows.columns[name].reshape(len(rows), -1)
        for place in range(recorded.shape[1]):
            rng = np.random.default_rng([seed, place])
            found = _transform(predictions, rows, drawn[..., place], recorded[:, place], rng, terms)
            if not len(found):
                continue
            counts = np.histogram(found, BINS, (0, 1))[0]
            yield Ranks(
                f"{what}[{place}]" if recorded.shape[1] > 1 else what,
                tuple((counts / len(found)).tolist()),
                len(found),
                uniformity(found) if len(found) >= LEAST_RANKED else None,
            )


def _numbers(rows: Dataset) -> Iterator[tuple[str, str, bool]]:
    """Yield the names of what holds real numbers, its column, and whether it needs no end."""
    for name, space in rows.observation_space.leaves("next_observations"):
        if space.is_float:
            yield name.removeprefix("next_").replace("observations", "observation"), name, True
    if len(np.unique(rows.columns["rewards"].round(9))) > MOST_CLASSES:
        yield "reward", "rewards", False


def _transform(
    predictions: "Predictions",
    rows: Dataset,
    drawn: np.ndarray,
    recorded: np.ndarray,
    rng: np.random.Generator,
    goes_on: bool,
) -> np.ndarray:
    """Return the share of the distribution below what came about, in rows where it varies.

    Among equal values, and between draws, the place is drawn, so that it is uniform exactly where
    what came about is one more draw. Answers count that end where the recording does.
    """
    terminal = rows.columns["terminations"]
    chances = predictions.probabilities
    shares = (predictions.columns["terminations"] == terminal[:, None]) * (
        1.0 if chances is None else chances
    )
    least = LEAST_SPREAD * (float(np.std(recorded)) or 1.0)
    seen = np.where(shares > 0, drawn, np.nan)
    usable = np.isfinite(seen).any(axis=1) & ~np.isinf(seen).any(axis=1) & np.isfinite(recorded)
    usable &= ~(goes_on & terminal)
    seen, shares, recorded = seen[usable], shares[usable], recorded[usable]
    if not len(seen):
        return np.zeros(0)
    varies = np.nanmax(seen, axis=1) - np.nanmin(seen, axis=1) > least
    seen, shares, recorded = seen[varies], shares[varies], recorded[varies]
    equal = close(seen, recorded[:, None])
    below = (shares * ((seen < recorded[:, None]) & ~equal)).sum(axis=1)
    tied, total = (shares * equal).sum(axis=1), shares.sum(axis=1)
    if chances is None:
        tied, total = tied + 1, total + 1  # what came about is itself one of the draws
    found: np.ndarray = (below + rng.uniform(size=len(seen)) * tied) / total
    return found
