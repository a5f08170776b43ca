"""Functions of `math` on values of lanes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cwm_cli.planning.batched.lanes import Mask, Value, has_lanes, kind, refuse
from cwm_cli.planning.batched.operators import power

SAFE = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "tanh": np.tanh,
    "fabs": np.fabs,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "radians": np.radians,
    "degrees": np.degrees,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
}
LIMITED = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "expm1": np.expm1,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atanh": np.arctanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "fmod": np.fmod,
}
ROUNDING = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}


def numeric(ufunc: np.ufunc, plain: Callable[..., Any]) -> Callable[..., Value]:
    """Return a function of numbers."""

    def apply(*values: Value) -> Value:
        for value in values:
            if type(value) is not np.ndarray or value.ndim != 1 or value.dtype.kind != "f":
                return careful(values)
        return ufunc(*values)

    def careful(values: tuple[Value, ...]) -> Value:
        if not any(isinstance(value, np.ndarray) for value in values):
            return plain(*values)
        if any(
            has_lanes(value) and (value.ndim > 1 or kind(value) not in "fi") for value in values
        ):
            refuse(f"math.{plain.__name__} of something that is no number")
        return ufunc(*values)

    return apply


def limited(function: Callable[..., Value], harmless: float = 0.5) -> Callable[..., Value]:
    """Return a function that some numbers raise an error with; where nobody is alive, none does."""

    def apply(*values: Value, mask: Mask = True, **options: Any) -> Value:
        if mask is not True:
            values = tuple(
                np.where(mask, value, harmless) if has_lanes(value) else value for value in values
            )
        return function(*values, **options)

    return apply


def whole(ufunc: np.ufunc, plain: Callable[..., Any]) -> Callable[..., Value]:
    """Return a function that makes whole numbers."""
    rounding = numeric(ufunc, plain)

    def apply(value: Value) -> Value:
        result = rounding(value)
        return result.astype(np.int64) if has_lanes(result) else result

    return apply


def logarithm(value: Value, base: Value = None) -> Value:
    """Return the natural logarithm, or another."""
    natural = numeric(np.log, math.log)
    return natural(value) if base is None else natural(value) / natural(base)


def is_close(left: Value, right: Value, *, rel_tol: float = 1e-9, abs_tol: float = 0.0) -> Value:
    """Return where two numbers are close."""
    larger = np.maximum(np.abs(left), np.abs(right))
    return np.abs(np.subtract(left, right)) <= np.maximum(rel_tol * larger, abs_tol)


def real_power(left: Value, right: Value, mask: Mask = True) -> Value:
    """Raise a real number to a power."""
    if not has_lanes(left) and not has_lanes(right):
        return math.pow(left, right)
    return power(left * 1.0, right, mask)


def distance(left: Value, right: Value) -> Value:
    """Return the distance of two points."""
    squares = [np.square(np.subtract(*pair)) for pair in zip(left, right, strict=True)]
    return np.sqrt(sum(squares))


def _functions() -> dict[Any, Callable[..., Value]]:
    """Return what stands for each function."""
    made: dict[Any, Callable[..., Value]] = {}
    for name, ufunc in SAFE.items():
        made[getattr(math, name)] = numeric(ufunc, getattr(math, name))
    for name, ufunc in LIMITED.items():
        made[getattr(math, name)] = limited(numeric(ufunc, getattr(math, name)))
    for name, ufunc in ROUNDING.items():
        made[getattr(math, name)] = limited(whole(ufunc, getattr(math, name)))
    return made


FUNCTIONS: dict[Any, Callable[..., Value]] = _functions() | {
    math.acosh: limited(numeric(np.arccosh, math.acosh), 1.5),
    math.log: limited(logarithm),
    math.isclose: is_close,
    math.pow: real_power,
    math.dist: distance,
}
"""What stands for functions of `math`."""

MASKED: frozenset[Callable[..., Value]] = frozenset(
    [FUNCTIONS[getattr(math, name)] for name in [*LIMITED, *ROUNDING, "acosh", "log", "pow"]]
)
"""Those that have to know which lanes are alive."""
