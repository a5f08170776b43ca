"""Modules, types and built-in functions that a traced program finds instead of Python's own."""

import builtins
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from cwm_cli.translation import functions
from cwm_cli.translation.expressions import FUNCTIONS, MATH_NAMES, OPERATIONS, Unsupported
from cwm_cli.translation.functions import (
    accumulate,
    arg_best,
    array,
    asarray,
    clip,
    dot,
    full,
    isclose,
    mean,
    norm,
    numpy_op,
    reduce,
    solve,
)
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
    is_symbolic,
    node_of,
    number,
    objects,
    op,
    program_error,
    raw,
    scalar_array,
    select_number,
    to_int,
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
        # Plain integers may be a shape or an index, which NumPy needs as integers.
        plain = all(isinstance(each, int) for each in value)
        return value if plain else array_of(value).data
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
        special: dict[str, Callable[..., Any]] = {"matmul": dot, "clip": clip}
        apply = special.get(name, partial(numpy_op, name))
        made = apply(*args)
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

    def __getattr__(self, name: str) -> Any:
        """Return a method, such as `reduce`, or another attribute."""
        value = getattr(self._ufunc, name)
        if name.startswith("_") or not callable(value):
            return value
        return lambda *args, **options: call_ufunc(self._ufunc, name, args, options)


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
            supported = ALIASES.get(name, name) in _SUPPORTED_UFUNCS
            return Ufunc(value) if supported else _concrete_only(name, value)
        if name == "random":
            raise Unsupported("random numbers")
        if self._module is np and name in STRUCTURAL:
            return _wrap_structural(value)
        computes = isinstance(value, type) and not issubclass(value, np.generic)
        if self._module is np and computes and name not in _SUPPORTED_CLASSES:
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


def _to_kind(kind: str, value: Any) -> Any:
    return number(tracer().graph.cast(node_of(value), kind), True)


def _converter(name: str) -> Callable[..., Any]:
    def convert(value: Any) -> Any:
        made = cast(value, getattr(np, name))
        return made if not isinstance(made, Array) or made.ndim else wrap(made.data)

    return convert


_to_float = partial(_to_kind, "f")
INT = Type("int", int, to_int)
FLOAT = Type("float", float, _to_float)
BOOL = Type("bool", bool, partial(_to_kind, "b"))
_TYPE_NAMES = (
    *("float64", "float32", "int64", "int32", "int16", "int8", "uint8"),
    *("bool_", "floating", "integer", "number"),
)
_NUMPY_TYPES = {name: Type(name, getattr(np, name), _converter(name)) for name in _TYPE_NAMES}
_NUMPY_TYPES["ndarray"] = Type("ndarray", np.ndarray, array)
_STAND_INS = {each.plain: each for each in (INT, FLOAT, BOOL, *_NUMPY_TYPES.values())}


# NumPy and `math` as modules
METHODS: dict[str, Callable[..., Any]] = {
    "sum": lambda v, *a, **k: reduce("add", v, *a, **k),
    "prod": lambda v, *a, **k: reduce("multiply", v, *a, **k),
    "min": lambda v, *a, **k: reduce("minimum", v, *a, **k),
    "max": lambda v, *a, **k: reduce("maximum", v, *a, **k),
    "any": lambda v, *a, **k: reduce("logical_or", v, *a, **k),
    "all": lambda v, *a, **k: reduce("logical_and", v, *a, **k),
    **{name: getattr(functions, name) for name in ("mean", "var", "std", "clip", "dot")},
    "round": functions.around,
    "cumsum": lambda v, **k: accumulate("add", v, **k),
    "argmax": lambda v, axis=None: arg_best(v, "less", axis),
    "argmin": lambda v, axis=None: arg_best(v, "greater", axis),
    **{
        name: (lambda *a, name=name, **k: getattr(NUMPY, name)(*a, **k))
        for name in ("take", "repeat", "swapaxes", "diagonal")
    },
    "conj": lambda v: v,
}
_SAME_NAMES = (
    *("where", "cross", "interp", "diff", "unravel_index", "ravel_multi_index", "isclose"),
    *("array_equal", "around", "array", "asarray", "full"),
)
_NAMES: dict[str, Any] = METHODS | {
    "amin": METHODS["min"],
    "amax": METHODS["max"],
    "average": lambda v, axis=None: mean(v, axis),
    "ptp": lambda v, axis=None: op(
        "subtract", reduce("maximum", v, axis), reduce("minimum", v, axis)
    ),
    "count_nonzero": lambda v, axis=None: reduce("add", op("not_equal", array_of(v), 0), axis),
    "heaviside": lambda a, b: numpy_op(
        "select", op("equal", a, 0), b, op("select", op("less", 0, a), 1.0, 0.0)
    ),
    "inner": dot,
    "vdot": dot,
    "matmul": dot,
    **{name: getattr(functions, name) for name in _SAME_NAMES},
    "allclose": lambda *a, **k: number(node_of(reduce("logical_and", isclose(*a, **k))), True),
    "fix": lambda v: numpy_op("trunc", v),
    "outer": lambda a, b: op(
        "multiply", Array(raw(array_of(a)).reshape(-1, 1)), array_of(b).reshape(-1)
    ),
    "ascontiguousarray": asarray,
    "copy": array,
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
    "det": functions.det,
}


def _nan_to_num(value: Any) -> Any:
    """Return numbers unchanged; if one is not finite, the program computes the step."""
    made = array_of(value)
    tracer().fall_back_if(
        tracer().graph.negate(node_of(reduce("logical_and", numpy_op("isfinite", made))))
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


# NumPy calls these methods for functions with a symbolic argument.
_ARRAY_PROTOCOL: dict[str, Callable[..., Any]] = {
    "__array_ufunc__": lambda self, ufunc, method, *args, **options: call_ufunc(
        ufunc, method, args, options
    ),
    "__array_function__": lambda self, function, kinds, args, options: getattr(
        NUMPY, function.__name__
    )(*args, **options),
}
for _class in (Number, Array):
    for _name, _function in _ARRAY_PROTOCOL.items():
        setattr(_class, _name, _function)
    for _name, _function in zip(("__matmul__", "__rmatmul__"), binary_methods(dot), strict=True):
        setattr(_class, _name, _function)
setattr(Array, "__imatmul__", in_place_method(dot))  # noqa: B010
setattr(Array, "__getattr__", _array_attribute)  # noqa: B010


def _math_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `math`; plain arguments go to the original."""
    plain = getattr(math, name)

    def call(*args: Any, **options: Any) -> Any:
        args = tuple(arg.item() if isinstance(arg, Array) else arg for arg in args)
        if not is_symbolic(list(args)):
            return plain(*args, **options)
        # `math` computes in double precision.
        single = [type(arg) is Number and arg.node.kind == "s" for arg in args]
        args = tuple(_to_float(x) if s else x for x, s in zip(args, single, strict=True))
        made = function(*args, **options)
        return number(node_of(made), True) if is_number(made) else made

    return call


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


def import_module(name: str, *args: Any) -> Any:
    """Import a module; refuse modules with state outside of Python, or with changing results."""
    top = name.partition(".")[0]
    if top == "numpy":
        return NUMPY if "." not in name or not (len(args) > 2 and args[2]) else NUMPY.linalg
    if top == "math":
        return MATH
    changing = ("random", "time", "os", "sys", "datetime", "secrets", "uuid", "threading", "gc")
    if top in (*changing, "mujoco"):
        raise Unsupported(f"import of {name}")
    return __import__(name, *args)


def _refuse(name: str, *args: Any, **options: Any) -> Any:
    raise Unsupported(name)


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
    "pow": _power,
    "sum": _add_up,
    "isinstance": is_instance,
    "print": lambda *args, **options: None,
    "__import__": import_module,
    **{name: partial(_refuse, name) for name in _UNSUPPORTED_BUILTINS},
}
