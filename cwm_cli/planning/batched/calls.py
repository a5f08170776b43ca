"""Functions of a program as values, and what checks on them when they are called."""

from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.planning.batched import functions, lanes, mathematics, numerics
from cwm_cli.planning.batched.lanes import Mask, Value, refuse

LONGEST_LOOP = 10_000


class Function(NamedTuple):
    """A function of the program: for all lanes, and with a mask before its arguments."""

    plain: Callable[..., Value]
    masked: Callable[..., Value]


def method_of(owner: Value, plain: Callable[..., Value], masked: Callable[..., Value]) -> Function:
    """Return a method as a function."""
    return Function(partial(plain, owner), lambda mask, *args: masked(mask, owner, *args))


def call(function: Value, mask: Mask, *args: Value, **options: Value) -> Value:
    """Call a function that is only known when the program runs."""
    if not isinstance(function, Function):
        refuse("a call of something that is no function of the program")
    if mask is True:
        return function.plain(*args, **options)
    return function.masked(mask, *args, **options)


def assigned(value: Value, known: Mask, mask: Mask, name: str) -> Value:
    """Return a variable that has to be assigned in the lanes that are alive."""
    lanes.demand(known, mask, f"variable {name} is not assigned")
    return value


def uniform(mask: Mask) -> bool:
    """Return a truth that has to be the same in all lanes."""
    mask = lanes.settled(mask)
    if not isinstance(mask, bool):
        refuse("a condition within a comprehension that differs from lane to lane")
    return mask


def counted(count: int) -> int:
    """Count the rounds of a `while` loop."""
    if count >= LONGEST_LOOP:
        refuse(f"a while loop of more than {LONGEST_LOOP} rounds")
    return count + 1


class Width:
    """How many lanes there are; arrays that may be changed have to have as many."""

    lanes = 1

    def widened(self, value: Value) -> Value:
        """Return a new array with a place for every lane."""
        if isinstance(value, np.ndarray) and value.ndim > 1 and value.shape[-1] != self.lanes:
            return np.repeat(value, self.lanes, -1)
        return value


def _copied(value: Value) -> Value:
    """Return a copy."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | dict):
        return dict(value) if isinstance(value, dict) else list(value)
    return value


def _deeply_copied(value: Value) -> Value:
    """Return a copy that shares nothing."""
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_deeply_copied, value))
    if isinstance(value, dict):
        return {key: _deeply_copied(part) for key, part in value.items()}
    return _copied(value)


FUNCTIONS: dict[Any, Callable[..., Value]] = {
    **functions.FUNCTIONS,
    **mathematics.FUNCTIONS,
    **numerics.FUNCTIONS,
    copy: _copied,
    deepcopy: _deeply_copied,
}
"""What stands for every function that a program may use."""

MASKED = functions.MASKED | mathematics.MASKED | numerics.MASKED
"""Those of them that have to know which lanes are alive, as their argument `mask`."""

CREATED = numerics.CREATED
"""Those of them that make new arrays."""

CONVERTING = frozenset({numerics.FUNCTIONS[np.asarray]})
"""Those of them that make new arrays of lists."""
