"""A program read as a text and as a syntax tree at once: where in the text its nodes stand."""

import ast
import builtins
from collections import Counter
from collections.abc import Iterator
from typing import Any

Span = tuple[int, int, int]
"""A line, counted from 0, and where in it something starts and ends."""

SKIPPED = (ast.While, ast.JoinedStr)
"""Loops that might never end, and texts whose parts have no place of their own."""


class Source:
    """A program, its lines and the names in it."""

    def __init__(self, program: str) -> None:
        self.tree = ast.parse(program)
        self.lines = program.split("\n")
        self.nodes = list(_walk(self.tree))
        self.names = {name for node in self.nodes for name in _names(node)} | set(dir(builtins))
        self.stores = Counter(target for node in self.nodes for target in targets(node))

    def column(self, row: int, offset: int) -> int:
        """Turn an offset in bytes into one in characters; rows count from 1."""
        return len(self.lines[row - 1].encode()[:offset].decode())

    def span(self, node: Any) -> Span | None:
        """Return line, start and end of what stands in one line."""
        if node.lineno != node.end_lineno:
            return None
        ends = (self.column(node.lineno, o) for o in (node.col_offset, node.end_col_offset))
        return (node.lineno - 1, *ends)

    def between(self, left: Any, right: Any, sign: str) -> Span | None:
        """Return where a sign stands between two nodes of one line."""
        if left.end_lineno != right.lineno:
            return None
        start = self.column(right.lineno, left.end_col_offset)
        end = self.column(right.lineno, right.col_offset)
        found = self.lines[right.lineno - 1].find(sign, start, end)
        return None if found < 0 else (right.lineno - 1, found, found + len(sign))


def targets(node: ast.AST) -> Iterator[str]:
    """Yield what an assignment gives a value to."""
    for target in getattr(node, "targets", ()):
        for part in getattr(target, "elts", (target,)):
            yield ast.unparse(part)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is below it, but for what is skipped."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SKIPPED):
            yield from _walk(child)


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node uses."""
    for field in ("id", "attr", "name", "arg"):
        if isinstance(name := getattr(node, field, None), str):
            yield name
