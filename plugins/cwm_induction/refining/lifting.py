"""The numbers and choices in the text of a program, where they stand, and other ones there.

Only the characters of a number change: what a program is besides them stays as it was written.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from fractions import Fraction
from io import StringIO
from itertools import accumulate
from typing import NamedTuple

from cwm_induction.refining.mechanisms import MARK, mechanism_numbers

Place = tuple[int, int]
"""From which character of a program to which, the last not included."""

DECLARED_NUMBERS, DECLARED_CHOICES = "PARAMETERS", "CHOICES"
"""What a program calls the numbers that it wants fitted, and the ways that it wants tried."""

MOST_LIFTED = 300
"""Numbers of a program that are looked at; a text with more of them is a table, not a law."""

_USUAL = (0.0, 0.5, 1.0, 2.0)
"""Sizes that literals in formulas have for no reason of the environment's."""

_TURNS = tuple(part * math.pi for part in (0.5, 1.0, 2.0))
"""Angles that wrap around, or turn a quarter: mathematics, not constants."""

MOST_DENOMINATOR = 120
"""The largest denominator of a fraction: time steps of 1/30 s, 1/60 s and 1/120 s are common."""

MOST_WRITTEN = 10
"""Characters of a decimal that is written although it is a fraction of small numbers."""

MOST_EXPONENT = 16
"""Powers beyond this are computed nowhere: a text may hold any."""


class NumberKind(IntEnum):
    """How likely it is that a number belongs to the environment; the likeliest are fitted first."""

    DECLARED = 0
    MECHANISM = 1
    NAMED = 2
    LITERAL = 3


class Lifted(NamedTuple):
    """A number of a program: what it is called, what it is, and where it stands."""

    name: str
    value: float
    place: Place
    kind: NumberKind = NumberKind.NAMED

    def text(self, value: float, digits: int = 17) -> str:
        """Return the text of another value: a decimal, or a fraction such as 1 / 30."""
        if self.kind == NumberKind.MECHANISM or not math.isfinite(value):
            return number(value, digits)
        fraction = Fraction(value).limit_denominator(MOST_DENOMINATOR)
        if float(fraction) != value or len(number(value)) <= MOST_WRITTEN:
            return number(value, digits)
        text = f"{fraction.numerator} / {fraction.denominator}"
        return f"({text})" if " in line " in self.name else text


class Choice(NamedTuple):
    """Ways that a program may take, as they are written; `now` is the place of the one in force.

    Where they are a list of the program the first is in force.
    """

    name: str
    ways: tuple[str, ...]
    place: Place
    now: int = 0
    is_list: bool = True

    def text(self, number: int) -> str:
        """Return what stands in the program when another way is in force."""
        if not self.is_list:
            return self.ways[number]
        ways = [self.ways[number], *(way for n, way in enumerate(self.ways) if n != number)]
        return f"[{', '.join(ways)}]"


def written(program: str, texts: Iterable[tuple[Place, str]]) -> str:
    """Put texts at places of a program, which do not overlap."""
    pieces, end = [], 0
    for (start, stop), text in sorted(texts):
        pieces += [program[end:start], text]
        end = stop
    return "".join([*pieces, program[end:]])


def annotated(program: str, lines: Iterable[int], word: str = "fitted to the data") -> str:
    """Put a comment behind some lines of a program, counted from 0, where one can stand."""
    ends: set[int] = set()
    comments: set[int] = set()
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(StringIO(program).readline):
            if token.type in (tokenize.NEWLINE, tokenize.NL):
                ends.add(token.start[0] - 1)
            elif token.type == tokenize.COMMENT:
                comments.add(token.start[0] - 1)
    texts = program.split("\n")
    for line in set(lines) & (ends - comments):
        texts[line] = f"{texts[line].rstrip()}  # {word}"
    return "\n".join(texts)


def number(value: float, digits: int = 17) -> str:
    """Write a number."""
    return repr(float(f"{value:.{digits}g}"))


def lift(program: str) -> list[Lifted]:
    """Find the numbers of a program that may belong to the environment, the likeliest first.

    Those in `PARAMETERS` of the class or the module are declared, those of a mechanism stand in a
    text of XML (`mechanisms`). Named are those that alone
    are assigned or given as a default, the floats outside of methods, and the odd floats in
    methods. Last come the other floats, and what something is compared with. Exponents, keys,
    indices and ranges are no constants. A text that is no Python has none.
    """
    try:
        finder = _Finder(program)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = sorted(finder.numbers, key=lambda each: (each.kind, each.place))
    return found if len(found) <= MOST_LIFTED else [each for each in found if not each.kind]


def choices(program: str) -> list[Choice]:
    """Find the `CHOICES` that a program declares."""
    try:
        return _Finder(program).choices
    except (SyntaxError, ValueError, RecursionError):
        return []


class _Finder(ast.NodeVisitor):
    """Walks through a program, keeping in mind whether it is within a method."""

    def __init__(self, program: str) -> None:
        self.numbers: list[Lifted] = []
        self.choices: list[Choice] = []
        self._lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", program)
        self._starts = [0, *accumulate(map(len, self._lines))]
        self._is_lasting = True  # outside of methods, or in the one that begins
        self.visit(ast.parse(program))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Look at defaults as at what is assigned, then into the body."""
        for argument, default in _defaults(node.args):
            self._assigned(argument.arg, default)
        before, self._is_lasting = self._is_lasting, node.name == "__init__"
        for statement in node.body:
            self.visit(statement)
        self._is_lasting = before

    def visit_Assign(self, node: ast.Assign) -> None:
        """Take what is declared, and numbers under the name that they are given."""
        target = node.targets[0]
        if isinstance(target, ast.Name | ast.Attribute):
            self._assigned(target.id if isinstance(target, ast.Name) else target.attr, node.value)
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for part, value in zip(target.elts, node.value.elts, strict=False):
                self._assigned(ast.unparse(part).removeprefix("self."), value)
        else:
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Do as without a type."""
        if node.value is not None:
            self._assigned(ast.unparse(node.target).removeprefix("self."), node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Pass indices over."""
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """Pass the bounds of ranges over."""
        if not (isinstance(node.func, ast.Name) and node.func.id == "range"):
            self._literal(node) or self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Whole numbers count where something is compared with them."""
        for side in (node.left, *node.comparators):
            self._literal(side, whole=True) or self.visit(side)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Pass exponents over."""
        if not self._literal(node):
            self.visit(node.left)
            if not isinstance(node.op, ast.Pow):
                self.visit(node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Take a sign as part of a number."""
        self._literal(node) or self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Take a number, or those of a mechanism."""
        if isinstance(node.value, str) and MARK in node.value:
            self._mechanism(node)
        else:
            self._literal(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Take what a mechanism with gaps holds itself; what fills them stands elsewhere."""
        texts = (part.value for part in node.values if isinstance(part, ast.Constant))
        if any(MARK in str(text) for text in texts):
            self._mechanism(node)

    def _mechanism(self, node: ast.expr) -> None:
        """Take the numbers of a mechanism, read as it is written between quotes."""
        start, stop = self._place(node)
        for part in mechanism_numbers("".join(self._lines)[start:stop]):
            place = start + part.start, start + part.stop
            self.numbers.append(Lifted(part.name, part.value, place, NumberKind.MECHANISM))

    def _assigned(self, name: str, value: ast.expr) -> None:
        """Take numbers that have a name; those of a dict or a list also have a key."""
        if name == DECLARED_NUMBERS and isinstance(value, ast.Dict):
            for key, part in zip(value.keys, value.values, strict=True):
                for label, each in _parts(_key(key), part):
                    self._add(label, each, NumberKind.DECLARED)
        elif name == DECLARED_CHOICES and isinstance(value, ast.Dict):
            for key, part in zip(value.keys, value.values, strict=True):
                if isinstance(part, ast.List | ast.Tuple) and len(part.elts) > 1:
                    ways = tuple(map(self._text, part.elts))
                    self.choices.append(Choice(_key(key), ways, self._place(part)))
        elif all(constant(each) is not None for _, each in _parts(name, value)):
            for label, each in _parts(name, value):
                size = abs(constant(each) or 0.0)
                if size not in (0.0, *_TURNS):
                    self._add(label, each, NumberKind.NAMED)
        else:
            self.visit(value)

    def _literal(self, node: ast.expr, *, whole: bool = False) -> bool:
        """Take a number in a formula, or say that this is none."""
        value = constant(node)
        if value is None:
            return False
        size = abs(value)
        if size not in (0.0, *_TURNS) and (whole or not _is_whole(node)):
            usual = not self._is_lasting and (size in _USUAL or _is_whole(node))
            label = f"{self._text(node)} in line {node.lineno}"
            self._add(label, node, NumberKind.LITERAL if usual else NumberKind.NAMED)
        return True

    def _add(self, name: str, node: ast.expr, kind: NumberKind) -> None:
        value = constant(node)
        if value is not None and math.isfinite(value):
            self.numbers.append(Lifted(name, value, self._place(node), kind))

    def _text(self, node: ast.expr) -> str:
        start, stop = self._place(node)
        return "".join(self._lines)[start:stop]

    def _place(self, node: ast.expr) -> Place:
        """Return where something stands; what Python counts are bytes of a line."""
        ends = ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        start, stop = (
            self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())
            for line, column in ends
        )
        return start, stop


def constant(node: ast.expr) -> float | None:
    """Return what an expression is that holds nothing but numbers, pi and arithmetic."""
    try:
        return float(_evaluated(node))
    except (ArithmeticError, ValueError, TypeError):
        return None


def _evaluated(node: ast.expr) -> float:
    """Return the value of a constant expression; ValueError if it is none."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return _evaluated(operand) * (-1 if isinstance(sign, ast.USub) else 1)
        case (
            ast.Attribute(value=ast.Name(id="math" | "np" | "numpy"), attr="pi") | ast.Name(id="pi")
        ):
            return math.pi
        case ast.Call(func=ast.Attribute(attr="radians" | "deg2rad"), args=[only], keywords=[]):
            return math.radians(_evaluated(only))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_evaluated(left), _evaluated(right))
    raise ValueError("no constant")


def _power(base: float, exponent: float) -> float:
    """Raise to a power, as long as that keeps nobody busy."""
    if abs(exponent) > MOST_EXPONENT:
        raise ValueError("no constant")
    return float(float(base) ** exponent)


_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}


def _is_whole(node: ast.expr) -> bool:
    """Whether an expression is written with whole numbers and without division alone."""
    parts = list(ast.walk(node))
    return not any(
        isinstance(part, ast.Div | ast.Name | ast.Attribute)
        or (isinstance(part, ast.Constant) and isinstance(part.value, float))
        for part in parts
    )


def _parts(name: str, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a display of numbers holds, or the arrays made of one, with names."""
    match value:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) if parts:
            for index, part in enumerate(parts):
                yield from _parts(f"{name}[{index}]", part)
        case ast.Dict(keys=keys, values=parts) if parts:
            for key, part in zip(keys, parts, strict=True):
                yield from _parts(f"{name}[{_key(key)}]", part)
        case ast.Call(func=ast.Attribute(attr="array"), args=[only, *_]):
            yield from _parts(name, only)
        case _:
            yield name, value


def _key(node: ast.expr | None) -> str:
    """Return a key as a name."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "" if node is None else ast.unparse(node)


def _defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    """Yield the arguments of a function that have defaults."""
    names = [*arguments.posonlyargs, *arguments.args]
    tail = names[len(names) - len(arguments.defaults) :]
    yield from zip(tail, arguments.defaults, strict=True)
    for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield name, default
