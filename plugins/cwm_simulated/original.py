"""A correct program, the errors that it may get, and the errors found in a given text.

A program is read both as text and as a syntax tree. Edits are small changes of the text, found with
the tree.
"""

import ast
import builtins
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

Span = tuple[int, int, int]
"""A line, counted from 0, and the start and end columns of a part."""


class ParsedProgram:
    """A program with its lines and the names in it."""

    def __init__(self, program: str) -> None:
        self.tree = ast.parse(program)
        self.lines = program.split("\n")
        self.nodes = list(_walk(self.tree))
        self.names = {name for node in self.nodes for name in _names(node)} | set(dir(builtins))
        self.stores = Counter(target for node in self.nodes for target in targets(node))

    def column(self, row: int, offset: int) -> int:
        """Convert an offset in bytes to an offset in characters; rows count from 1."""
        return len(self.lines[row - 1].encode()[:offset].decode())

    def span(self, node: Any) -> Span | None:
        """Return line, start and end of a node, None if it has several lines."""
        if node.lineno != node.end_lineno:
            return None
        ends = (self.column(node.lineno, o) for o in (node.col_offset, node.end_col_offset))
        return (node.lineno - 1, *ends)

    def between(self, left: Any, right: Any, sign: str) -> Span | None:
        """Return the span of a sign between two nodes in one line."""
        if left.end_lineno != right.lineno:
            return None
        start = self.column(right.lineno, left.end_col_offset)
        end = self.column(right.lineno, right.col_offset)
        found = self.lines[right.lineno - 1].find(sign, start, end)
        return None if found < 0 else (right.lineno - 1, found, found + len(sign))


def targets(node: ast.AST) -> Iterator[str]:
    """Yield the targets of an assignment."""
    for target in getattr(node, "targets", ()):
        for part in getattr(target, "elts", (target,)):
            yield ast.unparse(part)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes below it, without skipped ones."""
    yield node
    # loops that might never end, and formatted strings, whose parts have no own position
    skipped = (ast.While, ast.JoinedStr)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, skipped):
            yield from _walk(child)


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node uses."""
    for field in ("id", "attr", "name", "arg"):
        if isinstance(name := getattr(node, field, None), str):
            yield name


Kind = Literal[
    "constant", "operator", "comparison", "function", "branch", "deletion", "name", "syntax"
]
CRASHES: frozenset[Kind] = frozenset(("name", "syntax"))
"""The kinds intended to raise an exception; other kinds may raise one too."""

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
    """An error: line `line` (from 0) has `text` in place of columns `start` to `end`."""

    line: int
    start: int
    end: int
    text: str
    kind: Kind

    def overlaps(self, other: "Edit") -> bool:
        """Return whether two errors overlap, so that a program can have only one."""
        return self.line == other.line and self.start < other.end and other.start < self.end


def edits(program: str) -> list[Edit]:
    """Return all errors that this program may get, in text order."""
    source = ParsedProgram(program)
    found = {
        edit
        for node in source.nodes
        for kind, makers in MAKERS.items()
        if isinstance(node, kind)
        for maker in makers
        for edit in maker(source, node)
    }
    return sorted(found)


def _constants(source: ParsedProgram, node: ast.Constant) -> Iterator[Edit]:
    """Change a number, or negate a boolean."""
    if span := source.span(node):
        for other in _others(node.value):
            yield Edit(*span, repr(other), "constant")


def _others(value: object) -> Sequence[float]:
    """Return the wrong values for a constant."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value - 1, value + 1)
    if isinstance(value, float):
        return (2 * value, float(f"{0.9 * value:.6g}")) if value else (1.0,)
    return ()


def _operators(source: ParsedProgram, node: ast.BinOp) -> Iterator[Edit]:
    """Replace the operator between two operands."""
    yield from _swapped(source, node.op, node.left, node.right)


def _connectives(source: ParsedProgram, node: ast.BoolOp) -> Iterator[Edit]:
    """Replace `and` by `or`, or `or` by `and`."""
    for left, right in pairwise(node.values):
        yield from _swapped(source, node.op, left, right)


def _increments(source: ParsedProgram, node: ast.AugAssign) -> Iterator[Edit]:
    """Replace the operator of an augmented assignment."""
    yield from _swapped(source, node.op, node.target, node.value)


def _swapped(
    source: ParsedProgram, operator: ast.AST, left: ast.AST, right: ast.AST
) -> Iterator[Edit]:
    """Replace the operator between two nodes."""
    sign, other = OPERATORS.get(type(operator), ("", ""))
    if sign and (span := source.between(left, right, sign)):
        yield Edit(*span, other, "operator")


def _signs(source: ParsedProgram, node: ast.UnaryOp) -> Iterator[Edit]:
    """Replace a minus sign by a plus sign."""
    if isinstance(node.op, ast.USub) and (span := source.span(node)):
        yield Edit(span[0], span[1], span[1] + 1, "+", "operator")


def _comparisons(source: ParsedProgram, node: ast.Compare) -> Iterator[Edit]:
    """Replace a comparison operator."""
    for operator, (left, right) in zip(
        node.ops, pairwise([node.left, *node.comparators]), strict=True
    ):
        sign, others = COMPARISONS.get(type(operator), ("", ()))
        if sign and (span := source.between(left, right, sign)):
            yield from (Edit(*span, other, "comparison") for other in others)


def _functions(source: ParsedProgram, node: ast.Name | ast.Attribute) -> Iterator[Edit]:
    """Replace a function by a similar one."""
    if place := _identifier(source, node):
        line, start, end, name = place
        if name in FUNCTIONS:
            yield Edit(line, start, end, FUNCTIONS[name], "function")


def _misspellings(source: ParsedProgram, node: ast.Name | ast.Attribute) -> Iterator[Edit]:
    """Repeat the last letter of a name."""
    if isinstance(node.ctx, ast.Load) and (place := _identifier(source, node)):
        line, start, end, name = place
        if name + name[-1] not in source.names:
            yield Edit(line, start, end, name + name[-1], "name")


def _identifier(
    source: ParsedProgram, node: ast.Name | ast.Attribute
) -> tuple[int, int, int, str] | None:
    """Return the span of the last part of a name, and that part."""
    name = node.id if isinstance(node, ast.Name) else node.attr
    span = source.span(node)
    if span is None or source.lines[span[0]][span[2] - len(name) : span[2]] != name:
        return None
    return span[0], span[2] - len(name), span[2], name


def _branches(source: ParsedProgram, node: ast.If | ast.IfExp) -> Iterator[Edit]:
    """Negate the condition of a branch, or replace it by False."""
    if span := source.span(node.test):
        line, start, end = span
        yield Edit(*span, f"not ({source.lines[line][start:end]})", "branch")
        yield Edit(*span, "False", "branch")


def _deletions(
    source: ParsedProgram, node: ast.Assign | ast.AugAssign | ast.Expr
) -> Iterator[Edit]:
    """Remove a statement, unless a name would have no value."""
    text = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call)
    lost = any(source.stores[target] < 2 for target in targets(node))
    if not text and not lost and (span := source.span(node)):
        yield Edit(*span, "pass", "deletion")


def _unclosed(source: ParsedProgram, node: ast.Assign | ast.Expr | ast.Return) -> Iterator[Edit]:
    """Remove the closing bracket at the end of a statement."""
    span = source.span(node)
    if span and source.lines[span[0]][: span[2]].endswith(")"):
        yield _dropped(source, span[0], span[2])


def _headers(source: ParsedProgram, node: ast.If | ast.For | ast.FunctionDef) -> Iterator[Edit]:
    """Remove the colon at the end of a header."""
    line = source.lines[node.lineno - 1].rstrip()
    if line.endswith(":"):
        yield _dropped(source, node.lineno - 1, len(line))


def _dropped(source: ParsedProgram, line: int, end: int) -> Edit:
    """Remove the character before `end`, and the blanks before it."""
    return Edit(line, len(source.lines[line][: end - 1].rstrip()), end, "", "syntax")


MAKERS: Mapping[
    type | tuple[type, ...], Sequence[Callable[[ParsedProgram, Any], Iterator[Edit]]]
] = {
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
"""The errors for each kind of node."""


Errors = frozenset[Edit]
"""Errors in different places of one program."""


class Original:
    """A correct program that writes programs with errors, and finds the errors of a program.

    Every error is within one line, so the lines of both programs correspond.
    """

    def __init__(self, program: str) -> None:
        self.edits = edits(program)
        self.lines = program.split("\n")
        self._of_line: dict[int, list[Edit]] = defaultdict(list)
        for edit in self.edits:
            self._of_line[edit.line].append(edit)

    def write(self, errors: Iterable[Edit]) -> str:
        """Return the program with these errors."""
        lines = list(self.lines)
        for edit in sorted(errors, reverse=True):
            line = lines[edit.line]
            lines[edit.line] = line[: edit.start] + edit.text + line[edit.end :]
        return "\n".join(lines)

    def read(self, lines: Sequence[str]) -> Errors | None:
        """Return the fewest errors that explain these first lines, None for another program."""
        found: set[Edit] = set()
        for number, text in enumerate(lines):
            errors = self._read_line(number, text)
            if errors is None:
                return None
            found.update(errors)
        return frozenset(found)

    def read_all(self, program: str) -> Errors | None:
        """Return the errors of a whole program, None for another program."""
        lines = program.split("\n")
        return self.read(lines) if len(lines) == len(self.lines) else None

    def _read_line(self, number: int, text: str) -> tuple[Edit, ...] | None:
        """Return the fewest errors that explain a line, by breadth-first search over both texts."""
        if number >= len(self.lines):
            return None
        line = self.lines[number]
        reached: dict[tuple[int, int], tuple[Edit, ...]] = {(0, 0): ()}
        seen = set(reached)
        while reached:
            following: dict[tuple[int, int], tuple[Edit, ...]] = {}
            for (here, there), errors in reached.items():
                if line[here:] == text[there:]:
                    return errors
                alike = _common_prefix(line[here:], text[there:])
                for edit in self._of_line[number]:
                    skipped = edit.start - here
                    if 0 <= skipped <= alike and text.startswith(edit.text, there + skipped):
                        place = edit.end, there + skipped + len(edit.text)
                        following.setdefault(place, (*errors, edit))
            reached = {place: errors for place, errors in following.items() if place not in seen}
            seen |= reached.keys()
        return None


def _common_prefix(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
