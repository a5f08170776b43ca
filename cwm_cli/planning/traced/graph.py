"""Expressions of one state and one action; equal ones are one node."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.node import Node, Value
from cwm_cli.planning.traced.simplification import simplified

LARGEST_GRAPH = 4_000
"""A program of more operations than this is not traced."""


class Graph:
    """Makes nodes, simplified as far as that changes no value.

    `actions` are all actions, where they are a few integers: what depends on
    nothing else is then a table of one value per action.
    """

    def __init__(self, actions: Sequence[int] = ()) -> None:
        self._nodes: dict[object, Node] = {}
        self.true, self.false = self.constant(True), self.constant(False)
        self._actions = tuple(actions)
        self.action = self.symbol("action", "i")
        lowest = self.constant(actions[0] if actions else 0)
        self._place = self._intern("subtract", (self.action, lowest), "i")

    def constant(self, value: Any) -> Node:
        """Return the node of a value."""
        plain = value.item() if isinstance(value, np.generic) else value
        if not isinstance(plain, bool | int | float):
            raise Unbatched(f"it computes with a {type(plain).__name__}")
        return self._intern("constant", (), _kind(plain), (plain,))

    def zero(self, kind: str) -> Node:
        """Return the node of what stands for no value at all."""
        return self._cast(0, kind)

    def symbol(self, name: str, kind: str) -> Node:
        """Return the node of an input."""
        return self._intern("symbol", (), kind, (name,))

    def apply(self, operation: str, *operands: Node, kind: str) -> Node:
        """Return the node of an operation, named as numpy names it."""
        if all(operand.is_constant for operand in operands):
            return self._cast(_evaluate(operation, [node.value for node in operands]), kind)
        if columns := self._columns(operands):
            rows = zip(*columns, strict=True)
            return self.table([_evaluate(operation, row) for row in rows], kind)
        simpler = simplified(self, operation, operands, kind)
        return self._intern(operation, operands, kind) if simpler is None else simpler

    def select(self, condition: Node, chosen: Node, other: Node) -> Node:
        """Return the one or the other."""
        kind = max(chosen.kind, other.kind, key="bif".index)
        chosen, other = (
            self._cast(node.value, kind) if node.is_constant else node for node in (chosen, other)
        )
        return self.apply("select", condition, chosen, other, kind=kind)

    def invert(self, node: Node) -> Node:
        """Return what is true where the node is false."""
        return self.apply("logical_not", node, kind="b")

    def both(self, one: Node, other: Node) -> Node:
        """Return what is true where both are."""
        return self.apply("logical_and", one, other, kind="b")

    def either(self, one: Node, other: Node) -> Node:
        """Return what is true where one of them is."""
        return self.apply("logical_or", one, other, kind="b")

    def index(self, values: Sequence[Value], place: Node) -> Node:
        """Return the value at a place."""
        kind = max(map(_kind, values), key="bif".index)
        if place.is_constant:
            return self._cast(values[int(place.value)], kind)
        if columns := self._columns([place]):
            return self.table([values[int(chosen)] for chosen in columns[0]], kind)
        return self._intern("index", (place,), kind, tuple(values))

    def table(self, values: Sequence[Any], kind: str) -> Node:
        """Return the node that has one value per action."""
        nodes = [self._cast(value, kind) for value in values]
        if len(set(nodes)) == 1:
            return nodes[0]
        plain = tuple(node.value for node in nodes)
        if plain == self._actions and kind == "i":
            return self.action
        place = self._place if self._actions[0] else self.action
        return self._intern("table", (place,), kind, plain)

    def again(self, node: Node, operands: Sequence[Node]) -> Node:
        """Return the same operation on other operands."""
        if node.operation == "index":
            return self.index(node.values, operands[0])
        if not operands or node.operation == "table":
            return node
        return self.apply(node.operation, *operands, kind=node.kind)

    def _columns(self, operands: Iterable[Node]) -> list[tuple[Any, ...]]:
        """Return what each operand is for every action; nothing where one depends on more."""
        columns: list[tuple[Any, ...]] = []
        for node in operands if self._actions else ():
            if node.operation == "table":
                columns.append(node.values)
            elif node.is_constant:
                columns.append(node.values * len(self._actions))
            elif node is self.action:
                columns.append(self._actions)
            else:
                return []
        return columns

    def _cast(self, value: Any, kind: str) -> Node:
        """Return the constant as the kind that numpy would make of it."""
        plain = value.item() if isinstance(value, np.generic) else value
        types = {"b": bool, "i": int, "f": float}
        return self.constant(types[kind](plain))

    def _intern(
        self, operation: str, operands: tuple[Node, ...], kind: str, values: tuple[Any, ...] = ()
    ) -> Node:
        """Return the one node of its kind."""
        node = Node(operation, operands, kind, values)
        numbers = tuple(operand.number for operand in operands)
        name = (operation, numbers, kind, tuple(map(repr, values)))
        known = self._nodes.setdefault(name, node)
        if known is node:
            node.number = len(self._nodes)
            if node.number > LARGEST_GRAPH:
                raise Unbatched("it has too many operations")
        return known


def _kind(value: object) -> str:
    """Return the kind of a plain value."""
    return "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"


def _evaluate(operation: str, values: Sequence[Any]) -> object:
    """Compute with known values, as numpy does."""
    if operation == "select":
        return values[1] if values[0] else values[2]
    if operation in ("float", "int"):
        return float(values[0]) if operation == "float" else int(values[0])
    with np.errstate(all="ignore"):
        return getattr(np, operation)(*values)
