"""Threshold rules: when an episode ends, when another equation or another reward holds.

A rule is a few bounds that all hold, or of which one is enough; where no such bounds decide it
is a tree of comparisons, and where that gets rows wrong it has alternatives that each cover
some of the wanted rows. Thresholds are the simplest numbers in the gaps of the data.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.writing.rounding import literal, simplest_between, whole_degrees_between
from cwm_induction.writing.statements import mentioned

MOST_ALTERNATIVES = 4
"""Bounds that may be split off before the rest is learned: each makes the rule longer."""

APART = 1e-12
"""Values that differ by less of their range than this are the same but for rounding."""


class Feature(NamedTuple):
    """A quantity that a rule may compare with a threshold.

    `degrees` says that whole degrees are simpler here than decimals; `label`
    is what to call a threshold for it.
    """

    text: str
    values: Array
    cost: float = 1.0
    degrees: bool = False
    label: str = "THRESHOLD"

    @property
    def is_flag(self) -> bool:
        """Whether the quantity is a condition by itself."""
        return bool(np.isin(self.values, (0.0, 1.0)).all())

    @property
    def is_whole(self) -> bool:
        """Whether the quantity only takes whole numbers."""
        return bool((self.values == np.round(self.values)).all())


class Threshold(NamedTuple):
    """A number to compare with, as a person would write it."""

    value: float
    text: str
    comment: str = ""


@dataclass(frozen=True)
class ThresholdSplit:
    """A comparison, and what holds up to the threshold and above it."""

    feature: Feature
    threshold: Threshold
    below: "Tree"
    above: "Tree"


Tree: TypeAlias = bool | ThresholdSplit
"""A rule: an answer, or a comparison that leads to further rules."""

Namer = Callable[[Feature, Threshold], str]
"""Chooses the text that stands for a threshold."""


def learned(features: Sequence[Feature], wanted: Array, depth: int) -> Tree:
    """Return a rule for the wanted rows: a few bounds if these decide, or a tree.

    Either all bounds hold in the wanted rows, or one of their opposites does.
    """
    sides = [(_enclosing(features, wanted, depth + 1), False)]
    sides += [(_enclosing(features, ~wanted, depth + 1), True)]
    decided = [(len(found), opposite, found) for found, opposite in sides if found is not None]
    if not decided:
        return _grown(features, wanted, np.arange(len(wanted)), depth)
    _, opposite, found = min(decided, key=lambda entry: entry[:2])
    tree: Tree = not opposite
    for bound, outside in reversed(found):
        feature = features[bound.feature]
        threshold = threshold_between(feature, *sorted((bound.edge, outside)))
        below, above = (tree, opposite) if bound.side > 0 else (opposite, tree)
        tree = ThresholdSplit(feature, threshold, below, above)
    return tree


def separated(features: Sequence[Feature], wanted: Array, depth: int) -> Tree:
    """Return a rule for the wanted rows, with alternatives where a plain one gets rows wrong."""
    plain = learned(features, wanted, depth)
    wrong = mistakes(plain, wanted)
    if not wrong:
        return plain
    found = _covered(features, wanted, depth)
    return found if mistakes(found, wanted) < wrong else plain


def in_rows(
    learn: Callable[[Sequence[Feature], Array, int], Tree],
    features: Sequence[Feature],
    wanted: Array,
    rows: Array,
    depth: int,
) -> Tree:
    """Learn a rule from some of the rows, by their numbers; return it with the values of all."""
    part = [feature._replace(values=feature.values[rows]) for feature in features]
    return _everywhere(learn(part, wanted[rows], depth), features)


def holds(tree: Tree, rows: int) -> Array:
    """Return the mask of the rows in which a rule says yes."""
    if isinstance(tree, bool):
        return np.full(rows, tree)
    low = tree.feature.values <= tree.threshold.value
    return np.where(low, holds(tree.below, rows), holds(tree.above, rows))


def mistakes(tree: Tree, wanted: Array) -> int:
    """Return in how many rows a rule is wrong."""
    return int((holds(tree, len(wanted)) != wanted).sum())


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
    return ThresholdSplit(first.feature, first.threshold, below, above)


def names_in(tree: Tree) -> set[str]:
    """Return the names that a rule reads."""
    if isinstance(tree, bool):
        return set()
    return mentioned(tree.feature.text) | names_in(tree.below) | names_in(tree.above)


def inline(feature: Feature, threshold: Threshold) -> str:
    """Write the threshold itself."""
    return threshold.text


def condition(tree: Tree, name: Namer = inline) -> str:
    """Write a rule as a condition."""
    if isinstance(tree, bool):
        return repr(tree)
    low, high = _comparisons(tree, name)
    if isinstance(tree.below, bool) and isinstance(tree.above, bool):
        return low if tree.below else high
    if isinstance(tree.below, bool):
        joined = f"{low} or" if tree.below else f"{high} and"
        return f"{joined} {_inner(tree.above, name)}"
    if isinstance(tree.above, bool):
        joined = f"{high} or" if tree.above else f"{low} and"
        return f"{joined} {_inner(tree.below, name)}"
    return f"({low} and {_inner(tree.below, name)}) or ({high} and {_inner(tree.above, name)})"


def threshold_between(feature: Feature, low: float, high: float) -> Threshold:
    """Return the simplest number in a gap."""
    if feature.is_whole:
        return Threshold(low, literal(low).removesuffix(".0"))
    comment = f"The data only show that it is between {low:.5g} and {high:.5g}."
    degrees = whole_degrees_between(low, high) if feature.degrees else None
    if degrees is not None:
        return Threshold(float(np.radians(degrees)), f"np.radians({degrees})", comment)
    value = simplest_between(low, high)
    return Threshold(value, repr(value), comment)


def as_features(columns: Sequence[NamedColumn], cost: float = 1.0) -> list[Feature]:
    """Let rules compare some columns."""
    return [
        Feature(text, values, cost, label=f"{text.upper()}_THRESHOLD".replace("_NEXT", ""))
        if text.isidentifier()
        else Feature(text, values, cost)
        for text, values, _ in columns
    ]


class _Cut(NamedTuple):
    """A gap in the values of a feature, and how well it parts the rows."""

    impurity: float
    price: float
    number: int
    low: float
    high: float


def _grown(features: Sequence[Feature], wanted: Array, rows: Array, depth: int) -> Tree:
    """Split until the rows agree, the depth is used up or few rows are left."""
    share = wanted[rows].mean()
    majority = bool(share > 0.5)
    if share in (0, 1) or depth == 0 or len(rows) < 4:
        return majority
    cuts = [
        cut
        for index, feature in enumerate(features)
        if (cut := _best_cut(feature, index, wanted[rows], rows)) is not None
    ]
    if not cuts:
        return majority
    cut = min(cuts)
    feature = features[cut.number]
    threshold = threshold_between(feature, cut.low, cut.high)
    low = feature.values[rows] <= threshold.value
    below = _grown(features, wanted, rows[low], depth - 1)
    above = _grown(features, wanted, rows[~low], depth - 1)
    if isinstance(below, bool) and below == above:
        return below
    return ThresholdSplit(feature, threshold, below, above)


def _best_cut(feature: Feature, index: int, wanted: Array, rows: Array) -> _Cut | None:
    """Return the gap that parts the wanted rows best (Gini impurity), the widest if tied."""
    values = feature.values[rows]
    order = np.argsort(values, kind="stable")
    values, wanted = values[order], wanted[order].astype(float)
    gaps = np.diff(values)
    span = values[-1] - values[0]
    if not span > 0:
        return None
    count = np.arange(1, len(values))
    yes = np.cumsum(wanted)[:-1]
    others = len(values) - count
    missed = wanted.sum() - yes
    impurity = yes * (count - yes) / count + missed * (others - missed) / others
    impurity = np.where(gaps > APART * span, np.round(impurity, 6), np.inf)
    ties = np.flatnonzero(impurity == impurity.min())
    best = ties[np.argmax(gaps[ties])]
    price = 0.5 * feature.cost - float(gaps[best]) / span
    return _Cut(float(impurity[best]), price, index, float(values[best]), float(values[best + 1]))


class _Bound(NamedTuple):
    """A one-sided bound on a feature that all wanted rows keep.

    `side` is 1 where values stay below and -1 where they stay above; `broken`
    marks the other rows that do not keep it.
    """

    feature: int
    side: int
    edge: float
    broken: Array
    price: float


def _enclosing(
    features: Sequence[Feature], wanted: Array, most: int
) -> list[tuple[_Bound, float]] | None:
    """Return the fewest bounds that hold in all wanted rows and never all hold in the others.

    With each comes the nearest value that it has to keep out.
    """
    if not wanted.any() or wanted.all():
        return None
    chosen = _fewest(list(_bounds(features, wanted)), most)
    if chosen is None:
        return None
    found = []
    for bound in chosen:
        others = [other.broken for other in chosen if other is not bound]
        left = ~np.any(others, axis=0) if others else np.ones(len(bound.broken), bool)
        outside = features[bound.feature].values[~wanted][left & bound.broken]
        found.append((bound, float(bound.side * (bound.side * outside).min())))
    return found


def _bounds(features: Sequence[Feature], wanted: Array) -> Iterator[_Bound]:
    """Yield the bounds that keep some other row out."""
    for index, feature in enumerate(features):
        span = float(np.ptp(feature.values))
        if not span > 0:
            continue
        inside, outside = feature.values[wanted], feature.values[~wanted]
        for side in (1, -1):
            edge = float((side * inside).max())
            over = side * outside - edge
            broken = over > APART * span
            if broken.any():
                gap = float(over[broken].min()) / span
                yield _Bound(index, side, side * edge, broken, 0.5 * feature.cost - gap)


def _fewest(bounds: list[_Bound], most: int) -> list[_Bound] | None:
    """Return one bound, or two, or as many as it takes to keep all other rows out."""
    if not bounds:
        return None
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
    chosen: list[_Bound] = []
    left = np.ones(kept.shape[1], bool)
    while left.any() and len(chosen) < most:
        best = max(bounds, key=lambda bound: (int((bound.broken & left).sum()), -bound.price))
        if not (best.broken & left).any():
            return None
        chosen.append(best)
        left &= ~best.broken
    if left.any():
        return None
    for bound in list(chosen):  # earlier ones may have become needless
        others = [other for other in chosen if other is not bound]
        if others and np.any([other.broken for other in others], axis=0).all():
            chosen = others
    return chosen


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
    tree = in_rows(learned, features, wanted, rows, depth) if remaining.any() else False
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
            beyond = remaining & (values > edge + APART * float(np.ptp(values)))
            count = int(beyond.sum())
            if count < 2 or (best is not None and (count, -feature.cost) <= best[:2]):
                continue
            inner, outer = side * edge, side * float(values[wanted & (values > edge)].min())
            threshold = threshold_between(feature, *sorted((inner, outer)))
            best = (count, -feature.cost, ThresholdSplit(feature, threshold, side < 0, side > 0))
    return best[2] if best else None


def _everywhere(tree: Tree, features: Sequence[Feature]) -> Tree:
    """Return a rule that was learned from some rows with the values of all rows."""
    if isinstance(tree, bool):
        return tree
    feature = next(f for f in features if f.text == tree.feature.text)
    below, above = _everywhere(tree.below, features), _everywhere(tree.above, features)
    return ThresholdSplit(feature, tree.threshold, below, above)


def _comparisons(split: ThresholdSplit, name: Namer) -> tuple[str, str]:
    """Write both outcomes of a comparison."""
    text = split.feature.text
    if split.feature.is_flag:
        return f"not {text}", text
    number = name(split.feature, split.threshold)
    return f"{text} <= {number}", f"{text} > {number}"


def _inner(tree: Tree, name: Namer) -> str:
    """Write a rule inside another one."""
    text = condition(tree, name)
    return f"({text})" if " and " in text or " or " in text else text
