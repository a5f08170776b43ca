"""Python's built-in functions on values of lanes."""

import builtins
from collections.abc import Callable, Iterator
from functools import cache, reduce
from typing import Any

import numpy as np

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.batched.lanes import (
    Mask,
    Value,
    has_lanes,
    kind,
    only,
    present,
    refuse,
    truth,
)
from cwm_cli.planning.batched.operators import add, floor_divide, power, remainder
from cwm_cli.planning.batched.places import each, own_each, owned
from cwm_cli.planning.batched.tables import varies

_NEAR_HALF = 1e-6
_EXAMPLES = {"bool": True, "int64": 1, "float64": 1.0}


def extreme(ufunc: np.ufunc, plain: Callable[..., Any]) -> Callable[..., Value]:
    """Return `min` or `max`."""

    def apply(*values: Value) -> Value:
        values = tuple(each(values[0])) if len(values) == 1 else values
        if not any(map(has_lanes, values)):
            return plain(values) if not any(map(varies, values)) else refuse("min or max of tuples")
        if any((has_lanes(value) and value.ndim > 1) or kind(value) in "OU" for value in values):
            refuse("min or max of arrays")
        return reduce(ufunc, values)

    return apply


def to_int(value: Value = 0, mask: Mask = True) -> Value:
    """Round towards zero."""
    if not has_lanes(value):
        return int(value)
    value = _number(value, int)
    if value.dtype.kind != "f":
        return value.astype(np.int64)
    return (np.where(mask, value, 0) if mask is not True else value).astype(np.int64)


def to_float(value: Value = 0.0) -> Value:
    """Convert to a real number."""
    return _number(value, float).astype(np.float64) if has_lanes(value) else float(value)


def to_bool(value: Value = False) -> Mask:
    """Return whether a value counts as true."""
    return truth(value)


def rounded(value: Value, digits: Value = None) -> Value:
    """Round to the nearest, which must not be a matter of how."""
    if not has_lanes(value):
        return round(value, digits)
    if digits is None:
        return np.rint(value).astype(np.int64) if value.ndim == 1 else refuse("round of an array")
    scaled = value * 10.0**digits
    near = np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < _NEAR_HALF
    lanes.demand(~near, True, "a number halfway between two to round to")
    return np.round(value, digits)


def absolute(value: Value) -> Value:
    """Return the absolute value."""
    return value.astype(np.int64) if kind(value) == "b" and has_lanes(value) else abs(value)


def length(value: Value) -> int:
    """Return the number of elements."""
    if has_lanes(value) and value.ndim == 1:
        refuse("len of a number")
    return len(value)


def total(values: Value, start: Value = 0) -> Value:
    """Add up."""
    for value in each(values):
        start = add(start, value)
    return start


def is_any(values: Value) -> Mask:
    """Return where any element is true."""
    nobody: Mask = False
    return reduce(lanes.either, map(truth, each(values)), nobody)


def is_every(values: Value) -> Mask:
    """Return where all elements are true."""
    everybody: Mask = True
    return reduce(lanes.meet, map(truth, each(values)), everybody)


def steps(*bounds: Value) -> range:
    """Return a range that is the same in all lanes."""
    if any(map(has_lanes, bounds)):
        refuse("a range whose bounds differ from lane to lane")
    return range(*bounds)


def is_instance(value: Value, types: Any) -> bool:
    """Return whether a value may be of a type; a number of Python may also be one of numpy."""
    if not has_lanes(value):
        return isinstance(present(value, True), types)
    if value.ndim > 1:
        return isinstance(value, types)
    return _may_be(value.dtype, types)


@cache
def _may_be(dtype: Any, types: Any) -> bool:
    """Whether a number of a type may be of others."""
    return isinstance(dtype.type(1), types) or isinstance(_EXAMPLES.get(dtype.name), types)


def has_attribute(value: Value, name: str) -> bool:
    """Return whether a value has an attribute."""
    if has_lanes(value) and value.ndim == 1:
        return hasattr(1.0, name) or (hasattr(np.float64(1), name) and not name.startswith("__"))
    return hasattr(value, name)


def paired(*values: Value, strict: bool = False) -> Iterator[tuple[Value, ...]]:
    """Return tuples of the elements of several sequences."""
    return zip(*map(own_each, values), strict=strict)


def numbered(values: Value, start: int = 0) -> Iterator[tuple[int, Value]]:
    """Return elements with their numbers."""
    return enumerate(own_each(values), start)


def backwards(values: Value) -> Iterator[Value]:
    """Return the elements, last first."""
    elements = each(values)
    return map(owned, reversed(elements))


def mapped(function: Callable[..., Value], *values: Value) -> Iterator[Value]:
    """Return what a function makes of every element."""
    return map(function, *map(own_each, values))


def listed(values: Value = ()) -> list[Value]:
    """Make a list."""
    return list(own_each(values))


def tupled(values: Value = ()) -> tuple[Value, ...]:
    """Make a tuple."""
    return tuple(own_each(values))


def in_order(values: Value) -> list[Value]:
    """Sort what is the same in all lanes."""
    elements = list(values if isinstance(values, set | frozenset) else each(values))
    if any(varies(element) or has_lanes(element) for element in elements):
        refuse("a sort of what differs from lane to lane")
    return sorted(elements)


def quotient(left: Value, right: Value, mask: Mask = True) -> tuple[Value, Value]:
    """Return what `divmod` returns."""
    return floor_divide(left, right, mask), remainder(left, right, mask)


def same_everywhere(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of what is the same in all lanes."""

    def apply(*values: Value) -> Any:
        if any(varies(value) or has_lanes(value) for value in values):
            refuse(f"{function.__name__} of what differs from lane to lane")
        return function(*values)

    return apply


def _number(value: np.ndarray, convert: type) -> np.ndarray:
    """Return numbers; for an array of one element numpy says whether that can be one."""
    if value.ndim > 1:
        convert(np.zeros(value.shape[:-1]))
        return only(value)
    return value if value.dtype.kind != "U" else refuse("a number from a text")


FUNCTIONS: dict[Any, Callable[..., Value]] = {
    builtins.min: extreme(np.minimum, min),
    builtins.max: extreme(np.maximum, max),
    builtins.int: to_int,
    builtins.float: to_float,
    builtins.bool: to_bool,
    builtins.round: rounded,
    builtins.abs: absolute,
    builtins.len: length,
    builtins.sum: total,
    builtins.any: is_any,
    builtins.all: is_every,
    builtins.range: steps,
    builtins.isinstance: is_instance,
    builtins.hasattr: has_attribute,
    builtins.zip: paired,
    builtins.enumerate: numbered,
    builtins.reversed: backwards,
    builtins.map: mapped,
    builtins.list: listed,
    builtins.tuple: tupled,
    builtins.sorted: in_order,
    builtins.divmod: quotient,
    builtins.pow: power,
    builtins.set: same_everywhere(set),
    builtins.frozenset: same_everywhere(frozenset),
    builtins.dict: same_everywhere(dict),
    builtins.slice: slice,
}
"""What stands for built-in functions."""

MASKED: frozenset[Callable[..., Value]] = frozenset({to_int, quotient, power})
"""Those that have to know which lanes are alive."""
