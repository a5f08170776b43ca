"""Functions of numpy on values of lanes: what stands for each of those that programs may use."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cwm_cli.planning.batched import lanes, linear, shapes
from cwm_cli.planning.batched.creation import (
    array,
    asarray,
    filled,
    filled_like,
    full,
    full_like,
    lane_array,
    laneless,
)
from cwm_cli.planning.batched.elementwise import elementwise, reduction
from cwm_cli.planning.batched.lanes import SEQUENCES, Mask, Value, has_lanes, kind, refuse, truth
from cwm_cli.planning.batched.mathematics import limited
from cwm_cli.planning.batched.operators import power, remainder

_LIMITED = """
sqrt exp exp2 expm1 log log2 log10 log1p arcsin arccos arccosh arctanh sinh cosh divide floor_divide
remainder fmod reciprocal float_power cbrt
"""
_SAFE = """
add subtract multiply negative positive absolute fabs sign heaviside square
sin cos tan arctan arctan2 arcsinh tanh hypot degrees radians deg2rad rad2deg
floor ceil rint trunc copysign maximum minimum fmax fmin
less less_equal greater greater_equal equal not_equal
logical_and logical_or logical_xor logical_not isfinite isnan isinf signbit
bitwise_and bitwise_or bitwise_xor
"""
_REDUCTIONS = "sum mean prod max min std var any all argmax argmin ptp"


def clip(value: Value, a_min: Value = None, a_max: Value = None) -> Value:
    """Limit numbers; np.clip itself takes longer."""
    value, low, high = lane_array(value), lane_array(a_min), lane_array(a_max)
    if kind(value) == "b" or kind(low) == "b" or kind(high) == "b":
        refuse("np.clip of truth values")
    if low is not None:
        value = np.maximum(value, low)
    return value if high is None else np.minimum(value, high)


def where(condition: Value, new: Value, old: Value) -> Value:
    """Choose element by element."""
    condition, new, old = lane_array(condition), lane_array(new), lane_array(old)
    if any(kind(value) not in "biufU" for value in (condition, new, old)):
        refuse("np.where of something that is no number")
    return np.where(condition, new, old)


def cast(dtype: Any) -> Callable[..., Value]:
    """Return a type of numpy as a function."""

    def convert(value: Value = 0) -> Value:
        if not has_lanes(value) and not isinstance(value, SEQUENCES):
            return dtype(value)
        return truth(value) if dtype is np.bool_ else lane_array(value).astype(dtype)

    return convert


def array_equal(left: Value, right: Value) -> Mask:
    """Return where two arrays have the same shape and elements."""
    left, right = lane_array(left), lane_array(right)
    if lanes.shape_of(left) != lanes.shape_of(right):
        return False
    return truth(_every(left == right))


def is_close(left: Value, right: Value, rtol: float = 1e-5, atol: float = 1e-8) -> Value:
    """Return where numbers are close."""
    left, right = lane_array(left), lane_array(right)
    return np.abs(left - right) <= atol + rtol * np.abs(right)


def all_close(left: Value, right: Value, rtol: float = 1e-5, atol: float = 1e-8) -> Value:
    """Return whether all numbers are close."""
    return _every(is_close(left, right, rtol, atol))


def rounded(value: Value, decimals: int = 0) -> Value:
    """Round, halves to even."""
    return np.round(lane_array(value), decimals)


def is_scalar(value: Value) -> bool:
    """Return whether a value is a number or text."""
    return value.ndim == 1 if has_lanes(value) else np.isscalar(value)


def interpolate(value: Value, places: Value, heights: Value) -> Value:
    """Interpolate between constants."""
    places, heights = lane_array(places), lane_array(heights)
    if places.shape[-1] != 1 or heights.shape[-1] != 1 or kind(value) not in "fi":
        refuse("np.interp of points that differ from lane to lane")
    return np.interp(value, places[..., 0], heights[..., 0])


def count_nonzero(value: Value) -> Value:
    """Return how many elements are true."""
    value = lane_array(value)
    return reduction(np.sum)((value != 0).astype(np.int64))


def _every(value: Value) -> Value:
    """Return where all elements are true."""
    return _REDUCED["all"](value) if has_lanes(value) else bool(np.all(value))


_REDUCED = {name: reduction(getattr(np, name)) for name in _REDUCTIONS.split()}


def _functions() -> dict[Any, Callable[..., Value]]:
    """Return what stands for each function and type."""
    made: dict[Any, Callable[..., Value]] = {}
    for name in _SAFE.split():
        made[getattr(np, name)] = elementwise(getattr(np, name))
    for name in _LIMITED.split():
        made[getattr(np, name)] = limited(elementwise(getattr(np, name)))
    for name, function in _REDUCED.items():
        made[getattr(np, name)] = function
    for name in (
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool_",
    ):
        made[getattr(np, name)] = cast(getattr(np, name))
    return made


FUNCTIONS: dict[Any, Callable[..., Value]] = (
    _functions()
    | shapes.FUNCTIONS
    | linear.FUNCTIONS
    | {
        np.power: power,
        np.remainder: remainder,
        np.array: array,
        np.asarray: asarray,
        np.asanyarray: asarray,
        np.zeros: filled(0.0),
        np.ones: filled(1.0),
        np.empty: filled(0.0),
        np.full: full,
        np.zeros_like: filled_like(0.0),
        np.empty_like: filled_like(0.0),
        np.ones_like: filled_like(1.0),
        np.full_like: full_like,
        np.arange: laneless(np.arange),
        np.linspace: laneless(np.linspace),
        np.eye: laneless(np.eye),
        np.identity: laneless(np.identity),
        np.clip: clip,
        np.where: where,
        np.array_equal: array_equal,
        np.isclose: is_close,
        np.allclose: all_close,
        np.round: rounded,
        np.around: rounded,
        np.isscalar: is_scalar,
        np.interp: interpolate,
        np.count_nonzero: count_nonzero,
    }
)
"""What stands for functions and types of numpy."""

MASKED: frozenset[Callable[..., Value]] = frozenset(
    [FUNCTIONS[getattr(np, name)] for name in _LIMITED.split()] + [power, remainder]
)
"""Those that have to know which lanes are alive."""

CREATED: frozenset[Callable[..., Value]] = frozenset(
    FUNCTIONS[function]
    for function in (
        np.array,
        np.zeros,
        np.ones,
        np.empty,
        np.full,
        np.zeros_like,
        np.empty_like,
        np.ones_like,
        np.full_like,
        np.arange,
        np.linspace,
        np.eye,
        np.identity,
        np.copy,
        np.concatenate,
        np.stack,
        np.hstack,
        np.append,
    )
)
"""Those that make a new array, which may be changed."""
