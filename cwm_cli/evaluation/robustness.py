"""Accuracy of each part of a transition, and the parts that break in another environment.

The parts are the components of the next observation, the reward, the end and the valid actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation.metric import close, components, match

if TYPE_CHECKING:
    from cwm_cli.worlds.model import Predictions

MAX_COMPONENTS = 128
"""Larger observations, such as images, are one part."""


@dataclass(frozen=True)
class PartAccuracy:
    """How well a part of a transition is predicted.

    Attributes:
        right: Share of right predictions, in [0, 1]: of random ones the expected share.
        rows: Number of rows. Observations after the end of an episode do not count.
        explained: 1 - squared error / squared change in one step, for components with real
            numbers: 1 if exact, 0 for "nothing changes", negative if worse. None for other parts.
        reachable: The share that the true environment reaches: below 1 if outcomes are random.
    """

    right: float
    rows: int
    explained: float | None = None
    reachable: float = 1.0

    @property
    def gap(self) -> float:
        """How much the share is below the reachable one, at least 0."""
        return max(0.0, self.reachable - self.right)

    @property
    def variance(self) -> float:
        """The variance of the share, as the mean of independent rows that are right or wrong."""
        return self.right * (1 - self.right) / self.rows


def part_accuracies(
    predictions: "Predictions",
    rows: Dataset,
    *,
    names: Sequence[str] = (),
    truth: "Predictions | None" = None,
) -> dict[str, PartAccuracy]:
    """Return the accuracy of each part by its name.

    Args:
        predictions: Predictions of the rows, without a failure.
        rows: Recorded rows.
        names: Names of the components of the observation, by default `component 0` and so on.
        truth: Predictions of the true environment, which are needed if outcomes are random.
    """
    size = sum(leaf.space.size for leaf in rows.observation_space.leaves(""))
    labels = list(names) if len(names) == size else [f"component {n}" for n in range(size)]
    if not 1 < size <= MAX_COMPONENTS:
        labels = ["observation"]
    every = np.ones(len(rows), np.bool_)
    going = ~rows.columns["terminations"]
    right = _expected_right(predictions, rows, labels)
    reachable = {} if truth is None else _expected_right(truth, rows, labels)
    explained = _explained(predictions.likeliest(), rows, going) if len(labels) == size else []
    shares = dict(zip(labels, explained, strict=False))
    found = {}
    for name, part in right.items():
        kept = going if name in labels else every
        if kept.any():
            best = float(reachable[name][kept].mean()) if reachable else 1.0
            count = int(kept.sum())
            found[name] = PartAccuracy(float(part[kept].mean()), count, shares.get(name), best)
    return found


def broken_parts(
    before: Mapping[str, PartAccuracy], after: Mapping[str, PartAccuracy]
) -> list[str]:
    """Return the parts that are predicted worse in another environment.

    The gap to the true environment has to grow by more than two standard errors.

    Args:
        before: Accuracy of each part in the environment of the training.
        after: The same in the other environment.
    """
    return [
        name
        for name, part in after.items()
        if name in before
        and part.gap - before[name].gap > max(0.01, 2 * sqrt(part.variance + before[name].variance))
    ]


def _expected_right(
    predictions: "Predictions", rows: Dataset, labels: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the expected correctness (rows,) of each part over all answers.

    Several components with one label are averaged.
    """
    total: dict[str, np.ndarray] = {}
    for columns, shares in predictions.answers():
        masks = np.concatenate(components(columns, rows), axis=1)
        if masks.shape[1] != len(labels):
            masks = masks.mean(axis=1, keepdims=True)
        parts = dict(zip(labels, masks.T, strict=True))
        matches = match(columns, rows)
        for name in ("reward", "terminated", "valid_actions"):
            if (right := getattr(matches, name)) is not None:
                parts[name.replace("_", " ")] = right
        for name, right in parts.items():
            total[name] = total.get(name, 0.0) + right * shares
    if predictions.answered is not None:
        total = {name: right * predictions.answered for name, right in total.items()}
    return total


def _explained(columns: Columns, rows: Dataset, going: np.ndarray) -> list[float | None]:
    """Return the explained share of each component; None for components without real numbers."""
    found: list[float | None] = []
    for name, space in rows.observation_space.leaves("next_observations"):
        if not space.is_float or not going.any():
            found += [None] * space.size
            continue
        before, after, predicted = (
            np.asarray(values[going], np.float64).reshape(int(going.sum()), -1)
            for values in (
                rows.columns[name.removeprefix("next_")],
                rows.columns[name],
                columns[name],
            )
        )
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            # Rounding of recorded values is no error.
            errors = np.where(close(predicted, after), 0.0, predicted - after)
            ratio = (errors**2).sum(axis=0) / ((after - before) ** 2).sum(axis=0)
        found += [float(1 - one) if np.isfinite(one) else None for one in ratio]
    return found
