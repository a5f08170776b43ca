"""One operation of an expression."""

from typing import Any

from cwm_cli.planning.model import Unbatched

Value = bool | int | float


class Node:
    """An operation on other nodes; `kind` is that of numpy's types: b, i or f.

    A symbol has a name, a constant its value, and `table` and `index` choose
    among values, by the number of the action and by an integer.
    """

    __slots__ = ("kind", "number", "operands", "operation", "values")

    def __init__(
        self, operation: str, operands: tuple["Node", ...], kind: str, values: tuple[Any, ...]
    ) -> None:
        self.operation = operation
        self.operands = operands
        self.kind = kind
        self.values = values
        self.number = -1

    def __bool__(self) -> bool:
        raise Unbatched("what the program does next depends on a value")

    def __repr__(self) -> str:
        return f"{self.operation}{self.number}"

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return self.operation == "constant"

    @property
    def value(self) -> Value:
        """The value of a constant."""
        value: Value = self.values[0]
        return value
