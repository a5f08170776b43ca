"""Calibration: whether predicted probabilities agree with observed frequencies."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.metric import MOST_CLASSES, close

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions

BINS = 10
"""Number of bins of probabilities and of ranks."""


@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities and observed frequencies of a part of the outcome.

    Attributes:
        what: The part: "reward" or "terminated".
        brier: Brier score: squared error, summed over possible values, mean over rows.
        said: Mean predicted probability in each bin that is not empty.
        came: Observed frequency in the same bins.
        counts: Number of predictions in the same bins.
    """

    what: str
    brier: float
    said: tuple[float, ...]
    came: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Ranks:
    """Ranks of recorded values in the predicted distribution: the probability integral transform.

    For a correct distribution all ranks are equally likely.

    Attributes:
        what: Name of the number.
        shares: Share of the rows in each tenth.
        rows: Number of rows.
        uniformity: p-value of a Kolmogorov-Smirnov test for uniform ranks; None below 20 rows.
    """

    what: str
    shares: tuple[float, ...]
    rows: int
    uniformity: float | None


@dataclass(frozen=True)
class ForecastCalibration:
    """Calibration of the probabilities of rewards and termination, and of real numbers."""

    reliability: tuple[Reliability, ...]
    ranks: tuple[Ranks, ...]

    @property
    def brier(self) -> dict[str, float]:
        """The Brier score of each part."""
        return {part.what: part.brier for part in self.reliability}

    @property
    def uniformity(self) -> float | None:
        """The smallest p-value, corrected for the number of tests (Bonferroni), or None."""
        p_values = [part.uniformity for part in self.ranks if part.uniformity is not None]
        return min(1.0, min(p_values) * len(p_values)) if p_values else None

    def as_json(self) -> dict[str, Any]:
        """Return the calibration as plain data."""
        return {
            "reliability": [vars(part) for part in self.reliability],
            "ranks": [vars(part) for part in self.ranks],
        }


def calibration(predictions: "Predictions", rows: Dataset) -> ForecastCalibration:
    """Compare predictions with recorded outcomes, in the rows that have a prediction."""
    if (answered := predictions.answered) is not None:
        predictions, rows = predictions[answered], rows[answered]
    if not len(rows):
        return ForecastCalibration((), ())
    return ForecastCalibration(
        tuple(_reliabilities(predictions, rows)), tuple(_ranks(predictions, rows))
    )


def uniformity(values: np.ndarray) -> float:
    """Return the p-value of a Kolmogorov-Smirnov test that values are uniform in [0, 1].

    It is the asymptotic one, with the correction of Stephens (1970) for small samples.
    """
    from scipy.special import kolmogorov

    count, ordered = len(values), np.sort(values)
    places = np.arange(count)
    deviation = max(np.max((places + 1) / count - ordered), np.max(ordered - places / count))
    root = np.sqrt(count)
    return float(kolmogorov((root + 0.12 + 0.11 / root) * deviation))


def _reliabilities(predictions: "Predictions", rows: Dataset) -> Iterator[Reliability]:
    """Yield the reliability of rewards, if they have few values, and of termination."""
    values = np.unique(rows.columns["rewards"].round(9))
    if len(values) <= MOST_CLASSES:
        probabilities = np.zeros((len(rows), len(values)))
        for columns, shares in predictions.answers():
            for place, value in enumerate(values):
                matches = close(columns["rewards"], np.full(len(rows), value))
                probabilities[:, place] += shares * matches
        recorded = np.broadcast_to(values, probabilities.shape)
        occurred = close(recorded, rows.columns["rewards"][:, None])
        yield _reliability("reward", probabilities, occurred)
    ends = np.zeros((len(rows), 1))
    for columns, shares in predictions.answers():
        ends[:, 0] += shares * columns["terminations"]
    yield _reliability("terminated", ends, rows.columns["terminations"][:, None])


def _reliability(what: str, probabilities: np.ndarray, occurred: np.ndarray) -> Reliability:
    """Return the reliability of predictions (rows, values)."""
    probabilities = probabilities.clip(0, 1)
    # a probability of 1 belongs to the last bin
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1).ravel()
    counts = np.bincount(bins, minlength=BINS)
    filled = np.flatnonzero(counts)
    means = [
        np.bincount(bins, values.ravel().astype(float), BINS)[filled] / counts[filled]
        for values in (probabilities, occurred)
    ]
    return Reliability(
        what,
        float(((probabilities - occurred) ** 2).sum(axis=1).mean()),
        tuple(means[0].tolist()),
        tuple(means[1].tolist()),
        tuple(counts[filled].tolist()),
    )


def _ranks(predictions: "Predictions", rows: Dataset) -> Iterator[Ranks]:
    """Yield the ranks of each real number that varies between the answers."""
    if predictions.shape == "certain":
        return
    columns = {
        name: name.removeprefix("next_").replace("observations", "observation")
        for name, space in rows.observation_space.leaves("next_observations")
        if space.is_float
    }
    if len(np.unique(rows.columns["rewards"].round(9))) > MOST_CLASSES:
        columns["rewards"] = "reward"
    for name, title in columns.items():
        answers = predictions.columns[name].reshape(*predictions.columns["rewards"].shape, -1)
        recorded = rows.columns[name].reshape(len(rows), -1)
        # Terminal rows have a reward but no next observation.
        counted = np.full(len(rows), name == "rewards") | ~rows.columns["terminations"]
        for place in range(recorded.shape[1]):
            rng = np.random.default_rng([0, place])
            ranks = _rank_values(
                predictions, rows, answers[..., place], recorded[:, place], counted, rng
            )
            if not len(ranks):
                continue
            counts = np.histogram(ranks, BINS, (0, 1))[0]
            yield Ranks(
                f"{title}[{place}]" if recorded.shape[1] > 1 else title,
                tuple((counts / len(ranks)).tolist()),
                len(ranks),
                uniformity(ranks) if len(ranks) >= 20 else None,
            )


def _rank_values(
    predictions: "Predictions",
    rows: Dataset,
    answers: np.ndarray,
    recorded: np.ndarray,
    counted: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the probability below each recorded value, in counted rows whose answers vary.

    Only answers with the recorded termination count. Ties are broken at random, so that ranks are
    uniform if the recorded value has the distribution of the answers.
    """
    shares = predictions.columns["terminations"] == rows.columns["terminations"][:, None]
    if predictions.probabilities is not None:
        shares = shares * predictions.probabilities
    # Answers closer than this are equal: the environment may round to float32.
    min_spread = 1e-4 * (float(np.std(recorded)) or 1.0)
    # NaN marks answers without weight, which the minimum and the maximum ignore.
    values = np.where(shares > 0, answers, np.nan)
    usable = np.isfinite(values).any(axis=1) & ~np.isinf(values).any(axis=1)
    usable &= np.isfinite(recorded) & counted
    values, shares, recorded = values[usable], shares[usable], recorded[usable]
    if not len(values):
        return np.zeros(0)
    varies = np.nanmax(values, axis=1) - np.nanmin(values, axis=1) > min_spread
    values, shares, recorded = values[varies], shares[varies], recorded[varies]
    equal = close(values, recorded[:, None])
    below = (shares * ((values < recorded[:, None]) & ~equal)).sum(axis=1)
    tied, total = (shares * equal).sum(axis=1), shares.sum(axis=1)
    if predictions.probabilities is None:
        tied, total = tied + 1, total + 1  # the recorded value is one of the n + 1 draws
    return np.asarray((below + rng.uniform(size=len(values)) * tied) / total)
