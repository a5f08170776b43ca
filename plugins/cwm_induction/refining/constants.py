"""The constants and choices in the text of a program, and their replacement.

Only the characters of a constant change, and the rest of the text stays unchanged. MuJoCo models
in strings (MJCF) have constants too.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from fractions import Fraction
from io import StringIO
from typing import NamedTuple

Span = tuple[int, int]
"""The first character of a part of a program, and the one after the last."""

MAX_CONSTANTS = 300
"""Most constants of a fit; a program with more constants contains a table."""

USUAL_VALUES = (0.0, 0.5, 1.0, 2.0)
"""Values that literals in formulas have in any environment."""

FRACTIONS_OF_TURN = tuple(part * math.pi for part in (0.5, 1.0, 2.0))
"""Angles that belong to mathematics, such as those at which an angle wraps around."""

MAX_DENOMINATOR = 120
"""Largest denominator of a fraction: time steps of 1/30 s, 1/60 s and 1/120 s are common."""

MAX_DECIMAL_LENGTH = 10
"""Longest decimal, in characters, that is preferred to an equal fraction."""

MODEL_MARK = "<mujoco"
"""Begins a MuJoCo model."""

PASSIVE_ELEMENTS = frozenset(
    "asset camera compiler custom keyframe light sensor size statistic visual".split()  # noqa: SIM905
)
"""Elements of a model that do not move anything."""

PASSIVE_ATTRIBUTES = frozenset(
    "axis class conaffinity condim contype ctrlrange group iterations ls_iterations priority quat "  # noqa: SIM905
    "noslip_iterations ref rgba tolerance user xyaxes zaxis".split()
)
"""Attributes of a model that are flags, directions, limits of actions or origins."""

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"<(/?)(\w+)((?:[^<>\"']|\"[^\"]*\"|'[^']*')*?)(/?)>")
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*\\?([\"'])(.*?)\\?\2", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class ConstantKind(IntEnum):
    """Kinds of constants, from the most to the least likely to belong to the environment."""

    DECLARED = 0
    MODEL = 1
    NAMED = 2
    LITERAL = 3


class ProgramConstant(NamedTuple):
    """A constant of a program: its name, its value, and its span in the text."""

    name: str
    value: float
    span: Span
    kind: ConstantKind = ConstantKind.NAMED

    def text(self, value: float, digits: int = 17) -> str:
        """Return the text of another value: a decimal, or a fraction such as 1 / 30."""
        if self.kind == ConstantKind.MODEL or not math.isfinite(value):
            return format_number(value, digits)
        fraction = Fraction(value).limit_denominator(MAX_DENOMINATOR)
        is_fraction = math.isclose(float(fraction), value, rel_tol=1e-11)
        if not is_fraction or len(format_number(value)) <= MAX_DECIMAL_LENGTH:
            return format_number(value, digits)
        text = f"{fraction.numerator} / {fraction.denominator}"
        return f"({text})" if " in line " in self.name else text


class Choice(NamedTuple):
    """The texts of the options of a choice, and the index of the current one.

    A program uses the first option of a list. If `is_list` is false, the span contains one option.
    """

    name: str
    options: tuple[str, ...]
    span: Span
    current: int = 0
    is_list: bool = True

    def text(self, option: int) -> str:
        """Return the text of the span if another option is used."""
        if not self.is_list:
            return self.options[option]
        others = (text for index, text in enumerate(self.options) if index != option)
        return f"[{', '.join([self.options[option], *others])}]"


def find_constants(program: str) -> list[ProgramConstant]:
    """Return the constants that may belong to the environment, the likeliest first.

    Declared constants are the values of `PARAMETERS`. Named constants are assigned alone, defaults
    of arguments, floats outside of methods, or unusual floats in methods. Literals are the other
    floats, and numbers in comparisons. Exponents, keys, indices and ranges are not included.
    """
    try:
        finder = _Finder(program)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = sorted(finder.constants, key=lambda each: (each.kind, each.span))
    return found if len(found) <= MAX_CONSTANTS else [each for each in found if not each.kind]


def find_choices(program: str) -> list[Choice]:
    """Return the `CHOICES` that a program declares."""
    try:
        return _Finder(program).choices
    except (SyntaxError, ValueError, RecursionError):
        return []


def replace_spans(program: str, texts: Iterable[tuple[Span, str]]) -> str:
    """Replace spans of a program, which must not overlap."""
    pieces, end = [], 0
    for (start, stop), text in sorted(texts):
        pieces += [program[end:start], text]
        end = stop
    return "".join([*pieces, program[end:]])


def add_comments(program: str, lines: Iterable[int], comment: str = "fitted to the data") -> str:
    """Add a comment to lines of a program, counted from 0, that can have one and have none."""
    ends: dict[str, set[int]] = {}
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(StringIO(program).readline):
            kind = "comment" if token.type == tokenize.COMMENT else token.string.strip()
            ends.setdefault(kind, set()).add(token.start[0] - 1)
    texts = program.split("\n")
    for line in set(lines) & (ends.get("", set()) - ends.get("comment", set())):
        texts[line] = f"{texts[line].rstrip()}  # {comment}"
    return "\n".join(texts)


def format_number(value: float, digits: int = 17) -> str:
    """Return a float literal with a limited number of significant digits."""
    return repr(float(f"{value:.{digits}g}"))


def simplest(low: float, high: float, written: float) -> float:
    """Return the written value if it is between two numbers, or the simplest number there.

    It is on the coarsest grid of decimals, degrees or multiples of pi. A decimal with more than six
    digits gives way to a fraction, unless such a fraction may be there by chance.
    """
    if low <= written <= high:
        return written
    fraction = Fraction((low + high) / 2).limit_denominator(MAX_DENOMINATOR)
    by_chance = fraction.denominator**2 * (high - low)
    if low <= fraction <= high and by_chance < 1e-2:
        decimal = f"{float(fraction):.15g}"
        if len(decimal.strip("-0.").replace(".", "")) > 6:
            return float(fraction)
    largest = math.floor(math.log10(max(abs(low), abs(high))))
    powers = range(largest, largest - 16, -1)
    steps = [tens * 10.0**power for power in powers for tens in (5, 1)]
    for step in sorted([*steps, math.pi, math.pi / 180], reverse=True):
        value = math.ceil(low / step) * step
        if low <= value <= high:
            return float(f"{value:.15g}")
    return (low + high) / 2


class _Finder(ast.NodeVisitor):
    """Collects the constants and choices of a program."""

    def __init__(self, program: str) -> None:
        self.constants: list[ProgramConstant] = []
        self.choices: list[Choice] = []
        self._program = program
        self._lines = split_lines(program)
        self._in_method = False  # `__init__` sets constants, so it does not count
        self.visit(ast.parse(program))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Visit the defaults of the arguments and the body."""
        for argument, default in _defaults(node.args):
            self._assign(argument.arg, default)
        before, self._in_method = self._in_method, node.name != "__init__"
        for statement in node.body:
            self.visit(statement)
        self._in_method = before

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        """Collect constants under the names of the targets."""
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for part, value in zip(target.elts, node.value.elts, strict=False):
                self._assign(ast.unparse(part).removeprefix("self."), value)
        elif node.value is not None and isinstance(target, ast.Name | ast.Attribute):
            self._assign(ast.unparse(target).removeprefix("self."), node.value)
        elif node.value is not None:
            self.visit(node.value)

    visit_AnnAssign = visit_Assign

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Skip indices."""
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """Skip the bounds of ranges."""
        if not (isinstance(node.func, ast.Name) and node.func.id == "range"):
            self._add_literal(node) or self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Collect integers too, because they may be thresholds."""
        for side in (node.left, *node.comparators):
            self._add_literal(side, integers=True) or self.visit(side)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Skip exponents."""
        if not self._add_literal(node):
            self.visit(node.left)
            if not isinstance(node.op, ast.Pow):
                self.visit(node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Collect a constant with its sign."""
        self._add_literal(node) or self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Collect a number, or the constants of a MuJoCo model."""
        if isinstance(node.value, str) and MODEL_MARK in node.value:
            self._add_model(node)
        else:
            self._add_literal(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Collect the constants of a MuJoCo model that is an f-string."""
        texts = (part.value for part in node.values if isinstance(part, ast.Constant))
        if any(MODEL_MARK in str(text) for text in texts):
            self._add_model(node)

    def _add_model(self, node: ast.expr) -> None:
        start, stop = node_span(self._lines, node)
        for found in model_constants(self._program[start:stop]):
            span = start + found.span[0], start + found.span[1]
            self.constants.append(found._replace(span=span))

    def _assign(self, name: str, value: ast.expr) -> None:
        if name == "PARAMETERS" and isinstance(value, ast.Dict):
            for key, part in zip(value.keys, value.values, strict=True):
                for label, each in _elements(_key(key), part):
                    self._add(label, each, ConstantKind.DECLARED)
        elif name == "CHOICES" and isinstance(value, ast.Dict):
            for key, part in zip(value.keys, value.values, strict=True):
                if isinstance(part, ast.List | ast.Tuple) and len(part.elts) > 1:
                    options = tuple(map(self._text, part.elts))
                    self.choices.append(Choice(_key(key), options, node_span(self._lines, part)))
        elif all(evaluate(each) is not None for _, each in _elements(name, value)):
            for label, each in _elements(name, value):
                if abs(evaluate(each) or 0.0) not in (0.0, *FRACTIONS_OF_TURN):
                    self._add(label, each, ConstantKind.NAMED)
        else:
            self.visit(value)

    def _add_literal(self, node: ast.expr, *, integers: bool = False) -> bool:
        """Add a number in a formula; return whether the node is a number."""
        value = evaluate(node)
        if value is None:
            return False
        size, is_integer = abs(value), _is_integer(node)
        if size not in (0.0, *FRACTIONS_OF_TURN) and (integers or not is_integer):
            is_usual = self._in_method and (size in USUAL_VALUES or is_integer)
            kind = ConstantKind.LITERAL if is_usual else ConstantKind.NAMED
            self._add(f"{self._text(node)} in line {node.lineno}", node, kind)
        return True

    def _add(self, name: str, node: ast.expr, kind: ConstantKind) -> None:
        value = evaluate(node)
        if value is not None and math.isfinite(value):
            self.constants.append(ProgramConstant(name, value, node_span(self._lines, node), kind))

    def _text(self, node: ast.expr) -> str:
        return self._program[slice(*node_span(self._lines, node))]


def split_lines(program: str) -> list[str]:
    """Return the lines of a program as Python counts them, with their ends."""
    return re.split(r"(?<=\n)|(?<=\r)(?!\n)", program)


def node_span(lines: Sequence[str], node: ast.expr) -> Span:
    """Return the span of an expression in a program with these lines."""
    # Python counts columns in bytes.
    ends = ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
    start, stop = (
        sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())
        for line, column in ends
    )
    return start, stop


def evaluate(node: ast.expr) -> float | None:
    """Return the value of an expression of numbers, pi and arithmetic, None for others."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _safely(float, value)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            inner = evaluate(operand)
            return None if inner is None else -inner if isinstance(sign, ast.USub) else inner
        case (
            ast.Attribute(value=ast.Name(id="math" | "np" | "numpy"), attr="pi") | ast.Name(id="pi")
        ):
            return math.pi
        case ast.Call(func=ast.Attribute(attr="radians" | "deg2rad"), args=[only], keywords=[]):
            inner = evaluate(only)
            return None if inner is None else math.radians(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            first, second = evaluate(left), evaluate(right)
            if first is not None and second is not None:
                return _safely(_ARITHMETIC[type(op)], first, second)
    return None


_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def _safely(function: object, *values: float) -> float | None:
    try:
        return float(function(*values))  # type: ignore[operator]
    except (ArithmeticError, ValueError, TypeError):
        return None


def _is_integer(node: ast.expr) -> bool:
    """Whether an expression consists of integers, without a division."""
    return not any(
        isinstance(part, ast.Div | ast.Name | ast.Attribute)
        or (isinstance(part, ast.Constant) and isinstance(part.value, float))
        for part in ast.walk(node)
    )


def _elements(name: str, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the elements of nested lists, tuples, dicts and arrays, with names."""
    match value:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) if parts:
            for index, part in enumerate(parts):
                yield from _elements(f"{name}[{index}]", part)
        case ast.Dict(keys=keys, values=parts) if parts:
            for key, part in zip(keys, parts, strict=True):
                yield from _elements(f"{name}[{_key(key)}]", part)
        case ast.Call(func=ast.Attribute(attr="array"), args=[only, *_]):
            yield from _elements(name, only)
        case _:
            yield name, value


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "" if node is None else ast.unparse(node)


def _defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    names = [*arguments.posonlyargs, *arguments.args]
    yield from zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True)
    for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield name, default


def model_constants(text: str) -> Iterator[ProgramConstant]:
    """Yield the constants of a MuJoCo model: sizes, masses, dampings, gears and so on.

    A name such as `torso.geom.size[0]` consists of the element (or its body) and the attribute.
    Zeros, flags, directions and visual elements are not included.
    """
    text = _COMMENT.sub(lambda found: " " * len(found[0]), text)
    path: list[str] = []
    bodies: list[str] = []
    seen: dict[str, int] = {}
    for tag in _TAG.finditer(text):
        closes, element, inside, is_alone = tag.groups()
        if closes:
            del path[-1:]
            if element == "body":
                del bodies[-1:]
            continue
        values = {found[1]: found[3] for found in _ATTRIBUTE.finditer(inside)}
        keys = ("name", "joint", "tendon", "site", "class")
        name = next((values[key] for key in keys if key in values), "")
        if not is_alone:
            path.append(element)
            if element == "body":
                bodies.append(name or "body")
        if PASSIVE_ELEMENTS & {element, *path}:
            continue
        owner = name or ("default" if "default" in path else "".join(bodies[-1:]))
        label = f"{owner}.{element}" if owner else element
        seen[label] = seen.get(label, 0) + 1
        label += f" {seen[label]}" if seen[label] > 1 else ""
        yield from _attribute_constants(label, inside, tag.start(3))


def _attribute_constants(label: str, inside: str, start: int) -> Iterator[ProgramConstant]:
    for attribute in _ATTRIBUTE.finditer(inside):
        if attribute[1] in PASSIVE_ATTRIBUTES:
            continue
        words = list(re.finditer(r"\S+", attribute[3]))
        for place, word in enumerate(words):
            is_direction = attribute[1] == "axisangle" and place < len(words) - 1
            if is_direction or not _NUMBER.fullmatch(word[0]) or float(word[0]) == 0:
                continue
            index = f"[{place}]" if len(words) > 1 else ""
            begin = start + attribute.start(3) + word.start()
            span = begin, begin + len(word[0])
            name = f"{label}.{attribute[1]}{index}"
            yield ProgramConstant(name, float(word[0]), span, ConstantKind.MODEL)
