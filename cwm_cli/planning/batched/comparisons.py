"""Comparisons of a program, and which expressions may be computed where nobody needs them."""

import ast
from collections.abc import Callable, Sequence
from typing import Any

from cwm_cli.planning.batched import operators
from cwm_cli.planning.batched.frame import Frame, call, cannot, lanes, load
from cwm_cli.planning.batched.properties import never_none, numeric
from cwm_cli.planning.batched.writing import Writer

_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_TRUTHS = (bool, any, all, isinstance, hasattr)


def write_comparison(write: Writer, node: ast.Compare) -> ast.expr:
    """Write a comparison, or a chain of them."""
    operands = [node.left, *node.comparators]
    if len(node.ops) == 1:
        return _single(write, node.ops[0], *operands)
    if any(not is_total(write.frame, part) for part in operands[1:-1]):
        return _chain(write, node)
    pairs = zip(node.ops, operands[:-1], operands[1:], strict=True)
    parts: Sequence[ast.expr] = [ast.Compare(left, [op], [right]) for op, left, right in pairs]
    return write(ast.copy_location(ast.BoolOp(ast.And(), list(parts)), node))


def is_truth(frame: Frame, node: ast.expr) -> bool:
    """Whether an expression is True or False, so that `and` and `or` are, too."""
    if isinstance(node, ast.BoolOp):
        return all(is_truth(frame, part) for part in node.values)
    if isinstance(node, ast.Call):
        called = frame.names.value(node.func)
        return any(called is function for function in _TRUTHS)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.Constant) and isinstance(node.value, bool)
    )


def is_total(frame: Frame, node: ast.expr) -> bool:
    """Whether computing an expression for nothing can neither fail nor change anything."""
    check = _TOTAL.get(type(node))
    return check is not None and check(frame, node)


def _total_name(frame: Frame, node: ast.Name) -> bool:
    """Whether a variable has a value."""
    return node.id not in frame.doubtful and never_none(frame.presence, node)


def _total_attribute(frame: Frame, node: ast.Attribute) -> bool:
    """Whether an attribute of the object has a value."""
    own = frame.names.is_object(node.value) and frame.names.definition(node) is None
    return own and never_none(frame.presence, node)


def _total_unary(frame: Frame, node: ast.UnaryOp) -> bool:
    """Whether an operator takes its operand."""
    if isinstance(node.op, ast.Not):
        return is_total(frame, node.operand) and is_truth(frame, node.operand)
    return _total_numbers(frame, node.operand)


def _total_boolean(frame: Frame, node: ast.BoolOp) -> bool:
    """Whether operands are conditions."""
    return all(is_total(frame, part) and is_truth(frame, part) for part in node.values)


def _total_operation(frame: Frame, node: ast.BinOp) -> bool:
    """Whether an operator takes all numbers, and gets numbers."""
    simple = isinstance(node.op, ast.Add | ast.Sub | ast.Mult)
    return simple and _total_numbers(frame, node.left, node.right)


def _total_numbers(frame: Frame, *nodes: ast.expr) -> bool:
    """Whether expressions are numbers."""
    return all(is_total(frame, node) and numeric(frame.numbers, node) for node in nodes)


def _total_comparison(frame: Frame, node: ast.Compare) -> bool:
    """Whether a comparison is one of numbers."""
    if not all(isinstance(op, (*_ORDER, ast.Eq, ast.NotEq)) for op in node.ops):
        return False
    return _total_numbers(frame, node.left, *node.comparators)


def _total_call(frame: Frame, node: ast.Call) -> bool:
    """Whether a call is one of a function that takes all numbers."""
    plain = frame.names.value(node.func) is abs and not node.keywords
    return plain and _total_numbers(frame, *node.args)


_TOTAL: dict[type[ast.expr], Callable[[Frame, Any], bool]] = {
    ast.Constant: lambda frame, node: True,
    ast.Name: _total_name,
    ast.Attribute: _total_attribute,
    ast.UnaryOp: _total_unary,
    ast.BoolOp: _total_boolean,
    ast.BinOp: _total_operation,
    ast.Compare: _total_comparison,
    ast.Call: _total_call,
}


def _single(write: Writer, op: ast.cmpop, left: ast.expr, right: ast.expr) -> ast.expr:
    """Write one comparison."""
    if isinstance(op, ast.Is | ast.IsNot):
        return _identity(write, op, left, right)
    if isinstance(op, ast.In | ast.NotIn):
        if isinstance(right, ast.Set):
            right = ast.copy_location(ast.Tuple(right.elts, ast.Load()), right)
        function = write.runtime(operators.contains)
        inside = call(function, write(left), write(right), write.frame.alive())
        return inside if isinstance(op, ast.In) else lanes("inverse", inside)
    if write.is_known(left, right) or isinstance(op, _ORDER):
        return ast.Compare(write(left), [op], [write(right)])
    equal = operators.equal if isinstance(op, ast.Eq) else operators.unequal
    none = any(isinstance(part, ast.Constant) and part.value is None for part in (left, right))
    one = write.raw if none else write
    return call(write.runtime(equal), one(left), one(right))


def _chain(write: Writer, node: ast.Compare) -> ast.expr:
    """Write `a < b < c` so that b is computed once."""
    if len(node.ops) > 2 or not all(isinstance(op, _ORDER) for op in node.ops):
        cannot(node, "a long chain of comparisons")
    middle, last = node.comparators
    name = write.frame.new("t")
    named = ast.NamedExpr(ast.Name(name, ast.Store()), write(middle))
    first = lanes("truth", ast.Compare(write(node.left), [node.ops[0]], [named]))
    if not is_total(write.frame, last):
        later = write.lazy_after(load(name), node.ops[1], last)
        return call(write.runtime(operators.every), write.frame.alive(), first, later)
    return lanes(
        "meet", first, lanes("truth", ast.Compare(load(name), [node.ops[1]], [write(last)]))
    )


def _identity(write: Writer, op: ast.cmpop, left: ast.expr, right: ast.expr) -> ast.expr:
    """Write `is None`."""
    if not isinstance(right, ast.Constant) or right.value is not None:
        cannot(left, "`is` with something other than None")
    missing = lanes("missing", write.raw(left))
    return missing if isinstance(op, ast.Is) else lanes("inverse", missing)
