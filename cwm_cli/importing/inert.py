"""Pickles read as data: whatever they name is neither imported nor made nor called.

The machine below follows the opcodes that `pickletools` takes apart. It builds
lists, tuples and dicts, and keeps every object as an `Inert`: by which name and
from which arguments and state it would be made. What memory it takes grows
with the file, whatever sizes the file claims.
"""

import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any


class Inert:
    """What a pickle says of an object: its name, its arguments, its state, and items set on it.

    Without arguments it is a class or a function that is only named.
    """

    __slots__ = ("arguments", "items", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None
        self.items: dict[str, Any] = {}


def load(source: bytes | IO[bytes]) -> Any:
    """Read one pickle; whatever is wrong with it raises an `Exception`."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(source):
        machine.follow(opcode, argument)
    return machine.pop()


class _Machine:
    """The stack of a pickle, and what it remembers."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Do what one opcode says."""
        name = opcode.name
        if name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif opcode.stack_before or len(opcode.stack_after) != 1:
            raise ValueError(f"the opcode {name} is not read")
        else:
            self.push(_CONSTANTS.get(name, argument))

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def pop(self) -> Any:
        """Take the last value, which must have come after the last mark."""
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("nothing is left on the stack")
        return self._stack.pop()

    def drop(self) -> None:
        """Take the last value or, where that is a mark, the mark."""
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self.pop()

    def repeat(self) -> None:
        """Put the last value on the stack once more."""
        self.push(self._stack[-1])

    def mark(self) -> None:
        """Remember how much is on the stack."""
        self._marks.append(len(self._stack))

    def marked(self) -> list[Any]:
        """Take all that came after the last mark."""
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def last(self, count: int) -> tuple[Any, ...]:
        """Take some last values."""
        return tuple(reversed([self.pop() for _ in range(count)]))

    def remember(self, index: int | None) -> None:
        """Keep the last value for later."""
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def recall(self, index: int) -> None:
        """Put a value that was kept on the stack once more."""
        self.push(self._memo[index])

    def extend(self, values: list[Any]) -> None:
        """Add values to the list below them; those of other objects are of no interest."""
        if isinstance(self._stack[-1], list):
            self._stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Set items of the dict below; only names count as keys.

        Other keys would have to be hashed, which a tuple of tuples can make endless.
        """
        owner = self._stack[-1]
        items = owner.items if isinstance(owner, Inert) else owner
        if not isinstance(items, dict):
            raise ValueError("items are set on what has none")
        items.update(_named(values))

    def make(self, maker: Any, arguments: Any) -> None:
        """Note that an object would be made."""
        if not isinstance(maker, Inert) or not isinstance(arguments, tuple):
            raise ValueError("something is called that is no name")
        self.push(Inert(maker.name, arguments))

    def build(self, state: Any) -> None:
        """Note the state of the object below."""
        if isinstance(self._stack[-1], Inert):
            self._stack[-1].state = state


def _named(values: list[Any]) -> dict[str, Any]:
    """Pair keys with values, leaving out keys that are no text."""
    pairs = zip(values[::2], values[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, str)}


def _global(machine: _Machine, argument: str) -> None:
    machine.push(Inert(argument.replace(" ", ".", 1)))


def _stack_global(machine: _Machine, _: None) -> None:
    module, name = machine.last(2)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a name is no text")
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
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "INST": lambda machine, name: machine.push(
        Inert(name.replace(" ", ".", 1), tuple(machine.marked()))
    ),
    "OBJ": _object,
    "NEWOBJ_EX": _new_with_names,
    "BUILD": lambda machine, _: machine.build(machine.pop()),
}
