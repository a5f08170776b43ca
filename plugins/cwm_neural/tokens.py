"""Observations as a fixed number of tokens: what sequence models are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.data.spaces import Columns


NEAR = 13
"""Places that are near one on a grid, as `around` has them."""


class Tokenizer:
    """Writes observations as `count` tokens below `vocabulary`, and reads them back.

    Both numbers are the same from the beginning on, whatever it is fitted to: the shape of a model
    follows from them. Columns are named `observations`, as in a dataset.
    """

    count: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """How many parameters it has that are trained."""
        return 0

    @property
    def sizes(self) -> dict[str, Any]:
        """What a saved state has to agree with."""
        return {"tokens": [type(self).__name__, self.count, self.vocabulary]}

    @property
    def possible(self) -> torch.Tensor | None:
        """Mask (count, vocabulary) of the tokens that a place can have now; None where all."""
        return None

    @property
    def near(self) -> torch.Tensor:
        """Places (count, n) that are near each place, itself the first; -1 where there is none."""
        return torch.arange(self.count)[:, None]

    def fit(self, rows: Dataset, updates: int) -> Mapping[str, float]:
        """Fit it to the observations of rows, with so many updates; return the mean losses.

        One that is no network does without updates: it comes to know what it has not met.
        """
        raise NotImplementedError

    def encode(self, observations: Columns) -> torch.Tensor:
        """Return the tokens (n, count), int64."""
        raise NotImplementedError

    def decode(self, tokens: torch.Tensor, before: Columns | None) -> Columns:
        """Return the observations that tokens (n, count) stand for.

        `before` is what was seen a step earlier, for what tokens do not tell: the order of objects.
        """
        raise NotImplementedError

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Say how well it writes observations that it was not fitted to."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs: tensors and plain data."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        raise NotImplementedError


def around(height: int, width: int) -> torch.Tensor:
    """Return what is near each cell of a grid: places (height * width, 13), -1 where there is none.

    These are the cell, its eight neighbours, and two steps in four directions: as far as pushes go.
    """
    cells = torch.arange(height * width)
    y, x = cells[:, None] // width, cells[:, None] % width
    steps = [(0, 0)] + [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    down, right = torch.tensor([*steps, (-2, 0), (2, 0), (0, -2), (0, 2)]).T
    there = (y + down >= 0) & (y + down < height) & (x + right >= 0) & (x + right < width)
    return torch.where(there, (y + down) * width + x + right, -1)


class Codes:
    """Numbers as the nearest of at most `most` codes: themselves, while they are so few.

    Once there are more different ones, the codes are the means of equal parts of the sorted
    numbers, drawn up anew whenever there are twice as many numbers as the last time: what is seen
    early says little of what will be seen.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.values = np.zeros(1)  # in the order in which they were met, or sorted
        self._seen = 0  # numbers when codes were last drawn up; 0 while they are exact

    def fit(self, numbers: np.ndarray) -> None:
        """Have codes for some numbers, among which are those of earlier calls."""
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
        """Return the places of the nearest codes."""
        order = np.argsort(self.values, kind="stable")
        ranked = self.values[order]
        middles = (ranked[1:] + ranked[:-1]) / 2
        places: np.ndarray = order[np.searchsorted(middles, np.nan_to_num(numbers))]
        return places

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs."""
        return {"values": self.values.tolist(), "seen": self._seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.values, self._seen = np.array(state["values"], np.float64), int(state["seen"])
