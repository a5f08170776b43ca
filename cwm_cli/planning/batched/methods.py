"""Attributes and methods of values."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from cwm_cli.planning.batched import lanes, numerics, shapes
from cwm_cli.planning.batched.creation import array
from cwm_cli.planning.batched.lanes import (
    SEQUENCES,
    Mask,
    ReadOnlyDict,
    ReadOnlyList,
    Value,
    has_lanes,
    only,
    present,
    refuse,
    truth,
)
from cwm_cli.planning.batched.operators import equal
from cwm_cli.planning.batched.places import at, owned
from cwm_cli.planning.batched.sharing import merge
from cwm_cli.planning.batched.tables import find, flat, value_at, varies

_CHANGING = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "add",
        "discard",
    ]
)
CHANGING = _CHANGING | {"fill", "put", "resize", "partition", "itemset", "popitem", "appendleft"}
"""Methods that change their object."""


def attribute(value: Value, name: str) -> Value:
    """Return an attribute of a value."""
    if isinstance(value, np.ndarray):
        return _ATTRIBUTES.get(name, _no_attribute)(value)
    if isinstance(value, int | float | np.generic) and name in ("real", "size", "ndim", "shape"):
        return getattr(np.asarray(value), name)
    return refuse(f"attribute {name} of such a value")


def method(value: Value, name: str, mask: Mask, *args: Value, **options: Value) -> Value:
    """Call a method of a value."""
    value = present(value, mask)
    if isinstance(value, np.ndarray):
        return _array_method(value, name)(*args, **options)
    if name in _CHANGING:
        _check_changeable(value, mask)
    if isinstance(value, int | float | np.generic):
        return _number_method(value, name)(*args, **options)
    if (own := _own_method(value, name)) is not None:
        return own(value, mask, *args)
    known = isinstance(value, list | tuple | dict | set | frozenset | str)
    if not known or name.startswith("__"):
        refuse(f"method {name} of such a value")
    if name not in ("append", "insert") and any(map(has_lanes, args)):
        refuse(f"method {name} with what differs from lane to lane")
    return getattr(value, name)(*args, **options)


def _own_method(value: Value, name: str) -> Callable[..., Value] | None:
    """Return a method that looks something up."""
    if isinstance(value, SEQUENCES):
        return {"index": _index, "count": _count}.get(name)
    return _get if isinstance(value, dict) and name == "get" else None


def _count(value: Sequence[Value], _: Mask, element: Value) -> Value:
    """Return how many elements are equal to one."""
    count: Value = 0
    for part in value:
        count = count + np.multiply(truth(equal(element, part)), 1)
    return count


def _check_changeable(value: Value, mask: Mask) -> None:
    """Refuse to change a constant, or an object in some lanes only."""
    if lanes.settled(mask) is not True or isinstance(
        value, ReadOnlyList | ReadOnlyDict | frozenset
    ):
        refuse("a list, dict or set is changed in some lanes only, or is a constant")


def _get(value: dict[Any, Value], mask: Mask, key: Value, default: Value = None) -> Value:
    """Return a value of a dict, or something else."""
    if not any(map(has_lanes, flat(key))):
        return value.get(key, default)
    if not value:
        return default
    positions = find(key, value)
    return merge(lanes.settled(positions >= 0), value_at(value, positions), default)


def _index(value: Value, mask: Mask, element: Value) -> Value:
    """Return the first place of an element."""
    if not varies(element) and not varies(value) and not any(map(has_lanes, flat(element))):
        return value.index(element)
    place: Value = 0
    found: Mask = False
    for number in reversed(range(len(value))):
        here = truth(equal(element, value[number]))
        place, found = lanes.select(here, number, place), lanes.either(found, here)
    lanes.demand(found, mask, "an element is not in a list")
    return place


def _item(value: np.ndarray, *index: Value) -> Value:
    """Return an element as a number."""
    return at(value, index if len(index) > 1 else index[0]) if index else only(value)


def _as_type(value: np.ndarray, dtype: Any, *, copy: bool = True) -> Value:
    """Return an array of another type."""
    return truth(value) if value.ndim == 1 and dtype in (bool, np.bool_) else value.astype(dtype)


def _listed(value: np.ndarray) -> Value:
    """Return lists instead of arrays."""
    return owned(value) if value.ndim < 2 else [_listed(part) for part in value]


def _no_attribute(_: np.ndarray) -> Value:
    return refuse("such an attribute of an array")


def _array_method(value: np.ndarray, name: str) -> Callable[..., Value]:
    """Return a method of an array."""
    function = _FUNCTIONS.get(name)
    if function is None:
        refuse(f"method {name} of an array")
    return lambda *args, **options: function(value, *args, **options)


def _number_method(value: Value, name: str) -> Callable[..., Value]:
    """Return a method of a number that is the same in all lanes."""
    if name not in ("item", "is_integer", "astype", "copy", "bit_length", "tolist"):
        refuse(f"method {name} of a number")
    return getattr(value, name)  # type: ignore[no-any-return]


_ATTRIBUTES: dict[str, Callable[[np.ndarray], Value]] = {
    "shape": lambda value: value.shape[:-1],
    "size": lambda value: prod(value.shape[:-1]),
    "ndim": lambda value: max(value.ndim - 1, 0),
    "dtype": lambda value: value.dtype,
    "T": shapes.transpose,
    "flat": shapes.flatten,
    "real": lambda value: value,
}

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "item": _item,
    "tolist": _listed,
    "astype": _as_type,
    "copy": array,
    "flatten": lambda value: shapes.flatten(value).copy(),
    "ravel": shapes.flatten,
    "reshape": shapes.reshape,
    "squeeze": shapes.squeeze,
    "transpose": shapes.transpose,
    "dot": numerics.FUNCTIONS[np.dot],
    "clip": lambda value, min=None, max=None: numerics.clip(value, min, max),
    "round": numerics.rounded,
    "cumsum": numerics.FUNCTIONS[np.cumsum],
    **{
        name: numerics.FUNCTIONS[getattr(np, name)]
        for name in ("sum", "mean", "prod", "max", "min", "std", "var", "any", "all")
    },
    "argmax": numerics.FUNCTIONS[np.argmax],
    "argmin": numerics.FUNCTIONS[np.argmin],
}
