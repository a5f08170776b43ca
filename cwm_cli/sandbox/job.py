"""What a program is asked: its text and the inputs of every row, as raw bytes."""

import marshal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.arena import Layout

_ALIGNMENT = 16
_HOW = ("planners", "is_script", "function", "again", "gated", "form", "valid", "is_timed")


@dataclass(frozen=True)
class Job:
    """A program and its inputs, in the order in which it is asked.

    `rows` are the numbers that the rows had before they were shuffled. With
    `planners` (names and options, the first that suits is used) the program is not
    asked for rows but planned with; a script is run once and neither, with a
    `function` to call that once. The last `again` rows are asked of a program that
    is loaded anew. A `gated` program may use no module or function that reaches
    beyond computing. `form` is how it is planned with: scalar, compiled, or auto.
    With `valid` a step has to say as well which actions are valid after it. A job
    that `is_timed` takes as many steps from its rows, in a form, as it is asked for.
    """

    program: str
    seed: int
    rows: np.ndarray
    observation_space: Space
    action_space: Space
    columns: Columns
    planners: Sequence[tuple[str, dict[str, Any]]] = ()
    is_script: bool = False
    function: str = ""
    again: int = 0
    gated: bool = False
    form: str = "auto"
    valid: bool = False
    is_timed: bool = False

    def encode(self) -> bytes:
        """Return the length of a header, the header, and the columns one after the other."""
        arrays = [self.rows, *self.observations, *self.actions]
        header = {
            "program": self.program,
            "seed": self.seed,
            "planners": [list(planner) for planner in self.planners],
            "is_script": self.is_script,
            "function": self.function,
            "again": self.again,
            "gated": self.gated,
            "form": self.form,
            "valid": self.valid,
            "is_timed": self.is_timed,
            "observation_space": self.observation_space.to_json(),
            "action_space": self.action_space.to_json(),
            "columns": [[array.dtype.str, list(array.shape)] for array in arrays],
        }
        text = marshal.dumps(header)
        parts = [len(text).to_bytes(8, "little"), text]
        for array in arrays:
            parts.append(bytes(-sum(map(len, parts)) % _ALIGNMENT))
            parts.append(array.tobytes())
        return b"".join(parts)

    @classmethod
    def decode(cls, buffer: Any) -> Self:
        """Read what `encode` wrote; the columns are views of the buffer."""
        start = 8 + int.from_bytes(buffer[:8], "little")
        header = marshal.loads(buffer[8:start])  # noqa: S302  # the trusted side wrote it
        observation_space = Space.from_json(header["observation_space"])
        action_space = Space.from_json(header["action_space"])
        rows, *arrays = _arrays(buffer, start, header["columns"])
        leaves = [*observation_space.leaves("observations"), *action_space.leaves("actions")]
        columns = {leaf.name: array for leaf, array in zip(leaves, arrays, strict=True)}
        spaces = (observation_space, action_space)
        how = {name: header[name] for name in _HOW}
        return cls(header["program"], header["seed"], rows, *spaces, columns, **how)

    @property
    def layout(self) -> Layout:
        """Where the answers go."""
        actions = self.action_space.count if self.valid else 0
        return Layout(self.observation_space, len(self.rows), actions)

    @property
    def draws(self) -> bool:
        """Whether the program may draw random numbers, which takes seeding them."""
        return "random" in self.program

    @property
    def observations(self) -> list[np.ndarray]:
        """The leaves of the observations, in the types that programs see."""
        leaves = self.observation_space.leaves("observations")
        return [_plain(self.columns[name], space) for name, space in leaves]

    @property
    def actions(self) -> list[np.ndarray]:
        """The leaves of the actions, in the types that programs see."""
        leaves = self.action_space.leaves("actions")
        return [_plain(self.columns[name], space) for name, space in leaves]


def _plain(column: np.ndarray, leaf: Space) -> np.ndarray:
    """Return a column of float64, of int64, or of texts as they are."""
    if leaf.kind == "text":
        return column
    return column.astype("<f8" if leaf.is_float else "<i8", copy=False)


def _arrays(buffer: Any, offset: int, columns: list[Any]) -> Iterator[np.ndarray]:
    """Yield views of the columns that begin after `offset`."""
    for dtype, shape in columns:
        offset += -offset % _ALIGNMENT
        array: np.ndarray = np.ndarray(shape, dtype, buffer, offset)
        offset += array.nbytes
        yield array
