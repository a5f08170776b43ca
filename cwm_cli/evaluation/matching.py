"""Which parts of each predicted transition are right."""

from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns

TOLERANCE = 1e-5
"""Numbers are equal when they differ by at most this much, absolutely plus relatively."""


class Matches(NamedTuple):
    """What is right in each row: a share of the observation, the reward, the termination.

    And the valid actions, where programs have to name them.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    valid_actions: np.ndarray | None = None

    def only(self, rows: np.ndarray) -> "Matches":
        """Count what is right in the rows of a mask, and nothing in the others."""
        valid = None if self.valid_actions is None else self.valid_actions & rows
        return Matches(self.observation * rows, self.reward & rows, self.terminated & rows, valid)

    def losses(self, terminal: np.ndarray) -> np.ndarray:
        """Return one minus the score of each row; 0.0 exactly where all that counts is right.

        What is seen after the end has no consequence, so rows in `terminal`
        are scored by reward and termination alone.
        """
        ends = 2.0 - self.reward - self.terminated
        goes_on, parts = ends + 1.0 - self.observation, 3
        if self.valid_actions is not None:
            goes_on, parts = goes_on + 1.0 - self.valid_actions, 4
        losses: np.ndarray = np.where(terminal, ends / 2, goes_on / parts)
        return losses


def close(predicted: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return where numbers are finite and equal within the tolerance."""
    target = np.asarray(target, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(predicted - target) <= TOLERANCE + TOLERANCE * np.abs(target)
    right: np.ndarray = near & np.isfinite(predicted) & np.isfinite(target)
    return right


def components(predictions: Columns, dataset: Dataset) -> list[np.ndarray]:
    """Return for each leaf of the observation which components are right, one line per row."""
    right = []
    for name, space in dataset.observation_space.leaves("next_observations"):
        predicted, target = predictions[name], dataset.columns[name]
        same = close(predicted, target) if space.is_float else predicted == target
        right.append(same.reshape(len(dataset), space.size))
    return right


def match(predictions: Columns, dataset: Dataset) -> Matches:
    """Compare predictions with what was recorded."""
    shares = [right.mean(axis=1) for right in components(predictions, dataset)]
    return Matches(
        np.mean(shares, axis=0),
        close(predictions["rewards"], dataset.columns["rewards"]),
        predictions["terminations"] == dataset.columns["terminations"],
        _same_actions(predictions, dataset) if dataset.has_valid_actions else None,
    )


def _same_actions(predictions: Columns, dataset: Dataset) -> np.ndarray:
    """Return where exactly the valid actions are predicted."""
    same: np.ndarray = (predictions[VALID] == dataset.columns[VALID]).all(axis=1)
    return same
