"""Shorter programs with the same behaviour, and the description length of a program.

`simplify` removes code that can never change a result: unreachable statements, branches with a
constant condition, repeated rules and conditions, unused names, and arithmetic of constants. It
edits the text in place, so that comments and the layout of other lines stay.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from keyword import iskeyword
from operator import add, mul, sub, truediv
from typing import NamedTuple, cast

from cwm_cli.search.contracts import Refinement, RefinementTask, Refiner

UNKNOWN_USE = {"eval", "exec", "globals", "locals", "vars", "getattr", "__import__"}
"""Functions that may use a name which the text does not contain."""

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

PURE = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.List,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)
"""Nodes of expressions without an effect, apart from errors that they may raise."""


class Size(NamedTuple):
    """The size of a program: lines of code, and description length in bits."""

    lines: int
    bits: int


def measure(program: str) -> Size:
    """Return the size of a program, without comments, docstrings and blank lines.

    An adaptive code of the tokens gives the description length. After n tokens, a token that was
    seen k times takes log2((n + 1) / k) bits. A new token takes log2(n + 1) bits, and 6 more bits
    for one of about 64 keywords and operators, or 8 more bits per character for other tokens.
    Layout has no effect. A text that is no program has 8 bits per character.
    """
    try:
        tree = ast.parse(program)
        skipped = set[int]()
        for node in ast.walk(tree):
            match getattr(node, "body", None):
                case [ast.Expr(ast.Constant(str())) as text, *_]:
                    skipped.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        tokens = list(tokenize.generate_tokens(io.StringIO(program).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Size(sum(bool(line.strip()) for line in program.splitlines()), 8 * len(program))
    seen, bits, lines = Counter[str](), 0.0, set[int]()
    for token in tokens:
        if token.type in LAYOUT or token.start[0] in skipped:
            continue
        lines.update(range(token.start[0], token.end[0] + 1))
        total = seen.total() + 1
        is_known = token.type == tokenize.OP or iskeyword(token.string)
        if not (count := seen[token.string]):
            bits += 6 if is_known else 8 * len(token.string)
        bits += math.log2(total / max(count, 1))
        seen[token.string] += 1
    return Size(len(lines), round(bits))


def simplify(program: str) -> str:
    """Return a shorter program with the same behaviour, or the same program if none is found."""
    for _ in range(100):  # several passes, since an edit may make others possible
        try:
            changes = list(_Simplifier(program).find())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return program
        if not changes:
            return program.lstrip("\n")
        # Two deletions together may empty a block, so one change is the alternative.
        tried = (_apply(program, changes), _apply(program, changes[:1]))
        program = next(filter(_is_valid, tried), "") or program
    return program


@dataclass(frozen=True)
class Simplify(Refiner):
    """Removes code that can never change a result from a program that explains all rows."""

    of_solved = True

    def refine(self, task: RefinementTask) -> Refinement | None:
        """Return the shorter program, or None."""
        shorter = simplify(task.node.program)
        return None if shorter == task.node.program else Refinement(shorter)


class TextEdit(NamedTuple):
    """A replacement of the bytes from `start` to `end` of a program."""

    start: int
    end: int
    text: bytes = b""


Change = Sequence[TextEdit]
"""Edits that keep the behaviour together."""


def _apply(program: str, changes: Sequence[Change]) -> str:
    """Make the changes; one that overlaps with an earlier one is left for the next pass."""
    spans: list[tuple[int, int]] = []
    kept: list[TextEdit] = []
    for change in changes:
        start, end = min(each.start for each in change), max(each.end for each in change)
        if all(end <= other[0] or start >= other[1] for other in spans):
            spans.append((start, end))
            kept += change
    data = program.encode()
    for edit in sorted(kept, reverse=True):
        data = data[: edit.start] + edit.text + data[edit.end :]
    return data.decode()


def _is_valid(program: str) -> bool:
    try:
        ast.parse(program)
    except SyntaxError:
        return False
    return True


class _Simplifier:
    """Finds the edits of one pass over a program.

    Raises:
        SyntaxError: The text is no program.
    """

    def __init__(self, program: str) -> None:
        self.data = program.encode()
        self.tree = ast.parse(program)
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def find(self) -> Iterator[Change]:
        """Yield changes that keep the behaviour. The changes may overlap."""
        changes = (change for node in ast.walk(self.tree) for change in self._changes_of(node))
        first = next(changes, None)
        if first is None:
            yield from self._unused()
        else:
            yield first
            yield from changes

    def _changes_of(self, node: ast.AST) -> Iterator[Change]:
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                yield from self._dead_statements(body)
                yield from self._repeated_ifs(body)
        if isinstance(node, ast.If):
            yield from self._constant_branches(node)
            yield from self._repeated_branches(node)
        elif isinstance(node, ast.BoolOp):
            yield from self._repeated_conditions(node)
        elif isinstance(node, ast.BinOp):
            yield from self._constant_arithmetic(node)

    # Statements

    def _dead_statements(self, body: list[ast.stmt]) -> Iterator[Change]:
        """Delete `pass` beside other statements, and statements after the end of a block."""
        for place, statement in enumerate(body):
            if isinstance(statement, ast.Pass) and len(body) > 1:
                yield from self._delete(statement)
            if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
                for dead in body[place + 1 :]:
                    if not _binds_or_yields(dead):
                        yield from self._delete(dead)
                return

    def _repeated_ifs(self, body: list[ast.stmt]) -> Iterator[Change]:
        """Join neighbouring rules with the same end: `if a: return x` and `if b: return x`."""
        for first, second in pairwise(body):
            if not (isinstance(first, ast.If) and isinstance(second, ast.If)):
                continue
            if first.orelse or second.orelse or not _same(first.body, second.body):
                continue
            if isinstance(first.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                test = TextEdit(*self._span(first.test), self._either(first.test, second.test))
                for deletion in self._delete(second):
                    yield test, *deletion

    def _constant_branches(self, node: ast.If) -> Iterator[Change]:
        """Remove branches that a constant condition decides."""
        if not isinstance(node.test, ast.Constant):
            return
        is_elif = self._text(node).startswith(b"elif")
        if not node.test.value and not node.orelse:
            yield from self._delete(node)
        elif is_elif and not node.test.value:
            yield (TextEdit(self._line_start(node), self._else_start(node)),)
        elif not is_elif:
            yield from self._unwrap(node, node.body if node.test.value else node.orelse)

    def _repeated_branches(self, node: ast.If) -> Iterator[Change]:
        """Join neighbouring branches with the same body, and delete repeated conditions."""
        if not node.orelse:
            return
        if _same(node.body, node.orelse) and _is_pure(node.test):
            if not self._text(node).startswith(b"elif"):
                yield from self._unwrap(node, node.body)
            else:
                yield (TextEdit(self._line_start(node), self._else_start(node)),)
            return
        match node.orelse:
            case [ast.If() as other] if self._text(other).startswith(b"elif"):
                end = self._else_start(other) if other.orelse else self._line_end(other)
                deletion = TextEdit(self._line_start(other), end)
                if _is_pure(node.test) and _same(node.test, other.test):
                    yield (deletion,)
                elif _same(node.body, other.body):
                    test = self._either(node.test, other.test)
                    yield TextEdit(*self._span(node.test), test), deletion

    # Expressions

    def _repeated_conditions(self, node: ast.BoolOp) -> Iterator[Change]:
        """Delete conditions that another condition of the same kind repeats or implies."""
        if not all(map(_is_pure, node.values)):
            return
        joined_by_and = isinstance(node.op, ast.And)
        for place, value in enumerate(node.values):
            others = node.values[:place], node.values[place + 1 :]
            is_repeated = any(_same(value, other) for other in others[0])
            is_implied = any(
                _implies(other, value) if joined_by_and else _implies(value, other)
                for other in (*others[0], *others[1])
            )
            if is_repeated or is_implied:
                if place:
                    yield (TextEdit(self._outer(node.values[place - 1])[1], self._outer(value)[1]),)
                else:
                    yield (TextEdit(self._outer(value)[0], self._outer(node.values[1])[0]),)
                return

    def _constant_arithmetic(self, node: ast.BinOp) -> Iterator[Change]:
        """Compute arithmetic of constants if the result is no longer than its expression."""
        value = _constant(node)
        if value is None:
            return
        start, end = self._span(node)
        text = repr(value).encode()
        if len(text) <= end - start and math.isfinite(value):
            is_bare = value < 0 and self._outer(node) == (start, end)
            yield (TextEdit(start, end, b"(" + text + b")" if is_bare else text),)

    # Names

    def _unused(self) -> Iterator[Change]:
        """Delete imports, constants, functions, private methods and variables without a use."""
        names = Counter(
            node.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
        )
        names.update(
            name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Global | ast.Nonlocal)
            for name in node.names
        )
        attributes = Counter(
            node.attr for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)
        )
        if UNKNOWN_USE & {*names, *attributes} or "__all__" in self.data.decode():
            return
        for statement in self.tree.body:
            bound = _bound_name(statement)
            if bound and not names[bound] and not attributes[bound]:
                yield from self._delete(statement)
            if isinstance(statement, ast.ClassDef):
                for member in statement.body:
                    bound = _bound_name(member)
                    is_private = bound.startswith("_") and not bound.endswith("__")
                    if is_private and not names[bound] and not attributes[bound]:
                        yield from self._delete(member)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                yield from self._unused_variables(node)

    def _unused_variables(self, function: ast.FunctionDef) -> Iterator[Change]:
        used = {
            name
            for node in ast.walk(function)
            for name in (
                [node.id]
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
                else getattr(node, "names", [])
                if isinstance(node, ast.Global | ast.Nonlocal)
                else []
            )
        }
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_pure(value):
                    # A name that `+=` reads without a load keeps its assignment.
                    if name not in used and not _is_augmented(function, name):
                        yield from self._delete(node)

    # Places in the text

    def _offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _line(self, index: int) -> bytes:
        """Return the line with an index from 0, with its end."""
        return self.data[self.starts[index] : self.starts[index + 1]]

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _outer(self, node: ast.expr) -> tuple[int, int]:
        """Return the span of an expression with the parentheses around it."""
        start, end = self._span(node)
        while True:
            left = len(self.data[:start].rstrip()) - 1
            right = len(self.data) - len(self.data[end:].lstrip())
            if left < 0 or self.data[left : left + 1] + self.data[right : right + 1] != b"()":
                return start, end
            before = re.search(r"(\w+|[^\w\s])\s*$", self.data[:left].decode())
            word = before[1] if before else ""
            if word in (")", "]") or (word.isidentifier() and not iskeyword(word)):  # a call
                return start, end
            start, end = left, right + 1

    def _text(self, node: ast.expr | ast.stmt) -> bytes:
        start, end = self._span(node)
        return self.data[start:end]

    def _either(self, first: ast.expr, second: ast.expr) -> bytes:
        """Return the text of a disjunction."""
        weak = ast.IfExp | ast.Lambda | ast.NamedExpr
        texts = [
            b"(" + self._text(each) + b")" if isinstance(each, weak) else self._text(each)
            for each in (first, second)
        ]
        is_split = any(b"\n" in text for text in texts)
        joined = b" or ".join(texts)
        return b"(" + joined + b")" if is_split else joined

    def _line_start(self, node: ast.stmt) -> int:
        return self.starts[node.lineno - 1]

    def _line_end(self, node: ast.stmt) -> int:
        assert node.end_lineno is not None
        return self.starts[node.end_lineno]

    def _else_start(self, node: ast.If) -> int:
        """Return the start of the line with the `elif` or `else` of a branch."""
        line = node.body[-1].end_lineno or 0
        indent = node.col_offset
        while True:
            text = self._line(line)
            if text[indent:].startswith((b"elif", b"else")) and not text[:indent].strip():
                return self.starts[line]
            line += 1

    def _owns_lines(self, node: ast.stmt) -> bool:
        """Whether no other statement shares a line with this one."""
        start, end = self._span(node)
        before = self.data[self._line_start(node) : start]
        after = self.data[end : self._line_end(node)].strip()
        return not before.strip() and (not after or after.startswith(b"#"))

    def _delete(self, node: ast.stmt) -> Iterator[Change]:
        """Delete a statement with its decorators and the comments directly above it."""
        if not self._owns_lines(node):
            return
        line = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        indent = b" " * node.col_offset
        if self._is_alone(node):
            yield (TextEdit(self.starts[line - 1], self._line_end(node), indent + b"pass\n"),)
            return
        line = self._with_comments(line)
        end = node.end_lineno or 0
        above = self._line(line - 2).strip() if line > 1 else b""
        if not above or above.endswith(b":"):  # blank lines above and below become one group
            while end < len(self.starts) - 1 and not self._line(end).strip():
                end += 1
        yield (TextEdit(self.starts[line - 1], self.starts[end]),)

    def _with_comments(self, line: int) -> int:
        """Return the number of the first line of the comments directly above a line, or its own."""
        while line > 1 and self._line(line - 2).strip().startswith(b"#"):
            line -= 1
        return line

    def _is_alone(self, node: ast.stmt) -> bool:
        """Whether a statement is the only one of its block."""
        for parent in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                body = getattr(parent, name, None)
                if isinstance(body, list) and node in body:
                    is_elif = name == "orelse" and isinstance(parent, ast.If)
                    is_elif = is_elif and self._text(node).startswith(b"elif")
                    return len(body) == 1 and not is_elif and parent is not self.tree
        return False

    def _unwrap(self, node: ast.If, body: list[ast.stmt]) -> Iterator[Change]:
        """Replace a conditional by the statements of one branch."""
        first = self._with_comments(body[0].lineno)
        lines = range(first, (body[-1].end_lineno or 0) + 1)
        if not self._owns_lines(node) or not all(map(self._owns_lines, body)):
            return
        if any(_spans_lines(each) for statement in body for each in ast.walk(statement)):
            return
        extra = body[0].col_offset - node.col_offset
        if extra <= 0:  # an `elif` becomes the `if`
            start = self._span(body[0])[0]
            yield (TextEdit(*self._span(node), self.data[start + 2 : self._span(body[-1])[1]]),)
            return
        texts = [self._line(line - 1) for line in lines]
        dedented = b"".join(text[extra:] if text.strip() else text for text in texts)
        yield (TextEdit(self._line_start(node), self._line_end(node), dedented),)


def _same(first: ast.AST | list[ast.stmt], second: ast.AST | list[ast.stmt]) -> bool:
    """Whether two parts of a program are equal, apart from their layout."""
    if isinstance(first, list) or isinstance(second, list):
        assert isinstance(first, list) and isinstance(second, list)
        return len(first) == len(second) and all(map(_same, first, second))
    return ast.dump(first) == ast.dump(second)


def _is_pure(node: ast.expr) -> bool:
    """Whether an expression calls nothing and assigns nothing."""
    return all(isinstance(each, PURE) for each in ast.walk(node))


def _is_augmented(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function has an assignment such as `name += 1`."""
    return any(
        isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
        for node in ast.walk(function)
    )


def _binds_or_yields(node: ast.stmt) -> bool:
    """Whether even an unreachable statement has a meaning: it makes names local, or a generator."""
    return any(
        isinstance(each, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal)
        or (isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
        for each in ast.walk(node)
    )


def _bound_name(statement: ast.stmt) -> str:
    """Return the only name that a statement binds without any other effect, or ""."""
    match statement:
        case ast.FunctionDef(name=name, decorator_list=[]):
            return name
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_pure(value):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_pure(value):
            return name
        case ast.Import(names=[ast.alias(name=module, asname=asname)]):
            return asname or module.partition(".")[0]
        case ast.ImportFrom(module=module, names=[ast.alias(name=name, asname=asname)]):
            return "" if module == "__future__" or name == "*" else asname or name
    return ""


def _spans_lines(node: ast.AST) -> bool:
    """Whether a node is a text over several lines, whose indentation matters."""
    is_text = isinstance(node, ast.JoinedStr | ast.Constant)
    return is_text and node.lineno != node.end_lineno  # type: ignore[attr-defined]


OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}


def _constant(node: ast.expr) -> int | float | None:
    """Return the value of arithmetic of constants, or None."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _constant(operand)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            first, second = _constant(left), _constant(right)
            if first is not None and second is not None:
                with suppress(ArithmeticError):
                    return cast("int | float", OPERATORS[type(op)](first, second))
    return None


def _implies(first: ast.expr, second: ast.expr) -> bool:
    """Whether one comparison with a constant implies another: x > 2 implies x > 1."""
    match first, second:
        case (
            ast.Compare(left=left, ops=[op], comparators=[bound]),
            ast.Compare(left=other_left, ops=[other_op], comparators=[other_bound]),
        ) if _same(left, other_left):
            this, other = _constant(bound), _constant(other_bound)
            if this is None or other is None or _same(first, second):
                return False
            match op, other_op:
                case (ast.Gt(), ast.Gt() | ast.GtE()) | (ast.GtE(), ast.GtE()):
                    return this >= other
                case ast.GtE(), ast.Gt():
                    return this > other
                case (ast.Lt(), ast.Lt() | ast.LtE()) | (ast.LtE(), ast.LtE()):
                    return this <= other
                case ast.LtE(), ast.Lt():
                    return this < other
    return False
