"""Operators of Python on values of lanes.

Generated code uses numpy's own operators where it is known that they do the
same; these are for the rest. Lanes that are not alive must not disturb: what
they divide by is replaced.
"""

import operator
from collections.abc import Callable, Iterable
from functools import reduce

import numpy as np

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.batched.creation import lane_array
from cwm_cli.planning.batched.lanes import (
    SEQUENCES,
    Mask,
    Maybe,
    Value,
    has_lanes,
    kind,
    missing,
    refuse,
    truth,
)
from cwm_cli.planning.batched.sharing import merge
from cwm_cli.planning.batched.tables import find, flat, varies

Lazy = Callable[[Mask], Value]
"""An operand that is computed only where it is needed."""

_LARGEST_WHOLE = 2.0**62
_REAL = np.dtype(float)


def arithmetic(operation: Callable[[Value, Value], Value], left: Value, right: Value) -> Value:
    """Apply an operator to operands of unknown type."""
    if isinstance(left, list | tuple | str) or isinstance(right, list | tuple | str):
        if has_lanes(left) or has_lanes(right):
            return operation(*_arrays(left, right))
        return operation(left, right)
    if kind(left) == "b" and kind(right) == "b" and (has_lanes(left) or has_lanes(right)):
        refuse("arithmetic with two truth values, which Python and numpy do differently")
    return operation(left, right)


def _binary(operation: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return an operator for operands of unknown type."""

    def apply(left: Value, right: Value) -> Value:
        if type(left) is float or type(right) is float:  # which no list goes with, either
            return operation(left, right)
        if type(left) is np.ndarray and type(right) is np.ndarray and left.dtype is _REAL:
            return operation(left, right)
        return arithmetic(operation, left, right)

    apply.__name__ = operation.__name__
    return apply


add, subtract, multiply = map(_binary, (operator.add, operator.sub, operator.mul))
bit_and, bit_or, bit_xor = operator.and_, operator.or_, operator.xor


def divisor(value: Value, mask: Mask) -> Value:
    """Return what is divided by; where nobody is alive, 1."""
    return value if mask is True or not has_lanes(value) else np.where(mask, value, 1)


def divide(left: Value, right: Value, mask: Mask = True) -> Value:
    """Divide."""
    return arithmetic(operator.truediv, left, divisor(right, mask))


def floor_divide(left: Value, right: Value, mask: Mask = True) -> Value:
    """Divide and round down."""
    return arithmetic(operator.floordiv, left, divisor(right, mask))


def remainder(left: Value, right: Value, mask: Mask = True) -> Value:
    """Return what is left after `floor_divide`."""
    if type(right) is float and right > 0 and kind(left) == "f" and has_lanes(left):
        rest = np.fmod(left, right)  # three times as fast as np.remainder
        return rest + (rest < 0) * right
    return arithmetic(operator.mod, left, divisor(right, mask))


def power(left: Value, right: Value, mask: Mask = True) -> Value:
    """Raise to a power; small whole ones by multiplication, which is far faster."""
    if not has_lanes(left) and not has_lanes(right):
        return left**right
    if mask is not True:
        left = np.where(mask, left, 1)
    if kind(left) in "iu" and kind(right) in "iu":
        size = np.abs(left).astype(float) ** right
        lanes.demand(size < _LARGEST_WHOLE, mask, "a whole number too large for 64 bits")
    if type(right) is int and right in (3, 4):
        square = left * left
        return square * (left if right == 3 else square)
    return arithmetic(operator.pow, left, right)


def left_shift(left: Value, right: Value) -> Value:
    """Shift bits to the left."""
    return left << right if not has_lanes(left) else refuse("a shift to the left")


def right_shift(left: Value, right: Value) -> Value:
    """Shift bits to the right."""
    return left >> right if not has_lanes(right) else refuse("a shift by what a lane says")


def invert(value: Value) -> Value:
    """Flip all bits."""
    if kind(value) == "b" and not (has_lanes(value) and value.ndim > 1):
        refuse("~ of a truth value, which Python and numpy do differently")
    return ~value


def equal(left: Value, right: Value) -> Value:
    """Return where two values of unknown type are equal."""
    if isinstance(left, Maybe) or isinstance(right, Maybe):
        if left is None or right is None:
            return missing(right if left is None else left)
        refuse("a value that may be None is compared")
    if isinstance(left, SEQUENCES) or isinstance(right, SEQUENCES):
        return _equal_sequences(left, right)
    arrays = isinstance(left, np.ndarray) or isinstance(right, np.ndarray)
    if arrays and (kind(left) in "UO") != (kind(right) in "UO"):
        return False
    return left == right


def unequal(left: Value, right: Value) -> Value:
    """Return where two values of unknown type are not equal."""
    return lanes.inverse(equal(left, right))


def contains(value: Value, container: Value, mask: Mask = True) -> Value:
    """Return where a value is in a container."""
    container = lanes.present(container, mask)
    if _is_uniform(value) and _is_uniform(container):
        return value in container
    if isinstance(container, dict | set | frozenset):
        return find(value, container) >= 0 if container else False
    if isinstance(container, str):
        return _in_text(value, container)
    if isinstance(container, range) and container.step == 1 and kind(value) in "iu":
        return (value >= container.start) & (value < container.stop)
    if isinstance(container, np.ndarray) and container.ndim == 2:
        return np.any(container == value, axis=0)
    if not isinstance(container, SEQUENCES):
        refuse("in something of unknown type")
    return _any_of(truth(equal(value, part)) for part in container)


def _is_uniform(value: Value) -> bool:
    """Whether a value is no array, and made of none that differs from lane to lane."""
    return not (varies(value) or any(isinstance(part, np.ndarray) for part in flat(value)))


def _any_of(masks: Iterable[Mask]) -> Mask:
    """Return the lanes in any mask."""
    nobody: Mask = False
    return reduce(lanes.either, masks, nobody)


def every(mask: Mask, first: Value, *others: Lazy) -> Mask:
    """Return where all operands of `and` are true; each is needed only where those before are."""
    result = lanes.settled(truth(first))
    for other in others:
        alive = lanes.settled(lanes.meet(mask, result))
        if alive is False:
            return result
        result = lanes.meet(result, truth(other(alive)))
    return result


def some(mask: Mask, first: Value, *others: Lazy) -> Mask:
    """Return where an operand of `or` is true; each is needed only where none before is."""
    result = lanes.settled(truth(first))
    for other in others:
        alive = lanes.settled(lanes.without(mask, result))
        if alive is False:
            return result
        result = lanes.either(result, truth(other(alive)))
    return result


def choose(condition: Value, new: Lazy, old: Lazy, mask: Mask = True) -> Value:
    """Return what a conditional expression does."""
    chosen = lanes.settled(truth(condition))
    first, second = (lanes.settled(part(mask, chosen)) for part in (lanes.meet, lanes.without))
    if first is False:
        return old(second)
    return new(first) if second is False else merge(chosen, new(first), old(second))


def conjunction(mask: Mask, first: Value, second: Lazy) -> Value:
    """Return the operand that `and` returns."""
    return choose(first, second, lambda _: first, mask)


def disjunction(mask: Mask, first: Value, second: Lazy) -> Value:
    """Return the operand that `or` returns."""
    return choose(first, lambda _: first, second, mask)


def _arrays(left: Value, right: Value) -> tuple[Value, Value]:
    """Return operands of which one is an array and the other a list."""
    if (has_lanes(left) and left.ndim > 1) or (has_lanes(right) and right.ndim > 1):
        return lane_array(left), lane_array(right)
    return refuse("arithmetic with a number and a list, tuple or text")


def _equal_sequences(left: Value, right: Value) -> Value:
    """Return where lists or tuples are equal."""
    if any(has_lanes(value) and value.ndim > 1 for value in (left, right)):
        return lane_array(left) == lane_array(right)
    for sequence in (list, tuple):
        if isinstance(left, sequence) and isinstance(right, sequence) and len(left) == len(right):
            alike = (truth(equal(*pair)) for pair in zip(left, right, strict=True))
            everybody: Mask = True
            return reduce(lanes.meet, alike, everybody)
    return False


def _in_text(value: Value, text: str) -> Value:
    """Return where a character is in a text."""
    if kind(value) != "U" or value.dtype.itemsize != 4:
        refuse("part of a text in a text")
    return _any_of(value == character for character in ("", *text))
