"""Functions of NumPy on symbolic numbers and arrays; `modules` gives them to programs."""

import itertools
import math
from functools import partial
from types import GeneratorType
from typing import Any

import numpy as np

from cwm_cli.translation.expressions import Unsupported
from cwm_cli.translation.numbers import (
    Array,
    array_of,
    cast,
    is_number,
    is_symbolic,
    kind_for,
    map_elements,
    node_of,
    number,
    op,
    program_error,
    raw,
    scalar_array,
    to_numpy,
    tracer,
    wrap,
)


# Reductions
def _count_truth(value: Any) -> Any:
    """Return a number for a sum or product; a truth becomes 0 or 1."""
    node = node_of(value)
    return number(tracer().graph.cast(node, "i"), False) if node.kind == "b" else value


def reduce(
    name: str,
    value: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    **more: Any,
) -> Any:
    """Combine the elements of an array along axes, one after the other."""
    if more or out is not None:
        raise Unsupported("options of a reduction")
    data = raw(value if dtype is None else cast(value, dtype))
    if name in ("add", "multiply"):
        data = map_elements(_count_truth, data)
    elif name in ("logical_and", "logical_or"):
        data = map_elements(_as_truth, data)
    axes = range(data.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if axis is None and not keepdims:
        data, axes = data.reshape(-1), range(1)
    combine = np.frompyfunc(partial(op, name), 2, 1)
    for each in sorted((place % data.ndim for place in axes), reverse=True):
        of_none = {"initial": _reduce_nothing(name)} if not data.shape[each] else {}
        # NumPy combines objects one after the other, in order.
        data = combine.reduce(data, axis=each, keepdims=keepdims, **of_none)
    return wrap(data)


def _reduce_nothing(name: str) -> Any:
    """Return the result of a reduction of no elements."""
    neutral: dict[str, Any] = {"add": np.float64(0), "multiply": np.float64(1)}
    neutral |= {"logical_and": np.True_, "logical_or": np.False_}
    if name not in neutral:
        raise program_error(ValueError("a reduction of no elements"))
    return neutral[name]


def accumulate(name: str, value: Any, axis: Any = None, **more: Any) -> Any:
    """Return the cumulative results of an operation on a vector."""
    if more or (axis not in (None, 0) and raw(value).ndim > 1):
        raise Unsupported("an accumulation along an axis")
    counts = map(_count_truth, raw(value).ravel())
    return array_of(list(itertools.accumulate(counts, partial(op, name))))


def _count_elements(value: Any, axis: Any) -> int:
    shape = raw(value).shape
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return math.prod(shape[each] for each in axes)


def mean(value: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the mean."""
    return op(
        "divide",
        reduce("add", value, axis, dtype, None, keepdims),
        float(_count_elements(value, axis)),
    )


def var(value: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Return the variance."""
    away = op("subtract", value, mean(value, axis, None, True))
    total = reduce("add", op("multiply", away, away), axis, None, None, keepdims)
    return op("divide", total, float(_count_elements(value, axis) - ddof))


def std(value: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Return the standard deviation."""
    return op("sqrt", var(value, axis, ddof, keepdims))


def norm(value: Any, order: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the norm of a vector, or of the rows of a matrix: Euclidean, 1 or infinity."""
    if raw(value).ndim > 1 and axis is None and order is not None:
        raise Unsupported("a norm of matrices")
    if order == 1:
        return reduce("add", op("absolute", value), axis)
    if order in (np.inf, math.inf):
        return reduce("maximum", op("absolute", value), axis)
    if order not in (None, 2):
        raise Unsupported("a norm")
    floats = value if array_of(value).kind in "sf" else cast(value, float)
    return op("sqrt", reduce("add", op("square", floats), axis, keepdims=keepdims))


def dot(a: Any, b: Any) -> Any:
    """Return the product of vectors and matrices."""
    one, other = raw(a), raw(b)
    if one.ndim > 2 or other.ndim > 2:
        raise Unsupported("a product of more than matrices")
    if one.ndim == 0 or other.ndim == 0:
        return op("multiply", a, b)
    if one.shape[-1] != other.shape[0]:
        raise program_error(ValueError("shapes of a product do not fit"))
    if one.ndim == 1 and other.ndim == 1:
        return reduce("add", op("multiply", Array(one), Array(other)))
    if other.ndim == 1:
        return array_of([dot(Array(row), Array(other)) for row in one])
    if one.ndim == 1:
        return array_of([dot(Array(one), Array(column)) for column in other.T])
    return array_of([[dot(Array(row), Array(column)) for column in other.T] for row in one])


def arg_best(value: Any, better: str, axis: Any = None) -> Any:
    """Return the index of the first largest (`better="less"`) or smallest element."""
    data = raw(value)
    if axis is not None and data.ndim > 1:
        rows = np.moveaxis(data, axis, -1)
        places = [arg_best(Array(row), better) for row in rows.reshape(-1, rows.shape[-1])]
        return array_of(places).reshape(rows.shape[:-1])
    items = list(data.ravel())
    if not items:
        raise program_error(ValueError("the best of no elements"))
    top, where = items[0], np.int64(0)
    for place, each in enumerate(items[1:], 1):
        found = op(better, top, each)
        top, where = op("select", found, each, top), op("select", found, np.int64(place), where)
    return where


# Other functions of NumPy
def clip(value: Any, low: Any = None, high: Any = None, **more: Any) -> Any:
    """Limit numbers to a range."""
    low = more.pop("a_min", more.pop("min", low))
    high = more.pop("a_max", more.pop("max", high))
    if more:
        raise Unsupported("options of numpy.clip")
    value = array_of(value) if isinstance(value, list | tuple) else value
    if low is not None:
        value = op("maximum", value, low)
    if high is not None:
        value = op("minimum", value, high)
    return wrap(scalar_array(value)) if is_number(value) else value


def where(condition: Any, *choices: Any) -> Any:
    """Select between two values by a condition."""
    if len(choices) != 2:
        raise Unsupported("numpy.where of one argument")
    condition = condition if is_number(condition) else array_of(condition)
    return numpy_op("select", _as_truth(condition), *choices)


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, Array) else node_of(value).kind


def _as_truth(value: Any) -> Any:
    return value if _kind(value) == "b" else op("not_equal", value, 0)


def numpy_op(name: str, *args: Any) -> Any:
    """Apply an operation as a NumPy function does, which returns NumPy's numbers."""
    args = tuple(
        array_of(arg) if isinstance(arg, list | tuple | np.ndarray) else arg for arg in args
    )
    return to_numpy(op(name, *args))


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    """Return whether numbers are equal within tolerances."""
    room = op("add", op("multiply", op("absolute", b), rtol), atol)
    return numpy_op("less_equal", op("absolute", op("subtract", a, b)), room)


def array_equal(a: Any, b: Any) -> Any:
    """Return whether arrays have the same shape and elements."""
    one, other = array_of(a), array_of(b)
    if one.shape != other.shape:
        return False
    return number(node_of(reduce("logical_and", op("equal", one, other))), True)


def cross(a: Any, b: Any) -> Any:
    """Return the cross product of two vectors with three components."""
    one, other = list(array_of(a)), list(array_of(b))
    if len(one) != 3 or len(other) != 3:
        raise Unsupported("a cross product of other than three numbers")
    turned = [(1, 2), (2, 0), (0, 1)]
    return array_of([one[i] * other[j] - one[j] * other[i] for i, j in turned])


def interp(x: Any, places: Any, values: Any) -> Any:
    """Interpolate linearly between known positions."""
    if not is_number(x):
        return array_of([interp(each, places, values) for each in array_of(x)])
    if is_symbolic(places):
        raise Unsupported("numpy.interp between unknown positions")
    known = [float(place) for place in raw(places)]
    heights = list(array_of(values))
    out = heights[-1]
    for k in range(len(known) - 2, -1, -1):
        slope = (heights[k + 1] - heights[k]) / (known[k + 1] - known[k])
        out = op(
            "select",
            op("less", x, known[k + 1]),
            slope * (x - known[k]) + heights[k],
            out,
        )
    return numpy_op("select", op("less", x, known[0]), heights[0], out)


def solve(a: Any, b: Any) -> Any:
    """Solve linear equations by elimination without pivoting.

    A pivot below 1/1000 of another element in its column is left to the program, which would
    exchange rows.
    """
    one, other = array_of(a), array_of(b)
    flat = other.ndim == 1
    if one.ndim != 2 or one.shape[0] != one.shape[1] or other.shape[0] != one.shape[0]:
        raise Unsupported("equations of another shape")
    size, right = len(one), [[row] for row in other] if flat else [list(row) for row in other]
    rows = [list(left) + more for left, more in zip(one, right, strict=True)]
    for i in range(size):
        for j in range(i + 1, size):
            small = op(
                "less", op("multiply", op("absolute", rows[i][i]), 1e3), op("absolute", rows[j][i])
            )
            tracer().fall_back_if(node_of(small))
            factor = rows[j][i] / rows[i][i]
            rest = [x - factor * y for x, y in zip(rows[j][i + 1 :], rows[i][i + 1 :], strict=True)]
            rows[j] = rows[j][: i + 1] + rest
    out: list[Any] = [None] * size
    for i in reversed(range(size)):
        row = rows[i][size:]
        for k in range(i + 1, size):
            row = [x - rows[i][k] * y for x, y in zip(row, out[k], strict=True)]
        out[i] = [x / rows[i][i] for x in row]
    return array_of([row[0] for row in out] if flat else out)


def det(a: Any) -> Any:
    """Return the determinant of a matrix with at most four rows, by Laplace expansion."""
    data = raw(a)
    if data.ndim != 2 or len(data) > 4:
        raise Unsupported("a determinant of a large matrix")
    if len(data) == 1:
        return data[0, 0]
    total: Any = None
    for i in range(len(data)):
        part = data[0, i] * det(Array(np.delete(data[1:], i, 1)))
        total = part if total is None else total - part if i % 2 else total + part
    return total


def unravel_index(place: Any, shape: Any) -> Any:
    """Return the index along each axis for a flat index; outside them the program fails."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size, out = math.prod(shape), []
    _require_index(place, size)
    for each in reversed(shape):
        place, rest = divmod(place, each)
        out.append(to_numpy(rest))
    return tuple(reversed(out))


def ravel_multi_index(places: Any, shape: Any) -> Any:
    """Return the flat index for indices along each axis."""
    at: Any = np.int64(0)
    for place, size in zip(places, shape, strict=True):
        _require_index(place, size)
        at = at * size + place
    return to_numpy(at)


def _require_index(place: Any, size: int) -> None:
    """Leave the step to the program, which fails, if an index is outside an axis."""
    outside = op("logical_or", op("less", place, 0), op("less_equal", size, place))
    tracer().fall_back_if(node_of(outside))


def diff(value: Any, n: int = 1) -> Any:
    """Return the differences of adjacent elements."""
    made = array_of(value)
    for _ in range(n):
        made = made[1:] - made[:-1]
    return made


def full(shape: Any, value: Any, dtype: Any = None) -> Any:
    """Return an array filled with one number."""
    if not is_number(value):
        raise Unsupported("numpy.full of an array")
    data = np.empty(shape, object)
    data[...] = scalar_array(to_numpy(value))
    made = Array(data, node_of(value).kind)
    return made if dtype is None else cast(made, dtype)


def around(value: Any, decimals: int = 0) -> Any:
    """Round as NumPy does: scale, round to an integer, scale back."""
    if not decimals:
        return numpy_op("rint", value) if _kind(array_of(value)) in "sf" else array_of(value)
    if decimals < 0 or _kind(array_of(value)) != "f":
        raise Unsupported("rounding of another kind")
    return numpy_op("divide", op("rint", op("multiply", value, 10.0**decimals)), 10.0**decimals)


def array(value: Any, dtype: Any = None, copy: Any = True, ndmin: int = 0, **more: Any) -> Any:
    """Return a new array."""
    if ndmin or more:
        raise Unsupported("options of numpy.array")
    value = list(value) if isinstance(value, map | range | GeneratorType) else value
    if isinstance(value, Array) and not copy and dtype is None:
        return value
    return array_of(value, dtype)


def asarray(value: Any, dtype: Any = None, **more: Any) -> Any:
    """Return the array itself if it has the type, else a new one."""
    kept = isinstance(value, Array) and (dtype is None or kind_for(dtype) == value.kind)
    return value if kept else array(value, dtype, **more)
