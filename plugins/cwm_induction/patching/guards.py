"""Where a law holds: bounds, intervals, boxes, discs, half-planes and conjunctions of these.

Every kind of guard is learned from the rows in which a law is needed and those in which it would
be wrong, and tried on rows that were kept out of this; mistakes there count as much as bounds.
A disc or a slanted half-plane is a bound on a quantity whose numbers are found by a linear
programme first. Numbers are the simplest ones in the gap between the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from cwm_induction.continuous.rules import (
    Feature,
    ThresholdSplit,
    Tree,
    complexity,
    condition,
    holds,
    learned,
)
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.effort import Effort
from cwm_induction.patching.rows import MOST_LEVELS, REWARD, TERMINATED, Rows, derived
from cwm_induction.writing.rounding import literal, rounded

FOLDS = 5
"""Parts of the rows that are kept out in turn."""

BOUND_PRICE = 1.0
"""A bound more has to save a mistake more."""

MOST_PLANES = 30
"""Pairs of quantities in which discs and half-planes are looked for."""

Shapes = Callable[[Array, Array], Sequence[Feature]]
"""What a guard may compare, given the masks of rows inside and outside."""


@dataclass(frozen=True)
class Guard:
    """A condition, the rows in which it holds, its mistakes, and what it costs to believe in it."""

    text: str
    holds: Array
    wrong: int
    cost: float

    @property
    def rank(self) -> float:
        """What guards are compared by, lower is better."""
        return self.cost + 4.0 * self.wrong


ALWAYS = "True"


def guard(rows: Rows, target: str, inside: Array, outside: Array, effort: Effort) -> Guard | None:
    """Return the best guard that holds inside and not outside; other rows do not matter."""
    if not inside.any():
        return None
    if not outside.any():
        return Guard(ALWAYS, np.ones(len(rows), bool), 0, 0.0)
    best: Guard | None = None
    for shapes, depth, price in families(rows, target):
        if not effort.spend(0.05 * len(rows) * 100):
            break
        if best is not None and best.cost <= price:
            continue
        found = _tried(shapes, depth, inside, outside)
        if found is not None and (best is None or found.rank < best.rank - 1e-9):
            best = found
    return best


def families(rows: Rows, target: str) -> Iterator[tuple[Shapes, int, float]]:
    """Yield kinds of guards: what they compare, how many times, and the least that they cost."""
    plain = features(rows, target)
    yield (lambda _i, _o: plain), 0, 0.0
    yield (lambda _i, _o: plain), 1, 2.0
    more = [*plain, *compounds(rows, target)]
    yield (lambda _i, _o: more), 0, 1.8
    for first, second in planes(rows, target):
        yield _discs(first, second), 0, 2.0
        yield _slants(first, second), 0, 2.0
    yield (lambda _i, _o: more), 1, 2.8
    yield (lambda _i, _o: plain), 3, 3.0

    def curved(inside: Array, outside: Array) -> list[Feature]:
        """Return the discs and half-planes that keep most rows outside out, and what is plain."""
        found = [
            f for a, b in planes(rows, target) for f in _disc(a, b, inside, outside, exact=False)
        ]
        return [*found, *plain]

    yield curved, 1, 3.0
    yield (lambda _i, _o: more), 3, 3.8


def features(rows: Rows, target: str) -> list[Feature]:
    """Return the quantities that a guard may compare, values of whole numbers one by one."""
    columns = [*rows.columns(target), *rows.inputs()]
    if target in rows.now and target not in (REWARD, TERMINATED):
        columns.append(NamedColumn(target, rows.now[target]))
    found = [
        Feature(text, values, 1.0 if not text.endswith("_next") else 1.1)
        for text, values, _ in columns
    ]
    for text, values, _ in columns:
        levels = np.unique(values)
        whole = bool((levels == np.round(levels)).all())
        if len(levels) > 2 and whole and (len(levels) <= MOST_LEVELS):
            found += [
                Feature(f"({text} == {level:g})", (values == level).astype(float), 1.1)
                for level in levels.tolist()
            ]
        if target in rows.whole and whole and len(levels) > MOST_LEVELS:
            found += [
                Feature(f"({text} == {level:g})", (values == level).astype(float), 1.2)
                for level in levels.tolist()[:100]
            ]
    return found


def compounds(rows: Rows, target: str) -> list[Feature]:
    """Return sums, differences and products that a guard may compare."""
    return [Feature(text, values, cost) for text, values, cost in derived(_places(rows, target))]


def planes(rows: Rows, target: str) -> list[tuple[NamedColumn, NamedColumn]]:
    """Return the pairs of quantities of the same time that may span a plane."""
    every = _places(rows, target)
    now = [column for column in every if not column.text.endswith("_next")]
    then = [column for column in every if column.text.endswith("_next")]
    pairs = [*combinations(now, 2), *combinations(then, 2)]
    return pairs[:MOST_PLANES]


def _places(rows: Rows, target: str) -> list[NamedColumn]:
    """Return the components before and after that vary continuously, or over many values."""
    columns = [*rows.columns(target)]
    if target not in (REWARD, TERMINATED):
        columns.append(NamedColumn(target, rows.now[target]))
    return [column for column in columns if len(np.unique(column.values)) > 3]


def _tried(shapes: Shapes, depth: int, inside: Array, outside: Array) -> Guard | None:
    """Learn a guard from all rows, and count its mistakes in rows that others were learned without."""
    decided = np.flatnonzero(inside | outside)
    tree = _learned(shapes, depth, inside, outside, decided)
    if tree is None:
        return None
    count = len(inside)
    wrong = int((holds(tree, count) != inside)[decided].sum())
    if wrong > 0.5 * inside.sum():
        return None
    missed = 0
    for fold in range(FOLDS):
        kept = np.zeros(count, bool)
        for part in (inside, outside):
            kept[np.flatnonzero(part)[fold::FOLDS]] = True
        seen = np.flatnonzero((inside | outside) & ~kept)
        if not inside[seen].any():
            continue
        part_tree = _learned(shapes, depth, inside & ~kept, outside & ~kept, seen)
        said = np.zeros(count, bool) if part_tree is None else holds(part_tree, count)
        missed += int((said != inside)[kept].sum())
    bounds, cost = complexity(tree)
    return Guard(
        condition(tree), holds(tree, count), wrong, 0.5 * bounds + 0.5 * cost + BOUND_PRICE * missed
    )


def _learned(shapes: Shapes, depth: int, inside: Array, outside: Array, seen: Array) -> Tree | None:
    """Learn a rule from some rows, with its values in all of them."""
    every = shapes(inside, outside)
    if not every:
        return None
    part = [feature._replace(values=feature.values[seen]) for feature in every]
    tree = learned(part, inside[seen], depth)
    return _whole(tree, {feature.text: feature for feature in every})


def _whole(tree: Tree, every: dict[str, Feature]) -> Tree:
    """Return a rule that was learned from some rows with the values of all."""
    if isinstance(tree, bool):
        return tree
    return ThresholdSplit(
        every[tree.feature.text],
        tree.threshold,
        _whole(tree.below, every),
        _whole(tree.above, every),
    )


def _discs(first: NamedColumn, second: NamedColumn) -> Shapes:
    return lambda inside, outside: _disc(first, second, inside, outside)


def _slants(first: NamedColumn, second: NamedColumn) -> Shapes:
    return lambda inside, outside: _slant(first, second, inside, outside)


def _disc(
    first: NamedColumn, second: NamedColumn, inside: Array, outside: Array, *, exact: bool = True
) -> list[Feature]:
    """Return the distance to the simplest centre of a circle between the rows, if there is one."""
    x, y = first.values, second.values
    plane = _separating([x, y, x**2 + y**2], inside, outside, exact)
    if plane is None or abs(plane[2]) < 1e-12:
        return []
    centre = -plane[:2] / (2 * plane[2])
    signs = (inside, outside) if plane[2] < 0 else (outside, inside)
    if not np.isfinite(centre).all() or np.abs(centre).max() > 1e4:
        return []

    def gap(point: tuple[float, ...]) -> float:
        distance = np.hypot(x - point[0], y - point[1])
        return float(distance[signs[1]].min() - distance[signs[0]].max())

    a, b = _simplest(centre, gap, exact)
    return [
        Feature(
            f"np.hypot({_less(first.text, a)}, {_less(second.text, b)})",
            np.hypot(x - a, y - b),
            1.5,
        )
    ]


def _slant(
    first: NamedColumn, second: NamedColumn, inside: Array, outside: Array, *, exact: bool = True
) -> list[Feature]:
    """Return the weighted sum whose bound separates the rows, with the simplest weight."""
    x, y = first.values, second.values
    plane = _separating([x, y], inside, outside, exact)
    if plane is None or np.abs(plane[:2]).min() < 1e-9:
        return []
    signs = (inside, outside) if plane[0] < 0 else (outside, inside)

    def gap(point: tuple[float, ...]) -> float:
        value = x + point[0] * y
        return float(value[signs[1]].min() - value[signs[0]].max())

    [weight] = _simplest(np.array([plane[1] / plane[0]]), gap, exact)
    sign = "-" if weight < 0 else "+"
    return [
        Feature(f"{first.text} {sign} {literal(abs(weight))} * {second.text}", x + weight * y, 1.5)
    ]


def _simplest(
    centre: Array, gap: Callable[[tuple[float, ...]], float], exact: bool
) -> tuple[float, ...]:
    """Return the numbers with the fewest digits near a point that leave a gap, the widest of these."""
    best = _widened(centre, gap)
    scale = float(np.abs(best).max()) or 1.0
    place = int(np.floor(np.log10(scale)))
    for digits in range(5):
        unit = 10.0 ** (place - digits)
        for step in (5 * unit, 2 * unit, unit):
            around = [
                {round(round(value / step + k) * step, 10) for k in (-1, 0, 1)} for value in best
            ]
            points = sorted(product(*around), key=lambda p: (-gap(p), p))
            if gap(points[0]) > 0:
                return tuple(float(v) for v in points[0])
    return tuple(rounded(float(value), 5) for value in best)


def _widened(centre: Array, gap: Callable[[tuple[float, ...]], float]) -> Array:
    """Move a point until the gap is as wide as it gets nearby."""
    best, value = centre.astype(float), gap(tuple(centre))
    step = 0.1 * (float(np.abs(centre).max()) + 1e-3)
    directions = [np.array(d, float) for d in product((-1, 0, 1), repeat=len(centre)) if any(d)]
    while step > 1e-4 * (float(np.abs(best).max()) + 1e-3):
        moved = [(gap(tuple(best + step * d)), i) for i, d in enumerate(directions)]
        most, index = max(moved)
        if most > value + 1e-15:
            best, value = best + step * directions[index], most
        else:
            step /= 2
    return best


def _less(text: str, value: float) -> str:
    """Write a difference."""
    if value == 0:
        return text
    return f"{text} {'-' if value > 0 else '+'} {literal(abs(value))}"


def _separating(
    columns: Sequence[Array], inside: Array, outside: Array, exact: bool
) -> Array | None:
    """Return weights of columns, and a constant, whose sum is above 0 inside and below it outside.

    The margin is as wide as it gets in units of the columns (a linear programme). Where rows
    cannot be separated there is none, unless it need not be exact: then violations are least.
    """
    from scipy.optimize import linprog

    matrix = np.stack(columns, 1)
    middle, scale = matrix[inside].mean(0), matrix[inside | outside].std(0) + 1e-12
    scaled = (matrix - middle) / scale
    rows = np.flatnonzero(inside | outside)
    sign = np.where(inside, 1.0, -1.0)[rows]
    signed = sign[:, None] * np.column_stack([scaled[rows], np.ones(len(rows))])
    width = signed.shape[1]
    if exact:
        left = np.column_stack([-signed, np.ones(len(rows))])
        cost = np.zeros(width + 1)
        cost[-1] = -1.0
        limits = [(-1.0, 1.0)] * (width - 1) + [(None, None), (None, 1e3)]
        found = linprog(cost, left, np.zeros(len(rows)), bounds=limits, method="highs")
        if found.status != 0 or found.x[-1] <= 1e-9:
            return None
    else:
        left = np.column_stack([-signed, -np.eye(len(rows))])
        weight = np.where(sign > 0, 10.0 / inside.sum(), 1.0 / max(1, outside.sum()))
        cost = np.concatenate([np.zeros(width), weight])
        limits = [(None, None)] * width + [(0, None)] * len(rows)
        found = linprog(cost, left, -np.ones(len(rows)), bounds=limits, method="highs")
        if found.status != 0 or np.abs(found.x[: width - 1]).max() < 1e-9:
            return None
    weights = found.x[: width - 1] / scale
    return np.append(weights, found.x[width - 1] - weights @ middle)
