"""Values of a pickle as values of a space."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.importing.arrays import plain
from cwm_cli.importing.inert import Inert


def fit(value: Any, space: Space) -> Any:
    """Return a value of the space, or raise a `ValueError` that says what is there instead."""
    return _FITTERS[space.kind](plain(value), space)


def weight(space: Space) -> int:
    """Return how many numbers, or characters of text, a value of the space may hold."""
    own = space.max_length if space.kind == "text" else prod(space.shape)
    return sum(map(weight, space.children)) if space.children else own


def _numbers(value: Any, space: Space) -> np.ndarray:
    """Return a number or an array of the space's shape; both may be an array of one."""
    array = np.asarray(_nested(value, space.shape))
    if array.dtype.kind == "O":
        array = np.asarray(_nested(array.tolist(), space.shape))
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{_kind(value)} is there and no numbers")
    if array.shape != space.shape and not array.size == space.size == 1:
        raise ValueError(f"the shape is {_shape(array.shape)} and not {_shape(space.shape)}")
    array = array.reshape(space.shape)
    if not space.is_float and not np.array_equal(array, np.rint(array)):
        raise ValueError("fractions are there and not whole numbers")
    return array


def _nested(value: Any, shape: tuple[int, ...]) -> Any:
    """Return lists as lists of plain numbers, to the depth of the shape."""
    value = plain(value)
    if isinstance(value, np.ndarray | np.generic):
        if value.size > max(prod(shape), 1):
            raise ValueError(f"the shape is {_shape(value.shape)} and not {_shape(shape)}")
        return value
    if isinstance(value, bool | int | float):
        return value
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_kind(value)} is there and no numbers")
    if not shape or len(value) != shape[0]:
        raise ValueError(f"{len(value)} values are there and not {shape[0] if shape else 'one'}")
    return [_nested(part, shape[1:]) for part in value]


def _bounded(value: Any, space: Space) -> np.ndarray:
    array = _numbers(value, space)
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    if (array < low).any() or (array > high).any():
        raise ValueError(f"{array.tolist()} is out of bounds")
    return array


def _discrete(value: Any, space: Space) -> int:
    return int(_bounded(value, space))


def _text(value: Any, space: Space) -> str:
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    if not isinstance(value, str):
        raise ValueError(f"{_kind(value)} is there and no text")
    if len(value) > space.max_length:
        raise ValueError(f"a text has {len(value)} and not at most {space.max_length} characters")
    return str(value)


def _tuple(value: Any, space: Space) -> tuple[Any, ...]:
    listed = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    if not listed or len(value) != len(space.children):
        raise ValueError(f"{_kind(value)} is there and not {len(space.children)} parts")
    return tuple(fit(part, child) for part, child in zip(value, space.children, strict=True))


def _dict(value: Any, space: Space) -> dict[str, Any]:
    value = value.items if isinstance(value, Inert) else value  # an OrderedDict has items
    if not isinstance(value, dict) or value.keys() != set(space.keys):
        raise ValueError(f"{_kind(value)} is there and no dict of {', '.join(space.keys)}")
    parts = zip(space.keys, space.children, strict=True)
    return {key: fit(value[key], child) for key, child in parts}


def _kind(value: Any) -> str:
    """Say what a value is, in words."""
    if isinstance(value, Inert):
        return f"an object ({value.name})"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {_shape(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "that of one number"


_FITTERS: Mapping[str, Callable[[Any, Space], Any]] = {
    "box": _numbers,
    "discrete": _discrete,
    "multidiscrete": _bounded,
    "multibinary": _bounded,
    "text": _text,
    "tuple": _tuple,
    "dict": _dict,
}
