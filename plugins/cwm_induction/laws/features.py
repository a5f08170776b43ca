"""Terms of laws and quantities of rules: generic functions of state, action and next state."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import (
    NamedColumn,
    Term,
    distinct,
    library,
    product_text,
)
from cwm_induction.rules import Feature, as_features

MAX_PAIRED = 12
"""With at most this many quantities, rules also compare differences and sums (132 of 12)."""

MAX_NUMBERED = 3
"""Actions whose number may be a factor in a law; more actions are kinds rather than amounts."""

MAX_FLAGS = 8
"""A whole number with at most this many values can be compared with each value."""


def law_libraries(
    own: Sequence[NamedColumn],
    columns: Sequence[NamedColumn],
    settled: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> list[list[Term]]:
    """Return sets of terms for laws, the smallest first.

    Linear terms; powers of the quantity itself (`own`) and of inputs; products of all quantities
    and square roots of differences.
    """
    inputs = [i for i in inputs if i.text != "action" or len(np.unique(i.values)) <= MAX_NUMBERED]
    linear = library([*columns, *settled], inputs, 1)
    powers = [t for column in [*own, *inputs] for t in _powers(column)]
    found = [distinct(linear), distinct([*linear, *powers])]
    if len(columns) <= MAX_PAIRED:
        roots = [t for pair in combinations(columns, 2) for t in _roots(*pair)]
        found.append(distinct([*library(columns, inputs, 2), *linear, *powers, *roots]))
    return found


def rule_features(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> list[Feature]:
    """Return quantities that rules compare: numbers, sizes, differences, sums and flags."""
    moving = [column for column in columns if np.ptp(column.values) > 0]
    lines = [column for column in moving if not column.is_angle]
    signed = [c for c in [*moving, *inputs] if c.values.min() < 0 < c.values.max()]
    found = [
        *as_features([*moving, *inputs]),
        *(Feature(f"abs({c.text})", np.abs(c.values), 1.2) for c in signed),
    ]
    if len(lines) <= MAX_PAIRED:
        for a, b in combinations(lines, 2):
            found.append(Feature(f"{a.text} - {b.text}", a.values - b.values, 2.0))
            found.append(Feature(f"{a.text} + {b.text}", a.values + b.values, 2.2))
    return [*found, *_flags([*moving, *inputs])]


def _flags(columns: Sequence[NamedColumn]) -> Iterator[Feature]:
    """Yield flags: a whole number has a certain value, or two whole numbers are equal."""
    whole = [c for c in columns if (c.values == np.round(c.values)).all()]
    whole = [c for c in whole if len(np.unique(c.values)) > 2]
    for column in whole:
        levels = np.unique(column.values)
        if len(levels) <= MAX_FLAGS:
            for level in levels.tolist():
                text = f"({column.text} == {level:g})"
                yield Feature(text, (column.values == level).astype(float), 1.2)
    for a, b in combinations(whole, 2):
        equal = (a.values == b.values).astype(float)
        if 0 < equal.mean() < 1:
            yield Feature(f"({a.text} == {b.text})", equal, 1.6)


def case_features(
    own: NamedColumn, columns: Sequence[NamedColumn], formulas: Sequence[Formula]
) -> Iterator[Feature]:
    """Yield the next value by each law, the larger one of two, and changes of sign.

    The formulas are changes of the quantity `own`; `case_name` names their results.
    """
    changes = [formula.values(len(own.values)) for formula in formulas]
    cases = case_columns(own, formulas)
    yield from as_features(cases, 0.9)
    for first, second in combinations(cases, 2):
        yield Feature(f"{first.text} - {second.text}", first.values - second.values, 1.6)
    for case, change in zip(cases, changes, strict=True):
        yield Feature(product_text(own, case), own.values * case.values, 1.3)
        yield Feature(f"{case.text} - {own.text}", change, 1.5)
        for column in columns:
            if column.values.min() < 0 < column.values.max() and column.text != own.text:
                text = f"({case.text} - {own.text}) * {column.text}"
                yield Feature(text, change * column.values, 1.8)


def case_columns(own: NamedColumn, formulas: Sequence[Formula]) -> list[NamedColumn]:
    """Return the next value of the quantity `own` by each law."""
    return [
        NamedColumn(case_name(own.text, index), own.values + formula.values(len(own.values)))
        for index, formula in enumerate(formulas)
    ]


def case_name(name: str, index: int) -> str:
    """Return the name of the next value of a variable according to one of its laws."""
    return f"{name}_case_{index}"


def _powers(column: NamedColumn) -> Iterator[Term]:
    text, values = column.text, column.values
    yield Term(f"{text}**2", values**2, 2.0)
    if values.min() < 0 < values.max():
        yield Term(f"abs({text})", np.abs(values), 1.4)
        yield Term(f"{text} * abs({text})", values * np.abs(values), 2.5)


def _roots(first: NamedColumn, second: NamedColumn) -> Iterator[Term]:
    text, values = f"{first.text} - {second.text}", first.values - second.values
    root: Array = np.sqrt(np.abs(values))
    yield Term(f"np.sqrt(abs({text}))", root, 2.5)
    if values.min() < 0 < values.max():
        yield Term(f"np.sign({text}) * np.sqrt(abs({text}))", np.sign(values) * root, 2.7)
