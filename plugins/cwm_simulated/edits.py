"""What can be got wrong in a program: small changes of its text, found in its syntax tree."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from cwm_simulated.source import Source, targets

Kind = Literal[
    "constant", "operator", "comparison", "function", "branch", "deletion", "name", "syntax"
]
CRASHES: frozenset[Kind] = frozenset(("name", "syntax"))
"""The kinds that are made to raise; some of the others raise, too, as it happens."""

OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
COMPARISONS = {
    ast.Lt: ("<", (">", "<=")),
    ast.Gt: (">", ("<", ">=")),
    ast.LtE: ("<=", (">=", "<")),
    ast.GtE: (">=", ("<=", ">")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
}
PAIRS = (("sin", "cos"), ("min", "max"), ("floor", "ceil"), ("minimum", "maximum"))
FUNCTIONS = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}


class Edit(NamedTuple):
    """One error: in this line, counted from 0, `text` stands from `start` to `end`."""

    line: int
    start: int
    end: int
    text: str
    kind: Kind

    def overlaps(self, other: "Edit") -> bool:
        """Whether two errors are in the same place, so that a program has at most one of them."""
        return self.line == other.line and self.start < other.end and other.start < self.end


def edits(program: str) -> list[Edit]:
    """Return every error that this program may be given, in the order of its text."""
    source = Source(program)
    found = {
        edit
        for node in source.nodes
        for kind, makers in MAKERS.items()
        if isinstance(node, kind)
        for maker in makers
        for edit in maker(source, node)
    }
    return sorted(found)


def _constants(source: Source, node: ast.Constant) -> Iterator[Edit]:
    """Change a number, or turn a truth value round."""
    if span := source.span(node):
        for other in _others(node.value):
            yield Edit(*span, repr(other), "constant")


def _others(value: object) -> Sequence[float]:
    """Return what might be written instead of a constant."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value - 1, value + 1)
    if isinstance(value, float):
        return (2 * value, float(f"{0.9 * value:.6g}")) if value else (1.0,)
    return ()


def _operators(source: Source, node: ast.BinOp) -> Iterator[Edit]:
    """Take another operator between two operands."""
    yield from _swapped(source, node.op, node.left, node.right)


def _connectives(source: Source, node: ast.BoolOp) -> Iterator[Edit]:
    """Take `or` instead of `and`, or the other way round."""
    for left, right in pairwise(node.values):
        yield from _swapped(source, node.op, left, right)


def _increments(source: Source, node: ast.AugAssign) -> Iterator[Edit]:
    """Take another operator to change a value in place."""
    yield from _swapped(source, node.op, node.target, node.value)


def _swapped(source: Source, operator: ast.AST, left: ast.AST, right: ast.AST) -> Iterator[Edit]:
    """Replace the operator between two nodes."""
    sign, other = OPERATORS.get(type(operator), ("", ""))
    if sign and (span := source.between(left, right, sign)):
        yield Edit(*span, other, "operator")


def _signs(source: Source, node: ast.UnaryOp) -> Iterator[Edit]:
    """Turn a sign round."""
    if isinstance(node.op, ast.USub) and (span := source.span(node)):
        yield Edit(span[0], span[1], span[1] + 1, "+", "operator")


def _comparisons(source: Source, node: ast.Compare) -> Iterator[Edit]:
    """Compare otherwise."""
    for operator, (left, right) in zip(
        node.ops, pairwise([node.left, *node.comparators]), strict=True
    ):
        sign, others = COMPARISONS.get(type(operator), ("", ()))
        if sign and (span := source.between(left, right, sign)):
            yield from (Edit(*span, other, "comparison") for other in others)


def _functions(source: Source, node: ast.Name | ast.Attribute) -> Iterator[Edit]:
    """Take the function that is mistaken for this one."""
    if place := _identifier(source, node):
        line, start, end, name = place
        if name in FUNCTIONS:
            yield Edit(line, start, end, FUNCTIONS[name], "function")


def _misspellings(source: Source, node: ast.Name | ast.Attribute) -> Iterator[Edit]:
    """Write the last letter of a name twice."""
    if isinstance(node.ctx, ast.Load) and (place := _identifier(source, node)):
        line, start, end, name = place
        if name + name[-1] not in source.names:
            yield Edit(line, start, end, name + name[-1], "name")


def _identifier(source: Source, node: ast.Name | ast.Attribute) -> tuple[int, int, int, str] | None:
    """Return where the last part of a name stands, and that part."""
    name = node.id if isinstance(node, ast.Name) else node.attr
    span = source.span(node)
    if span is None or source.lines[span[0]][span[2] - len(name) : span[2]] != name:
        return None
    return span[0], span[2] - len(name), span[2], name


def _branches(source: Source, node: ast.If | ast.IfExp) -> Iterator[Edit]:
    """Negate the condition of a branch, or never take it."""
    if span := source.span(node.test):
        line, start, end = span
        yield Edit(*span, f"not ({source.lines[line][start:end]})", "branch")
        yield Edit(*span, "False", "branch")


def _deletions(source: Source, node: ast.Assign | ast.AugAssign | ast.Expr) -> Iterator[Edit]:
    """Leave a statement out, unless a name would have no value at all."""
    text = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call)
    lost = any(source.stores[target] < 2 for target in targets(node))
    if not text and not lost and (span := source.span(node)):
        yield Edit(*span, "pass", "deletion")


def _unclosed(source: Source, node: ast.Assign | ast.Expr | ast.Return) -> Iterator[Edit]:
    """Leave a bracket open at the end of a statement."""
    span = source.span(node)
    if span and source.lines[span[0]][: span[2]].endswith(")"):
        yield _dropped(source, span[0], span[2])


def _headers(source: Source, node: ast.If | ast.For | ast.FunctionDef) -> Iterator[Edit]:
    """Forget the colon at the end of a header."""
    line = source.lines[node.lineno - 1].rstrip()
    if line.endswith(":"):
        yield _dropped(source, node.lineno - 1, len(line))


def _dropped(source: Source, line: int, end: int) -> Edit:
    """Drop the character before `end`, and the blanks before it."""
    return Edit(line, len(source.lines[line][: end - 1].rstrip()), end, "", "syntax")


MAKERS: Mapping[type | tuple[type, ...], Sequence[Callable[[Source, Any], Iterator[Edit]]]] = {
    ast.Constant: (_constants,),
    ast.BinOp: (_operators,),
    ast.BoolOp: (_connectives,),
    ast.AugAssign: (_increments,),
    ast.UnaryOp: (_signs,),
    ast.Compare: (_comparisons,),
    (ast.Name, ast.Attribute): (_functions, _misspellings),
    (ast.If, ast.IfExp): (_branches,),
    (ast.Assign, ast.AugAssign, ast.Expr): (_deletions,),
    (ast.Assign, ast.Expr, ast.Return): (_unclosed,),
    (ast.If, ast.For, ast.FunctionDef): (_headers,),
}
"""What can be got wrong at each kind of node."""
