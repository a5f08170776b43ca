"""What every statement of a batched program is made of: masks, choices, and what is demanded.

A mask is True where all lanes are meant, False for none, else an array of
bools. The functions here are called as attributes of this module, so that
`replaced` can put others in their place.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from cwm_cli.planning.model import Unbatched

Value = Any
"""Of a program: the same in all lanes, or an array (or a tuple ... of arrays) with a lane axis."""

Mask = bool | np.ndarray
"""Some of the lanes."""

NUMBERS = (np.ndarray, float, int, np.generic)
SEQUENCES = (list, tuple)

_LETTERS = {bool: "b", int: "i", float: "f"}


class Undefined:
    """Stands for a variable that has no value yet."""

    __array_ufunc__ = None


UNDEFINED = Undefined()


class Maybe:
    """A value that is None in the lanes that are `missing`; no operation takes it."""

    __slots__ = ("missing", "value")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Value, missing: Mask) -> None:
        self.value, self.missing = value, missing

    def __eq__(self, other: object) -> bool:
        raise TypeError("a value that may be None is compared")

    def __bool__(self) -> bool:
        raise TypeError("a value that may be None is tested")


class ReadOnlyList(list[Any]):
    """A list that no step may change."""


class ReadOnlyDict(dict[Any, Any]):
    """A dict that no step may change."""


def refuse(reason: str) -> NoReturn:
    """Leave it to the program itself."""
    raise Unbatched(reason)


def has_lanes(value: Value) -> bool:
    """Whether a value is an array, whose last axis is the lane; that of a constant has length 1."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the shape that a number or an array has in each lane."""
    return value.shape[:-1] if isinstance(value, np.ndarray) else ()


def lanes_of(arrays: Iterable[np.ndarray]) -> int:
    """Return the length of the longest lane axis."""
    return max(int(array.shape[-1]) for array in arrays)


def kind(value: Value) -> str:
    """Return numpy's letter for what a value is made of, O for what is no number."""
    letter = _LETTERS.get(type(value))
    if letter is None:
        letter = value.dtype.kind if isinstance(value, (np.ndarray, np.generic)) else "O"  # quicker
    return letter


def truth(value: Value) -> Mask:
    """Return in which lanes a value counts as true."""
    if isinstance(value, np.ndarray):
        if value.ndim > 1:
            value = only(value)
        mask: np.ndarray = value if value.dtype.kind == "b" else value != value.dtype.type()
        return mask
    return bool(value)


def only(value: np.ndarray) -> np.ndarray:
    """Return the one element of an array."""
    if value.size != value.shape[-1]:
        refuse("an array of several elements is used as one number")
    return value.reshape(-1).copy()


def settled(mask: Mask) -> Mask:
    """Return True or False where all lanes are the same; blocks without lanes are skipped."""
    if isinstance(mask, bool):
        return mask
    alive = np.count_nonzero(mask)
    if not alive:
        return False
    return True if alive == mask.size else mask


def none_left(mask: Mask) -> bool:
    """Whether a `while` loop ends because no lane is left in it."""
    return mask is False or (mask is not True and not np.count_nonzero(mask))


def meet(mask: Mask, other: Mask) -> Mask:
    """Return the lanes in both masks."""
    if mask is True or other is False:
        return other
    if other is True or mask is False:
        return mask
    return mask & other


def either(mask: Mask, other: Mask) -> Mask:
    """Return the lanes in one mask or both."""
    if mask is False or other is True:
        return other
    if other is False or mask is True:
        return mask
    return mask | other


def inverse(mask: Mask) -> Mask:
    """Return the other lanes."""
    return not mask if isinstance(mask, bool) else ~mask


def without(mask: Mask, other: Mask) -> Mask:
    """Return the lanes of the first mask that are not in the second."""
    return meet(mask, inverse(other))


def demand(holds: Mask, mask: Mask, reason: str) -> None:
    """Refuse to go on unless something holds in all lanes of a mask."""
    if holds is not True and settled(without(mask, holds)) is not False:
        refuse(reason)


def present(value: Value, mask: Mask) -> Value:
    """Return a value that must not be None in part of the lanes."""
    if not isinstance(value, Maybe):
        return value
    demand(inverse(value.missing), mask, "None is used as a value")
    return value.value


def missing(value: Value) -> Mask:
    """Return in which lanes a value is None."""
    return value.missing if isinstance(value, Maybe) else value is None


def select(mask: Mask, new: Value, old: Value) -> Value:
    """Return a value that is new in some lanes and old in the others."""
    if mask is True or new is old or old is UNDEFINED:
        return new
    if mask is False:
        return old
    if isinstance(new, NUMBERS) and isinstance(old, NUMBERS):
        chosen = np.where(mask, new, old)
        if chosen.ndim > 1 and shape_of(new) != shape_of(old):
            refuse("arrays of different shapes in different lanes")
        return chosen
    return _selected(mask, new, old)


@contextmanager
def replaced(**functions: Callable[..., Any]) -> Iterator[None]:
    """Put other functions in the place of some of this module."""
    before = {name: globals()[name] for name in functions}
    globals().update(functions)
    try:
        yield
    finally:
        globals().update(before)


def _selected(mask: Mask, new: Value, old: Value) -> Value:
    """Select what is no number."""
    if any(value is None or isinstance(value, Maybe) for value in (new, old)):
        return _optional(mask, new, old)
    for sequence, read_only in ((tuple, tuple), (list, ReadOnlyList)):
        if isinstance(new, sequence) and isinstance(old, sequence) and len(new) == len(old):
            parts = (select(mask, *pair) for pair in zip(new, old, strict=True))
            return (read_only if isinstance(new, read_only) else sequence)(parts)
    if isinstance(new, dict) and isinstance(old, dict) and list(new) == list(old):
        made = {key: select(mask, new[key], old[key]) for key in new}
        return ReadOnlyDict(made) if isinstance(new, ReadOnlyDict) else made
    if all(isinstance(value, str) or kind(value) == "U" for value in (new, old)):
        return np.where(mask, new, old)
    return refuse("values of different types in different lanes")


def _optional(mask: Mask, new: Value, old: Value) -> Value:
    """Select where one of two values may be None."""
    lanes = settled(either(meet(mask, missing(new)), meet(inverse(mask), missing(old))))
    if lanes is True:
        return None
    values = [value.value if isinstance(value, Maybe) else value for value in (new, old)]
    chosen = _known(mask, *values)
    return chosen if lanes is False else Maybe(chosen, lanes)


def _known(mask: Mask, new: Value, old: Value) -> Value:
    """Select, where None stands for no value at all."""
    if new is None or old is None:
        return old if new is None else new
    return select(mask, new, old)
