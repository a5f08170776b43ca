"""Functions of numpy that join arrays and change their shape."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from cwm_cli.planning.batched.creation import array, lane_array
from cwm_cli.planning.batched.lanes import Value, has_lanes, kind, lanes_of, refuse


def reshape(value: Value, *shape: Any) -> Value:
    """Return an array in another shape."""
    value = _with_axis(value)
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return value.reshape(*_sizes(tuple(sizes), prod(value.shape[:-1])), value.shape[-1])


def flatten(value: Value) -> Value:
    """Return an array of one axis."""
    return reshape(value, -1)


def squeeze(value: Value) -> Value:
    """Leave out axes of length 1."""
    value = _with_axis(value)
    return value.reshape(*(size for size in value.shape[:-1] if size != 1), value.shape[-1])


def transpose(value: Value) -> Value:
    """Return an array with its axes the other way round."""
    value = _with_axis(value)
    return value.transpose(*reversed(range(value.ndim - 1)), value.ndim - 1)


def at_least_1d(value: Value) -> Value:
    """Return an array with an axis."""
    value = _with_axis(value)
    return value if value.ndim > 1 else value[None].copy()


def concatenate(parts: Sequence[Value], axis: int = 0, dtype: Any = None) -> Value:
    """Join arrays along an axis."""
    arrays = _aligned([_with_axis(part) for part in parts])
    if any(part.ndim < 2 for part in arrays) or len({part.ndim for part in arrays}) > 1:
        refuse("np.concatenate of numbers")
    rank = arrays[0].ndim - 1
    joined = np.concatenate(arrays, axis=axis % rank)
    return joined if dtype is None else joined.astype(dtype)


def stack(parts: Sequence[Value], axis: int = 0) -> Value:
    """Join arrays along a new axis."""
    arrays = _aligned([_with_axis(part) for part in parts])
    if len({part.shape for part in arrays}) > 1:
        refuse("np.stack of arrays of different shapes")
    place = axis % arrays[0].ndim
    return np.concatenate([np.expand_dims(part, place) for part in arrays], axis=place)


def hstack(parts: Sequence[Value]) -> Value:
    """Join arrays along their second axis, or the first if there is one only."""
    arrays = [at_least_1d(part) for part in parts]
    return concatenate(arrays, axis=0 if arrays[0].ndim == 2 else 1)


def vstack(parts: Sequence[Value]) -> Value:
    """Join arrays as rows."""
    arrays = [at_least_1d(part) for part in parts]
    return concatenate([part[None] if part.ndim == 2 else part for part in arrays])


def append(value: Value, more: Value, axis: int | None = None) -> Value:
    """Return an array with more at its end."""
    if axis is not None:
        return concatenate([value, more], axis)
    return concatenate([flatten(value), flatten(more)])


def copy(value: Value) -> Value:
    """Return a copy."""
    return array(value)


def roll(value: Value, shift: int, axis: int | None = None) -> Value:
    """Shift the elements of an array of one axis."""
    value = _with_axis(value)
    if value.ndim != 2 or has_lanes(shift) or axis not in (None, 0, -1):
        refuse("such a np.roll")
    return np.roll(value, shift, axis=0)


def flip(value: Value, axis: int | None = None) -> Value:
    """Return the elements of an array of one axis, last first."""
    value = _with_axis(value)
    return value[::-1] if value.ndim == 2 else refuse("np.flip of an array of several axes")


def cumulative(function: Callable[..., Any]) -> Callable[..., Value]:
    """Return a function that adds or multiplies up along the only axis."""

    def apply(value: Value, axis: int | None = None) -> Value:
        value = _with_axis(value)
        if value.ndim != 2 or axis not in (None, 0, -1) or kind(value) == "b":
            refuse(f"such a np.{function.__name__}")
        return function(value, axis=0)

    return apply


def differences(value: Value) -> Value:
    """Return what each element is more than the one before."""
    value = _with_axis(value)
    return value[1:] - value[:-1] if value.ndim == 2 else refuse("such a np.diff")


def diagonal(value: Value) -> Value:
    """Return a matrix with a diagonal, or the diagonal of a matrix."""
    value = _with_axis(value)
    if value.ndim == 3:
        return np.moveaxis(np.diagonal(value).copy(), -1, 0)
    if value.ndim != 2:
        refuse("such a np.diag")
    size = len(value)
    return value[:, None] * np.eye(size)[..., None]


def unravel(place: Value, shape: Sequence[int]) -> tuple[Value, ...]:
    """Return the place in an array of a shape that a place in the flattened array has."""
    places: list[Value] = []
    for size in reversed(tuple(shape)):
        places.append(place % size)
        place = place // size
    return tuple(reversed(places))


def ravel_places(places: Sequence[Value], shape: Sequence[int]) -> Value:
    """Return the place in the flattened array."""
    place: Value = 0
    for part, size in zip(places, tuple(shape), strict=True):
        place = place * size + part
    return place


def _with_axis(value: Value) -> np.ndarray:
    """Return an array with a lane axis."""
    value = lane_array(value)
    if kind(value) not in "biuf":
        refuse("an array of something that is no number")
    return value if has_lanes(value) else np.asarray(value).reshape(1)


def _sizes(sizes: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """Return the sizes of axes, one of which may be what remains."""
    known = prod(size for size in sizes if size != -1)
    return tuple(elements // known if size == -1 else size for size in sizes)


def _aligned(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return arrays that all have as many lanes."""
    count = lanes_of(parts)
    return [part if part.shape[-1] == count else np.repeat(part, count, -1) for part in parts]


FUNCTIONS: dict[Any, Callable[..., Value]] = {
    np.reshape: reshape,
    np.ravel: flatten,
    np.squeeze: squeeze,
    np.transpose: transpose,
    np.atleast_1d: at_least_1d,
    np.concatenate: concatenate,
    np.stack: stack,
    np.hstack: hstack,
    np.vstack: vstack,
    np.append: append,
    np.copy: copy,
    np.roll: roll,
    np.flip: flip,
    np.cumsum: cumulative(np.cumsum),
    np.cumprod: cumulative(np.cumprod),
    np.diff: differences,
    np.diag: diagonal,
    np.unravel_index: unravel,
    np.ravel_multi_index: ravel_places,
}
"""What stands for functions of numpy."""
