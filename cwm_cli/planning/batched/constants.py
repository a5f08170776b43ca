"""Values that a program has before its first step, as values for all lanes."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from math import isnan
from types import NoneType
from typing import Any

import numpy as np

from cwm_cli.planning.batched.lanes import ReadOnlyDict, ReadOnlyList, Value, refuse


class FixedList(ReadOnlyList):
    """A list that is the same in all lanes."""


class FixedDict(ReadOnlyDict):
    """A dict that is the same in all lanes."""


class FixedTuple(tuple[Any, ...]):
    """A tuple, with room for what is worked out about it."""


class FixedSet(frozenset[Any]):
    """A set that is the same in all lanes."""


class Unknown:
    """Something that no step may touch, but for asking whether it is None."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return refuse("it uses an object that is not known here")

    def __eq__(self, other: object) -> bool:
        return refuse("it uses an object that is not known here")


_PLAIN = (bool, int, float, str, bytes, NoneType)

_CONTAINERS: dict[type, Callable[[Any], Value]] = {
    list: lambda value: FixedList(map(fixed, value)),
    tuple: lambda value: FixedTuple(map(fixed, value)),
    set: lambda value: FixedSet(map(fixed, value)),
    frozenset: lambda value: FixedSet(map(fixed, value)),
    dict: lambda value: FixedDict({key: fixed(part) for key, part in value.items()}),
}


def fixed(value: Any) -> Value:
    """Return what stands for a value that was there before the first step."""
    if isinstance(value, np.ndarray):
        return _fixed_array(value)
    if isinstance(value, float | np.floating) and isnan(value):
        return Unknown()  # minimum and maximum do not treat it as Python's min and max do
    if isinstance(value, IntEnum):
        return int(value)
    if type(value) in _PLAIN or isinstance(value, np.number | np.bool_):
        return value
    make = _CONTAINERS.get(type(value))
    return Unknown() if make is None else make(value)


def changeable(value: Value, lanes: int) -> Value:
    """Return a copy of a constant in which every lane can be changed by itself."""
    if isinstance(value, np.ndarray) and value.ndim:
        return np.repeat(value, lanes, -1)
    if isinstance(value, FixedList):
        return [changeable(part, lanes) for part in value]
    if isinstance(value, FixedDict):
        return {key: changeable(part, lanes) for key, part in value.items()}
    return value


def mutables(value: Any) -> Iterator[int]:
    """Yield numbers that identify what can change within a value."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield id(value)
    elif isinstance(value, list | tuple | dict | set):
        if not isinstance(value, tuple):
            yield id(value)
        for part in value.values() if isinstance(value, dict) else value:
            yield from mutables(part)


def _fixed_array(array: np.ndarray) -> Value:
    """Return an array with a lane axis of length 1."""
    if array.dtype.kind not in "biufUS" or (array.dtype.kind == "f" and np.isnan(array).any()):
        return Unknown()
    if not array.ndim:
        return array[()]
    copy = array[..., None].copy()
    copy.flags.writeable = False
    return copy
