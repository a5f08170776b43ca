"""Looking things up at a place that differs from lane to lane."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.batched.constants import FixedDict, FixedList, FixedSet, FixedTuple
from cwm_cli.planning.batched.lanes import (
    SEQUENCES,
    Mask,
    Maybe,
    ReadOnlyDict,
    ReadOnlyList,
    Value,
    has_lanes,
    kind,
    refuse,
)

Take = Callable[[np.ndarray], Value]
"""Returns the elements at places; IndexError where there is none."""

_MOST_CELLS = 1 << 20
_FIXED = (FixedList, FixedDict, FixedTuple, FixedSet)


def gather(take: Take, places: np.ndarray, size: int, mask: Mask) -> Value:
    """Return elements of a table of some size; only lanes that are alive must find one."""
    try:
        return take(places)
    except IndexError:
        inside = (places >= -size) & (places < size)
        lanes.demand(inside, mask, "an index is out of range")
        return take(np.where(inside, places, 0))


def pick(sequence: Sequence[Value], places: np.ndarray, mask: Mask) -> Value:
    """Return an element of a list or tuple."""
    if kind(places) not in "iub" or places.ndim > 1:
        refuse("an index is no integer")
    if kind(places) == "b":
        places = places.astype(np.int64)
    if not isinstance(sequence, _FIXED) and any(map(varies, sequence)):
        return _chosen(sequence, places, mask)
    take = _remembered(sequence, "_elements", lambda: table(list(sequence)))
    return gather(take, places, len(sequence), mask)


def varies(value: Value) -> bool:
    """Whether a value may differ from lane to lane."""
    if isinstance(value, _FIXED):
        return False
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.shape[-1] != 1
    if isinstance(value, SEQUENCES):
        return any(map(varies, value))
    return isinstance(value, Maybe) or (isinstance(value, dict) and varies([*value.values()]))


def table(values: list[Value]) -> Take:
    """Return what looks constants up."""
    if not values:
        refuse("an empty table")
    if all(isinstance(value, bool | int | float | np.generic) for value in values):
        return partial(np.take, np.array(values))
    if all(isinstance(value, str) for value in values):
        return partial(np.take, np.array(values))
    if any(value is None for value in values):
        return _optional_table(values)
    if all(has_lanes(value) for value in values):
        return _array_table(values)
    first = values[0]
    if all(isinstance(value, FixedDict) and list(value) == list(first) for value in values):
        columns = {key: table([value[key] for value in values]) for key in first}
        return lambda places: ReadOnlyDict({key: take(places) for key, take in columns.items()})
    return _sequence_table(values)


def find(key: Value, container: Iterable[Any]) -> np.ndarray:
    """Return the position of a key in a set or dict; -1 where it lacks."""
    keys: _Keys = _remembered(container, "_places", lambda: _Keys(list(container)))
    return keys.find(key)


def value_at(container: dict[Any, Value], positions: np.ndarray) -> Value:
    """Return values of a dict at positions that `find` has returned; any where it lacks."""
    if varies(list(container.values())) and not isinstance(container, _FIXED):
        return _chosen(list(container.values()), np.maximum(positions, 0), True)
    take = _remembered(container, "_elements", lambda: table(list(container.values())))
    return take(np.maximum(positions, 0))


class _Keys:
    """Positions of keys in a box that has a cell for every combination of numbers, and a margin."""

    def __init__(self, keys: list[Any]) -> None:
        self._form = form(keys[0]) if keys else None
        if self._form is None or any(form(key) != self._form for key in keys):
            refuse("a set or dict with keys of several forms")
        if kind(next(iter(flat(keys[0])))) == "O":
            refuse("a set or dict with keys that are no numbers")
        columns = np.array([list(flat(key)) for key in keys])
        if columns.dtype.kind not in "bif" or (columns != np.trunc(columns)).any():
            refuse("a set or dict with keys that are no whole numbers")
        columns = columns.astype(np.int64)
        self._low = (columns.min(0) - 1).tolist()
        self._sizes = (columns.max(0) - columns.min(0) + 3).tolist()
        if prod(self._sizes) > _MOST_CELLS:
            refuse("a set or dict with keys that lie too far apart")
        self._cells = np.full(prod(self._sizes), -1)
        self._cells[self._cell(columns.T)] = np.arange(len(keys))

    def find(self, key: Value) -> np.ndarray:
        """Return the position of a key, -1 where there is no such key."""
        if form(key) != self._form:
            return np.full(1, -1)
        parts = list(flat(key))
        positions = np.take(self._cells, self._cell([_whole(part) for part in parts]))
        for part in parts:
            if kind(part) == "f":
                positions = np.where(part == np.trunc(part), positions, -1)
        return np.atleast_1d(positions)

    def _cell(self, parts: Iterable[Value]) -> Value:
        """Return the cell of a key; what lies outside has its cell in the margin."""
        cell: Value = 0
        for part, low, size in zip(parts, self._low, self._sizes, strict=True):
            cell = cell * size + np.minimum(np.maximum(part, low) - low, size - 1)
        return cell


def form(key: Value) -> Any:
    """Return how numbers are nested in a key."""
    if isinstance(key, tuple):
        return tuple(map(form, key))
    if isinstance(key, list | dict | set) or (has_lanes(key) and key.ndim > 1):
        refuse("a key that cannot be hashed")
    return None if key is None else "text" if isinstance(key, str | bytes) else 0


def flat(key: Value) -> Iterable[Value]:
    """Yield the numbers in a key."""
    if not isinstance(key, tuple):
        yield key
        return
    for part in key:
        yield from flat(part)


def _whole(part: Value) -> Value:
    """Return a number without its fraction."""
    if kind(part) == "f":
        return np.trunc(part).astype(np.int64)
    return part.astype(np.int64) if kind(part) == "b" and has_lanes(part) else part


def _remembered(container: Any, name: str, make: Callable[[], Any]) -> Any:
    """Return what was worked out about a constant, or work it out; for others it may change."""
    if not isinstance(container, _FIXED):
        return make()
    known = vars(container)
    if name not in known:
        known[name] = make()
    return known[name]


def _chosen(sequence: Sequence[Value], places: np.ndarray, mask: Mask) -> Value:
    """Return an element of a sequence that holds values of lanes."""
    size = len(sequence)
    lanes.demand((places >= -size) & (places < size), mask, "an index is out of range")
    places = np.where(places < 0, places + size, places)
    chosen = sequence[0]
    for number, value in enumerate(sequence[1:], 1):
        chosen = lanes.select(places == number, value, chosen)
    return chosen


def _optional_table(values: list[Value]) -> Take:
    """Return what looks up constants of which some are None."""
    known = [value for value in values if value is not None]
    if not known:
        return lambda places: None
    take = table([known[0] if value is None else value for value in values])
    nones = np.array([value is None for value in values])
    return lambda places: Maybe(take(places), np.take(nones, places))


def _array_table(values: list[Value]) -> Take:
    """Return what looks up constant arrays."""
    if len({value.shape for value in values}) > 1:
        refuse("a table of arrays of different shapes")
    stacked = np.concatenate([value[None] for value in values])[..., 0]
    return lambda places: np.moveaxis(np.take(stacked, places, axis=0), 0, -1)


def _sequence_table(values: list[Value]) -> Take:
    """Return what looks up constant tuples or lists of one length."""
    first = values[0]
    kinds = {(type(value), len(value)) for value in values if isinstance(value, SEQUENCES)}
    if not isinstance(first, SEQUENCES) or len(kinds) > 1 or not first:
        refuse("a table of things that differ in type or length")
    if not all(isinstance(value, SEQUENCES) for value in values):
        refuse("a table of things that differ in type or length")
    columns = [table(list(column)) for column in zip(*values, strict=True)]
    make = ReadOnlyList if isinstance(first, list) else tuple
    return lambda places: make(take(places) for take in columns)
