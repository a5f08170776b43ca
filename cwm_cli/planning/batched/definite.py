"""Which variables of a function may be read before they are assigned."""

import ast
from collections.abc import Iterable

Assigned = frozenset[str] | None
"""Variables that are assigned for sure; None where control does not get to."""


def doubtful(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """Return the variables among some that a path through a function reads unassigned."""
    finder = _Finder(names)
    arguments = function.args
    known = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    finder.block(function.body, frozenset(argument.arg for argument in known))
    return finder.found


class _Finder:
    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.found: set[str] = set()

    def block(self, statements: Iterable[ast.stmt], assigned: Assigned) -> Assigned:
        """Follow statements; return what is assigned after them."""
        for statement in statements:
            if assigned is None:
                return None
            assigned = self._statement(statement, assigned)
        return assigned

    def _statement(self, node: ast.stmt, assigned: frozenset[str]) -> Assigned:
        if isinstance(node, ast.If):
            self._read(node.test, assigned)
            return _both(self.block(node.body, assigned), self.block(node.orelse, assigned))
        if isinstance(node, ast.For | ast.While):
            return self._loop(node, assigned)
        if isinstance(node, ast.FunctionDef):
            return assigned | {node.name}
        self._read(node, assigned)
        if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return None
        return assigned | _stored(node)

    def _loop(self, node: ast.For | ast.While, assigned: frozenset[str]) -> Assigned:
        self._read(node.iter if isinstance(node, ast.For) else node.test, assigned)
        inside = assigned | _stored(node.target) if isinstance(node, ast.For) else assigned
        self.block(node.body, inside)
        after = self.block(node.orelse, assigned)
        return assigned if after is None else after & assigned if node.body else after

    def _read(self, node: ast.AST, assigned: frozenset[str]) -> None:
        bound = {
            name
            for part in ast.walk(node)
            if isinstance(part, ast.comprehension)
            for name in _stored(part.target)
        }
        for part in ast.walk(node):
            reads = isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
            augments = isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
            name = part.id if reads else part.target.id if augments else None  # type: ignore[attr-defined]
            if name in self._names and name not in assigned and name not in bound:
                self.found.add(name)


def _stored(node: ast.AST) -> frozenset[str]:
    """Return the variables that a statement or target assigns, outside of comprehensions."""
    inner = {
        id(name)
        for part in ast.walk(node)
        if isinstance(part, ast.comprehension)
        for name in ast.walk(part.target)
    }
    return frozenset(
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and id(part) not in inner
    )


def _both(left: Assigned, right: Assigned) -> Assigned:
    """Return what is assigned after one of two branches."""
    if left is None or right is None:
        return right if left is None else left
    return left & right
