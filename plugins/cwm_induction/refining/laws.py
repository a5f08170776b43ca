"""Expressions for the value that a place needs, found from the rows that agree on a number.

In a law with one number, each row votes for an interval of this number; the point in the most
intervals is used, so the other rows may be wrong for another reason. Laws with more numbers are
fitted to all rows that can be corrected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from cwm_induction.continuous.regression import SearchLimits, exact
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, distinct, library
from cwm_induction.effort import Effort
from cwm_induction.refining.targets import PatchTarget
from cwm_induction.writing.rounding import literal, rounded, simplest_between

MIN_ROWS = 3
"""Least number of rows that have to agree on a number."""

MAX_LAWS = 6
"""Most laws for a place that are tried on all rows."""

MAX_COLUMNS = 14
"""Most places that laws may read."""

INTEGERS = (1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)
"""Integers that are added to values, or multiplied by them."""


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
    find = _real_laws if target.options is None else _integer_laws
    least = min(MIN_ROWS, len(target.rows))
    found: dict[bytes, PatchLaw] = {}
    with np.errstate(all="ignore"):
        for text, values, cost in find(target, others, effort):
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


def _integer_laws(
    target: PatchTarget, others: Sequence[NamedColumn], effort: Effort
) -> Iterator[_Expression]:
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
    for (a, x, _), (b, y, _) in combinations(others, 2):
        effort.spend(len(now))
        yield f"{a} + {b}", x + y, 2.4
        yield f"{a} - {b}", x - y, 2.4
        yield f"{b} - {a}", y - x, 2.4
        for number in INTEGERS:
            cost = 2.6 + 0.05 * abs(number)
            yield _plus(place, number, f"{a} * {b}"), now + number * x * y, cost
    for text, values, _ in others:
        for number in (2, 3, 4, 5):
            yield f"{place} + {text} // {number}", now + values // number, 2.5
            yield f"{place} - {text} // {number}", now - values // number, 2.5


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
    finite = [NamedColumn(c.text, np.nan_to_num(c.values)) for c in others]
    own = NamedColumn(target.place, np.nan_to_num(target.current))
    if not finite:
        return [Term(ONE, np.ones(len(own.values)), 1.0), Term(own.text, own.values, 1.0)]
    found = library([own, *finite], [], 2 if len(finite) > 4 else 3)
    for first, second in combinations(finite, 2):
        text, difference = f"({first.text} - {second.text})", first.values - second.values
        found.append(Term(text, difference, 1.9))
        for third in finite:
            if third not in (first, second):
                found.append(Term(f"{third.text} * {text}", third.values * difference, 2.6))
    for (a, x, _), (b, y, _) in permutations(finite, 2):
        found.append(Term(f"{a} * abs({b})", x * np.abs(y), 2.4))
        found.append(Term(f"{a} * np.cos({b})", x * np.cos(y), 2.4))
        found.append(Term(f"{a} * np.sin({b})", x * np.sin(y), 2.4))
    return distinct(sorted(found, key=lambda term: term.cost)[:700])


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
