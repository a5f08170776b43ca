"""A program's text by its statements: where values are read, what they are called, edits of it.

A place is what a statement can set to another value: a name, an attribute or an element. A site
is a place that a statement is about to read.
"""

import ast
import builtins
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

PLAIN = "Uncorrected"
"""What the class of a program is called where another one takes its place."""

MOST_PLACES = 16
"""Places that are looked at before a statement: the ones that were set last."""

MOST_POSITIONS = 40
"""Statements of a program that are looked at."""

FIXED = ("__init__", "set_state")


class Site(NamedTuple):
    """A place that the statement at a position is about to read."""

    position: int
    place: str


class Position(NamedTuple):
    """A statement of a method, what it reads, and what is set before it."""

    method: str
    line: int
    indent: int
    reads: tuple[str, ...]
    known: tuple[str, ...]
    is_open: bool
    block: int
    sets: frozenset[str]


@dataclass(frozen=True)
class CorrectedText:
    """The text of a program that defines `class Environment`."""

    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax of the text."""
        try:
            return ast.parse(self.text)
        except ValueError as error:  # null bytes, before Python 3.11.4
            raise SyntaxError(str(error)) from error

    @cached_property
    def methods(self) -> list[ast.FunctionDef]:
        """The methods that predict, `step` first."""
        [*_, found] = [
            node
            for node in self.tree.body
            if isinstance(node, ast.ClassDef) and node.name == "Environment"
        ] or [ast.ClassDef("", [], [], [], [])]
        methods = [node for node in found.body if isinstance(node, ast.FunctionDef)]
        methods = [node for node in methods if node.name not in FIXED]
        return sorted(methods, key=lambda node: node.name != "step")

    @cached_property
    def letters(self) -> list[str]:
        """The characters of the texts that stand for something, such as the cells of a map."""
        texts = [
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        words = {doc for node in ast.walk(self.tree) if (doc := _docstring(node))}
        return sorted({letter for text in texts if text not in words for letter in text})[:8]

    @cached_property
    def positions(self) -> list[Position]:
        """The statements that a correction can stand before."""
        lines = self.text.splitlines()
        found = []
        for method in self.methods:
            for block, statement in _statements(method.body):
                line = lines[statement.lineno - 1]
                head = line[: statement.col_offset]
                is_open = not head.strip() and not line.strip().startswith("elif")
                known = _known(method, statement)
                reads = tuple(place for place in _reads(statement) if place in known)
                position = Position(
                    method.name,
                    statement.lineno,
                    statement.col_offset,
                    reads,
                    known,
                    is_open,
                    block,
                    _sets(statement),
                )
                found.append(position)
        return found[:MOST_POSITIONS]

    @cached_property
    def sites(self) -> list[Site]:
        """Every place that a statement is about to read, or that the one before has set."""
        found: dict[Site, None] = {}
        before: dict[int, frozenset[str]] = {}
        for number, position in enumerate(self.positions):
            fresh = sorted(before.get(position.block, frozenset()) & set(position.known))
            before[position.block] = position.sets
            if position.is_open:
                places = [place for place in position.reads if place != "action"]
                places += [place for place in fresh if "self" not in place]
                found.update((Site(number, place), None) for place in places)
        return list(found)

    def earliest(self, site: Site) -> int:
        """Return the first position in the block where a change of the place does the same."""
        found, own = site.position, self.positions[site.position]
        for number in range(site.position - 1, -1, -1):
            position = self.positions[number]
            if position.method != own.method or site.place in position.reads:
                break
            if position.block == own.block:
                if site.place in position.sets or site.place not in position.known:
                    break
                found = number if position.is_open else found
        return found

    def with_lines(self, position: int, lines: list[str]) -> str:
        """Return the text with lines before the statement at a position."""
        _, line, indent, *_ = self.positions[position]
        old = self.text.splitlines(keepends=True)
        new = [f"{' ' * indent}{one}\n" if one else "\n" for one in lines]
        return "".join([*old[: line - 1], *new, *old[line - 1 :]])

    def renamed(self, name: str = PLAIN) -> str:
        """Return the text with another name for its class; words in texts and comments stay."""
        lines = self.text.splitlines(keepends=True)
        for token in reversed(list(tokenize.generate_tokens(io.StringIO(self.text).readline))):
            if token.type == tokenize.NAME and token.string == "Environment":
                (row, start), (_, end) = token.start, token.end
                line = lines[row - 1]
                lines[row - 1] = line[:start] + name + line[end:]
        return "".join(lines)


def place_of(node: ast.AST) -> str:
    """Return the text of an expression that is a place, or ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = place_of(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = place_of(node.value)
        return f"{owner}[{node.slice.value!r}]" if owner else ""
    return ""


def _statements(body: list[ast.stmt]) -> Iterator[tuple[int, ast.stmt]]:
    """Yield statements and what tells their block, those inside of others after these."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        yield body[0].lineno, statement
        for name in ("body", "orelse"):
            inner = getattr(statement, name, [])
            if isinstance(inner, list) and not isinstance(statement, ast.FunctionDef):
                yield from _statements(inner)


def _known(method: ast.FunctionDef, until: ast.stmt) -> tuple[str, ...]:
    """Return the places that are set before a statement, the arguments first."""
    found = dict.fromkeys(argument.arg for argument in method.args.args if argument.arg != "self")
    loops = [n for n in ast.walk(method) if isinstance(n, ast.comprehension)]
    inner = {
        name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)
    }
    state: dict[str, None] = {}
    for node in ast.walk(method):
        place = place_of(node)
        if not place or place in inner:
            continue
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if stored and getattr(node, "lineno", 0) < until.lineno:
            found.pop(place, None)
            found[place] = None
        if place.startswith("self.") and isinstance(node, ast.Subscript | ast.Attribute):
            state[place] = None
    read = [place for place in state if place not in found and place.count(".") == 1]
    places = [*found][-MOST_PLACES:]
    return (*places, *[place for place in read if _is_element(place)][: MOST_PLACES - len(places)])


def _sets(statement: ast.stmt) -> frozenset[str]:
    """Return the places that a statement sets, also where these hold others."""
    places = {
        place_of(node)
        for node in ast.walk(statement)
        if isinstance(getattr(node, "ctx", None), ast.Store)
    }
    return frozenset(places)


def _docstring(node: ast.AST) -> str | None:
    """Return the text that describes a module, class or function, as it stands there."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return ast.get_docstring(node, clean=False)
    return None


def _is_element(place: str) -> bool:
    return place.endswith("]")


def _reads(statement: ast.stmt) -> Iterator[str]:
    """Yield the places that a statement reads, of one with others inside its head."""
    parts: list[ast.AST] = [statement]
    if isinstance(statement, ast.If | ast.While):
        parts = [statement.test]
    elif isinstance(statement, ast.For):
        parts = [statement.iter]
    found: dict[str, None] = {}
    for part in parts:
        for node in ast.walk(part):
            place = place_of(node)
            loads = isinstance(getattr(node, "ctx", None), ast.Load)
            if place and loads and place not in dir(builtins):
                found[place] = None
        if isinstance(part, ast.AugAssign) and (place := place_of(part.target)):
            found[place] = None
    yield from found
