"""Spaces in words."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from math import isinf

import numpy as np

from cwm_cli.data.spaces import Space

MAX_LINES = 40
"""The bounds of an array are listed in at most this many lines."""


def words(space: Space, indent: str = "") -> str:
    """Say what the values of a space are; a nested space takes a line for every part."""
    if space.kind == "discrete":
        return f"an integer, {_range(space, 0)}"
    if space.kind == "text":
        return f"a text of at most {space.max_length} characters"
    if space.kind == "tuple":
        return "a tuple of" + _parts(range(len(space.children)), space.children, indent)
    if space.kind == "dict":
        return "a dict of" + _parts(space.keys, space.children, indent)
    return _array(space, indent)


def _parts(names: Sequence[object], children: Sequence[Space], indent: str) -> str:
    """Write a line for every part."""
    inner = indent + "  "
    pairs = zip(names, children, strict=True)
    return "".join(f"\n{inner}- [{name!r}]: {words(child, inner)}" for name, child in pairs)


def _array(space: Space, indent: str) -> str:
    """Say the shape and type of an array, and its bounds: once, or by component."""
    shape = f"an array of shape {space.shape}, {space.dtype}"
    runs = list(_runs(space))
    if len(runs) == 1:
        first = _range(space, 0)
        return f"{shape}, {first if first == 'unbounded' else f'each {first}'}"
    order = "" if len(space.shape) == 1 else " (numbered in C order)"
    lines = [f"\n{indent}  - {place}: {bounds}" for place, bounds in islice(runs, MAX_LINES)]
    more = f"\n{indent}  - and so on" if len(runs) > MAX_LINES else ""
    return f"{shape}, by component{order}:{''.join(lines)}{more}"


def _runs(space: Space) -> Iterator[tuple[str, str]]:
    """Yield neighbouring components of equal bounds, and these bounds."""
    for bounds, group in groupby(range(space.size), lambda place: _range(space, place)):
        first, *others = group
        yield f"{first} to {others[-1]}" if others else f"{first}", bounds


def _range(space: Space, place: int) -> str:
    """Say the bounds of a component."""
    low, high = space.low[place], space.high[place]
    if isinf(low) and isinf(high):
        return "unbounded"
    if isinf(low) or isinf(high):
        return (
            f"at most {_number(space, high)}" if isinf(low) else f"at least {_number(space, low)}"
        )
    return f"from {_number(space, low)} to {_number(space, high)}"


def _number(space: Space, bound: float) -> str:
    """Write a bound as short as its type allows."""
    return f"{np.dtype(space.dtype).type(bound)!s}".removesuffix(".0")
