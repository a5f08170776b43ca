"""Where a law holds: bounds, intervals, boxes, discs, half-planes and conjunctions of these.

A guard is the fewest bounds that hold in the rows in which a law is needed and leave out those in
which it would be wrong. A disc or a slanted half-plane is a bound on a quantity whose numbers are
found by a linear programme first. Each is tried on rows that its numbers were found without, and
mistakes there count as much as bounds. Numbers are the simplest ones in the gap between the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.effort import Effort
from cwm_induction.rules import Feature, threshold_between
from cwm_induction.writing.rounding import literal, rounded

FOLDS = 4
"""Parts of the rows that are kept out in turn."""

NUMBER = 0.6
"""What a bound costs beside its quantity, in mistakes in rows kept out."""

DISC, SLANT, BOXED = 3.6, 2.8, 0.45
"""What quantities cost that are made of two: two names and the numbers in them; and the sides of a
box, which share two names."""

WRONG = 3.0
"""What a mistake costs in rows that a guard was learned from."""

MOST_BOUNDS = 4
"""Bounds of a guard: a box in two dimensions has so many."""

MOST_LEVELS = 12
"""Values of a whole number that a guard may name one by one."""

MOST_PLANES = 16
"""Pairs of quantities in which discs and half-planes are looked for."""

ALWAYS = "True"
"""The text of the guard that always holds."""


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
        return self.cost + WRONG * self.wrong


@dataclass(frozen=True)
class Quantities:
    """What a guard may compare: numbers, and flags.

    The main numbers are those of the observation, and the `moved` ones of these are what they
    become. Rows of one of the `episodes` are kept out together, since they are alike.
    """

    columns: Sequence[NamedColumn]
    main: frozenset[str]
    moved: frozenset[str] = frozenset()
    flags: Sequence[NamedColumn] = ()
    episodes: Array | None = None

    @cached_property
    def features(self) -> list[Feature]:
        """The quantities as they are, and values of whole numbers one by one."""
        found = []
        for text, values, _ in self.columns:
            price = 1.0 if text in self.main else 1.3
            found.append(Feature(text, values, price))
            levels = np.unique(values)
            whole = bool((levels == np.round(levels)).all())
            if whole and 2 < len(levels) <= MOST_LEVELS:
                found += [
                    Feature(f"({text} == {level:g})", (values == level).astype(float), price + 0.1)
                    for level in levels.tolist()
                ]
        return found + [Feature(text, values, 1.0) for text, values, _ in self.flags]

    @cached_property
    def varied(self) -> list[NamedColumn]:
        """The main numbers that take many values."""
        return [c for c in self.columns if c.text in self.main and len(np.unique(c.values)) > 3]

    @property
    def planes(self) -> list[tuple[NamedColumn, NamedColumn]]:
        """The pairs of numbers of one time that may span a plane."""
        then = [column for column in self.varied if column.text in self.moved]
        now = [column for column in self.varied if column.text not in self.moved]
        return [*combinations(now, 2), *combinations(then, 2)][:MOST_PLANES]

    def folds(self, count: int) -> list[Array]:
        """Return the masks of the rows that are kept out in turn."""
        episodes = np.arange(count) if self.episodes is None else self.episodes
        place = np.unique(episodes, return_inverse=True)[1].reshape(-1)
        return [place % FOLDS == fold for fold in range(FOLDS)]

    @cached_property
    def compounds(self) -> list[Feature]:
        """Sizes, sums, differences and products that a guard may compare."""
        found = [*self.features]
        for text, values, _ in self.columns:
            if values.min() < 0 < values.max():
                found.append(Feature(f"abs({text})", np.abs(values), 1.3))
        for (a, x, _), (b, y, _) in combinations(self.varied, 2):
            found.append(Feature(f"{a} - {b}", x - y, 1.8))
            found.append(Feature(f"{a} + {b}", x + y, 1.8))
            found.append(Feature(f"{a} * {b}", x * y, 1.9))
        return found


@dataclass(frozen=True, eq=False)
class _Bound:
    """A side of a quantity: at most a value where `side` is 1, above one where it is -1."""

    feature: Feature
    side: int

    def keeps(self, inside: Array, outside: Array) -> Array:
        """Return which of the rows outside lie on the same side as all of those inside."""
        values = self.side * self.feature.values
        kept: Array = values[outside] <= values[inside].max()
        return kept

    def limit(self, inside: Array, others: Array) -> tuple[float, float]:
        """Return between which values the limit lies: the last inside, the first outside."""
        values = self.side * self.feature.values
        edge = float(values[inside].max())
        beyond = values[others & (values > edge)]
        return edge, float(beyond.min()) if len(beyond) else np.inf


def guard(known: Quantities, inside: Array, outside: Array, effort: Effort) -> Guard | None:
    """Return the best guard that holds inside and not outside; other rows do not matter."""
    if not inside.any():
        return None
    if not outside.any():
        return Guard(ALWAYS, np.ones(len(inside), bool), 0, 0.0)
    best: Guard | None = None
    folds = known.folds(len(inside))
    for make, least in _families(known, inside):
        if not effort.spend(20.0 * len(inside)):
            break
        if best is not None and best.rank <= least:
            continue
        for refit, found in make(inside, outside):
            tried = _weighed(refit, found, inside, outside, best.rank if best else np.inf, folds)
            if tried is not None and (best is None or tried.rank < best.rank - 1e-9):
                best = tried
    return best


Refit = Callable[[Array, Array], Sequence[_Bound]]
"""Finds the bounds of a kind of guard anew from other rows inside and outside."""

Family = Callable[[Array, Array], Iterator[tuple[Refit, Sequence[_Bound]]]]


def _families(known: Quantities, inside: Array) -> Iterator[tuple[Family, float]]:
    """Yield kinds of guards, and the least that they cost."""
    yield _bounded(known.features, 1), 1.0
    yield _bounded(known.compounds, 1), 1.3
    yield _bounded(known.features, 2), 2.6
    for first, second in known.planes:
        yield _curved(first, second, _disc), DISC + NUMBER
        yield _curved(first, second, _slant), SLANT + NUMBER
        yield _boxed(first, second), 3.8
    yield _bounded(known.compounds, 2), 2.9
    yield _bounded(known.features, MOST_BOUNDS), 6.0
    for flag in known.features:
        if flag.is_flag and (flag.values[inside] > 0).all():
            for first, second in known.planes:
                yield _curved(first, second, _disc, flag), DISC + 2 * NUMBER + flag.cost
                yield _curved(first, second, _slant, flag), SLANT + 2 * NUMBER + flag.cost


def _boxed(first: NamedColumn, second: NamedColumn) -> Family:
    """Return the family of boxes, without sides that leave out nothing."""
    pair = [Feature(column.text, column.values, BOXED) for column in (first, second)]

    def make(inside: Array, outside: Array) -> Iterator[tuple[Refit, Sequence[_Bound]]]:
        bounds = [_Bound(feature, side) for feature in pair for side in (1, -1)]
        left = {bound: bound.keeps(inside, outside) for bound in bounds}
        for bound in list(bounds):
            others = [left[other] for other in bounds if other is not bound]
            if others and not (np.all(others, axis=0) & ~left[bound]).any():
                bounds = [other for other in bounds if other is not bound]
        if len(bounds) > 2:
            yield (lambda _inside, _outside: bounds), bounds

    return make


def _bounded(features: Sequence[Feature], most: int) -> Family:
    """Return the family of conjunctions of so many bounds."""

    def make(inside: Array, outside: Array) -> Iterator[tuple[Refit, Sequence[_Bound]]]:
        bounds = _fewest(features, inside, outside, most)
        if bounds:
            yield (lambda _inside, _outside: bounds), bounds

    return make


def _curved(
    first: NamedColumn,
    second: NamedColumn,
    shape: "Callable[[NamedColumn, NamedColumn, Array, Array], list[Feature]]",
    flag: Feature | None = None,
) -> Family:
    """Return the family of bounds on a quantity of two, where a flag holds if there is one."""
    also = [] if flag is None else [_Bound(flag, -1)]

    def refit(inside: Array, outside: Array) -> list[_Bound]:
        rest = outside if flag is None else outside & (flag.values > 0)
        if not rest.any():
            return []
        return [
            _Bound(feature, 1 if feature.values[inside].max() < feature.values[rest].min() else -1)
            for feature in shape(first, second, inside, rest)
        ]

    def make(inside: Array, outside: Array) -> Iterator[tuple[Refit, Sequence[_Bound]]]:
        if found := refit(inside, outside):
            yield (lambda a, b: [*refit(a, b), *also]), [*found, *also]

    return make


def _fewest(
    features: Sequence[Feature], inside: Array, outside: Array, most: int
) -> Sequence[_Bound]:
    """Return the bounds that all rows inside keep and that leave out most of those outside."""
    values = np.stack([feature.values for feature in features])
    span = np.ptp(values, axis=1) + 1e-300
    within, without = values[:, inside], values[:, outside]
    kept, gaps = [], []
    for side in (1, -1):
        edge = (side * within).max(axis=1)
        over = side * without - edge[:, None]
        beyond = over > 1e-12 * span[:, None]
        kept.append(~beyond)
        gaps.append(np.where(beyond, over, np.inf).min(axis=1, initial=np.inf) / span)
    left = np.concatenate(kept).astype(np.float32)
    price = np.tile([feature.cost + NUMBER for feature in features], 2)
    price = price - 0.3 * np.minimum(np.concatenate(gaps), 1.0)
    useful = np.flatnonzero(left.mean(axis=1) < 1)
    if not len(useful):
        return []
    every = [
        _Bound(features[n % len(features)], 1 if n < len(features) else -1) for n in useful.tolist()
    ]
    left, price = left[useful], price[useful]
    if most == 1:
        return [every[int((WRONG * left.sum(axis=1) + price).argmin())]]
    pairs = WRONG * (left @ left.T) + price[:, None] + price[None]
    np.fill_diagonal(pairs, np.inf)
    if most == 2:
        return [every[n] for n in np.unravel_index(int(pairs.argmin()), pairs.shape)]
    chosen: list[int] = []
    rest = np.ones(left.shape[1], np.float32)
    while len(chosen) < most and rest.any():
        best = int((WRONG * (left @ rest) + price).argmin())
        if best in chosen:
            break
        chosen.append(best)
        rest = rest * left[best]
    for one in list(chosen):  # earlier ones may have become needless
        others = [n for n in chosen if n != one]
        if others and left[others].prod(axis=0).sum() <= rest.sum():
            chosen = others
    return [every[n] for n in chosen]


def _weighed(
    refit: Refit,
    bounds: Sequence[_Bound],
    inside: Array,
    outside: Array,
    least: float,
    folds: Sequence[Array],
) -> Guard | None:
    """Put numbers to bounds, and count the mistakes in rows that these were found without."""
    price = sum(bound.feature.cost + NUMBER for bound in bounds)
    text, mask = _numbered(bounds, inside, outside)
    wrong = int((mask & outside).sum() + (~mask & inside).sum())
    if wrong > 0.3 * inside.sum() or price + WRONG * wrong >= least:
        return None
    missed = 0
    for kept in folds:
        if not (inside & ~kept).any() or not (outside & ~kept).any():
            continue
        again = refit(inside & ~kept, outside & ~kept)
        said = _numbered(again, inside & ~kept, outside & ~kept)[1]
        missed += int((said != inside)[kept & (inside | outside)].sum())
    return Guard(text, mask, wrong, price + missed)


def _numbered(bounds: Sequence[_Bound], inside: Array, outside: Array) -> tuple[str, Array]:
    """Write bounds with the simplest numbers, and return in which rows all of them hold."""
    texts, mask = [], np.ones(len(inside), bool)
    for bound in bounds:
        others = outside & mask
        for other in bounds:
            if other is not bound:
                values = other.side * other.feature.values
                others &= values <= values[inside].max()
        edge, beyond = bound.limit(inside, others)
        if beyond == np.inf:
            edge, beyond = bound.limit(inside, outside)
        feature, side = bound.feature, bound.side
        if beyond == np.inf:
            continue
        if feature.is_flag:
            held = (feature.values > 0) if side < 0 else ~(feature.values > 0)
            texts.append(feature.text if side < 0 else f"not {feature.text}")
        else:
            limit = threshold_between(feature, *sorted((side * edge, side * beyond)))
            held = feature.values <= limit.value if side > 0 else feature.values > limit.value
            texts.append(f"{feature.text} {'<=' if side > 0 else '>'} {limit.text}")
        mask &= held
    return " and ".join(texts) or ALWAYS, mask


def _disc(first: NamedColumn, second: NamedColumn, inside: Array, outside: Array) -> list[Feature]:
    """Return the distance to the simplest centre of a circle between the rows, if there is one."""
    x, y = first.values, second.values
    plane = _separating([x, y, x**2 + y**2], inside, outside)
    if plane is None or abs(plane[2]) < 1e-12:
        return []
    centre = -plane[:2] / (2 * plane[2])
    signs = (inside, outside) if plane[2] < 0 else (outside, inside)
    if not np.isfinite(centre).all() or np.abs(centre).max() > 1e4:
        return []

    def gap(point: tuple[float, ...]) -> float:
        distance = np.hypot(x - point[0], y - point[1])
        return float(distance[signs[1]].min() - distance[signs[0]].max())

    a, b = _simplest(centre, gap)
    return [
        Feature(
            f"np.hypot({_less(first.text, a)}, {_less(second.text, b)})",
            np.hypot(x - a, y - b),
            1.5,
        )
    ]


def _slant(first: NamedColumn, second: NamedColumn, inside: Array, outside: Array) -> list[Feature]:
    """Return the weighted sum whose bound separates the rows, with the simplest weight."""
    x, y = first.values, second.values
    plane = _separating([x, y], inside, outside)
    if plane is None or np.abs(plane[:2]).min() < 1e-9:
        return []
    signs = (inside, outside) if plane[0] < 0 else (outside, inside)

    def gap(point: tuple[float, ...]) -> float:
        value = x + point[0] * y
        return float(value[signs[1]].min() - value[signs[0]].max())

    [weight] = _simplest(np.array([plane[1] / plane[0]]), gap)
    sign = "-" if weight < 0 else "+"
    return [
        Feature(
            f"{first.text} {sign} {literal(abs(weight))} * {second.text}", x + weight * y, SLANT
        )
    ]


def _simplest(centre: Array, gap: Callable[[tuple[float, ...]], float]) -> tuple[float, ...]:
    """Return the numbers with the fewest digits near a point that leave a gap, the widest one."""
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


def _separating(columns: Sequence[Array], inside: Array, outside: Array) -> Array | None:
    """Return weights of columns, and a constant, whose sum is above 0 inside and below it outside.

    The margin is as wide as it gets in units of the columns (a linear programme). Where rows
    cannot be separated there is none.
    """
    from scipy.optimize import linprog

    matrix = np.stack(columns, 1)
    rows = np.flatnonzero(inside | outside)
    middle, scale = matrix[inside].mean(0), matrix[rows].std(0) + 1e-12
    sign = np.where(inside, 1.0, -1.0)[rows]
    scaled = np.column_stack([(matrix[rows] - middle) / scale, np.ones(len(rows))])
    left = np.column_stack([-sign[:, None] * scaled, np.ones(len(rows))])
    width = len(columns)
    cost = np.zeros(width + 2)
    cost[-1] = -1.0
    limits: list[tuple[float | None, float | None]] = [(-1.0, 1.0)] * width
    limits += [(None, None), (None, 1e3)]
    found = linprog(cost, left, np.zeros(len(rows)), bounds=limits, method="highs")
    if found.status != 0 or found.x[-1] <= 1e-9:
        return None
    weights = found.x[:width] / scale
    return np.append(weights, found.x[width] - weights @ middle)
