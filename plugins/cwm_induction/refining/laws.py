"""Laws for the value that a place needs, and the conditions under which they hold.

In a law with one number, each wrong row votes for an interval of this number; the point in the most
intervals is used, so the other rows may be wrong for another reason. Laws with more numbers are
fitted to all rows that can be corrected.

A condition is a rule of comparisons of single quantities. If it needs more than three comparisons,
half-planes and discs that separate the rows exactly are tried.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import SearchLimits, exact
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, library
from cwm_induction.effort import Effort
from cwm_induction.refining.targets import PatchTarget
from cwm_induction.rules import Feature, as_features, learn_rule, wrong_rows
from cwm_induction.writing.rounding import literal, rounded, simplest_between

MIN_ROWS = 3
"""Least number of rows that have to agree on a number."""

MAX_LAWS = 6
"""Most laws for a place that are tried on all rows."""

MAX_COLUMNS = 14
"""Most places that laws may read."""

INTEGERS = (1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)
"""Integers that are added to values, or multiplied by them."""

MISTAKE = 3.0
"""Cost of a row on the wrong side of a condition, in units of a comparison."""

MAX_ROWS = 1000
"""Most rows inside and outside of a half-plane or disc, so that a linear programme stays fast."""

MAX_PAIRS = 16
"""Most pairs of quantities that may form a half-plane or a disc."""

MAX_COMPARISONS = 4
"""Most comparisons of a condition with alternatives; of longer ones, the first is used."""

MAX_LEVELS = 12
"""A whole number with at most this many values is compared with each value."""

SHAPE_COST = 5.0
"""Cost of a half-plane or disc: two bounds of a box are preferred, four are not."""


@dataclass(frozen=True)
class PatchLaw:
    """An expression for the value of a place, its values in all rows, and its cost.

    `served` is the number of rows of the target that it corrects.
    """

    text: str
    values: Array
    cost: float
    served: int


def find_laws(
    target: PatchTarget, columns: Sequence[NamedColumn], effort: Effort
) -> list[PatchLaw]:
    """Return laws for a place, the most promising first."""
    others = [column for column in columns if column.text != target.place][:MAX_COLUMNS]
    laws = _integer_laws(target, others)
    if target.options is None:
        laws = _real_laws(target, others, effort)
    least = min(MIN_ROWS, len(target.rows))
    found: dict[bytes, PatchLaw] = {}
    with np.errstate(all="ignore"):
        for text, values, cost in laws:
            law = PatchLaw(text, values, cost, int(target.accepts(values).sum()))
            key = law.values.round(9).tobytes()
            if law.served >= least and (key not in found or law.cost < found[key].cost):
                found[key] = law
    share = 8.0 / len(target.rows)
    every = sorted(found.values(), key=lambda law: (law.cost - share * law.served, law.text))
    return every[:MAX_LAWS]


_Expression = tuple[str, Array, float]
"""The text of an expression, its values in all rows, and its cost."""


def _copies(target: PatchTarget, others: Sequence[NamedColumn]) -> Iterator[_Expression]:
    """Yield the opposite of the value, other places and their opposites."""
    yield f"-{target.place}", -target.current, 1.2
    for text, values, _ in others:
        yield text, values, 1.6
        yield f"-{text}", -values, 1.9


def _integer_laws(target: PatchTarget, others: Sequence[NamedColumn]) -> Iterator[_Expression]:
    """Yield laws of integers, which are compared with the allowed values of the rows."""
    place, now = target.place, target.current
    yield from _copies(target, others)
    assert target.options is not None
    for value in target.options.tolist():
        yield f"{value:g}", np.full(len(now), value), 1.0 + 0.01 * abs(value)
        yield f"min({place}, {value:g})", np.minimum(now, value), 1.3
        yield f"max({place}, {value:g})", np.maximum(now, value), 1.3
    for number in INTEGERS:
        size = 0.05 * abs(number)
        yield _plus(place, number), now + number, 1.0 + size
        if number < 0:
            yield f"max({place} - {-number}, 0)", np.maximum(now + number, 0), 1.3 + size
        if number not in (1, -1):
            yield f"{number} * {place}", number * now, 1.3 + size
        for text, values, _ in others:
            yield _plus(place, number, text), now + number * values, 2.0 + size


def _real_laws(
    target: PatchTarget, others: Sequence[NamedColumn], effort: Effort
) -> Iterator[_Expression]:
    """Yield laws with one number, chosen by vote, and a law with more numbers."""
    place, now = target.place, target.current
    usable = target.tolerance > 0
    rows, wanted = target.rows[usable], target.wanted[usable]
    tolerance = target.tolerance[usable]
    if not len(rows):
        return
    yield from _copies(target, others)
    ones = np.ones(len(rows))
    value = vote(wanted, ones, tolerance)
    if value is not None:
        text = literal(value)
        yield text, np.full(len(now), value), 1.0
        yield f"min({place}, {text})", np.minimum(now, value), 0.9
        yield f"max({place}, {text})", np.maximum(now, value), 0.9
    size = vote(np.abs(wanted), ones, tolerance)
    if size is not None and wanted.min() < 0 < wanted.max():
        text = literal(size)
        yield f"min(max({place}, -{text}), {text})", np.clip(now, -size, size), 1.0
    factor = vote(wanted, now[rows], tolerance)
    if factor is not None:
        yield f"{literal(factor)} * {place}", factor * now, 1.0
    varied = [each for each in others if np.ptp(each.values[np.isfinite(each.values)]) > 0]
    terms = _terms(target, varied)
    for term in terms:
        number = vote(wanted - now[rows], term.values[rows], tolerance)
        if number is not None:
            text = "" if term.text == ONE else term.text
            yield _plus(place, number, text), now + number * term.values, 0.2 + term.cost
    cheap = [t for t in terms if t.cost <= 2.5 and np.isfinite(t.values[rows]).all()][:80]
    missing, allowed = np.ones((2, len(now)))
    missing[rows], allowed[rows] = wanted - now[rows], tolerance
    for most in (2, 3):
        if len(rows) < 2 * most + 2:
            return
        limits = SearchLimits(most, 8, 8)
        formula = exact(cheap, missing, allowed, rows, effort.share(0.2), limits)
        if formula is not None and len(formula.terms) > 1:
            cost = 0.5 + formula.cost + 0.3 * len(formula.terms)
            yield formula.text(place), now + formula.values(len(now)), cost
            return


def _terms(target: PatchTarget, others: Sequence[NamedColumn]) -> list[Term]:
    """Return the terms that the value of a place may lack."""
    columns = [*others, NamedColumn(target.place, target.current)]
    columns = [NamedColumn(c.text, np.nan_to_num(c.values)) for c in columns]
    found = library(columns, [], 2 if len(columns) > 5 else 3)
    return sorted(found, key=lambda term: term.cost)[:700]


def vote(wanted: Array, values: Array, tolerance: Array) -> float | None:
    """Return the simplest number that maps the values to the wanted ones in the most rows.

    Return None if fewer than `MIN_ROWS` rows agree on a number.
    """
    usable = np.isfinite(values) & (np.abs(values) > 1e-9)
    least = min(MIN_ROWS, len(values))
    if usable.sum() < least:
        return None
    centre = wanted[usable] / values[usable]
    width = tolerance[usable] / np.abs(values[usable]) + 1e-15
    edges = np.concatenate([centre - width, centre + width])
    order = np.lexsort((np.repeat((0, 1), len(centre)), edges))
    depth = np.cumsum(np.where(order < len(centre), 1, -1))
    best = int(depth.argmax())
    if depth[best] < least:
        return None
    left, right = edges[order[best : best + 2]].tolist()
    return simplest_between(left, right) if left < right else rounded(left, 9)


def _plus(place: str, number: float, text: str = "") -> str:
    """Return the text of a place plus a number, or plus a number times a term."""
    sign, size = "-" if number < 0 else "+", literal(abs(number))
    size = size.removesuffix(".0") if float(number).is_integer() else size
    if not text:
        return f"{place} {sign} {size}"
    return f"{place} {sign} {text}" if size == "1" else f"{place} {sign} {size} * {text}"


class Guard(NamedTuple):
    """A Python condition, "" if it is always true, the mask of its rows, and its cost."""

    text: str
    holds: Array
    cost: float = 0.0


def find_guard(
    main: Sequence[NamedColumn], others: Sequence[NamedColumn], inside: Array, outside: Array
) -> Guard | None:
    """Return the best condition that holds in some rows and not in others.

    Args:
        main: The quantities that the condition should compare.
        others: Quantities that it may compare if these do not suffice.
        inside: The mask of the rows that have to satisfy the condition.
        outside: The mask of the rows that must not satisfy it. Other rows do not matter.

    Returns:
        The condition, or None if no row has to satisfy one.
    """
    if not inside.any():
        return None
    if not outside.any():
        return Guard("", np.ones(len(inside), bool))
    # Two comparisons of main quantities cost 3, and three cost 4.5.
    features = [*as_features(main), *as_features(others, 3.0)]
    guards = [_learn(features, inside, outside)]
    if guards[0].cost > 2.5:
        guards.append(_learn([*features, *_equalities([*main, *others])], inside, outside))
    if min(guard.cost for guard in guards) > 4.5:
        pairs = combinations([c for c in main if len(np.unique(c.values)) > 3], 2)
        shapes = chain.from_iterable(_shapes(*p, inside, outside) for p in islice(pairs, MAX_PAIRS))
        guards += [_learn([shape], inside, outside) for shape in shapes]
    return min(guards, key=lambda guard: guard.cost)


def _equalities(columns: Sequence[NamedColumn]) -> Iterator[Feature]:
    """Yield whether a whole number has a certain value."""
    for column in columns:
        levels = np.unique(column.values)
        if 2 < len(levels) <= MAX_LEVELS and (levels == np.round(levels)).all():
            for level in levels:
                yield Feature(f"{column.text} == {level:g}", 1.0 * (column.values == level), 3.5)


def _learn(features: Sequence[Feature], inside: Array, outside: Array) -> Guard:
    rule = learn_rule(features, inside, outside)
    conjunctions = [
        tuple(sorted(tests, key=lambda test: (test.feature.text, test.threshold.value)))
        for tests in rule.conjunctions[: 1 if len(rule) > MAX_COMPARISONS else None]
    ]
    rule = replace(rule, conjunctions=tuple(conjunctions))
    cost = rule.cost + MISTAKE * wrong_rows(rule, inside, outside)
    # Two bounds of a quantity become a range.
    text = re.sub(r"([^ ()]+) > (\S+) and \1 <= (\S+)", r"\2 < \1 <= \3", rule.text())
    return Guard("" if rule.is_constant else text, rule.holds(len(inside)), cost)


def _shapes(x: NamedColumn, y: NamedColumn, inside: Array, outside: Array) -> Iterator[Feature]:
    """Yield a weighted sum and a squared distance of two quantities that separate the rows.

    The numbers come from the linear programme with the widest margin, and are rounded.
    """
    rows = np.concatenate([_spread(inside), _spread(outside)])
    for columns in ([x.values, y.values], [x.values, y.values, x.values**2 + y.values**2]):
        weights = _separate_linearly(np.stack(columns, 1)[rows], inside[rows])
        if weights is None or weights[0] == 0 or weights[-1] == 0:
            continue
        is_disc = len(columns) == 3
        ideal = weights[:2] / weights[2] / -2 if is_disc else weights[1:] / weights[0]
        for numbers in _roundings(ideal):
            feature = _disc(x, y, *numbers) if is_disc else _sum(x, y, *numbers)
            near, far = feature.values[inside], feature.values[outside]
            if near.max() < far.min() or far.max() < near.min():
                yield feature
                break


def _sum(x: NamedColumn, y: NamedColumn, factor: float) -> Feature:
    sign = "-" if factor < 0 else "+"
    size = "" if abs(factor) == 1 else f"{_short(abs(factor))} * "
    return Feature(f"{x.text} {sign} {size}{y.text}", x.values + factor * y.values, SHAPE_COST)


def _disc(x: NamedColumn, y: NamedColumn, first: float, second: float) -> Feature:
    text = f"({x.text} - {_short(first)})**2 + ({y.text} - {_short(second)})**2"
    values = (x.values - first) ** 2 + (y.values - second) ** 2
    return Feature(text.replace("- -", "+ "), values, SHAPE_COST)


def _short(number: float) -> str:
    return literal(number).removesuffix(".0")


def _spread(mask: Array) -> Array:
    """Return evenly spaced rows of a mask."""
    rows = np.flatnonzero(mask)
    chosen: Array = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_ROWS)).astype(int)]
    return chosen


def _roundings(ideal: Array) -> Iterator[Array]:
    """Yield numbers rounded to ever more digits."""
    largest = int(np.floor(np.log10(np.abs(ideal).max() or 1.0)))
    for power in range(largest, largest - 5, -1):
        for multiple in (5, 2, 1):
            step = multiple * 10.0**power
            yield np.array([float(f"{round(value / step) * step:.9g}") for value in ideal])


def _separate_linearly(matrix: Array, inside: Array) -> Array | None:
    """Return the weights of columns (rows, columns) whose sum separates the rows, None if none do.

    The margin is the widest in units of the standard deviations of the columns.
    """
    from scipy.optimize import linprog

    scale = matrix.std(0) + 1e-12
    scaled = np.column_stack([(matrix - matrix.mean(0)) / scale, np.ones(len(matrix))])
    sign = np.where(inside, -1.0, 1.0)[:, None]
    margins = np.column_stack([sign * scaled, np.ones(len(matrix))])
    width = matrix.shape[1]
    limits = [(-1.0, 1.0)] * width + [(None, None), (None, 1e3)]
    cost = np.zeros(width + 2)
    cost[-1] = -1.0
    found = linprog(cost, margins, np.zeros(len(matrix)), bounds=limits, method="highs")
    if found.status != 0 or found.x[-1] <= 1e-9:
        return None
    weights: Array = found.x[:width] / scale
    return weights
