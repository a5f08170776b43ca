"""Values of spaces as JSON: the types that pydantic validates, and the conversion of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from cwm_cli.data.spaces import Columns, Space

INT64 = np.iinfo(np.int64)

Integer = Annotated[int, Field(strict=True, ge=INT64.min, le=INT64.max)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


def json_type(space: Space, name: str) -> Any:
    """Return the type of the JSON form of values of a space, for pydantic.

    Arrays are nested lists, tuples are lists, and dicts are objects.

    Args:
        space: The space.
        name: The name of the type; pydantic requires one for each object.
    """
    if space.kind == "discrete":
        low, high = int(space.low[0]), int(space.high[0])
        return Annotated[int, Field(strict=True, ge=low, le=high)]
    if space.kind == "text":
        return Annotated[str, Field(strict=True, max_length=space.max_length)]
    if space.kind == "tuple":
        parts = [json_type(child, f"{name}{place}") for place, child in space.parts()]
        return tuple[tuple(parts)]  # type: ignore[misc]  # the types are known at run time
    if space.kind == "dict":
        pairs = zip(space.keys, space.children, strict=True)
        fields = {key: json_type(part, f"{name}{n}") for n, (key, part) in enumerate(pairs)}
        make: Any = TypedDict  # type checkers cannot know this type
        kind = make(name, fields)
        kind.__pydantic_config__ = ConfigDict(extra="forbid")
        return kind
    found: Any = Number if space.is_float else Integer
    for length in reversed(space.shape):
        found = Annotated[list[found], Field(min_length=length, max_length=length)]
    return found


def read_values(
    space: Space, name: str, values: Sequence[Any], *, bounded: bool = False
) -> list[Any]:
    """Return the values of validated JSON data.

    Args:
        space: The space.
        name: The name of the values for messages.
        values: JSON data of the type `json_type(space)`.
        bounded: Whether numbers of a box must be within its bounds.

    Raises:
        ValueError: A value is not in the space.
    """
    columns = space.pack(name, values)
    for leaf in space.leaves(name):
        leaf.space.check(columns[leaf.name])
        if bounded and leaf.space.kind == "box":
            _check_bounds(leaf.space, leaf.name, columns)
    return [space.unpack(name, columns, row) for row in range(len(values))]


def _check_bounds(space: Space, name: str, columns: Columns) -> None:
    """Raise ValueError if a number is outside its bounds, except for rounding to 32 bits."""
    column = columns[name]
    slack = 1e-5 * np.maximum(1, np.abs(column))
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    wrong = (column < low - slack) | (column > high + slack)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(f"{column[place]} is out of bounds ({name}, row {place[0]})")
