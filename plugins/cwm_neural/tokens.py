"""Encoding of observations as a fixed number of tokens for sequence models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.data.spaces import Columns


NEAR = 13
"""Number of neighbours of a place on a grid, as `around` returns them."""


class Tokenizer:
    """Encodes observations as `count` tokens below `vocabulary`, and decodes them.

    Both numbers are fixed before any fit, because the shape of a model depends on them. Columns
    are named `observations`, as in a dataset.
    """

    count: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return 0

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that must be equal in a saved state."""
        return {"tokens": [type(self).__name__, self.count, self.vocabulary]}

    @property
    def possible(self) -> torch.Tensor | None:
        """Mask (count, vocabulary) of the tokens known for each place; None if all are possible."""
        return None

    @property
    def near(self) -> torch.Tensor:
        """Neighbours (count, n) of each place, first the place itself; -1 if there is none."""
        return torch.arange(self.count)[:, None]

    def fit(self, rows: Dataset, updates: int) -> Mapping[str, float]:
        """Fit the tokenizer to the observations of rows, and return the mean losses.

        Tokenizers without a network ignore `updates`, and add new values to their vocabulary.
        """
        raise NotImplementedError

    def encode(self, observations: Columns) -> torch.Tensor:
        """Return the tokens (n, count), int64."""
        raise NotImplementedError

    def decode(self, tokens: torch.Tensor, before: Columns | None) -> Columns:
        """Return the observations of tokens (n, count).

        `before` are the previous observations, for information that tokens do not contain: the
        order of objects.
        """
        raise NotImplementedError

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Return measures of the reconstruction of held-out observations."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`: tensors and plain data."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        raise NotImplementedError


def around(height: int, width: int) -> torch.Tensor:
    """Return the neighbours of each grid cell: places (height * width, 13), -1 outside the grid.

    These are the cell, its eight neighbours, and the cells two steps away in four directions,
    which is the range of a push.
    """
    cells = torch.arange(height * width)
    y, x = cells[:, None] // width, cells[:, None] % width
    steps = [(0, 0)] + [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    down, right = torch.tensor([*steps, (-2, 0), (2, 0), (0, -2), (0, 2)]).T
    there = (y + down >= 0) & (y + down < height) & (x + right >= 0) & (x + right < width)
    return torch.where(there, (y + down) * width + x + right, -1)


class Codes:
    """Encodes numbers as the nearest of at most `most` codes, exactly while there are few values.

    If there are more different values, the codes are the means of equal parts of the sorted
    numbers. They are recomputed each time the number of values has doubled, because early values
    may differ from later ones.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.values = np.zeros(1)  # in the order of first occurrence, or sorted
        self._seen = 0  # count of numbers at the last computation of codes; 0 while exact

    def fit(self, numbers: np.ndarray) -> None:
        """Update the codes for numbers, which include the numbers of earlier calls."""
        numbers = np.nan_to_num(np.asarray(numbers, np.float64))
        if not self._seen:
            new = np.setdiff1d(numbers, self.values)
            if len(self.values) + len(new) <= self.most:
                self.values = np.concatenate([self.values, new])
                return
        if len(numbers) >= 2 * self._seen:
            parts = np.array_split(np.sort(numbers), self.most)
            self.values = np.array([part.mean() for part in parts if len(part)])
            self._seen = len(numbers)

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Return the indices of the nearest codes."""
        order = np.argsort(self.values, kind="stable")
        ranked = self.values[order]
        middles = (ranked[1:] + ranked[:-1]) / 2
        places: np.ndarray = order[np.searchsorted(middles, np.nan_to_num(numbers))]
        return places

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"values": self.values.tolist(), "seen": self._seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.values, self._seen = np.array(state["values"], np.float64), int(state["seen"])
