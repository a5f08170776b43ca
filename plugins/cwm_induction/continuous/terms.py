"""Terms of equations: generic functions of observed quantities and of actions."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, combinations_with_replacement, pairwise
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.writing.rounding import literal
from cwm_induction.writing.statements import mentioned


class NamedColumn(NamedTuple):
    """A named quantity of a program, with its value in every row."""

    text: str
    values: Array
    is_angle: bool = False


class Term(NamedTuple):
    """An expression, its value in every row, and its description cost."""

    text: str
    values: Array
    cost: float

    @property
    def names(self) -> set[str]:
        """Names that the expression reads."""
        return mentioned(self.text)


MOST_TERMS = 4_000
"""Maximum number of terms, the cheapest first: comparing more would take too much memory."""

MOST_SQUARED = 16
"""Maximum number of columns for an approximation with products of two columns."""

ONE = "1"
"""The text of the constant term."""


def library(
    columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn], level: int
) -> list[Term]:
    """Return terms up to a level: 1 linear, 2 trigonometric and quadratic, 3 everything."""
    rows = len((columns or inputs)[0].values)
    terms = [Term(ONE, np.ones(rows), 1.0)]
    terms += [Term(text, values, 1.0) for text, values, _ in [*columns, *inputs]]
    moving = [column for column in columns if np.ptp(column.values) > 1e-9]
    if level >= 2:
        terms += [*waves(moving), *_powers(moving), *_input_products(inputs, moving)]
    if level >= 3:
        terms += [*_functions(moving), *_input_functions(inputs)]
        terms += _cubic(moving, inputs) if len(moving) <= 4 else []
        terms += _wave_products(moving, inputs) if len(moving) <= 6 else []
    return distinct(terms)


def polynomial(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> list[Term]:
    """Return products of up to three quantities."""
    moving = [column for column in columns if np.ptp(column.values) > 1e-9]
    products = [product(a, b) for a, b in combinations_with_replacement(moving, 2)]
    given = _input_products(inputs, moving)
    return distinct([*library(columns, inputs, 1), *products, *given, *_cubic(moving, inputs)])


def products(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> list[Term]:
    """Return products of up to two quantities, and signed squares."""
    moving = [column for column in columns if np.ptp(column.values) > 1e-9]
    pairs = combinations_with_replacement(moving, 2) if len(moving) <= MOST_SQUARED else ()
    squares = [
        Term(f"{text} * abs({text})", values * np.abs(values), 2.5) for text, values, _ in moving
    ]
    given = _input_products(inputs, moving)
    pairs_of = [product(a, b) for a, b in pairs]
    return distinct([*library(columns, inputs, 1), *pairs_of, *squares, *given])


def waves(columns: Iterable[NamedColumn]) -> Iterator[Term]:
    """Yield sines and cosines of whole multiples of the columns."""
    for text, values, is_angle in columns:
        for multiple in (1, 2) if is_angle else (1, 2, 3):
            inner = text if multiple == 1 else f"{multiple} * {text}"
            cost = 1 + 0.2 * multiple
            yield Term(f"np.sin({inner})", np.sin(multiple * values), cost)
            yield Term(f"np.cos({inner})", np.cos(multiple * values), cost)


def product(first: NamedColumn, second: NamedColumn, cost: float = 2.0) -> Term:
    """Return a product of two columns as a term."""
    return Term(product_text(first, second), first.values * second.values, cost)


def product_text(first: NamedColumn, second: NamedColumn) -> str:
    """Return the source text of a product; a square is written as a power."""
    same = first.text == second.text
    return f"{first.text}**2" if same else f"{first.text} * {second.text}"


def distinct(terms: Iterable[Term]) -> list[Term]:
    """Drop terms that are not finite, vanish, or are multiples of an earlier one."""
    usable = _cheapest([term for term in terms if _usable(term.values)])
    if not usable:
        return []
    unit = np.stack([term.values / np.linalg.norm(term.values) for term in usable], 1)
    alike = np.tril(np.abs(unit.T @ unit) > 1 - 1e-13, -1)
    kept = np.ones(len(usable), bool)
    for index in np.flatnonzero(alike.any(axis=1)).tolist():
        kept[index] = not alike[index, kept].any()
    return [term for term, is_kept in zip(usable, kept.tolist(), strict=True) if is_kept]


def _cheapest(terms: list[Term]) -> list[Term]:
    """Return the cheapest `MOST_TERMS` terms, in the original order."""
    order = sorted(range(len(terms)), key=lambda index: terms[index].cost)
    return [terms[index] for index in sorted(order[:MOST_TERMS])]


def _usable(values: Array) -> bool:
    return bool(1e-14 < np.abs(values).max() < np.inf)


def _powers(columns: Sequence[NamedColumn]) -> Iterator[Term]:
    for first, second in combinations_with_replacement(columns, 2):
        yield product(first, second)
    for text, values, _ in columns:
        yield Term(f"{text} * abs({text})", values * np.abs(values), 2.5)
        yield Term(f"{text}**3", values**3, 3.0)
        levels = np.unique(values)
        if 2 < len(levels) <= 10:
            for value in levels.tolist():
                yield Term(f"({text} == {literal(value)})", (values == value).astype(float), 1.3)


def _input_products(
    inputs: Sequence[NamedColumn], columns: Sequence[NamedColumn]
) -> Iterator[Term]:
    for given in inputs:
        yield Term(f"{given.text}**2", given.values**2, 2.0)
        for column in columns:
            yield product(given, column)


def _functions(columns: Sequence[NamedColumn]) -> Iterator[Term]:
    for text, values, _ in columns:
        size = np.abs(values)
        if values.min() >= 0:
            yield Term(f"np.sqrt({text})", np.sqrt(values), 1.5)
        if size.min() > 1e-2:
            yield Term(f"1 / {text}", 1 / values, 2.0)
        if size.max() < 15:
            yield Term(f"np.exp({text})", np.exp(values), 1.8)
            yield Term(f"np.exp(-{text})", np.exp(-values), 1.8)
            yield Term(f"np.tanh({text})", np.tanh(values), 1.8)
        if values.min() < 0 < values.max():
            yield Term(f"np.sign({text})", np.sign(values), 1.6)
            yield Term(f"abs({text})", size, 1.4)


def _input_functions(inputs: Sequence[NamedColumn]) -> Iterator[Term]:
    for text, values, _ in inputs:
        yield Term(f"np.tanh({text})", np.tanh(values), 1.8)
        yield Term(f"abs({text})", np.abs(values), 1.5)
        yield Term(f"{text}**3", values**3, 2.5)
        yield Term(f"np.sin({text})", np.sin(values), 2.0)


def _cubic(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> Iterator[Term]:
    for triple in combinations_with_replacement(columns, 3):
        text = " * ".join(column.text for column in triple)
        yield Term(text, np.prod([column.values for column in triple], axis=0), 3.0)
    for given in inputs:
        for pair in combinations_with_replacement(columns, 2):
            values = given.values * pair[0].values * pair[1].values
            yield Term(f"{given.text} * {product_text(*pair)}", values, 3.0)


def _wave_products(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> Iterator[Term]:
    for wave in waves(columns):
        for column in columns:
            yield Term(f"{wave.text} * {column.text}", wave.values * column.values, wave.cost + 1)
            squared = wave.values * column.values**2
            yield Term(f"{wave.text} * {column.text}**2", squared, wave.cost + 2)
        for given in inputs:
            yield Term(f"{wave.text} * {given.text}", wave.values * given.values, wave.cost + 1)


def hypotenuses(columns: Sequence[NamedColumn]) -> Iterator[Term]:
    """Yield lengths of pairs of quantities, and of differences between neighbouring pairs."""
    for first, second in combinations(columns, 2):
        values = np.hypot(first.values, second.values)
        yield Term(f"np.hypot({first.text}, {second.text})", values, 1.5)
    neighbours = list(pairwise(columns))
    for (a, b), (c, d) in combinations(neighbours, 2):
        if len({a.text, b.text, c.text, d.text}) == 4:
            values = np.hypot(a.values - c.values, b.values - d.values)
            yield Term(f"np.hypot({a.text} - {c.text}, {b.text} - {d.text})", values, 1.6)
