"""What a planning session and the process of its program say to each other.

A question is a decision's number, its horizon and an observation; a reply is
a number of actions and of model steps. Both have a length first, and the
layout of the rest follows from the spaces.
"""

from math import prod
from struct import Struct
from typing import Any

import numpy as np

from cwm_cli.packing import Space
from cwm_cli.sandbox.answers import values

QUESTION = Struct("<I2Q")
"""Bytes of the observation that follows, number of the decision, horizon."""

REPLY = Struct("<IQ")
"""Bytes of the actions that follow, steps of the model."""


class Record:
    """Values of a space as bytes of one length, in the types that programs see."""

    def __init__(self, space: Space, name: str) -> None:
        self._space, self._name = space, name
        leaves = [(leaf.name, _dtype(leaf.space), leaf.space.shape) for leaf in space.leaves(name)]
        self._leaves = leaves
        self.size = sum(np.dtype(dtype).itemsize * prod(shape) for _, dtype, shape in leaves)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value; ValueError when it is not of the space."""
        columns = self._space.pack(self._name, [value])
        return b"".join(columns[name].astype(dtype).tobytes() for name, dtype, _ in self._leaves)

    def decode(self, data: bytes) -> Any:
        """Return the value that `encode` was given, all its own."""
        offset, columns = 0, []
        for _, dtype, shape in self._leaves:
            column: np.ndarray = np.ndarray((1, *shape), dtype, data, offset)
            columns.append(column)
            offset += column.nbytes
        return next(values(self._space, iter(columns)))


def _dtype(leaf: Space) -> str:
    """Return the type that a leaf is sent in."""
    if leaf.kind == "text":
        return f"<U{max(1, leaf.max_length)}"
    return "<f8" if leaf.is_float else "<i8"
