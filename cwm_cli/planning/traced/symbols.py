"""Arrays of expressions that numpy computes with as if they were numbers."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.node import Node

LANES = 2
"""Length of the lane axis: all lanes are the same, but one alone could be taken for a constant."""

ALIASES = {
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "not_equal",
    "logical_xor": "not_equal",
    "invert": "logical_not",
    "add": "logical_or",
    "maximum": "logical_or",
    "multiply": "logical_and",
    "minimum": "logical_and",
}
"""What numpy does where the result is true or false."""

SPELLINGS = {"fabs": "absolute", "fmax": "maximum", "fmin": "minimum", "float_power": "power"}

COMPOSED: dict[str, Callable[..., Any]] = {
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / x,
    "radians": lambda x: x * (np.pi / 180.0),
    "deg2rad": lambda x: x * (np.pi / 180.0),
    "degrees": lambda x: x * (180.0 / np.pi),
    "rad2deg": lambda x: x * (180.0 / np.pi),
    "exp2": lambda x: np.power(2.0, x),
    "log2": lambda x: np.log(x) / np.log(2.0),
    "log10": lambda x: np.log(x) / np.log(10.0),
    "cbrt": lambda x: np.sign(x) * np.power(np.absolute(x), 1.0 / 3.0),
    "positive": lambda x: x,
    "divmod": lambda x, y: (np.floor_divide(x, y), np.remainder(x, y)),
    "isinf": lambda x: np.absolute(x) == np.inf,
}
"""Functions that are written with others."""

OPERATIONS = frozenset(
    word
    for words in (
        ("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power"),
        ("negative", "absolute", "sign", "minimum", "maximum", "hypot", "copysign"),
        ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        ("logical_and", "logical_or", "logical_not", "isfinite", "isnan"),
        ("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2"),
        ("sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"),
        ("exp", "expm1", "log", "log1p", "sqrt", "floor", "ceil", "trunc", "rint"),
    )
    for word in words
)
"""Those that expressions have, beside constants, symbols, select, float, int, index and table."""


HANDLERS: dict[Any, Callable[..., Any]] = {}
"""Functions of numpy that are not made of those above, and what does the same with nodes."""


class Symbols(np.ndarray[Any, Any]):
    """Nodes in the shape of an array; `dtype` says what their values are."""

    graph: Graph
    declared: np.dtype[Any]

    @classmethod
    def of(cls, nodes: Any, graph: Graph, dtype: Any) -> Self:
        """Make an array of nodes."""
        symbols = np.asarray(nodes, object).view(cls)
        symbols.graph, symbols.declared = graph, np.dtype(dtype)
        return symbols

    def __array_finalize__(self, other: Any) -> None:
        if isinstance(other, Symbols):
            self.__dict__.update(vars(other))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.declared

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """Convert the values; that a float32 has fewer digits is not followed."""
        wanted = np.dtype(dtype)
        if wanted.kind == "b":
            return truths(self)
        if wanted.kind not in "iuf":
            raise Unbatched(f"it converts numbers to {wanted}")
        name = "float" if wanted.kind == "f" else "int"
        kind = name[0]
        return arranged(lambda node: self.graph.apply(name, node, kind=kind), wanted, self)

    def item(self, *_: Any) -> Any:
        """Refuse to be one number."""
        raise Unbatched("it needs the number behind a value")

    def __getitem__(self, place: Any) -> Any:
        places = place if isinstance(place, tuple) else (place,)
        if not any(isinstance(each, Symbols) for each in places):
            return super().__getitem__(place)
        row = places[0]
        if self.ndim != 2 or row.ndim != 1:
            raise Unbatched("such an index into an array")
        chosen = self[0]
        for number in range(1, len(self)):
            chosen = np.where(row == number, self[number], chosen)
        return chosen

    def __setitem__(self, place: Any, value: Any) -> None:
        nodes(self)[place] = nodes(value, self.graph)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out, where = options.pop("out", None), options.pop("where", True)
        if where is not True:
            raise Unbatched(f"it calls {ufunc.__name__} with where=")
        if method == "reduce":
            result = reduced(ufunc, *inputs, **options)
        elif method == "__call__":
            result = computed(ufunc, inputs, options.get("dtype"))
        else:
            raise Unbatched(f"it calls {ufunc.__name__}.{method}")
        return result if out is None else _written(out[0], result)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if handler := HANDLERS.get(function):
            return handler(*args, **options)
        result = super().__array_function__(function, types, args, options)
        if isinstance(result, np.ndarray) and result.dtype.kind == "O":
            raise Unbatched(f"it calls {function.__name__}")
        return result


def _written(out: Any, result: Any) -> Any:
    """Put a result where it was asked to be."""
    if not isinstance(out, Symbols):
        raise Unbatched("it writes a value into an array of known numbers")
    out[...] = result
    return out


def nodes(value: Any, graph: Graph | None = None) -> np.ndarray:
    """Return values as an array of nodes: the array's own, where it is one of nodes."""
    if isinstance(value, Symbols):
        return value.view(np.ndarray)
    array = np.asarray(value)
    made = np.empty(array.shape, object)
    for place in np.ndindex(array.shape):
        element = array[place]
        assert graph is not None
        made[place] = element if isinstance(element, Node) else graph.constant(element)
    return made


def graph_of(values: Sequence[Any]) -> Graph:
    """Return the graph that values belong to."""
    return next(value.graph for value in values if isinstance(value, Symbols))


def arranged(operation: Callable[..., Node], dtype: Any, *values: Any) -> Any:
    """Apply an operation element by element; what turns out to be known becomes numbers."""
    graph = graph_of(values)
    arrays = np.broadcast_arrays(*[nodes(value, graph) for value in values])
    result = np.empty(arrays[0].shape, object)
    for place in np.ndindex(result.shape):
        result[place] = operation(*[array[place] for array in arrays])
    return settled(result, graph, dtype)


def settled(result: np.ndarray, graph: Graph, dtype: Any) -> Any:
    """Return numbers where all nodes are constants, else symbols."""
    if all(node.is_constant for node in result.flat):
        flat = [node.value for node in result.flat]
        return np.array(flat, np.dtype(dtype)).reshape(result.shape)
    return Symbols.of(result, graph, dtype)


def truths(value: Any) -> Any:
    """Return whether values are not zero."""
    if np.dtype(value.dtype).kind == "b":
        return value
    return computed(np.not_equal, (value, 0), None)


def computed(ufunc: np.ufunc, inputs: Sequence[Any], dtype: Any) -> Any:
    """Apply a function of numpy."""
    name = SPELLINGS.get(ufunc.__name__, ufunc.__name__)
    if name in COMPOSED:
        return COMPOSED[name](*inputs)
    dtype = np.dtype(dtype or resolved(ufunc, inputs))
    if name.startswith("logical"):
        inputs = [
            truths(value) if isinstance(value, np.ndarray) else bool(value) for value in inputs
        ]
    if dtype.kind == "b" and all(_is_truth(value) for value in inputs):
        name = ALIASES.get(name, name)
    if name not in OPERATIONS or dtype.kind not in "biuf":
        raise Unbatched(f"it calls {ufunc.__name__}")
    graph, kind = graph_of(inputs), dtype.kind.replace("u", "i")
    return arranged(lambda *operands: graph.apply(name, *operands, kind=kind), dtype, *inputs)


def _is_truth(value: Any) -> bool:
    """Whether a value is true or false, rather than a number."""
    return np.dtype(getattr(value, "dtype", type(value))).kind == "b"


def resolved(ufunc: np.ufunc, inputs: Sequence[Any]) -> np.dtype[Any]:
    """Return the type that numpy gives a result."""
    types = [
        getattr(value, "dtype", np.dtype(bool) if isinstance(value, bool) else type(value))
        for value in inputs
    ]
    try:
        return ufunc.resolve_dtypes((*types, *[None] * ufunc.nout))[-1]
    except TypeError as error:
        raise Unbatched(f"it calls {ufunc.__name__} with something else than numbers") from error


def reduced(
    ufunc: np.ufunc, value: Any, axis: Any = 0, *, keepdims: bool = False, **options: Any
) -> Any:
    """Apply a function of two numbers along axes."""
    if options.get("initial", np._NoValue) not in (np._NoValue, None):
        raise Unbatched(f"it calls {ufunc.__name__} with initial=")
    axes = range(value.ndim) if axis is None else np.atleast_1d(axis).tolist()
    for number in sorted((axis % value.ndim for axis in axes), reverse=True):
        value = _along(ufunc, value, number, keepdims)
    return value


def _along(ufunc: np.ufunc, value: Any, axis: int, keepdims: bool) -> Any:
    """Apply a function of two numbers along one axis."""
    if not value.shape[axis]:
        raise Unbatched(f"it calls {ufunc.__name__} for no values")
    parts = np.moveaxis(nodes(value), axis, 0)
    result, *others = [Symbols.of(part, value.graph, value.dtype) for part in parts]
    for other in others:
        result = ufunc(result, other)
    return np.expand_dims(result, axis) if keepdims else result
