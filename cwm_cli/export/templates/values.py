"""Conversion between the values of programs and of spaces, and the spaces of `world.json`."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces


def space_of(data: dict[str, Any], characters: str) -> spaces.Space[Any]:
    """Return the space that `data` describes; texts use `characters`."""
    children = [space_of(child, characters) for child in data.get("children", ())]
    if data["kind"] == "tuple":
        return spaces.Tuple(children)
    if data["kind"] == "dict":
        return spaces.Dict(OrderedDict(zip(data.get("keys", ()), children, strict=True)))
    if data["kind"] == "text":
        return spaces.Text(data["max_length"], min_length=0, charset=characters)
    return _space_of_numbers(data)


def _space_of_numbers(data: dict[str, Any]) -> spaces.Space[Any]:
    """Return a space of a number or of an array."""
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    if data["kind"] == "multibinary":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    low, high = _bound(data["low"], shape, dtype, -1), _bound(data["high"], shape, dtype, 1)
    if data["kind"] == "discrete":
        return spaces.Discrete(int(high - low) + 1, start=int(low))
    if data["kind"] == "multidiscrete":
        return spaces.MultiDiscrete(high - low + 1, dtype=dtype.type, start=low)
    return spaces.Box(low, high, shape, dtype.type)


Converter = Callable[[Any], Any]


def plain(space: spaces.Space[Any]) -> Converter:
    """Return a converter to the values of programs: int, str, arrays of float64 or int64.

    Each value is a copy. Integers are rounded to the nearest.
    """
    return _each(space, _plain)


def typed(space: spaces.Space[Any]) -> Converter:
    """Return a converter from the values of programs to elements of a space.

    Values are clipped to the bounds, since predictions and rounded values may exceed them.
    """
    return _each(space, _typed)


def typed_batch(space: spaces.Space[Any]) -> Converter:
    """Return a converter from states (environments, components) to elements of a batched space."""
    if isinstance(space, spaces.Discrete):
        return lambda values: np.clip(values, space.start, space.start + space.n - 1)
    low, high = typed_bounds(space)
    shape = space.shape or ()
    is_bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def convert(values: np.ndarray) -> np.ndarray:
        clipped = np.clip(values, low, high) if is_bounded else values
        return clipped.astype(space.dtype).reshape(-1, *shape)

    return convert


def typed_bounds(space: spaces.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the components of an array, or of a whole number."""
    if isinstance(space, spaces.Discrete):
        return np.array(space.start), np.array(space.start + space.n - 1)
    low, high = _bounds(space)
    every = np.zeros(space.shape or (), np.int64)
    return (every + low).ravel(), (every + high).ravel()


def _each(space: spaces.Space[Any], of_leaf: Callable[[spaces.Space[Any]], Converter]) -> Converter:
    """Convert the leaves of nested values."""
    if isinstance(space, spaces.Tuple):
        parts = [_each(child, of_leaf) for child in space.spaces]
        return lambda value: tuple(part(each) for part, each in zip(parts, value, strict=True))
    if isinstance(space, spaces.Dict):
        named = {name: _each(child, of_leaf) for name, child in space.spaces.items()}
        return lambda value: {name: part(value[name]) for name, part in named.items()}
    return of_leaf(space)


def _plain(space: spaces.Space[Any]) -> Converter:
    """Convert leaves to what programs see."""
    if isinstance(space, spaces.Text):
        return str
    shape, is_number = space.shape, isinstance(space, spaces.Discrete)
    if space.dtype is not None and space.dtype.kind == "f":
        return lambda value: np.array(value, np.float64).reshape(shape)

    def whole(value: Any) -> Any:
        if is_number and isinstance(value, int | np.integer):
            return int(value)
        array = np.array(value).reshape(shape)
        if array.dtype.kind == "f":
            with np.errstate(invalid="raise"):
                array = np.rint(array).astype(np.int64)
        return int(array) if is_number else array.astype(np.int64)

    return whole


def _typed(space: spaces.Space[Any]) -> Converter:
    """Convert leaves to the type of their space."""
    if isinstance(space, spaces.Text):
        return str
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n - 1)
        return lambda value: min(max(value, first), last)
    low, high = _bounds(space)
    dtype = space.dtype
    return lambda value: np.asarray(np.minimum(np.maximum(value, low), high), dtype)


def _bounds(space: Any) -> tuple[Any, Any]:
    """Return the bounds of the components of an array in the types of programs."""
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    kind = np.float64 if space.dtype.kind == "f" else np.int64
    return space.low.astype(kind), space.high.astype(kind)


def _bound(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any], sign: int) -> np.ndarray:
    """Return bounds as an array: one for all components or one each; None is unbounded."""
    bounds = bound if isinstance(bound, list) else [bound] * int(np.prod(shape, dtype=int))
    floats = [sign * np.inf if each is None else each for each in bounds]
    if dtype.kind == "f":
        return np.array(floats, dtype).reshape(shape)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return np.array([int(min(max(each, least), most)) for each in floats], dtype).reshape(shape)
