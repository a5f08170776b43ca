"""Assignments of a program, done in the lanes that are alive."""

import ast
import operator
from collections.abc import Callable
from typing import Any

from cwm_cli.planning.batched import operators, places
from cwm_cli.planning.batched.analysis import mangled
from cwm_cli.planning.batched.expressions import DIVIDING, OPERATORS, Expressions
from cwm_cli.planning.batched.frame import PREFIX, Frame, assign, call, cannot, lanes, load
from cwm_cli.planning.batched.lanes import Value


class Assignments:
    """Writes assignments of one function."""

    def __init__(self, frame: Frame, write: Expressions) -> None:
        self.frame, self.write = frame, write

    def assignment(self, node: ast.Assign) -> list[ast.stmt]:
        """Write an assignment to one or more targets."""
        target = node.targets[0]
        if len(node.targets) == 1 and self._is_plain(target):
            return self.store(target, self.write.raw(node.value))
        if self._is_parallel(target, node.value) and len(node.targets) == 1:
            return self._in_parallel(target, node.value)
        value = self.frame.new("t")
        written: list[ast.stmt] = [assign(value, self.write.raw(node.value))]
        for target in node.targets:
            written += self.store(target, load(value))
        return written

    def annotated(self, node: ast.AnnAssign) -> list[ast.stmt]:
        """Write an assignment with a type."""
        if node.value is None:
            return []
        return self.assignment(ast.copy_location(ast.Assign([node.target], node.value), node))

    def augmented(self, node: ast.AugAssign) -> list[ast.stmt]:
        """Write an augmented assignment."""
        target = node.target
        if isinstance(target, ast.Subscript):
            return self._augmented_element(node, target)
        source = ast.copy_location(_loaded(target), target)
        value = self._result(node, self.write.raw(source), source)
        return self.store(target, value)

    def store(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """Write an assignment of what is written already."""
        if isinstance(target, ast.Name):
            return self._to_variable(target.id, value)
        if isinstance(target, ast.Attribute):
            return self._to_attribute(target, value)
        if isinstance(target, ast.Tuple | ast.List):
            return self._to_several(target, value)
        if not isinstance(target, ast.Subscript):
            cannot(target, "an assignment to such a target")
        base, index = self.write(target.value), self.write.index(target.slice)
        return [self._stored(base, index, value)]

    def _to_variable(self, name: str, value: ast.expr) -> list[ast.stmt]:
        """Write an assignment to a variable, and in which lanes it has a value."""
        if self.frame.mask is not None:
            self.frame.declared.add(name)
            value = self.frame.choose(self.frame.alive(), value, load(name))
        written: list[ast.stmt] = [assign(name, value)]
        if name in self.frame.doubtful:
            known = f"{PREFIX}set_{name}"
            self.frame.declared.add(name)
            written.append(assign(known, lanes("either", load(known), self.frame.alive())))
        return written

    def _to_attribute(self, target: ast.Attribute, value: ast.expr) -> list[ast.stmt]:
        """Write an assignment to an attribute of the object."""
        names, program = self.frame.names, self.frame.shared.program
        if not names.is_object(target.value) or self.frame.definition.decorator == "classmethod":
            cannot(target, "an assignment to an attribute of something else than the object")
        if names.definition(target) is not None:
            cannot(target, "an assignment to a method")
        name = mangled(target.attr, program.name)
        owner = self.write.owner(target.value)
        if self.frame.mask is not None:
            value = self._chosen(owner, name, value)
        return [ast.Assign([ast.Attribute(owner, name, ast.Store())], value)]

    def _chosen(self, owner: ast.expr, name: str, value: ast.expr) -> ast.expr:
        """Write what an attribute becomes where some lanes assign to it."""
        if name in self.frame.shared.program.attributes:
            old = ast.Attribute(owner, name, ast.Load())
            return self.frame.choose(self.frame.alive(), value, old)
        first = self.write.runtime(places.first)
        return call(first, self.frame.alive(), value, owner, ast.Constant(name))

    def _to_several(self, target: ast.Tuple | ast.List, value: ast.expr) -> list[ast.stmt]:
        """Write an assignment of elements."""
        if any(isinstance(part, ast.Starred) for part in target.elts):
            cannot(target, "* in an assignment")
        elements = self.write.unpacked(value, len(target.elts))
        plain = all(isinstance(part, ast.Name) for part in target.elts)
        if plain and self.frame.mask is None and not self.frame.doubtful & _names(target):
            return [ast.Assign([target], elements)]
        parts = [self.frame.new("t") for _ in target.elts]
        names = [ast.Name(part, ast.Store()) for part in parts]
        written: list[ast.stmt] = [ast.Assign([ast.Tuple(list(names), ast.Store())], elements)]
        for element, part in zip(target.elts, parts, strict=True):
            written += self.store(element, load(part))
        return written

    def _in_parallel(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """Write `a, b = x, y` without a tuple between."""
        assert isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        parts = [self.frame.new("t") for _ in target.elts]
        written: list[ast.stmt] = []
        for part, element in zip(parts, value.elts, strict=True):
            written.append(assign(part, self.write.raw(element)))
        for element, part in zip(target.elts, parts, strict=True):
            written += self.store(element, load(part))
        return written

    def _augmented_element(self, node: ast.AugAssign, target: ast.Subscript) -> list[ast.stmt]:
        """Write an augmented assignment to an element, whose place is found once."""
        base, index, old = (self.frame.new("t") for _ in range(3))
        source = ast.copy_location(_loaded(target), target)
        return [
            assign(base, self.write(target.value)),
            assign(index, self.write.index(target.slice)),
            assign(old, self.write.element(load(base), load(index))),
            assign(old, self._result(node, load(old), source)),
            self._stored(load(base), load(index), load(old)),
        ]

    def _result(self, node: ast.AugAssign, old: ast.expr, source: ast.expr) -> ast.expr:
        """Write the value that an augmented assignment assigns."""
        value = self.write(node.value)
        if isinstance(node.op, DIVIDING):
            value = call(self.write.runtime(operators.divisor), value, self.frame.alive())
        function: Callable[[Value, Value], Value] = OPERATORS[type(node.op)]
        if self.write.is_known(source, node.value):
            function = _PLAIN.get(type(node.op), function)
        augmented = self.write.runtime(places.augmented)
        name = self.frame.shared.add(function, f"operator_{function.__name__}")
        return call(augmented, name, old, value, self.frame.alive())

    def _stored(self, base: ast.expr, index: ast.expr, value: ast.expr) -> ast.stmt:
        """Write an assignment to an element."""
        store = self.write.runtime(places.store)
        return ast.Expr(call(store, base, index, value, self.frame.alive()))

    def _is_plain(self, target: ast.expr) -> bool:
        """Whether it does not matter that a target is looked at before the value."""
        return isinstance(target, ast.Name | ast.Attribute)

    def _is_parallel(self, target: ast.expr, value: ast.expr) -> bool:
        """Whether as many values as targets are written down."""
        tuples = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        if not tuples or any(isinstance(p, ast.Starred) for p in (*target.elts, *value.elts)):  # type: ignore[attr-defined]
            return False
        return len(target.elts) == len(value.elts)  # type: ignore[attr-defined]


_PLAIN: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def _loaded(target: ast.expr) -> ast.expr:
    """Return a target as what it is before the assignment."""
    if isinstance(target, ast.Name):
        return load(target.id)
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    return cannot(target, "an augmented assignment to such a target")


def _names(target: ast.Tuple | ast.List) -> set[str]:
    """Return the variables among targets."""
    return {part.id for part in target.elts if isinstance(part, ast.Name)}
