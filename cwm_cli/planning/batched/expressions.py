"""Expressions of a program, written so that they compute for many lanes."""

import ast
from collections.abc import Callable
from types import ModuleType, NoneType
from typing import Any

from cwm_cli.planning.batched import calls, methods, operators, places
from cwm_cli.planning.batched.analysis import Definition, mangled
from cwm_cli.planning.batched.call_expressions import write_call
from cwm_cli.planning.batched.comparisons import write_comparison
from cwm_cli.planning.batched.comprehensions import write_comprehension
from cwm_cli.planning.batched.conditions import write_all_or_any, write_boolean, write_conditional
from cwm_cli.planning.batched.constants import fixed
from cwm_cli.planning.batched.frame import PREFIX, Frame, call, cannot, lanes, load
from cwm_cli.planning.batched.lanes import UNDEFINED
from cwm_cli.planning.batched.linear import matrix_product
from cwm_cli.planning.batched.properties import never_none, numeric

OPERATORS: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operators.add,
    ast.Sub: operators.subtract,
    ast.Mult: operators.multiply,
    ast.Div: operators.divide,
    ast.FloorDiv: operators.floor_divide,
    ast.Mod: operators.remainder,
    ast.Pow: operators.power,
    ast.BitAnd: operators.bit_and,
    ast.BitOr: operators.bit_or,
    ast.BitXor: operators.bit_xor,
    ast.LShift: operators.left_shift,
    ast.RShift: operators.right_shift,
    ast.MatMult: matrix_product,
}
"""What stands for each operator where the types of its operands are not known."""

DIVIDING = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
"""Operators that some numbers raise an error with."""

_PLAIN = (ast.Add, ast.Sub, ast.Mult)


class Expressions:
    """Writes expressions of one function."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._writers: dict[type[ast.expr], Callable[[Any], ast.expr]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.BinOp: self._operation,
            ast.UnaryOp: self._unary,
            ast.Subscript: self._subscript,
            ast.Tuple: self._display,
            ast.List: self._display,
            ast.Set: self._display,
            ast.Dict: self._dict,
            ast.Starred: self._starred,
            ast.BoolOp: lambda node: write_boolean(self, node),
            ast.IfExp: lambda node: write_conditional(self, node),
            ast.Call: lambda node: write_call(self, node),
            ast.Compare: lambda node: write_comparison(self, node),
            ast.ListComp: lambda node: write_comprehension(self, node),
            ast.GeneratorExp: lambda node: write_comprehension(self, node),
            ast.DictComp: lambda node: write_comprehension(self, node),
        }

    def __call__(self, node: ast.expr) -> ast.expr:
        """Write an expression as a value."""
        write = self._writers.get(type(node))
        if write is None:
            cannot(node, f"a {type(node).__name__.lower()}")
        return ast.copy_location(write(node), node)

    def truth(self, node: ast.expr) -> ast.expr:
        """Write an expression as a mask."""
        if isinstance(node, ast.BoolOp):
            return write_all_or_any(self, node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return lanes("inverse", self.truth(node.operand))
        return lanes("truth", self(node))

    def raw(self, node: ast.expr) -> ast.expr:
        """Write an expression that may be None."""
        if isinstance(node, ast.Name) and self.frame.names.is_local(node.id):
            return self._variable(node)
        names = self.frame.names
        own = isinstance(node, ast.Attribute) and names.is_owner(node.value)
        if own and names.definition(node) is None:
            return self._own_attribute(node)  # type: ignore[arg-type]
        return self(node)

    def runtime(self, function: Callable[..., Any]) -> ast.expr:
        """Return the name of a function that generated code uses."""
        return self.frame.shared.add(function, function.__name__)

    def lazy(self, node: ast.expr) -> ast.expr:
        """Write an expression as a function of the lanes that need it."""
        return self._lazily(lambda: self(node))

    def lazy_truth(self, node: ast.expr) -> ast.expr:
        """Write a condition as a function of the lanes that need it."""
        return self._lazily(lambda: self.truth(node))

    def lazy_after(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
        """Write a comparison of what is written already, for the lanes that need it."""
        return self._lazily(lambda: lanes("truth", ast.Compare(left, [op], [self(right)])))

    def iterated(self, node: ast.expr) -> ast.expr:
        """Write what a loop goes over."""
        own = self.frame.shared.program.changes
        return call(self.runtime(places.own_each if own else places.each), self(node))

    def unpacked(self, value: ast.expr, count: int) -> ast.expr:
        """Write what is assigned to so many targets."""
        own = self.frame.shared.program.changes
        unpack = self.runtime(places.own_unpacked if own else places.unpacked)
        return call(unpack, value, ast.Constant(count), self.frame.alive())

    def index(self, node: ast.expr) -> ast.expr:
        """Write an index."""
        if isinstance(node, ast.Slice):
            parts = (node.lower, node.upper, node.step)
            bounds = (ast.Constant(None) if part is None else self(part) for part in parts)
            return call(self.runtime(slice), *bounds)
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.index(part) for part in node.elts], ast.Load())
        return self(node)

    def element(self, value: ast.expr, index: ast.expr) -> ast.expr:
        """Write an element."""
        own = self.frame.shared.program.changes
        read = self.runtime(places.own_at if own else places.at)
        return call(read, value, index, self.frame.alive())

    def is_known(self, *nodes: ast.expr) -> bool:
        """Whether expressions are numbers or arrays of numbers for sure."""
        return all(numeric(self.frame.numbers, node) for node in nodes)

    def _lazily(self, write: Callable[[], ast.expr]) -> ast.expr:
        mask = self.frame.new("m")
        with self.frame.where(mask):
            arguments = ast.arguments([], [ast.arg(mask)], None, [], [], None, [])
            return ast.Lambda(arguments, write())

    def _constant(self, node: ast.Constant) -> ast.expr:
        return cannot(node, "a complex number") if isinstance(node.value, complex) else node

    def _name(self, node: ast.Name) -> ast.expr:
        names = self.frame.names
        if names.is_owner(node):
            cannot(node, "the object itself as a value")
        if names.is_local(node.id):
            return self._present(node, self._variable(node))
        if (definition := names.definition(node)) is not None:
            return call(self.runtime(calls.Function), *self._versions(definition))
        return self._global(node, names.value(node))

    def _attribute(self, node: ast.Attribute) -> ast.expr:
        names = self.frame.names
        if names.is_owner(node.value):
            return self._member(node)
        if (value := names.value(node)) is not UNDEFINED:
            return self._global(node, value)
        return call(self.runtime(methods.attribute), self(node.value), ast.Constant(node.attr))

    def _member(self, node: ast.Attribute) -> ast.expr:
        definition = self.frame.names.definition(node)
        if definition is None:
            return self._present(node, self._own_attribute(node))
        if definition.decorator == "property":
            return write_call(self, ast.copy_location(ast.Call(node, [], []), node))
        if definition.owner is None:
            return call(self.runtime(calls.Function), *self._versions(definition))
        method_of, owner = self.runtime(calls.method_of), self.owner(node.value)
        return call(method_of, owner, *self._versions(definition))

    def _versions(self, definition: Definition) -> list[ast.expr]:
        shared = self.frame.shared
        return [shared.function(definition, masked=masked) for masked in (False, True)]

    def owner(self, node: ast.expr) -> ast.expr:
        """Write the object, or the class, that an attribute belongs to."""
        return load(node.id if self.frame.names.is_object(node) else f"{PREFIX}class")  # type: ignore[attr-defined]

    def _own_attribute(self, node: ast.Attribute) -> ast.expr:
        program = self.frame.shared.program
        name = mangled(node.attr, program.name)
        if name not in program.attributes and name not in program.assigned:
            cannot(node, f"attribute {node.attr}, which is not known")
        return ast.Attribute(self.owner(node.value), name, ast.Load())

    def _variable(self, node: ast.Name) -> ast.expr:
        if node.id not in self.frame.doubtful or node.id in self.frame.loop_variables:
            return load(node.id)
        known = load(f"{PREFIX}set_{node.id}")
        word = ast.Constant(node.id)
        return call(self.runtime(calls.assigned), load(node.id), known, self.frame.alive(), word)

    def _present(self, node: ast.expr, written: ast.expr) -> ast.expr:
        if never_none(self.frame.presence, node):
            return written
        return lanes("present", written, self.frame.alive())

    def _global(self, node: ast.expr, value: Any) -> ast.expr:
        if value is UNDEFINED or isinstance(value, ModuleType):
            cannot(node, f"name {ast.unparse(node)}")
        if type(value) in (bool, int, float, str, NoneType) and value == value:
            return ast.Constant(value)
        if isinstance(value, type):
            return self.frame.shared.add(value, f"type_{value.__name__}")
        return self.frame.shared.constant(value, ast.unparse(node).replace(".", "_"), fixed)

    def _operation(self, node: ast.BinOp) -> ast.expr:
        left, right = self(node.left), self(node.right)
        if self.is_known(node.left, node.right) and self._never_fails(node):
            return ast.BinOp(left, node.op, right)
        masks = [self.frame.alive()] if isinstance(node.op, DIVIDING) else []
        return call(self.runtime(OPERATORS[type(node.op)]), left, right, *masks)

    def _never_fails(self, node: ast.BinOp) -> bool:
        """Whether numpy's operator will do."""
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            return self.frame.mask is None
        square = isinstance(node.right, ast.Constant) and node.right.value == 2
        return isinstance(node.op, _PLAIN) or (isinstance(node.op, ast.Pow) and square)

    def _unary(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            return lanes("inverse", self.truth(node.operand))
        if isinstance(node.op, ast.Invert):
            return call(self.runtime(operators.invert), self(node.operand))
        return ast.UnaryOp(node.op, self(node.operand))

    def _subscript(self, node: ast.Subscript) -> ast.expr:
        return self.element(self(node.value), self.index(node.slice))

    def _display(self, node: ast.Tuple | ast.List | ast.Set) -> ast.expr:
        parts = [self(part) for part in node.elts]
        if isinstance(node, ast.Set):
            return ast.Set(parts)
        return type(node)(parts, ast.Load())

    def _dict(self, node: ast.Dict) -> ast.expr:
        keys = [self(key) if key else cannot(node, "** in a dict") for key in node.keys]
        return ast.Dict(list(keys), [self(part) for part in node.values])

    def _starred(self, node: ast.Starred) -> ast.expr:
        return ast.Starred(self.iterated(node.value), ast.Load())
