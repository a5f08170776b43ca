"""Small rewrites of a program: statements in another order, other names, numbers and comparisons.

Each is a variant of one method, or of one value in the body of the class. They are tried on wrong
rows, many at a time, and need no guard.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import NamedTuple

import numpy as np

from cwm_induction.refining.patching.needs import Standing
from cwm_induction.refining.patching.source import CorrectedText, Position, place_of
from cwm_induction.refining.patching.trials import PlaceChange

MOST_REWRITES = 1500
"""Rewrites of one program that are tried."""

AT_ONCE = 100
"""Rewrites in one question: their text has to fit into a program."""

FIRST_ROWS = 12
"""Wrong rows that all are tried on; of those that help there, as many again as this are tried on
all rows."""

OPPOSITE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt, ast.GtE),
    ast.LtE: (ast.Lt, ast.GtE, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt, ast.LtE),
    ast.GtE: (ast.Gt, ast.LtE, ast.Lt),
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE),
    ast.NotEq: (ast.Eq,),
}


class Rewrite(NamedTuple):
    """A changed part of a program: the statement that it takes the place of, and what it costs.

    Where it is an expression that is another one, `parts` are these.
    """

    old: ast.stmt
    new: str
    cost: float
    words: str
    parts: "tuple[ast.expr, str] | None" = None


def rewrites(source: CorrectedText, go_on: Callable[[], bool] = lambda: True) -> list[Rewrite]:
    """Return small rewrites of the methods and values of a program, each once.

    There are few where it is not to `go_on`.
    """
    found: dict[str, Rewrite] = {}
    methods = chain.from_iterable(
        chain(_moved(method), _altered(source, method)) for method in source.methods
    )
    values = chain.from_iterable(_literals(source, value) for value in _values(source))
    for one in chain(methods, values):
        found.setdefault(one.new, one)
        if len(found) == MOST_REWRITES or not go_on():
            break
    return list(found.values())


def _values(source: CorrectedText) -> list[ast.stmt]:
    """Return the assignments in the body of the class."""
    classes = [
        node
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name == "Environment"
    ]
    return [s for node in classes for s in node.body if isinstance(s, ast.Assign | ast.AnnAssign)]


def _moved(method: ast.FunctionDef) -> Iterator[Rewrite]:
    """Yield a method with one statement at another place of its block."""
    for block in _blocks(method):
        count = len(block) - isinstance(block[-1], ast.Return)
        for start, end in product(range(count), range(count)):
            if start in (end, end + 1):  # to change places with the one before is to change with it
                continue
            statement = block.pop(start)
            block.insert(end, statement)
            text = ast.unparse(method)
            block.insert(start, block.pop(end))
            words = (
                f"`{ast.unparse(statement).splitlines()[0]}` moves to another line of {method.name}"
            )
            yield Rewrite(method, text, 1.5, words)


def _blocks(method: ast.FunctionDef) -> list[list[ast.stmt]]:
    """Return the lists of statements in a method."""
    found = []
    for node in ast.walk(method):
        for name in ("body", "orelse"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                found.append(inner)
    return found


def _altered(source: CorrectedText, method: ast.FunctionDef) -> Iterator[Rewrite]:
    """Yield a method with another name, number, comparison or condition in one place."""
    lines = {p.line: p for p in source.positions if p.method == method.name}
    for node, put in _slots(method):
        for new, cost in _replacements(node, _position(lines, node), source):
            yield _rewrite(method, node, put, new, cost)


Put = Callable[[ast.expr], None]
"""Puts an expression where another one stands."""


def _slots(tree: ast.AST) -> Iterator[tuple[ast.expr, Put]]:
    """Yield the expressions in a tree, each with what puts another one in its place."""
    for owner in ast.walk(tree):
        for name, value in ast.iter_fields(owner):
            if isinstance(value, ast.expr):
                yield value, partial(setattr, owner, name)
            for index, each in enumerate(value if isinstance(value, list) else []):
                if isinstance(each, ast.expr):
                    yield each, partial(value.__setitem__, index)


def _rewrite(old: ast.stmt, node: ast.expr, put: Put, new: ast.expr, cost: float) -> Rewrite:
    """Return the rewrite of one expression; the tree is as it was in the end."""
    now, then = ast.unparse(node), ast.unparse(new)
    put(new)
    text = ast.unparse(old)
    put(node)
    place = old.name if isinstance(old, ast.FunctionDef) else ast.unparse(old).split(" = ")[0]
    return Rewrite(old, text, cost, f"`{now}` becomes `{then}` in {place}", (node, then))


def _position(lines: dict[int, Position], node: ast.AST) -> Position | None:
    """Return the statement that a node stands in."""
    line = getattr(node, "lineno", None)
    before = [number for number in lines if line is not None and number <= line]
    return lines[max(before)] if before else None


def _replacements(
    node: ast.AST, position: Position | None, source: CorrectedText
) -> Iterator[tuple[ast.expr, float]]:
    """Yield what an expression may be instead."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for kind in OPPOSITE.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [kind()], node.comparators), 1.5
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            rest = [other for other in node.values if other is not value]
            yield (rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)), 1.5
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values), 1.5
    if isinstance(node, ast.Constant):
        yield from ((ast.Constant(value), cost) for value, cost in _others(node.value, source))
    place = place_of(node)
    loads = isinstance(getattr(node, "ctx", None), ast.Load)
    if position is not None and place and loads and place in position.known:
        for other in position.known:
            if other != place and other not in ("action", "observation"):
                yield ast.parse(other, mode="eval").body, 1.8


def _others(value: object, source: CorrectedText) -> Iterator[tuple[str | int, float]]:
    """Yield what a literal may be instead: another whole number, truth or letter."""
    if isinstance(value, bool):
        yield not value, 1.3
    elif isinstance(value, int):
        near = {value + step for step in (-4, -3, -2, -1, 1, 2, 3, 4)} | {0, 1, 2, -value}
        for other in sorted(near - {value}):
            yield other, 1.4 + 0.05 * abs(other - value)
    elif isinstance(value, str) and len(value) == 1:
        yield from ((letter, 1.6) for letter in source.letters if letter != value)
    elif isinstance(value, str) and len(value) < 40 and set(value) <= set(source.letters):
        for place, old in enumerate(value):
            for letter in source.letters:
                if letter != old:
                    yield value[:place] + letter + value[place + 1 :], 1.6


def _literals(source: CorrectedText, statement: ast.stmt) -> Iterator[Rewrite]:
    """Yield a value of the class with another literal in one place."""
    for node, put in _slots(statement):
        if isinstance(node, ast.Constant):
            for value, cost in _others(node.value, source):
                yield _rewrite(statement, node, put, ast.Constant(value), cost)


class Tried(NamedTuple):
    """A rewrite, and how many numbers more are right by it."""

    rewrite: Rewrite
    gain: int


def tried(standing: Standing) -> list[Tried]:
    """Try rewrites on some wrong rows, and those that help on all; return them, the best first."""
    spend = standing.trials.spend
    every = rewrites(standing.trials.source, lambda: spend(0))
    sample = standing.sample[:: max(1, len(standing.sample) // FIRST_ROWS)]
    first = _gains(standing, every, sample)
    order = sorted((n for n in range(len(every)) if first[n] > 0), key=lambda n: -first[n])
    best = [every[n] for n in order[:FIRST_ROWS]]
    gains = _gains(standing, best, np.arange(len(standing.trials.data)))
    found = [Tried(one, gain) for one, gain in zip(best, gains, strict=True) if gain > 0]
    return sorted(found, key=lambda one: one.rewrite.cost - 3.0 * one.gain)


def _gains(standing: Standing, every: list[Rewrite], rows: np.ndarray) -> list[int]:
    """Return how many numbers more are right in some rows by each rewrite."""
    gains: list[int] = []
    for start in range(0, len(every), AT_ONCE):
        part = every[start : start + AT_ONCE]
        variants = ["\n".join(f"    {line}" for line in one.new.splitlines()) for one in part]
        trials = replace(standing.trials, variants=variants)
        answered = trials.run([PlaceChange(rows, number) for number in range(1, len(part) + 1)])
        if answered is None:
            gains += [0] * len(part)
            continue
        for answers in answered:
            gained, lost = standing.effect(answers, rows)
            gains.append(int((gained - lost).sum()))
    return gains


def rewritten(source: CorrectedText, rewrite: Rewrite) -> str:
    """Return the text of a program with a rewrite, the rest as its author wrote it if possible."""
    old, lines = rewrite.old, source.text.splitlines(keepends=True)
    assert old.end_lineno is not None
    new = [f"{' ' * old.col_offset}{line}\n" for line in rewrite.new.splitlines()]
    whole = "".join([*lines[: old.lineno - 1], *new, *lines[old.end_lineno :]])
    if rewrite.parts is None:
        return whole
    node, text = rewrite.parts
    start, end = _offset(lines, node.lineno, node.col_offset), 0
    if node.end_lineno is not None and node.end_col_offset is not None:
        end = _offset(lines, node.end_lineno, node.end_col_offset)
    for middle in (text, f"({text})"):
        spliced = source.text[:start] + middle + source.text[end:]
        with suppress(SyntaxError):
            if ast.dump(ast.parse(spliced)) == ast.dump(ast.parse(whole)):
                return spliced
    return whole


def _offset(lines: list[str], line: int, column: int) -> int:
    """Return the place in a text of a line and of a column, which counts bytes."""
    before = sum(map(len, lines[: line - 1]))
    return before + len(lines[line - 1].encode()[:column].decode())
