"""Functions of numpy that compute element by element or along an axis, on values of lanes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cwm_cli.planning.batched.creation import lane_array
from cwm_cli.planning.batched.lanes import Value, has_lanes, kind, refuse

_NAMES = """
logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor equal not_equal
isfinite isnan isinf maximum minimum
"""
_TRUTHS = frozenset(_NAMES.split())


def elementwise(ufunc: np.ufunc) -> Callable[..., Value]:
    """Return a function that computes element by element."""
    takes_truths = ufunc.__name__ in _TRUTHS

    def apply(*values: Value, dtype: Any = None) -> Value:
        for value in values:
            if type(value) is np.ndarray and value.dtype.kind != "b":
                continue
            if type(value) is not float and type(value) is not int:
                return careful(values, dtype)
        return ufunc(*values) if dtype is None else ufunc(*values).astype(dtype)

    def careful(values: tuple[Value, ...], dtype: Any) -> Value:
        arrays = [lane_array(value) for value in values]
        if any(kind(value) not in "biuf" for value in arrays):
            refuse(f"np.{ufunc.__name__} of something that is no number")
        if not takes_truths and all(kind(value) == "b" for value in arrays):
            refuse(f"np.{ufunc.__name__} of truth values")
        result = ufunc(*arrays)
        return result if dtype is None else result.astype(dtype)

    return apply


def reduction(function: Callable[..., Any]) -> Callable[..., Value]:
    """Return a function that makes one number of the elements along an axis, or of all."""

    def apply(value: Value, axis: Value = None, **options: Any) -> Value:
        value = lane_array(value)
        if not has_lanes(value):
            return function(value, axis=axis, **options)
        if value.ndim == 1 and axis is None:
            value = value[None]
        if axis is None and not options and value.ndim > 2:
            value = value.reshape(-1, value.shape[-1])
        axes = axis if axis is not None else 0 if value.ndim == 2 else range(value.ndim - 1)
        return function(value, axis=_axes(axes, value.ndim - 1), **options)

    return apply


def _axes(axes: Any, rank: int) -> Any:
    """Return axes counted from the front."""
    if isinstance(axes, int | np.integer):
        if not -rank <= axes < rank:
            refuse("an axis that there is not")
        return axes % rank
    return tuple(_axes(axis, rank) for axis in axes)
