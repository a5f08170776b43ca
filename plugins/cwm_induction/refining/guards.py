"""Conditions under which a law holds, such as `speed > 1.1 and 0 < place < 2`.

The candidates are a box, half-planes and discs that separate the rows exactly, and the condition
that the diagnosis of wrong rows finds (`separate`). The cheapest one is chosen.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_cli.problems.feedback.separation import (
    Conjunction,
    Literal,
    Quantity,
    separate,
)
from cwm_induction.continuous.samples import Array
from cwm_induction.writing.rounding import simplest_between

BITS_PER_UNIT = 6.0
"""Bits of a condition per unit of its cost; `separation` counts about six bits per bound."""

MISTAKE = 3.0
"""Cost of a row on the wrong side of a condition, in units of a bound."""

MAX_BOUNDS = 4
"""Most bounds of a condition: a box in two dimensions."""

MAX_ROWS = 1000
"""Most rows inside and outside that the search reads, so that a linear programme stays fast."""

MAX_PAIRS = 16
"""Most pairs of quantities that may form a half-plane or a disc."""

SIDES = {"low": -np.inf, "high": np.inf}
"""The sides of a range, and the bound that excludes nothing."""


class Guard(NamedTuple):
    """A Python condition, "" if it is always true, the mask of its rows, and its cost."""

    text: str
    holds: Array
    cost: float = 0.0


def find_guard(quantities: Sequence[Quantity], inside: Array, outside: Array) -> Guard | None:
    """Return the best condition that holds in some rows and not in others.

    Args:
        quantities: The quantities that the condition may compare.
        inside: The mask of the rows that have to satisfy the condition.
        outside: The mask of the rows that must not satisfy it. Other rows do not matter.

    Returns:
        The condition, or None if no condition separates the rows.
    """
    if not inside.any():
        return None
    if not outside.any():
        return Guard("", np.ones(len(inside), bool))
    rows = np.sort(np.concatenate([_spread(inside), _spread(outside)]))
    some = [each._replace(values=each.values[rows]) for each in quantities]
    target = inside[rows]
    guards = []
    for literals in _candidates(some, target):
        found = Conjunction(tuple(literals))
        holds = found.holds(quantities)
        mistakes = int((~holds & inside).sum() + (holds & outside).sum())
        bits = sum(literal.count_bits(quantities) for literal in literals)
        cost = bits / BITS_PER_UNIT + MISTAKE * mistakes
        guards.append(Guard(found.to_python(some), holds, cost))
    return min(guards, key=lambda guard: guard.cost, default=None)


def _spread(mask: Array) -> Array:
    """Return evenly spaced rows of a mask."""
    rows = np.flatnonzero(mask)
    chosen: Array = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_ROWS)).astype(int)]
    return chosen


def _candidates(quantities: Sequence[Quantity], target: Array) -> Iterator[tuple[Literal, ...]]:
    """Yield the smallest box; unless it has two bounds or fewer, also other shapes."""

    def is_exact(literals: tuple[Literal, ...]) -> bool:
        return bool(literals) and bool((Conjunction(literals).holds(quantities) == target).all())

    box = tuple(_box(quantities, target))
    if box:
        yield box
    found = [box] if is_exact(box) else []
    if found and sum(np.isfinite((each.low, each.high)).sum() for each in box) <= 2:
        return
    main = [
        index
        for index, quantity in enumerate(quantities)
        if quantity.is_ordered and not quantity.extra and len(np.unique(quantity.values)) > 3
    ]
    everywhere = np.ones(len(target), bool)
    for pair in list(combinations(main, 2))[:MAX_PAIRS]:
        for literal in (Literal("sum", pair, (1.0,)), Literal("disc", pair, (0.0, 0.0, 1.0))):
            polished = _polished(literal, quantities, target, everywhere)
            if polished is not literal:
                found.append((polished,))
                yield (polished,)
    if not found and (separated := separate(target, quantities)):
        literals = separated.literals
        yield literals
        for place, literal in enumerate(literals):
            others = (*literals[:place], *literals[place + 1 :])
            if literal.form != "plain":
                rows = Conjunction(others).holds(quantities)
                yield (*others, _polished(literal, quantities, target, rows))


class _Bound(NamedTuple):
    """One side of the range of a quantity in the target rows, and the other rows that it keeps."""

    quantity: int
    side: str
    kept: Array
    cost: float


def _box(quantities: Sequence[Quantity], target: Array) -> list[Literal]:
    """Return few bounds that contain all target rows and exclude most other rows."""
    chosen = _cover(list(_bounds(quantities, target)))
    numbers = {side: np.full(len(quantities), sign) for side, sign in SIDES.items()}
    for bound in chosen:
        values = quantities[bound.quantity].values[target]
        numbers[bound.side][bound.quantity] = values.min() if bound.side == "low" else values.max()
    matrix = np.array([quantity.values for quantity in quantities])
    for bound in chosen:
        # The bound may be anywhere before the first row that no other bound excludes.
        tight = numbers[bound.side][bound.quantity]
        numbers[bound.side][bound.quantity] = SIDES[bound.side]
        low, high = numbers["low"][:, None], numbers["high"][:, None]
        left = ~target & ((matrix >= low) & (matrix <= high)).all(axis=0)
        sign = -1.0 if bound.side == "low" else 1.0
        beyond = sign * (quantities[bound.quantity].values - tight)[left]
        gap = sign * float(beyond[beyond > 0].min(initial=np.inf))
        if np.isfinite(gap):
            limit = simplest_between(*sorted((tight, tight + gap)))
            numbers[bound.side][bound.quantity] = limit
    return [
        Literal("plain", (index,), low=numbers["low"][index], high=numbers["high"][index])
        for index in sorted({bound.quantity for bound in chosen})
        if np.isfinite((numbers["low"][index], numbers["high"][index])).any()
    ]


def _bounds(quantities: Sequence[Quantity], target: Array) -> Iterator[_Bound]:
    """Yield the bounds that exclude rows; a wide gap makes a bound cheaper."""
    for index, quantity in enumerate(quantities):
        values, spread = quantity.values, np.ptp(quantity.values)
        if not quantity.is_ordered or spread == 0:
            continue
        for side, over in (
            ("low", values[target].min() - values[~target]),
            ("high", values[~target] - values[target].max()),
        ):
            kept = over <= 1e-12 * spread
            if not kept.all():
                gap = over[~kept].min() / spread
                bits = 6.0 + quantity.extra + np.log2(len(quantities)) - 3.0 * gap
                yield _Bound(index, side, kept, bits / BITS_PER_UNIT)


def _cover(bounds: Sequence[_Bound]) -> list[_Bound]:
    """Return at most four bounds that together exclude most rows: the best pair, or greedily."""
    if not bounds:
        return []
    kept = np.array([bound.kept for bound in bounds], np.float32)
    costs = np.array([bound.cost for bound in bounds])
    pairs = MISTAKE * (kept @ kept.T) + (costs[:, None] + costs) * (1 - np.eye(len(costs)) / 2)
    best = sorted({*map(int, np.unravel_index(int(pairs.argmin()), pairs.shape))})
    greedy: list[int] = []
    left = np.ones(kept.shape[1], np.float32)
    while len(greedy) < MAX_BOUNDS and left.any():
        following = int((MISTAKE * (kept @ left) + costs).argmin())
        if following in greedy:
            break
        greedy.append(following)
        left = left * kept[following]
    for index in list(greedy):
        others = [other for other in greedy if other != index]
        if others and kept[others].prod(axis=0).sum() <= left.sum():
            greedy = others
    options = [best, greedy]
    worth = [MISTAKE * kept[o].prod(axis=0).sum() + costs[o].sum() for o in options]
    return [bounds[index] for index in options[int(np.argmin(worth))]]


def _polished(
    literal: Literal, quantities: Sequence[Quantity], target: Array, rows: Array
) -> Literal:
    """Return a literal with the simplest slope or centre that separates some rows exactly.

    The numbers come from the linear programme with the widest margin, and are rounded. If no
    numbers separate the rows, return the same literal.
    """
    inside, outside = rows & target, rows & ~target
    if not outside.any():
        return literal
    x, y = (quantities[index].values for index in literal.quantities)
    scale = literal.numbers[2] if literal.form == "disc" else 1.0
    columns = [x, y] if literal.form == "sum" else [x, y, x**2 + (scale * y) ** 2]
    weights = _separate_linearly(np.stack(columns, 1), inside, outside)
    if weights is None or weights[0] == 0 or weights[-1] == 0:
        return literal
    exact = [weights[1] / weights[0]]
    if literal.form == "disc":
        exact = [-weights[0] / weights[2] / 2, -weights[1] / weights[2] / 2 / scale**2]
    for numbers in _roundings(exact):
        rounded = literal._replace(
            numbers=(*numbers, *literal.numbers[2:]), low=-np.inf, high=np.inf
        )
        measured = rounded.measure(quantities)
        near, far = measured[inside], measured[outside]
        if near.max() < far.min():
            return rounded._replace(high=simplest_between(float(near.max()), float(far.min())))
        if far.max() < near.min():
            return rounded._replace(low=simplest_between(float(far.max()), float(near.min())))
    return literal


def _roundings(exact: Sequence[float]) -> Iterator[list[float]]:
    """Yield numbers rounded to ever more digits."""
    largest = int(np.floor(np.log10(max(map(abs, exact)) or 1.0)))
    for power in range(largest, largest - 5, -1):
        for multiple in (5, 2, 1):
            step = multiple * 10.0**power
            yield [float(f"{round(value / step) * step:.9g}") for value in exact]


def _separate_linearly(matrix: Array, inside: Array, outside: Array) -> Array | None:
    """Return the weights of columns whose sum separates two groups of rows, None if none does.

    The margin is the widest in units of the standard deviations of the columns (rows, columns).
    """
    from scipy.optimize import linprog

    rows = np.flatnonzero(inside | outside)
    middle, scale = matrix[rows].mean(0), matrix[rows].std(0) + 1e-12
    sign = np.where(inside, 1.0, -1.0)[rows]
    scaled = np.column_stack([(matrix[rows] - middle) / scale, np.ones(len(rows))])
    margins = np.column_stack([-sign[:, None] * scaled, np.ones(len(rows))])
    width = matrix.shape[1]
    limits = [(-1.0, 1.0)] * width + [(None, None), (None, 1e3)]
    cost = np.zeros(width + 2)
    cost[-1] = -1.0
    found = linprog(cost, margins, np.zeros(len(rows)), bounds=limits, method="highs")
    if found.status != 0 or found.x[-1] <= 1e-9:
        return None
    weights: Array = found.x[:width] / scale
    return weights
