"""Batches of boards, and the functions of programs that read one board.

The text of a feature is Python over these functions. It is evaluated here for all samples, and
written into the program for one board, so that both agree by construction.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cwm_induction.continuous.samples import Array

OUTSIDE = -1
"""The value of cells outside the board."""

FUNCTIONS = {
    "at": '''def at(board, y, x):
    """Return the value of a cell, -1 outside the board."""
    inside = 0 <= y < board.shape[0] and 0 <= x < board.shape[1]
    return int(board[y, x]) if inside else -1
''',
    "count": '''def count(board, value):
    """Return how many cells have a value."""
    return int((board == value).sum())
''',
    "count_in_column": '''def count_in_column(board, x, value):
    """Return how many cells of a column have a value."""
    return int((board[:, x] == value).sum())
''',
    "count_around": '''def count_around(board, y, x, value):
    """Return how many of the eight cells around a cell have a value."""
    near = board[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
    return int((near == value).sum()) - int(board[y, x] == value)
''',
    "differing": '''def differing(board, other):
    """Return how many cells of two boards differ."""
    return int((board != other).sum())
''',
    "pick": '''def pick(index, *values):
    """Return the value with a number."""
    return values[index]
''',
    "distinct": '''def distinct(*values):
    """Return the number of different values."""
    return len(set(values))
''',
}
"""Functions that features call, as programs define them."""


class Boards:
    """Boards of shape (boards, rows, columns), read at one cell per sample.

    `rows` holds the board of each sample.
    """

    def __init__(self, values: Array, rows: Array) -> None:
        self.values, self.rows = values, rows
        self.shape = values.shape[1:]

    def __getitem__(self, cell: tuple[int, int]) -> Array:
        found: Array = self.values[self.rows, cell[0], cell[1]]
        return found

    def at(self, y: Array | int, x: Array | int) -> Array:
        """Return the value of a cell per sample, -1 outside the board."""
        height, width = self.shape
        y, x = np.broadcast_arrays(y, x)
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        found = self.values[self.rows, y.clip(0, height - 1), x.clip(0, width - 1)]
        return np.where(inside, found, OUTSIDE)

    def count(self, value: int) -> Array:
        """Return the number of cells with a value per sample."""
        counts: Array = (self.values == value).sum(axis=(1, 2))[self.rows]
        return counts

    def count_along(self, axis: int, place: Array | int, value: int) -> Array:
        """Return the number of cells with a value in a row (axis 2) or a column (axis 1)."""
        counts = (self.values == value).sum(axis=axis)
        safe = np.clip(place, 0, counts.shape[1] - 1)
        found: Array = counts[self.rows, safe]
        return found

    def count_around(self, y: Array, x: Array, value: int) -> Array:
        """Return the number of neighbours with a value, of eight."""
        padded = np.pad(self.values == value, ((0, 0), (1, 1), (1, 1))).astype(np.int64)
        height, width = self.shape
        near = sum(
            padded[:, down : down + height, right : right + width]
            for down in range(3)
            for right in range(3)
            if (down, right) != (1, 1)
        )
        return np.asarray(np.asarray(near)[self.rows, y, x])


def evaluate(text: str, names: Mapping[str, Any]) -> Array:
    """Return the value of a feature for all samples.

    Args:
        text: An expression of arithmetic, comparisons and `FUNCTIONS`.
        names: Arrays with one entry per sample, numbers, and `Boards`.
    """
    return np.asarray(eval(text, {"__builtins__": {}}, {**_BATCH, **names}))  # noqa: S307  # ours


def _distinct(*values: Array) -> Array:
    ordered = np.sort(np.stack(np.broadcast_arrays(*values)), axis=0)
    found: Array = 1 + (np.diff(ordered, axis=0) != 0).sum(axis=0)
    return found


_BATCH = {
    "at": Boards.at,
    "count": Boards.count,
    "count_in_column": lambda board, x, value: board.count_along(1, x, value),
    "count_around": Boards.count_around,
    "differing": lambda one, other: (one.values != other.values).sum(axis=(1, 2))[one.rows],
    "distinct": _distinct,
    "pick": lambda index, *values: np.choose(index, np.broadcast_arrays(*values), mode="clip"),
    "abs": np.abs,
    "min": lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)),
    "max": lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)),
}
