"""The spaces of `world.json`, and conversion of values between programs and spaces."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces


def space_of(data: dict[str, Any], characters: str) -> spaces.Space[Any]:
    """Return the space that `data` describes; `characters` may occur in texts."""
    children = [space_of(child, characters) for child in data.get("children", ())]
    if data["kind"] == "tuple":
        return spaces.Tuple(children)
    if data["kind"] == "dict":
        return spaces.Dict(OrderedDict(zip(data.get("keys", ()), children, strict=True)))
    if data["kind"] == "text":
        return spaces.Text(data["max_length"], min_length=0, charset=characters)
    return _space_of_numbers(data)


def _space_of_numbers(data: dict[str, Any]) -> spaces.Space[Any]:
    """Return a space of numbers."""
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
    """Return a converter to the types that programs receive: int, str, float64 and int64 arrays.

    The converter returns copies. It rounds the predictions of integers to the nearest integer.
    """
    return _each(space, _plain)


def typed(space: spaces.Space[Any]) -> Converter:
    """Return a converter from the types of programs to the type of a space, clipped to its bounds.

    Rounding to the precision of a space can exceed its bounds, and so can a prediction.
    """
    return _each(space, _typed)


def _each(space: spaces.Space[Any], of_leaf: Callable[[spaces.Space[Any]], Converter]) -> Converter:
    """Return a converter that applies to the leaves of nested values."""
    if isinstance(space, spaces.Tuple):
        parts = [_each(child, of_leaf) for child in space.spaces]
        return lambda value: tuple(part(each) for part, each in zip(parts, value, strict=True))
    if isinstance(space, spaces.Dict):
        named = {name: _each(child, of_leaf) for name, child in space.spaces.items()}
        return lambda value: {name: part(value[name]) for name, part in named.items()}
    return of_leaf(space)


def _plain(space: spaces.Space[Any]) -> Converter:
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
    if isinstance(space, spaces.Text):
        return str
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n - 1)
        return lambda value: min(max(value, first), last)
    low, high = _bounds(space)
    dtype = space.dtype
    return lambda value: np.asarray(np.minimum(np.maximum(value, low), high), dtype)


def _bounds(space: Any) -> tuple[Any, Any]:
    """Return the lowest and highest values of a space, in the types that programs receive."""
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    kind = np.float64 if space.dtype.kind == "f" else np.int64
    return space.low.astype(kind), space.high.astype(kind)


def _bound(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any], sign: int) -> np.ndarray:
    """Return bounds as an array, from one number or one for each component; null means none."""
    bounds = bound if isinstance(bound, list) else [bound] * int(np.prod(shape, dtype=int))
    floats = [sign * np.inf if each is None else each for each in bounds]
    if dtype.kind == "f":
        return np.array(floats, dtype).reshape(shape)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return np.array([int(min(max(each, least), most)) for each in floats], dtype).reshape(shape)
