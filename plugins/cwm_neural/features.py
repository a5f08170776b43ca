"""Encode values of a space as rows of real numbers for networks, and decode them."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from cwm_cli.data.spaces import Columns, Space

MAX_VALUES, MAX_VALUES_EACH = 1024, 32
"""Maximum number of values of a symbol: of a single number, and of one of several components.

Whole numbers with more values are encoded as rounded real numbers. Each value of a symbol is a
feature, and a grid has many cells.
"""


class FeaturePart(NamedTuple):
    """A column, and its features: `first` to `end` among the numbers or among the symbols.

    `values` is the number of values of a symbol; 0 for numbers, -1 for texts.
    """

    name: str
    space: Space
    values: int
    first: int
    end: int


class RowFeatures:
    """Encodes columns of a space as features (rows, size): first numbers, then symbols.

    Real numbers are features themselves. Whole numbers with few values are symbols in one-hot
    encoding. Texts have no features.
    """

    def __init__(self, name: str, space: Space) -> None:
        self.parts: list[FeaturePart] = []
        self.numbers = symbols = 0
        for leaf in space.leaves(name):
            inner, values = leaf.space, values_of(leaf.space)
            size = prod(inner.shape)
            if values > 0:
                self.parts.append(FeaturePart(*leaf, values, symbols, symbols + size * values))
                symbols += size * values
            else:
                size = size if values == 0 else 0
                self.parts.append(FeaturePart(*leaf, values, self.numbers, self.numbers + size))
                self.numbers += size
        self.size = self.numbers + symbols
        self.groups = [
            (self.numbers + part.first + at, self.numbers + part.first + at + part.values)
            for part in self.parts
            if part.values > 0
            for at in range(0, part.end - part.first, part.values)
        ]
        """First and last index (exclusive) of the features of each symbol."""
        self.symbols = np.repeat(np.arange(len(self.groups)), [b - a for a, b in self.groups])
        """Index of the symbol of each symbol feature."""
        bounded = [part for part in self.parts if part.values == 0]
        self.low, self.high = (
            np.concatenate([np.zeros(0), *(getattr(part.space, side) for part in bounded)])
            for side in ("low", "high")
        )
        """Bounds of the numbers."""

    def encode(self, columns: Columns, prefix: str = "") -> np.ndarray:
        """Return the features of columns; `prefix` of their names is e.g. `next_`."""
        count = len(columns[prefix + self.parts[0].name])
        found = np.zeros((count, self.size), np.float32)
        for part in self.parts:
            column = columns[prefix + part.name]
            if part.values == 0:
                found[:, part.first : part.end] = column.reshape(count, -1)
            elif part.values > 0:
                places = column.reshape(count, -1).astype(np.int64) - np.array(
                    part.space.low, np.int64
                )
                places = places.clip(0, part.values - 1)
                begins = self.numbers + part.first + np.arange(places.shape[1]) * part.values
                np.put_along_axis(found, begins + places, 1.0, axis=1)
        return found

    def decode(self, features: np.ndarray, before: Columns) -> Columns:
        """Return the columns of features; texts are copied from the columns `before`."""
        count, found = len(features), {}
        for part in self.parts:
            shape = (count, *part.space.shape)
            if part.values < 0:
                found[part.name] = before[part.name]
                continue
            if part.values == 0:
                numbers = features[:, part.first : part.end].astype(np.float64)
                numbers = numbers.clip(part.space.low, part.space.high)
                rounded = numbers if part.space.is_float else np.rint(numbers)
            else:
                own = features[:, self.numbers + part.first : self.numbers + part.end]
                places = own.reshape(count, -1, part.values).argmax(axis=2)
                rounded = places + np.array(part.space.low, np.int64)
            found[part.name] = rounded.reshape(shape).astype(part.space.dtype)
        return found


def values_of(space: Space) -> int:
    """Return the number of values of a symbol leaf; 0 for numbers, -1 for texts."""
    if space.kind == "text":
        return -1
    if space.is_float or not space.low or not np.isfinite([*space.low, *space.high]).all():
        return 0
    most = int(max(high - low for low, high in zip(space.low, space.high, strict=True))) + 1
    return most if most <= (MAX_VALUES if space.size == 1 else MAX_VALUES_EACH) else 0
