"""Rules that are a few bounds: all must hold, or one is enough."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array


class Bound(NamedTuple):
    """A one-sided bound on a feature that all wanted rows keep.

    `side` is 1 where values stay below and -1 where they stay above; `broken`
    marks the other rows that do not keep it.
    """

    feature: int
    side: int
    edge: float
    broken: Array
    price: float


class Edge(NamedTuple):
    """A one-sided bound: the last value inside, and the nearest that it has to keep out."""

    feature: int
    side: int
    inside: float
    outside: float


def enclosing(
    values: Sequence[Array], prices: Sequence[float], wanted: Array, most: int
) -> list[Edge] | None:
    """Return the fewest bounds that hold in all wanted rows and never all hold in the others."""
    if not wanted.any() or wanted.all():
        return None
    bounds = list(_bounds(values, prices, wanted))
    chosen = _fewest(bounds, most) if bounds else None
    if chosen is None:
        return None
    found = []
    for bound in chosen:
        others = [other.broken for other in chosen if other is not bound]
        left = ~np.any(others, axis=0) if others else np.ones(len(bound.broken), bool)
        outside = bound.side * values[bound.feature][~wanted][left & bound.broken]
        nearest = float(bound.side * outside.min())
        found.append(Edge(bound.feature, bound.side, bound.edge, nearest))
    return found


def _bounds(values: Sequence[Array], prices: Sequence[float], wanted: Array) -> Iterator[Bound]:
    """Yield the bounds that keep some other row out."""
    for index, (column, price) in enumerate(zip(values, prices, strict=True)):
        span = float(np.ptp(column))
        if not span > 0:
            continue
        inside, outside = column[wanted], column[~wanted]
        for side in (1, -1):
            edge = float((side * inside).max())
            over = side * outside - edge
            broken = over > 1e-12 * span
            if broken.any():
                gap = float(over[broken].min()) / span
                yield Bound(index, side, side * edge, broken, price - gap)


def _fewest(bounds: list[Bound], most: int) -> list[Bound] | None:
    """Return one bound, or two, or as many as it takes to keep all other rows out."""
    kept = np.array([~bound.broken for bound in bounds], dtype=float)
    alone = [bound for bound, rows in zip(bounds, kept, strict=True) if not rows.any()]
    if alone:
        return [min(alone, key=lambda bound: bound.price)]
    if most >= 2:
        both = kept @ kept.T
        pairs = [
            (bounds[i].price + bounds[j].price, i, j)
            for i, j in combinations(range(len(bounds)), 2)
            if both[i, j] == 0
        ]
        if pairs:
            _, i, j = min(pairs)
            return [bounds[i], bounds[j]]
    chosen: list[Bound] = []
    left = np.ones(kept.shape[1], bool)
    while left.any() and len(chosen) < most:
        best = max(bounds, key=lambda bound: (int((bound.broken & left).sum()), -bound.price))
        if not (best.broken & left).any():
            return None
        chosen.append(best)
        left &= ~best.broken
    return None if left.any() else _needed(chosen)


def _needed(chosen: list[Bound]) -> list[Bound]:
    """Leave out the bounds that later ones made needless."""
    for bound in list(chosen):
        others = [other for other in chosen if other is not bound]
        if others and np.any([other.broken for other in others], axis=0).all():
            chosen = others
    return chosen
