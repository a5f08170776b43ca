"""The noise level of recorded components, estimated from the rows alone.

The noise level is the root mean square error of the best one-step prediction. It is estimated from
neighbours, like the delta test (Pi and Peterson, 1994, "Finding the embedding dimension and
variable dependencies in time series", Neural Computation 6; Eirola et al., 2008, "Using the delta
test for variable selection", ESANN) and the Gamma test (Evans and Jones, 2002, "A proof of the
Gamma test", Proc. R. Soc. A 458). These tests extrapolate the difference of neighbours to distance
0 by a line through all distances; here, a local linear fit (Fan and Gijbels, 1996, "Local
polynomial modelling and its applications") through the neighbours extrapolates to each row, which
has less bias with few rows. The inputs are the observation, the action, and a window of earlier
rows, because a program with memory can filter the noise of a sensor.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel
from scipy.spatial import cKDTree

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.history import RecordedPast
from cwm_cli.evaluation.metric import MOST_CLASSES, TOLERANCE

WINDOWS = (0, 1, 2, 4, 8)
"""Numbers of earlier rows that are tried as inputs; eight approximate the filter of a sensor."""

MAX_INPUTS = 60
"""Windows with more inputs are not tried: no two rows would be similar."""

LEAST_ROWS = 80
"""With fewer rows, no noise level is estimated."""

CLEAR_NOISE = 0.02
"""Noise above this share of the change of a component is not an effect of the finite number of
rows: on exact systems of the acceptance suite the estimate is below 0.01."""


class NoiseLevel(BaseModel, frozen=True):
    """The noise of a component of the next observation, in units of the component.

    The noise of labels is the share of wrong values.

    Attributes:
        level: Error of the best prediction from the observation, the action and earlier rows:
            an upper estimate, because it includes rows near thresholds of the law.
        plain: The same from the observation and the action alone.
        least: A lower estimate, from the median error, which ignores rows near thresholds.
        window: Number of earlier rows that lower the error.
        change: Root mean square change in one step; for labels the share of changes.
        unit: Rounding unit of the recorded values, 0 if they are not rounded.
        is_label: Whether the values have no order.
        is_spread: Whether another component has clear noise, which the law may spread to this one.
    """

    level: float
    plain: float
    least: float = 0.0
    window: int = 0
    change: float = 0.0
    unit: float = 0.0
    is_label: bool = False
    is_spread: bool = False

    @property
    def is_clear(self) -> bool:
        """Whether the lower estimate is clearly above 0."""
        return not self.is_label and self.least > max(CLEAR_NOISE * self.change, TOLERANCE)

    @property
    def is_noisy(self) -> bool:
        """Whether noise or coarse rounding keeps programs from predicting values exactly."""
        return self.is_clear or (not self.is_label and 4 * TOLERANCE < self.unit < 1)

    @property
    def is_sensor(self) -> bool:
        """Whether earlier rows lower the noise, which is the sign of a sensor's noise."""
        return self.is_clear and self.level < 0.95 * self.plain

    def reachable(self, *, remembers: bool) -> float:
        """Return the error that a program with or without memory can reach.

        Without clear noise, the upper estimate is due to the law, so the lower one counts.
        """
        if self.is_label or self.is_clear or self.is_spread:
            return self.level if remembers else self.plain
        return min(self.level, self.least)


def noise_levels(rows: Dataset) -> dict[int, NoiseLevel]:
    """Estimate the noise level of each component of the next observation.

    A reward with more than 20 values counts as a component after the last one.

    Args:
        rows: Rows in the order of their episodes.

    Returns:
        The levels by number of the component; empty for fewer than 80 rows and for texts.
    """
    is_text = any(leaf.space.kind == "text" for leaf in rows.observation_space.leaves(""))
    if is_text or len(rows) - int(rows.columns["terminations"].sum()) < LEAST_ROWS:
        return {}
    history = RecordedPast(rows)
    estimates = list(_estimates(history))
    goes_on = ~rows.columns["terminations"]
    levels, labels = {}, label_columns(rows)
    columns = list(zip(history.before.T, history.after.T, strict=True))
    rewards = rows.columns["rewards"]
    if len(np.unique(rewards)) > MOST_CLASSES:
        columns.append((np.full(len(rewards), rewards.mean()), rewards))
    for number, (before, after) in enumerate(columns):
        window, level, least = 0, np.inf, np.inf
        is_label = number in labels
        for estimate in estimates:
            upper, lower = estimate.errors(after, is_label=is_label)
            least = min(least, lower)
            # A longer window has to be clearly better, as the smallest of several is too small.
            if upper < 0.97 * level:
                window, level = estimate.window, upper
        if not estimates:
            continue
        plain = estimates[0].errors(after, is_label=is_label)[0]
        changes = (after - before)[goes_on]
        change = np.mean(changes != 0) if is_label else np.sqrt(np.mean(changes**2))
        levels[number] = NoiseLevel(
            level=float(level),
            plain=float(plain),
            least=float(min(least, level)),
            window=window,
            change=float(change),
            unit=rounding_unit(after[goes_on]),
            is_label=is_label,
        )
    is_spread = any(level.is_clear for level in levels.values())
    return {n: level.model_copy(update={"is_spread": is_spread}) for n, level in levels.items()}


def is_table(rows: Dataset) -> bool:
    """Return whether the rows come from a table, whose columns have names and no fixed bounds."""
    return bool(rows.metadata.get("env_args", {}).get("observed"))


def label_columns(rows: Dataset) -> dict[int, tuple[str, ...]]:
    """Return the components whose numbers have no order, with their labels in order if known.

    Components of discrete spaces are labels, and so are columns of a table whose cells are texts
    or booleans (see `metadata` of datasets of tables).
    """
    labels: dict[int, tuple[str, ...]] = {}
    number = 0
    for leaf in rows.observation_space.leaves(""):
        if leaf.space.kind != "box":
            labels |= {number + place: () for place in range(leaf.space.size)}
        number += leaf.space.size
    for number, (_, *texts) in enumerate(rows.metadata.get("env_args", {}).get("observed", ())):
        if texts:
            labels[number] = tuple(texts)
    return labels


def rounding_unit(values: np.ndarray) -> float:
    """Return the largest power of ten, up to 1, that divides all values; 0 if none above 1e-9."""
    values = np.asarray(values, np.float64)
    for digits in range(10):
        scaled = values * 10.0**digits
        precision = 4 * np.finfo(np.float64).eps * np.abs(scaled)
        if np.all(np.abs(scaled - np.rint(scaled)) <= precision):
            return float(10.0**-digits)
    return 0.0


def robust_spread(errors: np.ndarray) -> float:
    """Return the standard deviation of normal errors from their median absolute value."""
    normal_median = 0.6745  # median of the absolute value of a standard normal number
    return float(np.median(np.abs(errors)) / normal_median)


def outliers(errors: np.ndarray) -> np.ndarray:
    """Return the mask of errors that are far beyond all others, if at most 1 % are.

    Of normal errors, 1 in 500 million is larger than six standard deviations.
    """
    far: np.ndarray = np.abs(errors) > 6 * robust_spread(errors)
    return far if far.sum() <= 0.01 * len(errors) else np.zeros(len(errors), bool)


def _estimates(history: RecordedPast) -> Iterator["_LocalFits"]:
    """Yield the local fits of each window that the rows are sufficient for."""
    inputs = prediction_inputs(history)
    ends = history.rows.columns["terminations"]
    for window in WINDOWS:
        rows = np.flatnonzero((history.step >= window) & ~ends)
        size = (window + 1) * inputs.shape[1]
        if window and size > MAX_INPUTS:
            return
        # A fit has as many unknowns as inputs; each needs a few rows, nearer than most others.
        if len(rows) < max(LEAST_ROWS, 4 * _neighbours(size)):
            return
        points = np.concatenate([inputs[rows - lag] for lag in range(window + 1)], axis=1)
        yield _LocalFits.of(window, rows, points, inputs.shape[1])


def prediction_inputs(history: RecordedPast) -> np.ndarray:
    """Return standardised components of observation and action; few values also as indicators."""
    columns = [history.before, history.actions]
    for values in history.actions.T:
        some = np.unique(values)
        if 2 < len(some) <= 8:  # these may be labels, whose order has no meaning
            columns.append((values[:, None] == some[1:-1]).astype(np.float64))
    inputs = np.concatenate(columns, axis=1)
    spread = inputs.std(axis=0)
    return np.asarray((inputs - inputs.mean(axis=0))[:, spread > 0] / spread[spread > 0])


def _neighbours(inputs: int) -> int:
    """Return how many neighbours a local fit of a number of inputs uses."""
    return 2 * (inputs + 1) + 2


class _LocalFits(NamedTuple):
    """Linear fits through the neighbours of a sample of rows, which do not contain the row.

    Attributes:
        window: Number of earlier rows.
        rows: Indices of the rows.
        basis: Orthonormal basis of the features of a regression over all rows.
        sample: Places in `rows` of the fitted rows.
        near: Places of their neighbours, (sample, neighbours).
        shares: Weights of the neighbours in the fit's value at the row, (sample, neighbours).
    """

    window: int
    rows: np.ndarray
    basis: np.ndarray
    sample: np.ndarray
    near: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(cls, window: int, rows: np.ndarray, points: np.ndarray, present: int) -> "_LocalFits":
        """Find the neighbours of a sample of at most 800 rows, and the weights of the fits."""
        count, size = points.shape
        sample = np.unique(np.linspace(0, count - 1, min(count, 800)).astype(int))
        near = cKDTree(points).query(points[sample], k=_neighbours(size) + 1)[1]
        # Equal rows have distance 0, so that the row itself need not be the first.
        own = near == sample[:, None]
        own[~own.any(axis=1), -1] = True
        near = near[~own].reshape(len(sample), -1)
        offsets = points[near] - points[sample][:, None]
        features = np.concatenate([np.ones((*near.shape, 1)), offsets], axis=2)
        normal = np.einsum("nki,nkj->nij", features, features)
        # A small ridge, because neighbours may be equal in some inputs.
        scale = 1e-3 * np.trace(normal, axis1=1, axis2=2)[:, None, None] / (size + 1)
        normal += scale * np.diag(np.append(0.0, np.ones(size)))
        first = np.zeros((len(sample), size + 1, 1))
        first[:, 0] = 1
        weights = np.linalg.solve(normal, first)[..., 0]
        shares = np.einsum("nki,ni->nk", features, weights)
        # The regression has products of up to ten inputs of the present row.
        some = points[:, : min(present, 10)]
        pairs = np.triu_indices(some.shape[1])
        columns = np.column_stack([np.ones(count), points, some[:, pairs[0]] * some[:, pairs[1]]])
        basis, sizes, _ = np.linalg.svd(columns, full_matrices=False)
        return cls(window, rows, basis[:, sizes > 1e-8 * sizes[0]], sample, near, shares)

    def errors(self, after: np.ndarray, *, is_label: bool) -> tuple[float, float]:
        """Return an upper and a lower estimate of the noise of a component."""
        values = after[self.rows]
        if is_label:
            return self._error_rates(values)
        values = values - self.basis @ (self.basis.T @ values)
        errors = values[self.sample] - (self.shares * values[self.near]).sum(axis=1)
        # The noise of the neighbours adds to the error of a fit.
        errors /= np.sqrt(1.0 + (self.shares**2).sum(axis=1))
        robust = robust_spread(errors)
        far = outliers(errors)
        mean_square = float(np.sqrt(np.mean(errors[~far] ** 2)))
        return mean_square, min(robust, mean_square)

    def _error_rates(self, values: np.ndarray) -> tuple[float, float]:
        """Return the error rate of votes of neighbours, and the bound of Cover and Hart (1967)."""
        _, codes = np.unique(values, return_inverse=True)
        codes = codes.reshape(-1)
        count = int(codes.max()) + 1
        votes = np.eye(count)[codes[self.near[:, :9]]].sum(axis=1)
        vote_error = float(np.mean(votes.argmax(axis=1) != codes[self.sample]))
        nearest_error = float(np.mean(codes[self.near[:, 0]] != codes[self.sample]))
        most = (count - 1) / count if count > 1 else 1.0
        bound = most * (1 - np.sqrt(max(0.0, 1 - nearest_error / most)))
        return min(vote_error, nearest_error), min(bound, vote_error, nearest_error)
