"""Expressions of rules, evaluated here for arrays of rows and in programs for one state.

An expression is Python over the functions of this module, so that models and programs agree by
construction.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cwm_induction.continuous.samples import Array

Names = dict[str, Any]
"""Values of variables: arrays with one entry per row, numbers, `Boards` and `Places`."""

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
    "count_around": '''def count_around(board, y, x, value):
    """Return how many of the eight cells around a cell have a value."""
    near = board[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
    return int((near == value).sum()) - int(board[y, x] == value)
''',
    "differing": '''def differing(board, other):
    """Return how many cells of two boards differ."""
    return int((board != other).sum())
''',
    "distinct": '''def distinct(*values):
    """Return the number of different values."""
    return len(set(values))
''',
    "free": '''def free(places, row, column):
    """Return whether a cell is inside the field and no object is there."""
    return 0 <= row < {height} and 0 <= column < {width} and [row, column] not in places
''',
    "toward": '''def toward(distance):
    """Return the step that makes a distance smaller."""
    return 1 if distance > 0 else -1
''',
    "away": '''def away(distance):
    """Return the step that makes a distance larger."""
    return 1 if distance < 0 else -1
''',
    "nearest": '''def nearest(places, row, column):
    """Return the place with the fewest steps from a cell, the first of equals."""
    steps = [abs(place[0] - row) + abs(place[1] - column) for place in places]
    return places[steps.index(min(steps))] if steps else (99, 99)
''',
}
"""Functions that expressions call, as programs define them."""


class Boards:
    """Boards of shape (boards, rows, columns), read at one cell per sample.

    `rows` holds the board of each sample, by default one sample per board.
    """

    def __init__(self, values: Array, rows: Array | None = None) -> None:
        self.values = values
        self.rows = np.arange(len(values)) if rows is None else rows

    def __getitem__(self, cell: tuple[int, int]) -> Array:
        found: Array = self.values[self.rows, cell[0], cell[1]]
        return found

    def at(self, y: Array | int, x: Array | int) -> Array:
        """Return the value of a cell per sample, -1 outside the board."""
        height, width = self.values.shape[1:]
        y, x = np.broadcast_arrays(y, x)
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        found = self.values[self.rows, y.clip(0, height - 1), x.clip(0, width - 1)]
        return np.where(inside, found, OUTSIDE)

    def count(self, value: int) -> Array:
        """Return the number of cells with a value per sample."""
        counts: Array = (self.values == value).sum(axis=(1, 2))[self.rows]
        return counts

    def count_around(self, y: Array, x: Array, value: int) -> Array:
        """Return the number of neighbours with a value, of eight."""
        equal = np.pad(self.values == value, ((0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(equal, (3, 3), axis=(1, 2))
        near = windows.sum(axis=(3, 4)) - equal[:, 1:-1, 1:-1]
        return np.asarray(near[self.rows, y, x])


class Places:
    """Rows and columns of objects, of shape (rows, objects, 2), in a field of a size."""

    def __init__(self, values: Array, height: int, width: int) -> None:
        self.values, self.height, self.width = values, height, width

    def free(self, row: Array, column: Array) -> Array:
        """Return the mask of rows whose cell is inside and empty."""
        taken = (self.values == np.stack([row, column], axis=1)[:, None]).all(axis=2).any(axis=1)
        inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        return np.asarray(inside & ~taken)


def evaluate(text: str, names: Mapping[str, Any]) -> Array:
    """Return the value of an expression for all rows.

    Args:
        text: Arithmetic, comparisons and calls of `FUNCTIONS`.
        names: Values of the variables.
    """
    return np.asarray(eval(text, {"__builtins__": {}}, {**_BATCH, **names}))  # noqa: S307  # ours


def _distinct(*values: Array) -> Array:
    ordered = np.sort(np.stack(np.broadcast_arrays(*values)), axis=0)
    found: Array = 1 + (np.diff(ordered, axis=0) != 0).sum(axis=0)
    return found


_BATCH = {
    "at": Boards.at,
    "count": Boards.count,
    "count_around": Boards.count_around,
    "differing": lambda one, other: (one.values != other.values).sum(axis=(1, 2))[one.rows],
    "distinct": _distinct,
    "free": Places.free,
    "toward": lambda distance: np.where(distance > 0, 1, -1),
    "away": lambda distance: np.where(distance < 0, 1, -1),
    "abs": np.abs,
    "min": lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)),
    "max": lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)),
}
