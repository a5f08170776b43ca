"""Values of a traced program: reachable values, and conversion to a shape and numbers."""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from cwm_cli.translation.expressions import Unsupported
from cwm_cli.translation.modules import Module, Ufunc
from cwm_cli.translation.numbers import Array, array_of, is_number

# The class of functions that `functools.lru_cache` returns.
CACHED_FUNCTION: Any = type(lru_cache(len))

# Types whose values contain no other values that can change.
ATOMS = (
    str,
    bytes,
    type,
    type(None),
    ModuleType,
    Module,
    BuiltinFunctionType,
    np.ufunc,
    np.dtype,
    range,
    slice,
    frozenset,
    property,
    SimpleNamespace,
    BaseException,
    type(Ellipsis),
    np.random.Generator,
)


def collect_reachable(roots: Iterable[Any]) -> list[Any]:
    """Return all containers, arrays, objects and functions that values can reach.

    Raises:
        Unsupported: A value of an unknown type, which may change unnoticed.
    """
    seen: dict[int, Any] = {}
    stack = list(roots)
    while stack:
        value = stack.pop()
        if is_number(value) or isinstance(value, ATOMS) or id(value) in seen:
            continue
        seen[id(value)] = value
        stack += _parts(value)
    return list(seen.values())


def select_mutable(values: Iterable[Any]) -> list[Any]:
    """Return the values that can change in place."""
    return [each for each in values if isinstance(each, list | dict | set | Array)]


def _parts(value: Any) -> Iterable[Any]:  # noqa: C901, PLR0911  # a case for each kind
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set):
        return value
    if isinstance(value, Array):
        return ()
    if isinstance(value, FunctionType):
        return [*closure_values(value), *(value.__defaults__ or ())]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if hasattr(type(value), "__traced__"):
        return [vars(value)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        return ()
    if type(value).__module__ in ("builtins", "collections") and isinstance(value, Iterator):
        raise Unsupported("an iterator is shared")
    if isinstance(value, CACHED_FUNCTION):
        return [value.__wrapped__]
    if isinstance(value, Ufunc):
        return ()
    if type(value).__module__ in ("operator", "typing", "re", "enum"):
        return ()
    raise Unsupported(f"a {type(value).__name__} may change")


def closure_values(function: FunctionType) -> list[Any]:
    """Return the variables of enclosing functions that a function uses."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return found


def memory_owner(array: Array) -> np.ndarray:
    """Return the NumPy array that owns the memory of an array."""
    data = array.data
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data


# A nested tuple. Values of equal shape contain their numbers in the same order.
Shape = Any


class WriteOnlyList(list[Any]):
    """A list that grows with every step: the program may write to it, but not read it."""

    def append(self, *values: Any) -> None:
        """Ignore the value."""

    extend = insert = remove = append

    def clear(self) -> None:
        """Do nothing."""

    def __iadd__(self, other: Any) -> "WriteOnlyList":  # type: ignore[misc]
        return self

    def _refused(self, *args: Any) -> Any:
        raise Unsupported("a list that grows is read")

    __add__ = __radd__ = __mul__ = __len__ = __iter__ = __getitem__ = __bool__ = _refused
    __contains__ = __eq__ = __setitem__ = __delitem__ = __reversed__ = _refused
    pop = index = count = sort = reverse = copy = _refused  # type: ignore[assignment]


def flatten(  # noqa: C901, PLR0911, PLR0912  # a case for each kind
    value: Any, numbers: list[Any], seen: dict[int, tuple[int, Any]] | None = None
) -> Shape:
    """Return the shape of a value, and append its numbers to `numbers`; aliases stay aliases.

    Raises:
        Unsupported: The value has no shape, or two attributes share the memory of an array.
    """
    seen = {} if seen is None else seen
    if is_number(value):
        numbers.append(value)
        return "number"
    if isinstance(value, WriteOnlyList):
        return ("forgotten",)
    if isinstance(value, np.ndarray) and value.dtype.kind in "bif":
        value = array_of(value)
    if isinstance(value, list | dict | Array):
        if id(value) in seen:
            return "alias", seen[id(value)][0]
        if isinstance(value, Array) and any(
            isinstance(other, Array) and memory_owner(other) is memory_owner(value)
            for _, other in seen.values()
        ):
            raise Unsupported("attributes are parts of one array")
        seen[id(value)] = len(seen), value
    if isinstance(value, Array):
        numbers += list(value.data.flat)
        return "array", value.shape, value.kind
    if isinstance(value, list | tuple):
        kind: Any = "list" if isinstance(value, list) else "tuple"
        if hasattr(value, "_fields"):
            kind = type(value)
        return (kind, *[flatten(each, numbers, seen) for each in value])
    if isinstance(value, dict):
        if type(value) is not dict:
            raise Unsupported(f"an attribute is a {type(value).__name__}")
        return "dict", *[(key, flatten(each, numbers, seen)) for key, each in value.items()]
    if hasattr(type(value), "__traced__"):
        if id(value) in seen:
            return "alias", seen[id(value)][0]
        seen[id(value)] = len(seen), value
        return "object", type(value), flatten(vars(value), numbers, seen)
    if isinstance(value, set):
        return "set", frozenset(value)
    try:
        hash(value)
    except TypeError:
        raise Unsupported(f"an attribute is a {type(value).__name__}") from None
    if select_mutable(collect_reachable([value])):
        raise Unsupported("an attribute is a function that remembers")
    return "constant", value


def rebuild(  # noqa: PLR0911  # a case for each kind
    shape: Shape, numbers: Iterator[Any], made: list[Any] | None = None
) -> Any:
    """Return a new value with a shape and numbers: the inverse of `flatten`."""
    made = [] if made is None else made
    if shape == "number":
        return next(numbers)
    kind = shape[0]
    if kind == "alias":
        return made[shape[1]]
    if kind == "array":
        data = np.empty(shape[1], object)
        for place in np.ndindex(shape[1]):
            data[place] = next(numbers)
        made.append(Array(data, shape[2]))
        return made[-1]
    if kind in ("list", "dict"):
        out: Any = [] if kind == "list" else {}
        made.append(out)
        if kind == "list":
            out += [rebuild(each, numbers, made) for each in shape[1:]]
        else:
            out.update({key: rebuild(each, numbers, made) for key, each in shape[1:]})
        return out
    if kind == "object":
        value = shape[1].__new__(shape[1])
        made.append(value)
        vars(value).update(rebuild(shape[2], numbers, made))
        return value
    if kind == "forgotten":
        return WriteOnlyList()
    if kind in ("set", "constant"):
        return set(shape[1]) if kind == "set" else shape[1]
    parts = [rebuild(each, numbers, made) for each in shape[1:]]
    return tuple(parts) if kind == "tuple" else kind(*parts)


def places(shape: Shape, at: str = "") -> list[str]:
    """Return the names of the numbers of a shape, in order, such as `.position.0`."""
    if shape == "number":
        return [at]
    kind = shape[0]
    if kind == "array":
        return [f"{at}.{place}" for place in range(math.prod(shape[1]))]
    if kind == "dict":
        return [name for key, each in shape[1:] for name in places(each, f"{at}.{key}")]
    if kind == "object":
        return places(shape[2], at)
    if kind in ("alias", "forgotten", "set", "constant"):
        return []
    return [name for key, each in enumerate(shape[1:]) for name in places(each, f"{at}.{key}")]
