"""`and`, `or` and conditional expressions: what is needed in some lanes only."""

import ast

from cwm_cli.planning.batched import operators
from cwm_cli.planning.batched.comparisons import is_total, is_truth
from cwm_cli.planning.batched.frame import call, lanes
from cwm_cli.planning.batched.writing import Writer


def write_boolean(write: Writer, node: ast.BoolOp) -> ast.expr:
    """Write `and` or `or` as a value, which is one of the operands."""
    if all(is_truth(write.frame, part) for part in node.values):
        return write_all_or_any(write, node)
    function = operators.conjunction if isinstance(node.op, ast.And) else operators.disjunction
    first, *others = node.values
    rest = ast.BoolOp(node.op, others) if len(others) > 1 else others[0]
    later = write.lazy(ast.copy_location(rest, node))
    return call(write.runtime(function), write.frame.alive(), write(first), later)


def write_all_or_any(write: Writer, node: ast.BoolOp) -> ast.expr:
    """Write `and` or `or` as a mask; operands that cannot fail are computed everywhere."""
    first, *others = node.values
    is_and = isinstance(node.op, ast.And)
    if not all(is_total(write.frame, part) for part in others):
        function = write.runtime(operators.every if is_and else operators.some)
        later = (write.lazy_truth(part) for part in others)
        return call(function, write.frame.alive(), write.truth(first), *later)
    mask = write.truth(first)
    for part in others:
        mask = lanes("meet" if is_and else "either", mask, write.truth(part))
    return mask


def write_conditional(write: Writer, node: ast.IfExp) -> ast.expr:
    """Write `a if c else b`."""
    frame = write.frame
    if is_total(frame, node.body) and is_total(frame, node.orelse):
        condition = lanes("settled", write.truth(node.test))
        return frame.choose(condition, write.raw(node.body), write.raw(node.orelse))
    arms = (write.lazy(node.body), write.lazy(node.orelse))
    return call(write.runtime(operators.choose), write.truth(node.test), *arms, frame.alive())
