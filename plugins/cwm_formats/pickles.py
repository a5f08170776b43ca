"""Read a pickle as data: no name in it is imported, instantiated or called.

`load` returns inert objects in place of the pickled objects. `plain` converts them to arrays,
numbers and dense torch tensors. Memory grows only with the size of the pickle, and the number of
objects is limited.
"""

import pickletools
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from itertools import accumulate
from math import prod
from typing import IO, Any

import numpy as np

MAX_OPERATIONS, MAX_OBJECTS = 1 << 25, 1 << 22
"""Limits of operations and of lists, tuples and objects in a pickle: a buffer of 50,000 boards of
words needs this number. An object needs some hundred bytes and at least one byte of the pickle."""


class Inert:
    """The description of an object in a pickle: its name, arguments, state and items.

    Without arguments it is a reference to a class or a function.
    """

    __slots__ = ("arguments", "items", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None
        self.items: dict[str, Any] = {}


def load(source: bytes | IO[bytes]) -> Any:
    """Read one pickle. An invalid pickle raises an `Exception` of any type."""
    machine = _Machine()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(source)):
        if number > MAX_OPERATIONS:
            raise ValueError("it takes too many operations")
        machine.follow(opcode, argument)
    return machine.pop()


class _Machine:
    """The stack and the memo of a pickle machine."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._objects = 0

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Execute one opcode."""
        name = opcode.name
        if name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif opcode.stack_before or len(opcode.stack_after) != 1:
            raise ValueError(f"the opcode {name} is not supported")
        else:
            self.push(_CONSTANTS.get(name, argument))

    def push(self, value: Any) -> None:
        """Push a value."""
        self._objects += isinstance(value, list | tuple | dict | Inert)
        if self._objects > MAX_OBJECTS:
            raise ValueError("it contains too many objects")
        self._stack.append(value)

    def pop(self) -> Any:
        """Pop the last value, which must be above the last mark."""
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("nothing is left on the stack")
        return self._stack.pop()

    def drop(self) -> None:
        """Pop the last value, or the mark if it is on top."""
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self.pop()

    def repeat(self) -> None:
        """Push the last value again."""
        self.push(self._stack[-1])

    def mark(self) -> None:
        """Set a mark at the top of the stack."""
        self._marks.append(len(self._stack))

    def marked(self) -> list[Any]:
        """Pop all values above the last mark."""
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def last(self, count: int) -> tuple[Any, ...]:
        """Pop a number of last values."""
        return tuple(reversed([self.pop() for _ in range(count)]))

    def remember(self, index: int | None) -> None:
        """Store the last value in the memo."""
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def recall(self, index: int) -> None:
        """Push a value of the memo."""
        self.push(self._memo[index])

    def extend(self, values: list[Any]) -> None:
        """Add values to the list below them; values of other objects are ignored."""
        if isinstance(self._stack[-1], list):
            self._stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Set items of the dict below. Keys that are not texts are ignored.

        Other keys would have to be hashed, and hashing nested tuples can take endless time.
        """
        owner = self._stack[-1]
        items = owner.items if isinstance(owner, Inert) else owner
        if not isinstance(items, dict):
            raise ValueError("items are set on an object without items")
        items.update(_named(values))

    def make(self, maker: Any, arguments: Any) -> None:
        """Push a description of an object instead of creating it."""
        if not isinstance(maker, Inert) or not isinstance(arguments, tuple):
            raise ValueError("it calls something that is not a name")
        self.push(Inert(maker.name, arguments))

    def build(self, state: Any) -> None:
        """Set the state of the object below."""
        if isinstance(self._stack[-1], Inert):
            self._stack[-1].state = state


def _named(values: list[Any]) -> dict[str, Any]:
    """Pair keys with values, without keys that are not texts."""
    pairs = zip(values[::2], values[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, str)}


def _stack_global(machine: _Machine, _: None) -> None:
    module, name = machine.last(2)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a name is not text")
    machine.push(Inert(f"{module}.{name}"))


def _object(machine: _Machine, _: None) -> None:
    maker, *arguments = machine.marked()
    machine.make(maker, tuple(arguments))


def _new_with_names(machine: _Machine, _: None) -> None:
    maker, arguments, _names = machine.last(3)
    machine.make(maker, arguments)


_CONSTANTS: Mapping[str, Any] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
}

_Action = Callable[[_Machine, Any], object]
_ACTIONS: Mapping[str, _Action] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP", "READONLY_BUFFER"), lambda machine, _: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda machine, _: machine.make(*machine.last(2))),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda machine, _: machine.extend(machine.marked())),
    **dict.fromkeys(("LIST", "FROZENSET"), lambda machine, _: machine.push(machine.marked())),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda machine, _: machine.push([])),
    **dict.fromkeys(
        ("EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER"),
        lambda machine, number: machine.push(Inert("something outside the file", (number,))),
    ),
    "BINPERSID": lambda machine, _: machine.push(
        Inert("something outside the file", machine.last(1))
    ),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "DICT": lambda machine, _: machine.push(_named(machine.marked())),
    "MARK": lambda machine, _: machine.mark(),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.marked())),
    "TUPLE1": lambda machine, _: machine.push(machine.last(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.last(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.last(3)),
    "POP": lambda machine, _: machine.drop(),
    "POP_MARK": lambda machine, _: machine.marked(),
    "DUP": lambda machine, _: machine.repeat(),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.last(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "GLOBAL": lambda machine, name: machine.push(Inert(name.replace(" ", ".", 1))),
    "STACK_GLOBAL": _stack_global,
    "INST": lambda machine, name: machine.push(
        Inert(name.replace(" ", ".", 1), tuple(machine.marked()))
    ),
    "OBJ": _object,
    "NEWOBJ_EX": _new_with_names,
    "BUILD": lambda machine, _: machine.build(machine.pop()),
}


REBUILD = "torch._utils._rebuild_tensor_v2"
_STORAGE = "torch.storage._load_from_bytes"
_MAGIC = 0x1950A86A20F9469CFC6C

_DTYPES = {
    "torch.DoubleStorage": "<f8",
    "torch.FloatStorage": "<f4",
    "torch.HalfStorage": "<f2",
    "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4",
    "torch.ShortStorage": "<i2",
    "torch.CharStorage": "<i1",
    "torch.ByteStorage": "<u1",
    "torch.BoolStorage": "|b1",
}


def tensor(arguments: tuple[Any, ...]) -> np.ndarray:
    """Return the array of a dense tensor; other tensors raise a `ValueError`."""
    storage, offset, size, stride = arguments[:4]
    if not isinstance(storage, Inert) or storage.name != _STORAGE or not storage.arguments:
        raise ValueError("a tensor has no storage")
    steps = tuple(accumulate(reversed(size[1:]), lambda a, b: a * b, initial=1))[::-1]
    wrong = [s for n, s, step in zip(size, stride, steps) if n > 1 and s != step]  # noqa: B905
    if wrong or min((offset, *size)) < 0:
        raise ValueError("a tensor is not dense: save it as an array")
    values, count = _storage(storage.arguments[0]), prod(size)
    if offset + count > len(values):
        raise ValueError("a tensor is larger than its storage")
    return values[offset : offset + count].reshape(size)


def _storage(data: Any) -> np.ndarray:
    """Read torch's older storage format: five pickles, the number of elements, the elements."""
    stream = BytesIO(data)
    magic, _version, _system, reference, _keys = (load(stream) for _ in range(5))
    if magic != _MAGIC:
        raise ValueError("a tensor is in another format: save it as an array")
    kind = reference.arguments[0][1].name
    if kind not in _DTYPES:
        raise ValueError(f"a tensor of {kind} is not supported: save it as an array")
    start = stream.tell()
    count = int.from_bytes(data[start : start + 8], "little")
    return np.frombuffer(data, _DTYPES[kind], count, start + 8)


RECONSTRUCTED = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
FROM_BUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
SCALAR = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
BYTES = ("builtins.bytes", "__builtin__.bytes", "builtins.bytearray", "__builtin__.bytearray")

_DTYPE = re.compile(r"b1|[iuf][1248]|f16|[SU]\d{1,6}|O8?")


def plain(value: Any) -> Any:
    """Convert the description of an array or a number; return other values unchanged.

    Data that numpy would not write raise a `ValueError`. Arrays share the memory of the file, so
    several arrays with the same bytes need the memory of one.
    """
    if not isinstance(value, Inert) or value.arguments is None:
        return value
    if value.name in RECONSTRUCTED and _names(value.arguments[:1], "numpy.ndarray"):
        _, shape, dtype, fortran, data = value.state
        return _array(shape, _dtype(dtype), data, order="F" if fortran else "C")
    if value.name in FROM_BUFFER:
        data, dtype, shape, order = value.arguments
        return _array(shape, _dtype(dtype), data, order=order)
    if value.name in SCALAR:
        dtype, data = value.arguments
        return _array((), _dtype(dtype), data, order="C")[()]
    if value.name == REBUILD:
        return tensor(value.arguments)
    return value


def _array(shape: Any, dtype: np.dtype[Any], data: Any, *, order: Any) -> np.ndarray:
    """Build an array; the size of the data must match the shape."""
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array has no shape")
    count = prod(shape)
    if dtype.kind != "O":
        values = np.frombuffer(_bytes(data, count * dtype.itemsize), dtype)
        return values.reshape(shape, order=order).astype(dtype.newbyteorder("="), copy=False)
    if not isinstance(data, list) or len(data) != count:
        raise ValueError("the number of elements of an array does not match its shape")
    elements = np.empty(count, object)
    for index, element in enumerate(data):
        elements[index] = element
    return elements.reshape(shape)  # numpy stores objects in C order, despite the flag


def _dtype(value: Any) -> np.dtype[Any]:
    """Return a dtype of numbers, text or objects; raise for other dtypes."""
    if not _names((value,), "numpy.dtype") or not value.arguments:
        raise ValueError("an array has no dtype")
    code, order = value.arguments[0], value.state[1] if value.state else "|"
    if not isinstance(code, str) or not _DTYPE.fullmatch(code) or order not in ("<", ">", "|", "="):
        raise ValueError("an array has an unsupported dtype")
    return np.dtype("O" if code[0] == "O" else f"{order}{code}")


def _bytes(data: Any, size: int) -> bytes | bytearray:
    """Return bytes of a given size. Old protocols store them as text, which is encoded."""
    if isinstance(data, Inert) and data.name in BYTES:
        data = data.arguments[0] if data.arguments else b""
    if isinstance(data, Inert) and data.name == "_codecs.encode" and data.arguments:
        data = data.arguments[0]
    if not isinstance(data, bytes | bytearray | str) or len(data) != size:
        raise ValueError("the size of an array does not match its shape")
    return data.encode("latin-1") if isinstance(data, str) else data


def _names(values: tuple[Any, ...], name: str) -> bool:
    """Return whether the only value is a reference with this name."""
    return len(values) == 1 and isinstance(values[0], Inert) and values[0].name == name
