"""Rules as trees of thresholds, written out as boxes."""

from dataclasses import dataclass
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.tables import Bound, Box, Examples, Rules

MAX_DEPTH = 6
MAX_KINDS = 32
TREE_BITS = 10.0
"""What a tree pays for claiming something about whatever was not seen."""


class _Split(NamedTuple):
    """A column is at most a value, or equal to it."""

    place: int
    value: int
    equal: bool

    def holds(self, values: np.ndarray) -> np.ndarray:
        column = values[:, self.place]
        answer: np.ndarray = column == self.value if self.equal else column <= self.value
        return answer


@dataclass(frozen=True)
class _Node:
    """A part of the tree: its boxes and their description length."""

    boxes: tuple[Box, ...]
    bits: float


def fit_tree(examples: Examples) -> Rules:
    """Grow a tree over all columns and keep the splits that pay for themselves."""
    bounds = tuple(
        Bound(column, index, 0, column.size - 1)
        for index, column in enumerate(examples.pool.columns)
    )
    node = _grow(examples, bounds, MAX_DEPTH)
    return Rules(tuple(box for box in node.boxes if box.label), node.bits + TREE_BITS)


def _grow(examples: Examples, bounds: tuple[Bound, ...], depth: int) -> _Node:
    """Return the cheaper of a leaf and the best split."""
    counts = np.bincount(examples.labels, weights=examples.weights, minlength=examples.kinds)
    label = int(counts.argmax())
    box = Box(_tight(bounds, examples), label)
    leaf = _Node(
        (box,), 1 + log2(examples.kinds) + (counts.sum() - counts[label]) * examples.error_bits
    )
    if depth == 0 or np.count_nonzero(counts) < 2:
        return leaf
    split = _best_split(examples)
    if split is None:
        return leaf
    mask = split.holds(examples.pool.values)
    inner, outer = _cut(bounds, split)
    yes = _grow(examples.select(mask), inner, depth - 1)
    no = _grow(examples.select(~mask), outer, depth - 1)
    size = examples.pool.columns[split.place].size
    bits = 1 + log2(len(bounds)) + log2(size) + yes.bits + no.bits
    return _Node(yes.boxes + no.boxes, bits) if bits < leaf.bits else leaf


def _tight(bounds: tuple[Bound, ...], examples: Examples) -> tuple[Bound, ...]:
    """Drop the bounds that admit every value of their column."""
    return tuple(
        bound
        for bound in bounds
        if bound.low > 0 or bound.high < bound.column.size - 1 or bound.excluded
    )


def _cut(bounds: tuple[Bound, ...], split: _Split) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """Return the bounds on the side where the split holds and on the other."""
    bound = bounds[split.place]
    if split.equal:
        inside = bound._replace(low=split.value, high=split.value, excluded=())
        outside = bound._replace(excluded=(*bound.excluded, split.value))
    else:
        inside = bound._replace(high=split.value)
        outside = bound._replace(low=split.value + 1)
    return (
        (*bounds[: split.place], inside, *bounds[split.place + 1 :]),
        (*bounds[: split.place], outside, *bounds[split.place + 1 :]),
    )


def _best_split(examples: Examples) -> _Split | None:
    """Return the split that leaves the least entropy; thresholds before equality."""
    best, least = None, np.inf
    for index in range(len(examples.pool.columns)):
        values, group = np.unique(examples.pool.values[:, index], return_inverse=True)
        if len(values) < 2:
            continue
        kinds = examples.kinds
        counts = np.bincount(
            group.reshape(-1) * kinds + examples.labels,
            weights=examples.weights,
            minlength=len(values) * kinds,
        ).reshape(-1, kinds)
        for equal, sides in ((False, counts.cumsum(axis=0)[:-1]), (True, counts)):
            left = _entropy(sides) + _entropy(counts.sum(axis=0) - sides) + 0.01 * equal
            position = int(left.argmin())
            if left[position] < least - 1e-9:
                best, least = _Split(index, int(values[position]), equal), left[position]
    return best


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of every row of counts, in bits, times its total."""
    totals = counts.sum(axis=-1, keepdims=True)
    share = np.where(counts > 0, counts / np.maximum(totals, 1e-300), 1.0)
    entropy: np.ndarray = -(counts * np.log2(share)).sum(axis=-1)
    return entropy
