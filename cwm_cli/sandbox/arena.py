"""The arena: shared memory of fixed size in which a program's answers come back.

Every answer has one slot of known type and width, so there is nothing to parse
and whatever a program writes there is at worst a wrong answer. Both sides
derive the layout from the observation space and the number of rows.
"""

from collections.abc import Iterable
from enum import IntEnum
from math import prod
from mmap import mmap
from typing import Literal, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Columns, Space

CONTROL_BYTES = 4096
"""Size of the first page, the only one that the worker looks at."""

NEVER = np.iinfo(np.int64).min
"""Stands in integer slots for what no integer can match, such as 1.5."""

CONTROL = (
    ("progress", "<u8", ()),
    ("phase", "u1", ()),
    ("kind", "u1", ()),
    ("line", "<i4", ()),
    ("message", "S4000", ()),
)
"""Fields of the first page; `watching` reads the first three where they are."""

KINDS: tuple[Literal["load_error", "step_error", "wrong_output", "memory"], ...] = (
    "load_error",
    "step_error",
    "wrong_output",
    "memory",
)
"""Failures that a program can report about itself; `kind` counts them from 1, and 0 is none."""


class Phase(IntEnum):
    """How far a program has come."""

    LOADING = 0
    STEPPING = 1
    DONE = 2


class Slot(NamedTuple):
    """Where one column lies and of what type it is."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


class Layout:
    """Slots of the control page and of the answers to `rows` rows.

    `answers` names the slots that hold what a program answered. With `actions` there
    is one for which of so many actions are valid.
    """

    def __init__(self, space: Space, rows: int, actions: int = 0) -> None:
        columns = [
            (name, slot_type(leaf), (rows, *leaf.shape))
            for name, leaf in space.leaves("next_observations")
        ]
        columns += [("rewards", "<f8", (rows,)), ("terminations", "u1", (rows,))]
        if actions:
            columns += [("valid_actions", "u1", (rows, actions))]
        self.answers = [name for name, *_ in columns]
        columns += [("status", "u1", (rows,))]
        self.slots: dict[str, Slot] = {}
        self.size = 0
        self._place(CONTROL)
        self.size = CONTROL_BYTES
        self._place(columns)

    def views(self, arena: bytes | bytearray | mmap) -> Columns:
        """Return an array over every slot; writable when the arena is."""
        return {
            name: np.ndarray(slot.shape, slot.dtype, arena, slot.offset)
            for name, slot in self.slots.items()
        }

    def _place(self, fields: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        """Append fields, each at a multiple of eight bytes."""
        for name, dtype, shape in fields:
            self.slots[name] = Slot(self.size, dtype, shape)
            self.size += -(-prod(shape) * np.dtype(dtype).itemsize // 8) * 8


def slot_type(leaf: Space) -> str:
    """Return the numpy type in which answers for a leaf are kept.

    Texts have room for one character more than the space allows: what is
    longer is cut to that, and so never matches.
    """
    if leaf.kind == "text":
        return f"S{4 * (leaf.max_length + 1)}"
    return "<f8" if leaf.is_float else "<i8"
