"""Which arrays may be one array in some lanes and another in others.

Where a variable becomes one array in some lanes and keeps another in the
rest, the result is a third one, so that a change of any of the three ought to
show in another. That matters only while the others are in use.
"""

from collections.abc import Iterator
from weakref import ref

import numpy as np

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.batched.lanes import Mask, Value, refuse

_relatives: dict[int, list["ref[np.ndarray]"]] = {}
_known: dict[int, "ref[np.ndarray]"] = {}


def merge(mask: Mask, new: Value, old: Value) -> Value:
    """Select in a program that changes arrays in place."""
    chosen = lanes.select(mask, new, old)
    if type(chosen) is np.ndarray and chosen.ndim == 1:
        return chosen
    if chosen is not new and chosen is not old:
        _relate(new, old, chosen)
    return chosen


def check_changeable(array: np.ndarray) -> None:
    """Refuse to change a constant, or an array that is part of another in some lanes."""
    if not array.flags.writeable:
        refuse("a constant is changed")
    if is_shared(array):
        refuse("an array is changed that is another one in other lanes")


def is_shared(array: np.ndarray) -> bool:
    """Whether a change of an array ought to show in another."""
    return bool(_living(owner_of(array)))


def owner_of(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory another uses."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _relate(new: Value, old: Value, chosen: Value) -> None:
    """Remember what a choice was made of, and what that was made of."""
    sources = [owner for value in (new, old) for owner in _owners(value)]
    others = {id(source): source for source in sources}
    for source in sources:
        others |= {id(relative): relative for relative in _living(source)}
    for result in _owners(chosen):
        _relatives.setdefault(_enter(result), []).extend(map(ref, others.values()))
        for other in others.values():
            living = list(map(ref, _living(other)))
            _relatives[_enter(other)] = [*living, ref(result)]


def _living(array: np.ndarray) -> list[np.ndarray]:
    """Return the relatives of an array that are still in use."""
    found = (relative() for relative in _relatives.get(id(array), ()))
    return [relative for relative in found if relative is not None]


def _enter(array: np.ndarray) -> int:
    """Return a number for an array, which is forgotten with it."""
    number = id(array)
    if number not in _known:
        _known[number] = ref(array, lambda _: (_known.pop(number, 0), _relatives.pop(number, 0)))
    return number


def _owners(value: Value) -> Iterator[np.ndarray]:
    """Yield the arrays in a value whose changes can be seen elsewhere."""
    if isinstance(value, np.ndarray) and value.ndim > 1:
        yield owner_of(value)
    elif isinstance(value, tuple):
        for part in value:
            yield from _owners(part)
    elif isinstance(value, list | dict):
        refuse("a list of one or another lane in a program that changes values in place")
