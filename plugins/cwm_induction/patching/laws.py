"""What holds instead of a wrong prediction: a law, found by the rows that agree on its number.

A law with one number lets every row vote for a range of it; the range that most rows share is
the law, whatever the other rows are about. Laws with more numbers are fitted to all wrong rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cwm_induction.continuous.regression import SearchLimits, exact
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import ONE, Term
from cwm_induction.effort import Effort
from cwm_induction.patching.rows import REWARD, TERMINATED, Rows
from cwm_induction.writing.rounding import literal, simplest_between

LEAST_ROWS = 3
"""Rows that have to agree before a number is believed in."""

MOST_LAWS = 8
"""Laws that guards are looked for; the others explain fewer rows, or cost more."""

SLACK = 0.25
"""Part of the metric's tolerance that a law may use where rounding alone does not explain it."""

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Law:
    """An expression for a quantity, its value in every row, and what it costs to believe in it."""

    text: str
    values: Array
    cost: float
    words: str
    number: float | None = None


def laws(rows: Rows, target: str, effort: Effort) -> list[Law]:
    """Return laws that make wrong rows of a target right, the most promising first."""
    wrong = rows.wrong(target)
    if target == TERMINATED:
        return list(_ends(rows, wrong))
    found = {
        law.text: law for law in [*_copies(rows, target), *_voted(rows, target, wrong, effort)]
    }
    if target not in rows.whole:
        found |= {law.text: law for law in _fitted(rows, target, wrong, effort)}
    explained = {
        text: int((rows.right(target, law.values) & wrong).sum()) for text, law in found.items()
    }
    least = min(LEAST_ROWS, int(wrong.sum()))
    kept = [law for text, law in found.items() if explained[text] >= least]
    kept.sort(key=lambda law: (law.cost - 8.0 * explained[law.text] / wrong.sum(), law.text))
    return kept[:MOST_LAWS]


def _ends(rows: Rows, wrong: Array) -> Iterator[Law]:
    """Yield that the episode ends, and that it goes on."""
    for value, words in ((1.0, "the episode ends"), (0.0, "the episode goes on")):
        if (wrong & (rows.truth[TERMINATED] == value)).any():
            yield Law(str(bool(value)), np.full(len(rows), value), 1.0, words)


def _copies(rows: Rows, target: str) -> Iterator[Law]:
    """Yield that a quantity stays as it is, or is what another one is."""
    own = target.removesuffix("_next")
    for text, values, _ in [*rows.columns(target), *rows.inputs()]:
        words = "stays as it is" if text == own else f"is {text}"
        yield Law(text, values, 1.0 if text == own else 1.6, f"{_called(target)} {words}")


def _voted(rows: Rows, target: str, wrong: Array, effort: Effort) -> Iterator[Law]:
    """Yield laws with one number: a value, a factor, a summand, one more term."""
    truth, now = rows.truth[target], rows.now[target]
    own = target.removesuffix("_next")
    ones = np.ones(len(rows))
    shapes = [
        ("{c}", truth, Term(ONE, ones, 1.0), np.zeros(len(rows)), f"{_called(target)} is {{c}}")
    ]
    if own in rows.before:
        before = rows.before[own]
        change = Term(f"({target} - {own})", now - before, 1.2)
        text = f"{own} + {{c}} * ({target} - {own})"
        shapes.append(
            (text, truth - before, change, before, f"{_called(target)} changes {{c}} times as much")
        )
        text = f"{{c}} * {own}"
        shapes.append(
            (
                text,
                truth,
                Term(own, before, 1.6),
                np.zeros(len(rows)),
                f"{_called(target)} is {{c}} times {own}",
            )
        )
        text = f"{own} + {{c}}"
        shapes.append(
            (
                text,
                truth - before,
                Term(ONE, ones, 1.4),
                before,
                f"{_called(target)} changes by {{c}}",
            )
        )
    text = f"{{c}} * {target}"
    shapes.append(
        (
            text,
            truth,
            Term(target, now, 1.1),
            np.zeros(len(rows)),
            f"{_called(target)} is {{c}} times as large",
        )
    )
    level = 1 if target in rows.whole else 2 if len(rows.before) > 4 else 3
    for term in rows.terms(target, level):
        words = f"{_called(target)} lacks {{c}}" + ("" if term.text == ONE else f" * {term.text}")
        shapes.append(
            (
                f"{target} + {{c}} * {term.text}",
                truth - now,
                term._replace(cost=0.4 + term.cost),
                now,
                words,
            )
        )
    tight, loose = rows.tolerance(target), SLACK * TOLERANCE * (1 + np.abs(truth))
    for text, wanted, term, base, words in shapes:
        if not effort.spend(40.0 * wrong.sum()):
            return
        number = None
        for tolerance in (np.minimum(tight, loose), loose):
            number = voted(
                wanted[wrong], term.values[wrong], tolerance[wrong], whole=target in rows.whole
            )
            if number is not None:
                break
        if number is None:
            continue
        yield Law(
            _written(text, number),
            base + number * term.values,
            term.cost,
            words.format(c=literal(number)),
            number,
        )


def voted(wanted: Array, values: Array, tolerance: Array, *, whole: bool = False) -> float | None:
    """Return the simplest number that times the values gives what is wanted in most rows.

    None where too few agree. A number is believed in only as far as rows with different values
    say the same.
    """
    usable = np.abs(values) > 1e3 * tolerance
    if not usable.any():
        return None
    centre = wanted[usable] / values[usable]
    width = tolerance[usable] / np.abs(values[usable])
    if whole:
        kinds, counts = np.unique(np.round(centre, 9), return_counts=True)
        return float(kinds[counts.argmax()])
    low, high = centre - width, centre + width
    edges = np.concatenate([low, high])
    order = np.lexsort((np.repeat((0, 1), len(low)), edges))
    depth = np.cumsum(np.where(order < len(low), 1, -1))
    best = int(depth.argmax())
    if depth[best] < min(LEAST_ROWS, len(values)):
        return None
    left, right = float(edges[order[best]]), float(edges[order[best + 1]])
    return simplest_between(left, right) if left < right else left


def _fitted(rows: Rows, target: str, wrong: Array, effort: Effort) -> Iterator[Law]:
    """Yield the law with few terms that holds in all wrong rows, or in most rows near each other."""
    residual = rows.truth[target] - rows.now[target]
    loose = SLACK * TOLERANCE * (1 + np.abs(rows.truth[target]))
    tight = np.minimum(rows.tolerance(target), loose)
    places = np.flatnonzero(wrong)
    for level, size in ((1, 3), (2, 3)):
        terms = rows.terms(target, level)
        for tolerance in (tight, loose):
            if len(places) < 2 * size + 2:
                return
            formula = exact(
                terms,
                residual,
                tolerance,
                places,
                effort.share(0.1),
                SearchLimits(min(size, len(places) // 4), 8, 8),
            )
            if formula is not None and formula.terms:
                text = formula.text(target)
                values = rows.now[target] + formula.values(len(rows))
                yield Law(
                    text,
                    values,
                    0.5 + formula.cost + 0.5 * len(formula.terms),
                    f"{_called(target)} is {text}",
                )
                return


def _written(text: str, number: float) -> str:
    """Put a number into the text of a law, without needless factors and signs."""
    size, sign = literal(abs(number)), "-" if number < 0 else "+"
    text = (
        text.replace(" + {c}", f" {sign} {size}")
        if " + {c}" in text
        else text.replace("{c}", literal(number))
    )
    text = text.replace(f"{size} * {ONE}", size) if text.endswith(f" * {ONE}") else text
    return text.replace(" 1.0 * ", " ").removesuffix(" * 1.0")


def _called(target: str) -> str:
    """Return what findings call a quantity."""
    return target if target in (REWARD, TERMINATED) else f"the next {target.removesuffix('_next')}"


def clamps(rows: Rows, target: str) -> Iterator[tuple[Law, Array]]:
    """Yield limits that a quantity is kept within, with the rows that these change."""
    truth, now, wrong = rows.truth[target], rows.now[target], rows.wrong(target)
    slack = TOLERANCE * (1 + np.abs(truth))
    for function, side in (("min", 1.0), ("max", -1.0)):
        over = wrong & (side * (now - truth) > 0)
        if over.sum() < 2:
            continue
        bound = side * float((side * truth[over]).min())
        held = over & (np.abs(truth - bound) <= slack)
        limit = _limit(rows, target, bound)
        values = side * np.minimum(side * now, side * limit)
        if held.sum() >= 2:
            yield (
                Law(
                    f"{function}({target}, {literal(limit)})",
                    values,
                    0.5,
                    f"{_called(target)} is at {'most' if side > 0 else 'least'} {literal(limit)}",
                    limit,
                ),
                held,
            )


def _limit(rows: Rows, target: str, bound: float) -> float:
    """Return the number that a limit stands for: a declared bound, or the shortest one."""
    width = 4 * rows.grain * (1 + abs(bound)) + 1e-12
    for declared in rows.bounds.get(target, ()):
        if abs(declared - bound) <= TOLERANCE * (1 + abs(bound)):
            return (
                float(f"{declared:.7g}")
                if abs(float(f"{declared:.7g}") - bound) <= width
                else bound
            )
    return simplest_between(bound - width, bound + width)
