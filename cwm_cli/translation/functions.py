"""Replacements of NumPy, `math` and the built-in functions while a program is traced."""

import builtins
import math
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

from cwm_cli.translation.expressions import FUNCTIONS, MATH_NAMES, OPERATIONS, Unsupported
from cwm_cli.translation.numbers import (
    ALIASES,
    COMPOSED,
    Array,
    Number,
    array_of,
    binary_methods,
    cast,
    in_place_method,
    is_number,
    is_python,
    is_symbolic,
    kind_for,
    node_of,
    number,
    objects,
    op,
    program_error,
    raw,
    scalar_array,
    to_int,
    to_numpy,
    tracer,
    wrap,
)

# NumPy functions that only move elements; they work on arrays of objects.
STRUCTURAL = frozenset(
    (
        *("reshape", "ravel", "concatenate", "stack", "vstack", "hstack", "column_stack"),
        *("append", "roll", "transpose", "squeeze", "take", "flip", "fliplr", "flipud", "repeat"),
        *("tile", "expand_dims", "broadcast_to", "split", "array_split", "moveaxis", "swapaxes"),
        *("diag", "insert", "delete", "rot90", "atleast_1d", "atleast_2d", "diagonal"),
        *("triu", "tril"),
    )
)


# Reductions
def _map_elements(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    made = np.frompyfunc(function, 1, 1)(array)
    return made if isinstance(made, np.ndarray) else scalar_array(made)


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
        data = _map_elements(_count_truth, data)
    elif name in ("logical_and", "logical_or"):
        data = _map_elements(
            lambda each: op("not_equal", each, 0) if node_of(each).kind != "b" else each, data
        )
    axes = range(data.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if axis is None and not keepdims:
        data, axes = data.reshape(-1), range(1)
    for each in sorted((place % data.ndim for place in axes), reverse=True):
        total = _combine(
            name,
            [
                scalar_array(part) if not isinstance(part, np.ndarray) else part
                for part in (data.take(place, each) for place in range(data.shape[each]))
            ],
        )
        data = np.expand_dims(total, each) if keepdims else total
    return wrap(data)


def _combine(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    if not parts:
        neutral = {"add": np.float64(0), "multiply": np.float64(1), "logical_or": np.False_}
        neutral["logical_and"] = np.True_
        if name not in neutral:
            raise program_error(ValueError("a reduction of no elements"))
        return scalar_array(neutral[name])
    total = parts[0]
    for part in parts[1:]:
        total = _map_elements(lambda pair: op(name, *pair), _zip_arrays(total, part))
    return total


def _zip_arrays(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    made = np.empty(one.shape, object)
    for place in np.ndindex(one.shape):
        made[place] = one[place], other[place]
    return made


def accumulate(name: str, value: Any, axis: Any = None, **more: Any) -> Any:
    """Return the cumulative results of an operation on a vector."""
    if more or (axis not in (None, 0) and raw(value).ndim > 1):
        raise Unsupported("an accumulation along an axis")
    out: list[Any] = []
    for each in map(_count_truth, raw(value).ravel()):
        out.append(op(name, out[-1], each) if out else each)
    return array_of(out)


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
    condition = op("not_equal", condition, 0) if _kind(condition) != "b" else condition
    return _numpy("select", condition, *choices)


def _kind(value: Any) -> str:
    return (
        value.kind if isinstance(value, Array) else node_of(value).kind if is_number(value) else "?"
    )


def _numpy(name: str, *args: Any) -> Any:
    """Apply an operation as a NumPy function does, which returns NumPy's numbers."""
    args = tuple(
        array_of(arg) if isinstance(arg, list | tuple | np.ndarray) else arg for arg in args
    )
    made = op(name, *args)
    return to_numpy(made) if is_number(made) else made


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    """Return whether numbers are equal within tolerances."""
    room = op("add", op("multiply", op("absolute", b), rtol), atol)
    return _numpy("less_equal", op("absolute", op("subtract", a, b)), room)


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
    to_concrete = [float(place) for place in raw(places)]
    heights = list(array_of(values))
    out = heights[-1]
    for k in range(len(to_concrete) - 2, -1, -1):
        slope = (heights[k + 1] - heights[k]) / (to_concrete[k + 1] - to_concrete[k])
        out = op(
            "select",
            op("less", x, to_concrete[k + 1]),
            slope * (x - to_concrete[k]) + heights[k],
            out,
        )
    return _numpy("select", op("less", x, to_concrete[0]), heights[0], out)


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
            _require_pivot(rows[i][i], rows[j][i])
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


def _require_pivot(pivot: Any, below: Any) -> None:
    small = op("less", op("multiply", op("absolute", pivot), 1e3), op("absolute", below))
    tracer().fall_back_if(node_of(small))


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
    outside = op("logical_or", op("less", place, 0), op("less_equal", size, place))
    tracer().fall_back_if(node_of(outside))
    for each in reversed(shape):
        place, rest = divmod(place, each)
        out.append(_to_numpy(rest))
    return tuple(reversed(out))


def ravel_multi_index(places: Any, shape: Any) -> Any:
    """Return the flat index for indices along each axis."""
    at: Any = np.int64(0)
    for place, size in zip(places, shape, strict=True):
        outside = op("logical_or", op("less", place, 0), op("less_equal", size, place))
        tracer().fall_back_if(node_of(outside))
        at = at * size + place
    return _to_numpy(at)


def _to_numpy(value: Any) -> Any:
    return to_numpy(value) if is_number(value) else value


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
        return _numpy("rint", value) if _kind(array_of(value)) in "sf" else array_of(value)
    if decimals < 0 or _kind(array_of(value)) != "f":
        raise Unsupported("rounding of another kind")
    return _numpy("divide", op("rint", op("multiply", value, 10.0**decimals)), 10.0**decimals)


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


def _concrete_constructor(name: str) -> Callable[..., Any]:
    """Return a NumPy function that constructs arrays from plain arguments."""
    function = getattr(np, name)

    def make(*args: Any, dtype: Any = None, **more: Any) -> Any:
        if is_symbolic(list(args)):
            raise Unsupported(f"numpy.{name} of an unknown value")
        args = tuple(getattr(arg, "plain", arg) for arg in args)
        if dtype is not None:
            more["dtype"] = getattr(dtype, "plain", dtype)
        return wrap(objects(np.asarray(function(*map(to_concrete, args), **more))))

    return make


def _constructor_like(value: Any) -> Callable[..., Any]:
    def make(other: Any, *args: Any, dtype: Any = None) -> Any:
        made = array_of(other)
        number = args[0] if args else value
        return full(made.shape, number, made.dtype if dtype is None else dtype)

    return make


def to_concrete(value: Any) -> Any:
    """Convert arrays without symbolic numbers to NumPy arrays."""
    if isinstance(value, Array):
        return np.array([each.item() for each in value.data.flat], value.dtype).reshape(value.shape)
    if isinstance(value, list | tuple):
        return type(value)(map(to_concrete, value))
    return value


def _to_objects(value: Any) -> Any:
    """Convert an argument to an array of objects, for functions that only move elements."""
    if isinstance(value, Array):
        return value.data
    if type(value) is Number:
        return scalar_array(value)
    if isinstance(value, list | tuple) and value and all(is_number(each) for each in value):
        return (
            array_of(value).data
            if any(not isinstance(e, int) or is_symbolic(e) for e in value)
            else value
        )
    if isinstance(value, list | tuple):
        return type(value)(map(_to_objects, value))
    return objects(value) if isinstance(value, np.ndarray) and value.dtype != object else value


def _wrap_structural(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        made = function(*map(_to_objects, args), **options)
        if isinstance(made, list | tuple):
            return type(made)(wrap(each) for each in made)
        return wrap(made) if isinstance(made, np.ndarray) else made

    return call


def call_ufunc(ufunc: Any, method: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Apply a NumPy ufunc, or one of its methods."""
    name, out = ufunc.__name__, options.pop("out", None)
    if method == "__call__" and not options:
        made = (
            dot(*args)
            if name == "matmul"
            else clip(*args)
            if name == "clip"
            else _numpy(name, *args)
        )
    elif method == "reduce":
        made = reduce(name, *args, **options)
    elif method == "accumulate":
        made = accumulate(name, *args, **options)
    elif method == "outer" and not options:
        made = op(name, Array(raw(array_of(args[0]))[..., None]), args[1])
    else:
        raise Unsupported(f"numpy.{name} with options")
    if out is None:
        return made
    target = out[0] if isinstance(out, tuple) else out
    target[...] = made
    return target


class Ufunc:
    """A NumPy ufunc that accepts symbolic numbers."""

    def __init__(self, ufunc: Any) -> None:
        self._ufunc, self.__name__ = ufunc, ufunc.__name__

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Apply the ufunc."""
        if is_symbolic(list(args)) or any(isinstance(arg, Array | list | tuple) for arg in args):
            if options.pop("where", True) is not True or options.pop("dtype", None) is not None:
                raise Unsupported(f"options of numpy.{self.__name__}")
            return call_ufunc(self._ufunc, "__call__", args, options)
        return self._ufunc(*args, **options)

    def reduce(self, *args: Any, **options: Any) -> Any:
        """Combine the elements of an array."""
        return call_ufunc(self._ufunc, "reduce", args, options)

    def accumulate(self, *args: Any, **options: Any) -> Any:
        """Return the cumulative results."""
        return call_ufunc(self._ufunc, "accumulate", args, options)

    def outer(self, *args: Any, **options: Any) -> Any:
        """Apply the ufunc to all pairs of elements."""
        return call_ufunc(self._ufunc, "outer", args, options)


class Module:
    """A module with some functions that accept symbolic numbers."""

    def __init__(self, module: ModuleType, names: dict[str, Any]) -> None:
        self._module, self._names = module, names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            value = getattr(self._module, name)
            self._names[name] = self._replacement(name, value)
        return self._names[name]

    def _replacement(self, name: str, value: Any) -> Any:
        """Return the value of a name; functions without support refuse symbolic numbers."""
        if isinstance(value, np.ufunc):
            return (
                Ufunc(value)
                if ALIASES.get(name, name) in _SUPPORTED_UFUNCS
                else _concrete_only(name, value)
            )
        if name == "random":
            raise Unsupported("random numbers")
        if name in STRUCTURAL and self._module is np:
            return _wrap_structural(value)
        plain = (
            not isinstance(value, type)
            or issubclass(value, np.generic)
            or name in _SUPPORTED_CLASSES
        )
        if self._module is np and not plain:
            raise Unsupported(f"numpy.{name}")
        if isinstance(value, ModuleType | type) or not callable(value):
            return value
        return _concrete_only(name, value)


_SUPPORTED_UFUNCS = {
    *OPERATIONS,
    *COMPOSED,
    *("matmul", "clip", "bitwise_and", "bitwise_or", "bitwise_xor", "invert"),
}


# NumPy classes, besides types of numbers, that do not compute with elements.
_SUPPORTED_CLASSES = ("errstate", "dtype", "ndindex")


def _concrete_only(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses symbolic numbers."""

    def call(*args: Any, **options: Any) -> Any:
        given = [*args, *options.values()]
        if is_symbolic(given) or any(isinstance(each, FunctionType) for each in given):
            raise Unsupported(f"{name} of an unknown value")
        made = function(
            *map(to_concrete, args), **{key: to_concrete(value) for key, value in options.items()}
        )
        return wrap(made) if isinstance(made, np.ndarray) and made.dtype != object else made

    return call


# Types
class Type(type):
    """A replacement of a number type; it converts symbolic numbers and knows its instances."""

    plain: Any
    convert: Callable[..., Any]

    def __new__(mcs, name: str, plain: Any, convert: Callable[..., Any]) -> "Type":
        """Create the replacement of a type."""
        made = super().__new__(mcs, name, (), {"plain": plain, "convert": staticmethod(convert)})
        return made

    def __init__(cls, *args: Any) -> None:
        pass

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Convert a value."""
        if any(isinstance(arg, Number | Array) for arg in args):
            return cls.convert(*args, **options)
        return cls.plain(*args, **options)

    def __instancecheck__(cls, value: Any) -> bool:
        return is_instance(value, cls)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.plain

    def __hash__(cls) -> int:
        return hash(cls.plain)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.plain, name)


_EXAMPLES: dict[tuple[str, bool], Any] = {
    ("b", True): True,
    ("i", True): 1,
    ("f", True): 1.0,
    ("b", False): np.True_,
    ("i", False): np.int64(1),
    ("s", False): np.float32(1),
    ("f", False): np.float64(1),
}


def is_instance(value: Any, kinds: Any) -> bool:
    """Return whether a value, symbolic or not, is an instance of types."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    plain = tuple(getattr(kind, "plain", kind) for kind in kinds)
    if isinstance(value, Array):
        return isinstance(np.empty(0), plain)
    if type(value) is not Number:
        return isinstance(value, plain)
    exact = (value.node.kind, bool(value.python) and value.node.kind != "s")
    may_be = list(_EXAMPLES) if value.python is None else [exact]
    found = {isinstance(_EXAMPLES[each], plain) for each in may_be}
    if len(found) > 1:
        raise Unsupported("the type of a number that is sometimes another")
    return found.pop()


def type_of(value: Any, *more: Any) -> Any:
    """Return the type of a value."""
    if more:
        return type(value, *more)
    if isinstance(value, Array):
        return NUMPY.ndarray
    if type(value) is not Number:
        return _STAND_INS.get(type(value), type(value))
    if value.python is None:
        raise Unsupported("the type of a number that is sometimes Python's")
    plain = type(_EXAMPLES[value.node.kind, value.python])
    return _STAND_INS.get(plain, plain)


def _as_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, Array) else value


def _to_bool(value: Any) -> Any:
    return number(tracer().graph.cast(node_of(_as_scalar(value)), "b"), True)


def _to_float(value: Any) -> Any:
    return number(tracer().graph.cast(node_of(_as_scalar(value)), "f"), True)


def _converter(name: str) -> Callable[..., Any]:
    def convert(value: Any) -> Any:
        made = cast(value, getattr(np, name))
        return made if not isinstance(made, Array) or made.ndim else wrap(made.data)

    return convert


INT = Type("int", int, lambda value: to_int(_as_scalar(value)))
FLOAT = Type("float", float, _to_float)
BOOL = Type("bool", bool, _to_bool)
_TYPE_NAMES = (
    *("float64", "float32", "int64", "int32", "int16", "int8", "uint8"),
    *("bool_", "floating", "integer", "number"),
)
_NUMPY_TYPES = {name: Type(name, getattr(np, name), _converter(name)) for name in _TYPE_NAMES}
_NUMPY_TYPES["ndarray"] = Type("ndarray", np.ndarray, array)
_STAND_INS = {each.plain: each for each in (INT, FLOAT, BOOL, *_NUMPY_TYPES.values())}


# NumPy and `math` as modules
def _of_numpy(name: str) -> Callable[..., Any]:
    return lambda *args, **options: getattr(NUMPY, name)(*args, **options)


METHODS: dict[str, Callable[..., Any]] = {
    "sum": lambda v, *a, **k: reduce("add", v, *a, **k),
    "prod": lambda v, *a, **k: reduce("multiply", v, *a, **k),
    "min": lambda v, *a, **k: reduce("minimum", v, *a, **k),
    "max": lambda v, *a, **k: reduce("maximum", v, *a, **k),
    "any": lambda v, *a, **k: reduce("logical_or", v, *a, **k),
    "all": lambda v, *a, **k: reduce("logical_and", v, *a, **k),
    "mean": mean,
    "var": var,
    "std": std,
    "clip": clip,
    "dot": dot,
    "round": around,
    "cumsum": lambda v, **k: accumulate("add", v, **k),
    "argmax": lambda v, axis=None: arg_best(v, "less", axis),
    "argmin": lambda v, axis=None: arg_best(v, "greater", axis),
    "take": _of_numpy("take"),
    "repeat": _of_numpy("repeat"),
    "swapaxes": _of_numpy("swapaxes"),
    "diagonal": _of_numpy("diagonal"),
    "conj": lambda v: v,
}
_NAMES: dict[str, Any] = METHODS | {
    "amin": METHODS["min"],
    "amax": METHODS["max"],
    "average": lambda v, axis=None: mean(v, axis),
    "ptp": lambda v, axis=None: op(
        "subtract", reduce("maximum", v, axis), reduce("minimum", v, axis)
    ),
    "count_nonzero": lambda v, axis=None: reduce("add", op("not_equal", array_of(v), 0), axis),
    "heaviside": lambda a, b: _numpy(
        "select", op("equal", a, 0), b, op("select", op("less", 0, a), 1.0, 0.0)
    ),
    "inner": dot,
    "vdot": dot,
    "matmul": dot,
    "where": where,
    "cross": cross,
    "interp": interp,
    "diff": diff,
    "unravel_index": unravel_index,
    "ravel_multi_index": ravel_multi_index,
    "isclose": isclose,
    "allclose": lambda *a, **k: number(node_of(reduce("logical_and", isclose(*a, **k))), True),
    "array_equal": array_equal,
    "around": around,
    "fix": lambda v: _numpy("trunc", v),
    "outer": lambda a, b: op(
        "multiply", Array(raw(array_of(a)).reshape(-1, 1)), array_of(b).reshape(-1)
    ),
    "array": array,
    "asarray": asarray,
    "ascontiguousarray": asarray,
    "copy": array,
    "full": full,
    "full_like": _constructor_like(None),
    "zeros_like": _constructor_like(0),
    "ones_like": _constructor_like(1),
    "empty_like": _constructor_like(0),
    "abs": Ufunc(np.absolute),
    "nan_to_num": lambda v, *a, **k: _nan_to_num(v),
    "isscalar": is_number,
    "iscomplexobj": lambda v: False,
    "shape": lambda v: raw(v).shape,
    "ndim": lambda v: raw(v).ndim,
    "size": lambda v, *a: np.size(raw(v), *a),
    **{
        name: _concrete_constructor(name)
        for name in ["zeros", "ones", "eye", "identity", "arange", "linspace"]
    },
    "empty": _concrete_constructor("zeros"),
    **_NUMPY_TYPES,
    "bool": _NUMPY_TYPES["bool_"],
}
_LINEAR = {
    "norm": norm,
    "solve": solve,
    "inv": lambda a: solve(a, np.eye(len(raw(a)))),
    "det": det,
}


def _nan_to_num(value: Any) -> Any:
    """Return numbers unchanged; if one is not finite, the program computes the step."""
    made = array_of(value)
    tracer().fall_back_if(
        tracer().graph.negate(node_of(reduce("logical_and", _numpy("isfinite", made))))
    )
    return made if made.ndim else wrap(made.data)


NUMPY: Any = Module(np, _NAMES | {"linalg": Module(np.linalg, _LINEAR)})


def _array_attribute(self: Array, name: str) -> Any:
    """Return a method of an array that a NumPy function implements."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in METHODS:
        return lambda *args, **options: METHODS[name](self, *args, **options)
    if hasattr(np.ndarray, name):
        raise Unsupported(f"the attribute {name} of an array")
    raise program_error(AttributeError(f"'numpy.ndarray' object has no attribute {name!r}"))


def _array_ufunc(self: Any, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
    """Apply a ufunc that NumPy calls with a symbolic argument."""
    return call_ufunc(ufunc, method, args, options)


def _array_function(self: Any, func: Any, kinds: Any, args: Any, options: Any) -> Any:
    """Apply another NumPy function that has a symbolic argument."""
    return getattr(NUMPY, func.__name__)(*args, **options)


_FUNCTION_METHODS: dict[str, Callable[..., Any]] = dict(
    zip(("__matmul__", "__rmatmul__"), binary_methods(dot), strict=True),
    __array_ufunc__=_array_ufunc,
    __array_function__=_array_function,
)
for _class in (Number, Array):
    for _name, _function in _FUNCTION_METHODS.items():
        setattr(_class, _name, _function)
for _name, _function in {
    "__imatmul__": in_place_method(dot),
    "__getattr__": _array_attribute,
}.items():
    setattr(Array, _name, _function)


def _math_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `math`; plain arguments go to the original."""
    plain = getattr(math, name)

    def call(*args: Any, **options: Any) -> Any:
        if any(isinstance(arg, Array) for arg in args):
            args = tuple(map(_as_scalar, args))
        if not is_symbolic(list(args)):
            return plain(*args, **options)
        args = tuple(_to_double(arg) for arg in args)
        made = function(*args, **options)
        return number(node_of(made), True) if is_number(made) else made

    return call


def _to_double(value: Any) -> Any:
    """Convert a single-precision number to double precision, as `math` does."""
    single = type(value) is Number and value.node.kind == "s"
    return number(tracer().graph.cast(value.node, "f"), True) if single else value


def _math_isclose(a: Any, b: Any, rel_tol: float = 1e-9, abs_tol: float = 0.0) -> Any:
    room = op("multiply", op("maximum", op("absolute", a), op("absolute", b)), rel_tol)
    return op("less_equal", op("absolute", op("subtract", a, b)), op("maximum", room, abs_tol))


_MATH: dict[str, Callable[..., Any]] = {
    **{MATH_NAMES[name]: lambda x, name=name: op(name, x) for name in FUNCTIONS},
    "floor": lambda x: to_int(op("floor", x)),
    "ceil": lambda x: to_int(op("ceil", x)),
    "trunc": to_int,
    "fabs": lambda x: _to_float(op("absolute", x)),
    "atan2": lambda a, b: op("arctan2", a, b),
    "hypot": lambda *a: op("hypot", *a) if len(a) == 2 else norm(array_of(a)),
    "pow": lambda a, b: op("power", _to_float(a), b),
    "fmod": lambda a, b: op("fmod", _to_float(a), b),
    "copysign": lambda a, b: op("copysign", _to_float(a), b),
    "radians": lambda x: op("radians", x),
    "degrees": lambda x: op("degrees", x),
    "isnan": lambda x: op("isnan", x),
    "isfinite": lambda x: op("isfinite", _to_float(x)),
    "isinf": lambda x: op("isinf", x),
    "log": lambda x, base=None: (
        op("log", x) if base is None else op("divide", op("log", x), op("log", base))
    ),
    "isclose": _math_isclose,
    "dist": lambda p, q: norm(op("subtract", array_of(p), array_of(q))),
    "fsum": lambda values: _add_up(values),
}
MATH = Module(math, {n: _math_function(n, f) for n, f in _MATH.items() if hasattr(math, n)})


# Built-in functions
def _add_up(values: Iterable[Any], start: Any = 0) -> Any:
    """Return the sum of values, added one after the other."""
    for value in values:
        start = start + value
    return start


def _min_or_max(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `min` or `max`; of equal values the first is returned."""

    def call(*args: Any, **options: Any) -> Any:
        items = list(args[0]) if len(args) == 1 else list(args)
        if options or not is_symbolic(items) or not all(map(is_number, items)):
            return plain(items, **options)
        out = items[0]
        for item in items[1:]:
            better = op("less", item, out) if name == "min" else op("less", out, item)
            out = select_number(node_of(better), item, out)
        return out

    return call


def select_number(condition: Any, x: Any, y: Any) -> Any:
    """Return one of two numbers by a condition.

    Its type may be ambiguous if that cannot matter; otherwise the path forks.
    """
    one, other = node_of(x), node_of(y)
    python = is_python_of(x, y) if one.kind == other.kind else None
    if python is None and tracer().exact_types and one is not other:
        return x if tracer().decide(condition) else y
    return number(tracer().graph.apply("select", condition, one, other), python)


def is_python_of(x: Any, y: Any) -> bool | None:
    """Return whether both numbers are Python's; None if only one number is."""
    one, other = is_python(x), is_python(y)
    return one if one is other else None


def import_module(name: str, *args: Any) -> Any:
    """Import a module; refuse modules that could make results differ between calls."""
    top = name.partition(".")[0]
    if top == "numpy":
        return NUMPY if "." not in name or not (len(args) > 2 and args[2]) else NUMPY.linalg
    if top == "math":
        return MATH
    if top in ("random", "time", "os", "sys", "datetime", "secrets", "uuid", "threading", "gc"):
        raise Unsupported(f"import of {name}")
    return __import__(name, *args)


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        raise Unsupported(name)

    return refuse


def _absolute(value: Any) -> Any:
    return op("absolute", value) if isinstance(value, Number | Array) else abs(value)


def _power(base: Any, exponent: Any, *modulus: Any) -> Any:
    if modulus and is_symbolic([base, exponent, *modulus]):
        raise Unsupported("pow of three numbers")
    return pow(base, exponent, *modulus)


# These have effects other than a result, or reveal the objects behind symbolic numbers.
_UNSUPPORTED_BUILTINS = (
    *("id", "input", "open", "eval", "exec", "locals", "globals", "iter", "next", "hash"),
)

BUILTINS: dict[str, Any] = dict(vars(builtins)) | {
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "type": type_of,
    "min": _min_or_max("min", min),
    "max": _min_or_max("max", max),
    "abs": _absolute,
    "pow": _power,
    "sum": _add_up,
    "isinstance": is_instance,
    "print": lambda *args, **options: None,
    "__import__": import_module,
    **{name: _refuse(name) for name in _UNSUPPORTED_BUILTINS},
}
