"""Elements of arrays, lists, tuples, dicts and texts: read and changed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.batched.creation import array
from cwm_cli.planning.batched.lanes import (
    SEQUENCES,
    UNDEFINED,
    Mask,
    Maybe,
    ReadOnlyDict,
    ReadOnlyList,
    Value,
    has_lanes,
    kind,
    missing,
    present,
    refuse,
    shape_of,
)
from cwm_cli.planning.batched.sharing import check_changeable, merge
from cwm_cli.planning.batched.tables import find, flat, pick, value_at


def at(value: Value, index: Value, mask: Mask = True) -> Value:
    """Return what `value[index]` is; numbers out of an array may be views of it."""
    if isinstance(value, np.ndarray) and value.ndim > 1 and type(index) in (int, slice):
        return value[index]
    value = present(value, mask)
    if isinstance(value, np.ndarray):
        return _of_array(value, index, mask)
    if not any(map(has_lanes, flat(index))):
        return value[index]
    if isinstance(value, dict):
        return _of_dict(value, index, mask)
    if not isinstance(value, list | tuple | str) or isinstance(index, tuple):
        refuse("an index into something that has no elements")
    return pick(list(value) if isinstance(value, str) else value, index, mask)


def own_at(value: Value, index: Value, mask: Mask = True) -> Value:
    """Return what `value[index]` is; numbers out of an array stay when the array changes."""
    element = at(value, index, mask)
    if type(element) is np.ndarray and element.ndim == 1 and element.base is not None:
        return element.copy()
    return element


def owned(value: Value) -> Value:
    """Return a number that is no part of an array any more."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.base is not None:
        return value.copy()
    return value


def unpacked(value: Value, count: int, mask: Mask = True) -> Any:
    """Return the elements that are assigned to so many targets."""
    if isinstance(value, np.ndarray) and value.ndim > 1 and len(value) == count:
        return value
    value = present(value, mask)
    elements = each(value) if isinstance(value, np.ndarray | tuple | list | str) else None
    if isinstance(value, map | zip):
        elements = list(value)
    if elements is None or len(elements) != count:
        refuse(f"something other than {count} values to unpack")
    return elements


def own_unpacked(value: Value, count: int, mask: Mask = True) -> list[Value]:
    """Return elements that stay when the array changes."""
    return [owned(element) for element in unpacked(value, count, mask)]


def each(value: Value) -> Any:
    """Return what a loop goes over."""
    if isinstance(value, np.ndarray):
        if value.ndim < 2 or value.dtype.kind == "U":
            refuse("a loop over a number or a text")
        return list(value)
    if isinstance(value, set | frozenset):
        refuse("a loop over a set, whose order is not known")
    if isinstance(value, Maybe):
        refuse("a loop over something that may be None")
    return value


def own_each(value: Value) -> Any:
    """Return what a loop goes over; a number is as it was when its turn came."""
    if isinstance(value, np.ndarray):
        return map(owned, each(value))
    return each(value)


def store(target: Value, index: Value, value: Value, mask: Mask = True) -> None:
    """Do what `target[index] = value` does, in some lanes."""
    target = present(target, mask)
    if isinstance(target, ReadOnlyList | ReadOnlyDict):
        refuse("a constant is changed")
    if isinstance(target, np.ndarray):
        _store_in_array(target, index, value, mask)
    elif isinstance(target, list) and has_lanes(index):
        _store_everywhere(target, len(target), index, value, mask)
    elif isinstance(target, list) and not isinstance(index, slice):
        target[index] = merge(mask, value, target[index])
    elif isinstance(target, dict) and (index in target or lanes.settled(mask) is True):
        target[index] = merge(mask, value, target.get(index, UNDEFINED))
    else:
        refuse("an assignment to such an element")


def augmented(
    operation: Callable[[Value, Value], Value], old: Value, value: Value, mask: Mask = True
) -> Value:
    """Return what an augmented assignment assigns; an array changes in place."""
    old = present(old, mask)
    if isinstance(old, list | dict | set):
        refuse("an augmented assignment to a list, dict or set")
    result = operation(old, value)
    if not isinstance(old, np.ndarray) or old.ndim < 2:
        return result
    check_changeable(old)
    if not isinstance(result, np.ndarray) or result.shape != old.shape:
        refuse("an array changes its shape in place")
    if not np.can_cast(result.dtype, old.dtype, "same_kind"):
        refuse("an array of whole numbers gets fractions in place")
    old[...] = lanes.select(mask, result, old)
    return old


def first(mask: Mask, value: Value, owner: object, name: str) -> Value:
    """Return an attribute's value after an assignment that may be its first."""
    old = getattr(owner, name, UNDEFINED)
    if old is UNDEFINED and lanes.settled(mask) is not True:
        refuse(f"attribute {name} comes to be in some lanes only")
    return merge(mask, value, old)


def _of_array(value: np.ndarray, index: Value, mask: Mask) -> Value:
    """Return part of an array, or a character of texts."""
    if value.dtype.kind == "U":
        return _character(value, index, mask)
    places = _places(index)
    if not any(map(has_lanes, places)):
        return value[_with_lanes(places, value.ndim - 1)]
    if any(kind(place) not in "iu" for place in places) or len(places) >= value.ndim:
        refuse("such an index into an array")
    return _gathered(value, places, mask)


def _places(index: Value) -> tuple[Value, ...]:
    """Return an index as a tuple; constant arrays of places become lists."""
    places = index if isinstance(index, tuple) else (index,)
    if any(has_lanes(place) and place.ndim > 1 and place.shape[-1] > 1 for place in places):
        refuse("an array of indices that differ from lane to lane")
    many = (has_lanes(place) and place.ndim > 1 for place in places)
    return tuple(
        place[..., 0].tolist() if is_many else place
        for place, is_many in zip(places, many, strict=True)
    )


def _with_lanes(places: tuple[Value, ...], rank: int) -> tuple[Value, ...]:
    """Return an index that leaves the lane axis alone."""
    used = sum(place is not None and place is not Ellipsis for place in places)
    if used > rank or any(isinstance(place, bool | np.bool_ | str | float) for place in places):
        refuse("such an index into an array")
    return (*places, slice(None)) if Ellipsis in places else places


def _gathered(value: np.ndarray, places: tuple[Value, ...], mask: Mask) -> Value:
    """Return elements of an array at places that differ from lane to lane."""
    size, place = 1, np.zeros(1, np.int64)
    for part, length in zip(places, value.shape, strict=False):
        inside = (part >= -length) & (part < length)
        lanes.demand(inside, mask, "an index is out of range")
        part = np.where(inside, np.where(part < 0, part + length, part), 0)
        place, size = place * length + part, size * length
    elements = value.reshape(size, *value.shape[len(places) :])
    if value.shape[-1] == 1:
        found = np.take(elements[..., 0], place, axis=0)
    else:
        count = max(value.shape[-1], place.shape[-1])
        found = elements[np.broadcast_to(place, count), ..., np.arange(count)]
    return np.moveaxis(found, 0, -1)


def _of_dict(value: dict[Any, Value], key: Value, mask: Mask) -> Value:
    """Return a value of a dict."""
    if not value:
        refuse("a key of an empty dict")
    positions = find(key, value)
    lanes.demand(positions >= 0, mask, "a key is missing")
    return value_at(value, positions)


def _character(texts: np.ndarray, index: Value, mask: Mask) -> Value:
    """Return a character of texts, each in its lane."""
    length = texts.dtype.itemsize // 4
    characters = np.ascontiguousarray(texts).view("<U1").reshape(-1, length).T
    lanes.demand(characters[-1] != "", mask, "texts of different lengths")
    if kind(index) not in "iu":
        refuse("part of a text")
    return _gathered(characters, (np.asarray(index).reshape(-1),), mask)


def _store_in_array(target: np.ndarray, index: Value, value: Value, mask: Mask) -> None:
    """Change part of an array."""
    check_changeable(target)
    places = _places(index)
    if any(map(has_lanes, places)):
        if len(places) > 1 or target.ndim != 2 or places[0].dtype.kind not in "iu":
            refuse("an assignment to such an element")
        return _store_everywhere(target, len(target), index, value, mask)
    places = _with_lanes(places, target.ndim - 1)
    value = array(value) if isinstance(value, SEQUENCES) else value
    old = target[places]
    if missing(value) is not False or len(shape_of(value)) > len(shape_of(old)):
        refuse("an assignment of such a value to an element")
    target[places] = lanes.select(mask, value, old) if mask is not True else value


def _store_everywhere(target: Any, size: int, index: np.ndarray, value: Value, mask: Mask) -> None:
    """Change one element, which differs from lane to lane."""
    lanes.demand((index >= -size) & (index < size), mask, "an index is out of range")
    for place in range(size):
        here = lanes.meet(mask, (index == place) | (index == place - size))
        target[place] = merge(here, value, target[place])
