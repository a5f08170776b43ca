"""Rules that are alternatives: each covers some of the wanted rows and none of the others."""

from collections.abc import Sequence

import numpy as np

from cwm_induction.continuous.rules import (
    Feature,
    Split,
    Tree,
    everywhere,
    holds,
    learned,
    threshold_between,
)
from cwm_induction.continuous.samples import Array

MOST_ALTERNATIVES = 4


def separated(features: Sequence[Feature], wanted: Array, depth: int) -> Tree:
    """Return a rule for the wanted rows, with alternatives where a plain one gets rows wrong."""
    plain = learned(features, wanted, depth)
    wrong = mistakes(plain, wanted)
    if not wrong:
        return plain
    found = _covered(features, wanted, depth)
    return found if mistakes(found, wanted) < wrong else plain


def complexity(tree: Tree) -> tuple[int, float]:
    """Return how many comparisons a rule makes, and what it costs to believe in these."""
    if isinstance(tree, bool):
        return 0, 0.0
    parts = complexity(tree.below), complexity(tree.above)
    return 1 + sum(p[0] for p in parts), tree.feature.cost + sum(p[1] for p in parts)


def either(first: Tree, second: Tree) -> Tree:
    """Return a rule that says yes where one of two does."""
    if isinstance(first, bool):
        return first or second
    below, above = either(first.below, second), either(first.above, second)
    return Split(first.feature, first.threshold, below, above)


def mistakes(tree: Tree, wanted: Array) -> int:
    """Return in how many rows a rule is wrong."""
    return int((holds(tree, len(wanted)) != wanted).sum())


def _covered(features: Sequence[Feature], wanted: Array, depth: int) -> Tree:
    """Take away the rows beyond the bound that covers most, repeat, then learn the rest."""
    bounds: list[Tree] = []
    remaining = wanted.copy()
    while remaining.sum() > 1 and len(bounds) < MOST_ALTERNATIVES:
        bound = _beyond(features, wanted, remaining)
        if bound is None:
            break
        bounds.append(bound)
        remaining &= ~holds(bound, len(wanted))
    rows = np.flatnonzero(remaining | ~wanted)
    part = [feature._replace(values=feature.values[rows]) for feature in features]
    tree = everywhere(learned(part, wanted[rows], depth), features) if remaining.any() else False
    for bound in reversed(bounds):
        tree = either(bound, tree)
    return tree


def _beyond(features: Sequence[Feature], wanted: Array, remaining: Array) -> Tree | None:
    """Return the bound beyond which most of the remaining rows lie and no unwanted ones."""
    best: tuple[float, float, Tree] | None = None
    for feature in features:
        for side in (1, -1):
            values = side * feature.values
            edge = float(values[~wanted].max(initial=-np.inf))
            beyond = remaining & (values > edge + 1e-12 * float(np.ptp(values)))
            count = int(beyond.sum())
            if count < 2 or (best is not None and (count, -feature.cost) <= best[:2]):
                continue
            inner, outer = side * edge, side * float(values[wanted & (values > edge)].min())
            threshold = threshold_between(feature, min(inner, outer), max(inner, outer))
            split = Split(feature, threshold, side < 0, side > 0)
            best = (count, -feature.cost, split)
    return best[2] if best else None
