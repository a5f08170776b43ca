"""What a place should hold instead: a law, found by the rows that agree on its number.

A law with one number lets every row vote for a range of it; the range that most rows share is
the law, whatever the other rows are about. Laws with more numbers are fitted to all rows that can
be mended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cwm_induction.continuous.regression import SearchLimits, exact
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, distinct, library
from cwm_induction.effort import Effort
from cwm_induction.refining.patching.needs import Need
from cwm_induction.writing.rounding import literal, rounded, simplest_between

LEAST_ROWS = 3
"""Rows that have to agree before a number is believed in."""

MOST_LAWS = 6
"""Laws of a place that are tried on all rows; the others serve fewer rows, or cost more."""

MOST_COLUMNS = 14
"""Places that laws may read."""

WHOLE = (1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)
"""Numbers that whole numbers are multiplied and shifted by."""


@dataclass(frozen=True)
class Law:
    """An expression for what a place should hold, its values, and what it costs to believe it."""

    text: str
    values: Array
    cost: float
    served: int


def laws(need: Need, columns: Sequence[NamedColumn], effort: Effort) -> list[Law]:
    """Return laws for a place, the most promising first."""
    others = [column for column in columns if column.text != need.place][:MOST_COLUMNS]
    shapes = _whole if need.is_whole else _real
    found: dict[bytes, Law] = {}
    with np.errstate(all="ignore"):
        for law in shapes(need, others, effort):
            key = law.values.round(9).tobytes()
            least = min(LEAST_ROWS, len(need.rows))
            if law.served >= least and (key not in found or law.cost < found[key].cost):
                found[key] = law
    every = sorted(
        found.values(), key=lambda law: (law.cost - 8.0 * law.served / len(need.rows), law.text)
    )
    return every[:MOST_LAWS]


def _law(need: Need, text: str, values: Array, cost: float) -> Law:
    return Law(text, values, cost, int(need.serves(values).sum()))


def _copies(need: Need, others: Sequence[NamedColumn]) -> Iterator[Law]:
    """Yield that a place holds what another one holds, or the opposite."""
    yield _law(need, f"-{need.place}", -need.now, 1.2)
    for text, values, _ in others:
        yield _law(need, text, values, 1.6)
        yield _law(need, f"-{text}", -values, 1.9)


def _whole(need: Need, others: Sequence[NamedColumn], effort: Effort) -> Iterator[Law]:
    """Yield laws of whole numbers: every one is looked up among the values that will do."""
    place, now = need.place, need.now
    yield from _copies(need, others)
    assert need.values is not None
    for value in need.values.tolist():
        yield _law(need, f"{value:g}", np.full(len(now), value), 1.0 + 0.01 * abs(value))
        yield _law(need, f"min({place}, {value:g})", np.minimum(now, value), 1.3)
        yield _law(need, f"max({place}, {value:g})", np.maximum(now, value), 1.3)
    for number in WHOLE:
        size = 0.05 * abs(number)
        yield _law(need, _plus(place, number), now + number, 1.0 + size)
        if number < 0:
            yield _law(
                need, f"max({place} - {-number}, 0)", np.maximum(now + number, 0), 1.3 + size
            )
        if number not in (1, -1):
            yield _law(need, f"{number} * {place}", number * now, 1.3 + size)
        for text, values, _ in others:
            yield _law(need, _plus(place, number, text), now + number * values, 2.0 + size)
    for (a, x, _), (b, y, _) in combinations(others, 2):
        effort.spend(len(now))
        for text, values in ((f"{a} + {b}", x + y), (f"{a} - {b}", x - y), (f"{b} - {a}", y - x)):
            yield _law(need, text, values, 2.4)
        for number in WHOLE:
            product = number * x * y
            yield _law(
                need, _plus(place, number, f"{a} * {b}"), now + product, 2.6 + 0.05 * abs(number)
            )
    for text, values, _ in others:
        for number in (2, 3, 4, 5):
            yield _law(need, f"{place} + {text} // {number}", now + values // number, 2.5)
            yield _law(need, f"{place} - {text} // {number}", now - values // number, 2.5)


def _real(need: Need, others: Sequence[NamedColumn], effort: Effort) -> Iterator[Law]:
    """Yield laws with one number that most rows agree on, and those with more that all do."""
    place, now, rows = need.place, need.now, need.rows
    usable = need.tolerance > 0
    rows, wanted, tolerance = rows[usable], need.wanted[usable], need.tolerance[usable]
    if not len(rows):
        return
    yield from _copies(need, others)
    ones = np.ones(len(now))
    value = voted(wanted, ones[rows], tolerance)
    if value is not None:
        yield _law(need, literal(value), np.full(len(now), value), 1.0)
        text = literal(value)
        yield _law(need, f"min({place}, {text})", np.minimum(now, value), 0.9)
        yield _law(need, f"max({place}, {text})", np.maximum(now, value), 0.9)
    size = voted(np.abs(wanted), ones[rows], tolerance)
    if size is not None and (wanted < 0).any() and (wanted > 0).any():
        text = literal(size)
        yield _law(need, f"min(max({place}, -{text}), {text})", np.clip(now, -size, size), 1.0)
    factor = voted(wanted, now[rows], tolerance)
    if factor is not None:
        yield _law(need, f"{literal(factor)} * {place}", factor * now, 1.0)
    few = [column for column in others if np.ptp(column.values[np.isfinite(column.values)]) > 0]
    terms = _terms(need, few)
    for term in terms:
        number = voted(wanted - now[rows], term.values[rows], tolerance)
        if number is not None:
            text = "" if term.text == ONE else term.text
            cost = 0.2 + term.cost
            yield _law(need, _plus(place, number, text), now + number * term.values, cost)
    for most in (2, 3):
        share = [t for t in terms if np.isfinite(t.values[rows]).all() and t.cost <= 2.5][:80]
        if len(rows) < 2 * most + 2:
            return
        formula = exact(
            share,
            _spread(rows, wanted - now[rows], now),
            _spread(rows, tolerance, now),
            rows,
            effort.share(0.2),
            SearchLimits(most, 8, 8),
        )
        if formula is not None and len(formula.terms) > 1:
            values = now + formula.values(len(now))
            yield _law(
                need, formula.text(place), values, 0.5 + formula.cost + 0.3 * len(formula.terms)
            )
            return


def _spread(rows: Array, values: Array, like: Array) -> Array:
    """Put values of some rows at their places among all."""
    found = np.ones(len(like))
    found[rows] = values
    return found


def _terms(need: Need, others: Sequence[NamedColumn]) -> list[Term]:
    """Return what may be missing of a place."""
    finite = [NamedColumn(c.text, np.nan_to_num(c.values)) for c in others]
    own = NamedColumn(need.place, np.nan_to_num(need.now))
    if not finite:
        return [Term(ONE, np.ones(len(need.now)), 1.0), Term(own.text, own.values, 1.0)]
    found = library([own, *finite], [], 2 if len(finite) > 4 else 3)
    for first, second in combinations(finite, 2):
        text = f"({first.text} - {second.text})"
        found.append(Term(text, first.values - second.values, 1.9))
        found.append(
            Term(f"{first.text} * abs({second.text})", first.values * np.abs(second.values), 2.4)
        )
        found.append(
            Term(f"{second.text} * abs({first.text})", second.values * np.abs(first.values), 2.4)
        )
        for third in finite:
            if third not in (first, second):
                found.append(
                    Term(
                        f"{third.text} * {text}", third.values * (first.values - second.values), 2.6
                    )
                )
    for first in finite:
        for second in finite:
            if first is not second:
                for name, wave in (("cos", np.cos), ("sin", np.sin)):
                    found.append(
                        Term(
                            f"{first.text} * np.{name}({second.text})",
                            first.values * wave(second.values),
                            2.4,
                        )
                    )
    return distinct(sorted(found, key=lambda term: term.cost)[:700])


def voted(wanted: Array, values: Array, tolerance: Array) -> float | None:
    """Return the simplest number that times the values gives what is wanted in most rows.

    None where too few agree.
    """
    usable = np.isfinite(values) & (np.abs(values) > 1e-9)
    if usable.sum() < min(LEAST_ROWS, len(values)):
        return None
    centre = wanted[usable] / values[usable]
    width = tolerance[usable] / np.abs(values[usable]) + 1e-15
    low, high = centre - width, centre + width
    edges = np.concatenate([low, high])
    order = np.lexsort((np.repeat((0, 1), len(low)), edges))
    depth = np.cumsum(np.where(order < len(low), 1, -1))
    best = int(depth.argmax())
    if depth[best] < min(LEAST_ROWS, len(values)):
        return None
    left, right = float(edges[order[best]]), float(edges[order[best + 1]])
    if not left < right:
        return rounded(left, 9)
    return simplest_between(left, right)


def _plus(place: str, number: float, text: str = "") -> str:
    """Write a place plus a number, or plus so many times a term."""
    sign, size = "-" if number < 0 else "+", literal(abs(number))
    size = size.removesuffix(".0") if float(number).is_integer() else size
    if not text:
        return f"{place} {sign} {size}"
    return f"{place} {sign} {text}" if size == "1" else f"{place} {sign} {size} * {text}"
