"""Symbolic numbers and arrays, which replace observations and actions while a program is traced.

If plain numbers would fail but arrays continue (a division by zero, a root of a negative number,
NaN, more than 64 bits), the path adds a fallback condition: the program itself computes the step.
`functions` adds the functions, methods and matrix products of NumPy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from cwm_cli.translation.expressions import (
    OPERATIONS,
    PYTHON_TYPES,
    AmbiguousType,
    TraceNode,
    Unsupported,
    is_nan,
    promote_kinds,
)
from cwm_cli.translation.paths import LIMITS, AbandonedPath, Tracer

DTYPES = {"b": np.dtype(bool), "i": np.dtype(np.int64), "s": np.dtype("f4"), "f": np.dtype(float)}
KINDS = {str(dtype): kind for kind, dtype in DTYPES.items()}

# Larger integers may exceed 64 bits.
MAX_INTEGER = 2.0**62

_NUMBERS = {"b": np.bool_, "i": np.int64, "s": np.float32, "f": np.float64}


class Current:
    """The tracer in use; a process has one at a time."""

    tracer = Tracer()


def tracer() -> Tracer:
    """Return the tracer in use."""
    return Current.tracer


ALIASES = {
    "fabs": "absolute",
    "abs": "absolute",
    "true_divide": "divide",
    "mod": "remainder",
    "fmin": "minimum",
    "fmax": "maximum",
    "float_power": "power",
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "atan2": "arctan2",
    "pow": "power",
}


class Number:
    """A symbolic number.

    `python` is True for a number of Python, False for one of NumPy, and None if it differs between
    merged paths. Operations that depend on it then raise `Unsupported`.
    """

    __slots__ = ("node", "python")
    __array_priority__ = 100

    def __init__(self, node: TraceNode, python: bool | None) -> None:
        self.node, self.python = node, python

    def __bool__(self) -> bool:
        return tracer().decide(self.node)

    def __index__(self) -> int:
        if self.node.kind == "b" and not self.python:
            raise Unsupported("a truth of numpy is an index")
        return tracer().fork_on_value(self.node)

    def __hash__(self) -> int:
        return hash(tracer().fork_on_value(self.node))

    def __float__(self) -> float:
        raise Unsupported("a number that depends on the observation is made plain")

    __int__ = __complex__ = __float__

    def __repr__(self) -> str:
        raise AbandonedPath("the text of a number")

    __str__ = __repr__

    def __format__(self, how: str) -> str:
        raise AbandonedPath("the text of a number")

    def __round__(self, digits: Any = None) -> Any:
        return round_half_even(self, digits)

    def __floor__(self) -> Any:
        return to_int(op("floor", self))

    def __ceil__(self) -> Any:
        return to_int(op("ceil", self))

    def __trunc__(self) -> Any:
        return to_int(self)

    def __copy__(self) -> "Number":
        return self

    def __deepcopy__(self, memo: Any) -> "Number":
        return self

    def __getitem__(self, place: Any) -> Any:
        if self.python is not False:
            raise program_error(TypeError("a number is not subscriptable"))
        if place == ():
            return self
        raise program_error(IndexError("invalid index to scalar variable."))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of a Python number, or of a NumPy scalar."""
        kind = self.node.kind
        if name.startswith("__"):
            raise AttributeError(name)
        if self.python is None:
            raise Unsupported(f"the attribute {name} of a number that is sometimes Python's")
        if name == "is_integer" and kind == "f":
            return lambda: op("equal", self, op("floor", self))
        plain = PYTHON_TYPES[kind] if self.python else _NUMBERS[kind]
        if not hasattr(plain, name):
            message = f"{plain.__name__!r} object has no attribute {name!r}"
            raise program_error(AttributeError(message))
        if not self.python:
            return getattr(Array(scalar_array(self), kind), name)
        if name not in ("real", "conjugate"):
            raise Unsupported(f"the attribute {name} of a number")
        return self if name == "real" else lambda: self


def program_error(error: Exception) -> Exception:
    """Mark an exception that the program also raises with plain numbers."""
    error.__traced__ = True  # type: ignore[attr-defined]
    return error


def is_number(value: Any) -> bool:
    """Return whether a value is a number, symbolic or not."""
    return isinstance(value, Number | bool | int | float | np.generic)


def node_of(value: Any) -> TraceNode:
    """Return the node of a number or of an array with one element."""
    if type(value) is Number:
        return value.node
    if isinstance(value, Array | np.ndarray):
        if value.size != 1:
            raise program_error(TypeError("only arrays of one element are numbers"))
        return node_of(value.data.flat[0] if isinstance(value, Array) else value.flat[0])
    return tracer().graph.const(value)


def is_python(value: Any) -> bool | None:
    """Return whether a number is Python's; None if both are possible."""
    if type(value) is Number:
        return value.python
    return not isinstance(value, np.generic | np.ndarray | Array)


def number(node: TraceNode, python: bool | None) -> Any:
    """Return the number of a node: a plain one if it is constant and its type is known."""
    if node.op == "const" and python is not None:
        return PYTHON_TYPES[node.kind](node.value) if python else _NUMBERS[node.kind](node.value)
    return Number(node, python)


def scalar_array(value: Any) -> np.ndarray:
    """Return an array of objects without axes that contains a value."""
    array = np.empty((), object)
    array[()] = value
    return array


def op(name: str, *args: Any) -> Any:
    """Apply an operation to numbers or arrays, as NumPy or Python does."""
    if any(isinstance(arg, Array | np.ndarray | list | tuple) for arg in args):
        return elementwise(name, *args)
    flags = [is_python(arg) for arg in args]
    python = None if None in flags else all(flags)
    return number(_apply(name, [node_of(arg) for arg in args], flags), python)


def select_number(condition: Any, x: Any, y: Any) -> Any:
    """Return one of two numbers by a condition.

    Its type may be ambiguous if that cannot matter; otherwise the path forks.
    """
    one, other = node_of(x), node_of(y)
    types = {is_python(x), is_python(y)}
    python = types.pop() if one.kind == other.kind and len(types) == 1 else None
    if python is None and tracer().exact_types and one is not other:
        return x if tracer().decide(condition) else y
    return number(tracer().graph.apply("select", condition, one, other), python)


def elementwise(name: str, *args: Any) -> Any:
    """Apply an operation to arrays; their elements are NumPy's, other numbers may be Python's."""
    arrays = [scalar_array(arg) if is_number(arg) else raw(arg) for arg in args]
    return wrap(map_elements(lambda *values: op(name, *values), *arrays))


def map_elements(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Return the results of a function of an element of each array, as an array of objects."""
    made = np.frompyfunc(function, len(arrays), 1)(*arrays)
    # For arrays without axes, NumPy returns the element itself.
    return made if isinstance(made, np.ndarray) else scalar_array(made)


def _apply(name: str, nodes: list[TraceNode], flags: list[bool | None]) -> TraceNode:
    """Return the node of an operation under any of its NumPy names."""
    graph = tracer().graph
    name = ALIASES.get(name, name)
    if "s" in [node.kind for node in nodes] and name != "select":
        nodes = _promote(nodes, flags)
    composed = COMPOSED.get(name)
    if composed:
        return composed(nodes)
    if name in _BITS:
        return _apply_to_truths(name, nodes, flags)
    if name not in OPERATIONS:
        raise Unsupported(f"numpy.{name}")
    if OPERATIONS[name].kind == "n" and name != "select":
        if all(node.kind == "b" for node in nodes) and not all(flags):
            raise Unsupported("arithmetic of truths")
        nodes = [graph.cast(node, "i") if node.kind == "b" else node for node in nodes]
    if name == "power":
        nodes = _prepare_power(nodes, flags)
    if OPERATIONS[name].kind == "f" and nodes[0].kind in "bi" and name != "select":
        nodes = [graph.cast(node, "f") if node.kind in "b" else node for node in nodes]
    if tracer().path is not None:
        tracer().fall_back_if(_outside_domain(name, nodes))
    result = graph.apply(name, *nodes)
    if tracer().path is not None and result.op != "const":
        _note_overflow(name, nodes, result)
    return result


_BITS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "invert": "logical_not"}
_BITS["bitwise_xor"] = "equal"


def _apply_to_truths(name: str, nodes: list[TraceNode], flags: list[bool | None]) -> TraceNode:
    """Return a logical operation that is written as one on bits."""
    if any(node.kind != "b" for node in nodes) or (name == "invert" and flags[0] is not False):
        raise Unsupported("bits of whole numbers")
    made = tracer().graph.apply(_BITS[name], *nodes)
    return tracer().graph.negate(made) if name == "bitwise_xor" else made


def _promote(nodes: list[TraceNode], flags: list[bool | None]) -> list[TraceNode]:
    """Return operands in the precision that NumPy uses if an operand has single precision."""
    graph = tracer().graph
    strong = [
        node.kind
        for node, flag in zip(nodes, flags, strict=True)
        if flag is False or node.kind == "s"
    ]
    if any(flag is None and node.kind in "if" for node, flag in zip(nodes, flags, strict=True)):
        raise AmbiguousType("single precision beside numbers that are sometimes Python's")
    kind = promote_kinds(strong)
    return [node if node.kind == "b" else graph.cast(node, kind) for node in nodes]


def _prepare_power(nodes: list[TraceNode], flags: list[bool | None]) -> list[TraceNode]:
    """Return base and exponent; Python's integers become real for a negative exponent."""
    base, exponent = nodes
    if base.kind == exponent.kind == "i" and tracer().range(exponent)[0] < 0:
        if not all(flags):
            raise Unsupported("whole numbers to a negative power")
        return [tracer().graph.cast(base, "f"), exponent]
    return nodes


def _outside_domain(name: str, nodes: Sequence[TraceNode]) -> TraceNode | None:
    """Return the condition under which the arguments of an operation are outside its domain."""
    graph, first, last = tracer().graph, nodes[0], nodes[-1]
    bad = None
    if name in ("floor_divide", "remainder", "fmod") or (name == "divide" and last.op == "const"):
        bad = graph.apply("equal", last, 0)
    elif name in ("sqrt", "arccosh"):
        bad = graph.apply("less", first, 0 if name == "sqrt" else 1)
    elif name in ("log", "log2", "log10", "log1p"):
        bad = graph.negate(graph.apply("less", -1 if name == "log1p" else 0, first))
    elif name == "arctanh":
        bad = graph.exceeds(first, 1)
    elif name in ("arcsin", "arccos"):
        bad = graph.apply("less", 1, graph.apply("absolute", first))
    elif name == "power":
        # A power fails for a root of a negative number, and for zero to a negative power.
        lowest = tracer().range(last)[0]
        fraction = last.kind in "sf" and not (last.op == "const" and lowest.is_integer())
        if fraction:
            bad = graph.apply("less", first, 0)
        if lowest < 0:
            bad = graph.either(bad, graph.apply("equal", first, 0))
    return bad


_BOUNDED = ("minimum", "maximum", "select", "gather", "less", "equal", "absolute", "negative")


def _note_overflow(name: str, nodes: Sequence[TraceNode], result: TraceNode) -> None:
    """Add a fallback for results beyond the limits, which could lead to NaN or wrap around.

    Divisors that are zero are among them.
    """
    graph, current = tracer().graph, tracer()
    if result.kind == "b" or name in _BOUNDED:
        return
    if result.kind == "i":
        if not _fits_integer(result):
            # Real numbers show how large the exact result is, without wrapping around.
            exact = graph.apply(name, *[graph.cast(node, "f") for node in nodes])
            current.fall_back_if(graph.exceeds(exact, MAX_INTEGER))
        return
    low, high = current.range_before_assumptions(result)
    if math.isinf(low) or math.isinf(high):
        limit = LIMITS[result.kind]
        # The assumed range includes the limit, so the condition stays open.
        current.assume(result, max(low, -limit), min(high, limit))
        current.fall_back_if(graph.exceeds(result, limit))
    elif name == "power" and nodes[1].op != "const":
        current.fall_back_if(graph.make("isnan", (result,), "b"))


def _fits_integer(node: TraceNode) -> bool:
    low, high = tracer().range(node)
    return low > -MAX_INTEGER and high < MAX_INTEGER


def _compose(text: str) -> Callable[[list[TraceNode]], TraceNode]:
    """Return an operation composed of others, such as `not less 1 0` for `less_equal`."""
    negate = text.startswith("not ")
    name, *places = text.removeprefix("not ").split()

    def compose(nodes: list[TraceNode]) -> TraceNode:
        graph = tracer().graph
        if negate and name == "less" and any(map(is_nan, nodes)):
            return graph.false  # every comparison with NaN is False, so do not negate it
        made = _apply(name, [nodes[int(place)] for place in places], [False] * len(places))
        return graph.negate(made) if negate else made

    return compose


def _scale(factor: float) -> Callable[[list[TraceNode]], TraceNode]:
    return lambda nodes: _apply("multiply", [nodes[0], tracer().graph.const(factor)], [True] * 2)


def _isinf(nodes: list[TraceNode]) -> TraceNode:
    graph = tracer().graph
    return graph.negate(graph.apply("isfinite", nodes[0])) if nodes[0].kind in "sf" else graph.false


COMPOSED: dict[str, Callable[[list[TraceNode]], TraceNode]] = {
    "greater": _compose("less 1 0"),
    "greater_equal": _compose("not less 0 1"),
    "less_equal": _compose("not less 1 0"),
    "not_equal": _compose("not equal 0 1"),
    "square": _compose("multiply 0 0"),
    "reciprocal": lambda nodes: _apply(
        "divide", [tracer().graph.const(1.0), *nodes], [True, False]
    ),
    "deg2rad": _scale(math.pi / 180),
    "radians": _scale(math.pi / 180),
    "rad2deg": _scale(180 / math.pi),
    "degrees": _scale(180 / math.pi),
    "positive": lambda nodes: nodes[0],
    "conjugate": lambda nodes: nodes[0],
    "isinf": _isinf,
    "isnan": lambda nodes: tracer().graph.const(is_nan(nodes[0])),
}


def to_int(value: Any) -> Any:
    """Return `int(value)`."""
    node, current = node_of(value), tracer()
    if node.kind in "sf" and not _fits_integer(node):
        current.fall_back_if(current.graph.exceeds(node, MAX_INTEGER))
    return number(current.graph.cast(node, "i"), True)


def round_half_even(value: Any, digits: Any = None) -> Any:
    """Round as Python does, halves to even.

    NumPy rounds differently near halves of a digit, so the program itself rounds these.
    """
    if digits is None:
        return to_int(op("rint", value))
    if type(digits) is not int or node_of(value).kind != "f" or not 0 <= digits <= 15:
        raise Unsupported("rounding of another kind")
    scaled = op("multiply", value, 10.0**digits)
    fraction = op("subtract", scaled, op("floor", scaled))
    near_half = op("absolute", op("subtract", op("absolute", fraction), 0.5))
    # 1e-6 is far above rounding errors of numbers below 1e9.
    tracer().fall_back_if(node_of(op("less", near_half, 1e-6)))
    tracer().fall_back_if(node_of(op("greater", op("absolute", scaled), 1e9)))
    return op("divide", op("rint", scaled), 10.0**digits)


def cast(value: Any, dtype: Any) -> Any:
    """Convert a number or an array to a NumPy type."""
    kind = kind_for(dtype)
    if isinstance(value, Array | np.ndarray | list | tuple):
        return Array(map_elements(lambda each: cast(each, dtype), raw(value)), kind)
    node = node_of(value)
    if kind == "i" and node.kind in "sf":
        node = node_of(to_int(value))
    return number(tracer().graph.cast(node, kind), False)


def kind_for(dtype: Any) -> str:
    """Return the kind of a NumPy or Python type."""
    name = str(np.dtype(getattr(dtype, "plain", dtype)))
    if name not in KINDS:
        raise Unsupported(f"numbers of the type {name}")
    return KINDS[name]


def raw(value: Any) -> np.ndarray:
    """Return numbers as an array of objects."""
    if isinstance(value, Array):
        return value.data
    if type(value) is Number:
        return scalar_array(value)
    if isinstance(value, list | tuple):
        made = array_of(value)
        return made.data if isinstance(made, Array) else made
    concrete = np.asarray(value)
    return concrete if concrete.dtype == object else objects(concrete)


def objects(concrete: np.ndarray) -> np.ndarray:
    """Convert an array of plain numbers to an array of objects."""
    if concrete.dtype.kind in "US":
        return concrete
    kind_for(concrete.dtype)
    made = np.empty(concrete.shape, object)
    for place in np.ndindex(concrete.shape):
        made[place] = concrete[place]
    return made


def wrap(value: Any) -> Any:
    """Return the result of an operation on arrays of objects: an `Array`, or a number."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            return value
        if value.ndim:
            return Array(value if value.dtype == object else objects(value))
        value = value[()]
    return to_numpy(value)


def to_numpy(value: Any) -> Any:
    """Return a number as one of NumPy's."""
    if type(value) is Number:
        return value if value.python is False else Number(value.node, False)
    return (
        number(tracer().graph.const(value), False)
        if isinstance(value, bool | int | float)
        else value
    )


def array_of(value: Any, dtype: Any = None) -> Any:
    """Return a new array of numbers, as `numpy.array` does."""
    if isinstance(value, Array):
        made = value.copy()
    elif is_number(value):
        made = Array(scalar_array(to_numpy(value)))
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            return np.array(value)
        made = Array(raw(value).copy())
    else:
        parts = list(value)
        if any(isinstance(part, str) for part in parts):
            return np.array(value)
        made = _stack(parts)
    return made if dtype is None else cast(made, dtype)


def _stack(parts: list[Any]) -> "Array":
    """Return an array of numbers, or of arrays with equal shapes."""
    rows = [to_numpy(part) if is_number(part) else array_of(part) for part in parts]
    shapes = {row.shape if isinstance(row, Array) else () for row in rows}
    if len(shapes) > 1 or any(not is_number(row) and not isinstance(row, Array) for row in rows):
        raise Unsupported("an array of other things than numbers")
    shape = shapes.pop() if shapes else ()
    data = np.empty((len(rows), *shape), object)
    for place, row in enumerate(rows):
        data[place] = row.data if isinstance(row, Array) else row
    kinds = [row.kind for row in rows if isinstance(row, Array)]
    return Array(data, promote_kinds(kinds) if kinds and not data.size else None)


def is_symbolic(value: Any) -> bool:
    """Return whether a value contains a symbolic number."""
    if type(value) is Number:
        return True
    if isinstance(value, Array):
        return any(type(each) is Number for each in value.data.flat)
    if isinstance(value, dict):
        return any(map(is_symbolic, value.values()))
    return isinstance(value, tuple | list) and any(map(is_symbolic, value))


class Array:
    """An array of plain and symbolic numbers; views share memory, as in NumPy."""

    __slots__ = ("data", "kind")
    __array_priority__ = 100
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, data: np.ndarray, kind: str | None = None) -> None:
        if kind is None:
            kinds = {node_of(value).kind for value in data.flat}
            kind = promote_kinds(kinds) if kinds else "f"
            if len(kinds) > 1:
                graph = tracer().graph
                data = map_elements(lambda x: number(graph.cast(node_of(x), kind), False), data)
        self.data, self.kind = data, kind

    shape = property(lambda self: self.data.shape)
    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)
    dtype = property(lambda self: DTYPES[self.kind])
    T = property(lambda self: Array(self.data.T, self.kind))
    flat = property(lambda self: iter(self.data.flat))
    real = property(lambda self: self)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        for value in self.data:
            yield Array(value, self.kind) if isinstance(value, np.ndarray) else value

    def __bool__(self) -> bool:
        if self.data.size != 1:
            raise program_error(ValueError("the truth value of an array is ambiguous"))
        return bool(self.data.flat[0])

    def __float__(self) -> float:
        raise Unsupported("an array that depends on the observation is made plain")

    __int__ = __float__

    def __repr__(self) -> str:
        raise AbandonedPath("the text of an array")

    __str__ = __repr__

    def __index__(self) -> int:
        if self.data.ndim:
            raise program_error(TypeError("only integer scalar arrays can be an index"))
        return tracer().fork_on_value(node_of(self))

    def __getitem__(self, place: Any) -> Any:
        value = self.data[concrete_index(place)]
        return Array(value, self.kind) if isinstance(value, np.ndarray) else value

    def __setitem__(self, place: Any, value: Any) -> None:
        value = cast(value, self.dtype)
        if isinstance(place, Array) and place.kind == "b" and is_symbolic(place):
            if place.shape != self.shape:
                raise Unsupported("an array changes where a smaller one says so")
            self.data[...] = raw(op("select", place, value, self))
            return
        place = concrete_index(place)
        if isinstance(value, Array):
            target = self.data[place]
            self.data[place] = value.data if isinstance(target, np.ndarray) else value.item()
        else:
            self.data[place] = value

    def __contains__(self, value: Any) -> bool:
        return bool(op("equal", self, value).any())

    def copy(self, order: str = "C") -> "Array":
        """Return a copy."""
        return Array(self.data.copy(), self.kind)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> "Array":
        memo[id(self)] = made = self.copy()
        return made

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return the array converted to another type."""
        made = cast(self, dtype)
        return made if self.ndim else wrap(made.data)

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        if not self.ndim:
            return self.item()
        return [each.tolist() if isinstance(each, Array) else to_python(each) for each in self]

    def item(self, *place: Any) -> Any:
        """Return an element as a Python number."""
        if not place and self.size != 1:
            raise program_error(
                ValueError("can only convert an array of size 1 to a Python scalar")
            )
        return to_python(self.data[concrete_index(place)] if place else self.data.flat[0])

    def fill(self, value: Any) -> None:
        """Set all elements to a number."""
        self[...] = value


def to_python(value: Any) -> Any:
    """Return a number as one of Python's."""
    return number(node_of(value), True)


def concrete_index(place: Any) -> Any:
    """Return an index without symbolic numbers, after forking over their values."""
    if type(place) is Number:
        return tracer().fork_on_value(place.node)
    if isinstance(place, Array):
        concrete = [_concrete_index(each) for each in place.data.flat]
        return np.array(concrete, place.dtype).reshape(place.shape)
    if isinstance(place, tuple):
        return tuple(map(concrete_index, place))
    if isinstance(place, list):
        return [concrete_index(each) for each in place]
    return place


def _concrete_index(value: Any) -> Any:
    if type(value) is not Number:
        return value.item()
    return bool(value) if value.node.kind == "b" else tracer().fork_on_value(value.node)


Operation = Callable[[Any, Any], Any]


def binary_methods(compute: Operation) -> tuple[Operation, Operation]:
    """Return the two methods of an operator: with the object on the left, and on the right."""

    def forward(self: Any, other: Any) -> Any:
        return compute(self, other) if _is_operand(self, other) else NotImplemented

    def backward(self: Any, other: Any) -> Any:
        return compute(other, self) if _is_operand(self, other) else NotImplemented

    return forward, backward


def _is_operand(self: Any, other: Any) -> bool:
    if is_number(other) or isinstance(other, Array | np.ndarray):
        return True
    return isinstance(other, list | tuple) and (isinstance(self, Array) or self.python is False)


def in_place_method(compute: Operation) -> Callable[[Array, Any], Array]:
    """Return the method of an operator that changes an array in place."""

    def change(self: Array, other: Any) -> Array:
        made = compute(self, other)
        if not isinstance(made, Array) or made.shape != self.shape:
            if self.ndim:
                raise program_error(ValueError("operands cannot be broadcast in place"))
            made = Array(scalar_array(made))
        if "bisf".index(made.kind) > "bisf".index(self.kind) and (made.kind, self.kind) != (
            "f",
            "s",
        ):
            raise program_error(TypeError("cannot cast in place"))
        self.data[...] = cast(made, self.dtype).data
        return self

    return change


def _rearranging_method(name: str) -> Callable[..., Array]:
    def call(self: Array, *args: Any, **options: Any) -> Array:
        return Array(np.asarray(getattr(self.data, name)(*args, **options)), self.kind)

    return call


_ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
_COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}

_OTHERS: dict[str, Callable[..., Any]] = {
    "__eq__": lambda self, other: op("equal", self, other) if _is_operand(self, other) else False,
    "__ne__": lambda self, other: (
        op("not_equal", self, other) if _is_operand(self, other) else True
    ),
    "__neg__": lambda self: op("negative", self),
    "__pos__": lambda self: self if type(self) is Number else self.copy(),
    "__abs__": lambda self: op("absolute", self),
    "__invert__": lambda self: op("invert", self),
    "__divmod__": lambda self, other: (self // other, self % other),
    "__rdivmod__": lambda self, other: (other // self, other % self),
}

# Python looks up operators in the class, never by `__getattr__`.
for _class in (Number, Array):
    for _short, _name in _ARITHMETIC.items():
        _forward, _backward = binary_methods(partial(op, _name))
        setattr(_class, f"__{_short}__", _forward)
        setattr(_class, f"__r{_short}__", _backward)
    for _short, _name in _COMPARISONS.items():
        setattr(_class, f"__{_short}__", binary_methods(partial(op, _name))[0])
    for _name, _function in _OTHERS.items():
        setattr(_class, _name, _function)
for _short, _name in _ARITHMETIC.items():
    setattr(Array, f"__i{_short}__", in_place_method(partial(op, _name)))
for _name in ("flatten", "ravel", "reshape", "squeeze", "transpose"):
    setattr(Array, _name, _rearranging_method(_name))
