"""Arrays that a program makes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cwm_cli.planning.batched.lanes import SEQUENCES, Maybe, Value, has_lanes, refuse

Dtype = Any


def array(value: Value, dtype: Dtype = None, *, copy: bool = True) -> Value:
    """Return what `np.array` returns: a copy of an array, or an array of the parts of a list."""
    if isinstance(value, np.ndarray):
        return value.astype(dtype) if dtype is not None else value.copy()
    if isinstance(value, SEQUENCES):
        parts = [
            part if isinstance(part, np.ndarray) and part.ndim else _part(part) for part in value
        ]
        return _stacked(parts, dtype)
    if isinstance(value, Maybe | dict | str | set) or value is None:
        refuse("an array of something that is no number")
    return np.asarray(value, dtype)[()]


def asarray(value: Value, dtype: Dtype = None, *, copy: bool | None = None) -> Value:
    """Return what `np.asarray` returns: an array itself where it is one of that type."""
    if isinstance(value, np.ndarray):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    return array(value, dtype)


def lane_array(value: Value) -> Value:
    """Return what a function of numpy computes with: lists become arrays."""
    return array(value) if isinstance(value, SEQUENCES) else value


def filled(value: float) -> Callable[..., Value]:
    """Return what makes an array of zeros or ones."""

    def make(shape: int | Sequence[int], dtype: Dtype = float) -> Value:
        return full(shape, value, dtype)

    return make


def filled_like(value: float) -> Callable[..., Value]:
    """Return what makes an array of zeros or ones in the shape of another."""

    def make(like: Value, dtype: Dtype = None) -> Value:
        return full_like(like, value, dtype)

    return make


def full(shape: int | Sequence[int], value: Value, dtype: Dtype = None) -> Value:
    """Make an array of one value."""
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if not all(isinstance(size, int | np.integer) for size in sizes):
        refuse("an array whose size differs from lane to lane")
    value = np.asanyarray(lane_array(value), dtype)
    if value.ndim > 1 or not sizes:
        refuse("an array filled with something that is no number")
    return np.zeros((*sizes, 1), value.dtype) + value.astype(value.dtype)


def full_like(like: Value, value: Value, dtype: Dtype = None) -> Value:
    """Make an array of one value in the shape of another."""
    like = np.asanyarray(lane_array(like))
    if like.ndim < 2:
        return np.asarray(value, dtype or like.dtype)[()] if not has_lanes(value) else value
    return full(like.shape[:-1], value, dtype or like.dtype)


def laneless(function: Callable[..., Any]) -> Callable[..., Value]:
    """Return what makes an array that is the same in all lanes."""

    def make(*args: Any, **options: Any) -> Value:
        if any(map(has_lanes, args)):
            refuse("an array whose form differs from lane to lane")
        return function(*args, **options)[..., None]

    return make


def _part(value: Value) -> Value:
    """Return an element that an array is made of."""
    if isinstance(value, SEQUENCES):
        return array(value)
    return array(value).reshape(1) if not isinstance(value, str) else np.array([value])


def _stacked(parts: list[Value], dtype: Dtype) -> Value:
    """Return parts of one shape as an array; the last axis stays the last."""
    if not parts:
        return np.zeros((0, 1), dtype or float)
    shape = parts[0].shape
    if any(part.shape != shape for part in parts):
        count = max(part.shape[-1] for part in parts)
        if len({part.shape[:-1] for part in parts}) > 1:
            refuse("an array of parts of different shapes")
        parts = [part if part.shape[-1] == count else np.repeat(part, count, -1) for part in parts]
    whole = np.concatenate(parts, dtype=dtype, casting="unsafe")
    return whole.reshape(len(parts), *parts[0].shape)
