"""Searches for the decision list with the shortest description: layers, trees and general claims.

Layers are tables of keys and runs of neighbouring values. Trees are sets of thresholds, written
as boxes. Claims are conjunctions of a few comparisons.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.rules import (
    KEY_BITS,
    RELATION_BITS,
    Box,
    ColumnBound,
    DecisionList,
    DecisionTable,
    LabelledRows,
    RuleColumn,
    RuleInputs,
)

MOST_WEIGHT = 3
"""Largest weight of a transition, so that common transitions do not outweigh all others."""

FULL_COLUMNS = 4
"""Largest number of columns of a table."""

MAX_LAYERS = 3
"""Largest number of layers (tables and runs)."""

LEAST_RUN = 3
"""Least number of values of a run; keys describe fewer values."""

MOST_RUN_KINDS = 6
"""Skip runs if there are more labels than this; each label needs a search."""

MOST_CODES_PER_ROW = 10
"""Count keys in an array of all codes up to this many codes per row, which avoids sorting."""

MAX_DEPTH = 6
"""Largest depth of a tree; each level may double the number of leaves."""

MAX_KINDS = 32
"""Skip trees if there are more labels than this."""

TREE_BITS = 10.0
"""Price of a tree, as it predicts labels of rows without observations."""

MOST_BOUNDS = 3
"""Largest number of comparisons in a claim."""

MOST_CLAIMS = 8
"""Largest number of claims in a decision list."""

BEAM = 12
"""Width of the beam of claims, and number of refinements of each claim."""

MOST_CELLS = 6_000_000
"""Largest number of comparison results (comparisons times rows) in memory."""

CLAIM_BITS = 4.0
"""Price of a claim, in addition to the price of its comparisons and its label."""


class RuleVariant(NamedTuple):
    """The hypotheses that a search considers.

    `rank` is the rank of the layout, 0 for the best. `shapes` permits trees and runs in addition
    to tables, and `blocks` permits rules that block all moves together. Without `moves`, tables
    contain the next values. With `shifts`, exceptions may add to the results of moves.
    """

    rank: int = 0
    shapes: bool = True
    blocks: bool = True
    moves: bool = True
    shifts: bool = False


def choose_rules(examples: LabelledRows, variant: RuleVariant) -> DecisionList:
    """Return the shorter of layers and, if the variant permits shapes, a tree."""
    layers = fit_layers(examples, FULL_COLUMNS, runs=variant.shapes)
    if not variant.shapes or not examples.labels.any() or examples.kinds > MAX_KINDS:
        return layers
    return min(layers, fit_tree(examples), key=lambda rules: rules.bits)


def general_rules(
    examples: LabelledRows, usual: DecisionList, inputs: RuleInputs
) -> DecisionList | None:
    """Return claims about `inputs` if they are shorter and no worse than the rules `usual`.

    For this comparison, each key of a table costs the bits of a choice among all possible keys.
    """
    claims = fit_claims(replace(examples, inputs=inputs))
    bits = usual.bits
    for layer in usual.layers:
        if isinstance(layer, DecisionTable):
            possible = sum(log2(max(column.size, 2)) for column in layer.columns)
            bits += len(layer.labels) * max(0.0, possible - KEY_BITS)
    if claims is None or claims.bits >= bits:
        return None
    missed = examples.loss(claims.apply(inputs))
    return claims if missed <= examples.loss(usual.apply(examples.inputs)) else None


class _Layer(NamedTuple):
    """A layer, its description length, and the bits of the rows that remain wrong."""

    layer: DecisionTable | Box
    bits: float
    loss: float

    @property
    def total(self) -> float:
        return self.bits + self.loss


def fit_layers(examples: LabelledRows, most_columns: int, *, runs: bool) -> DecisionList:
    """Fit layers of tables, and of runs if `runs` is set."""

    def propose(labels: np.ndarray, loss: float) -> Iterator[_Layer | None]:
        yield _best_table(examples, labels, most_columns, loss)
        if runs:
            yield _best_run(examples, labels)

    return _add_layers(examples, MAX_LAYERS, propose)


def _add_layers(
    examples: LabelledRows,
    most: int,
    propose: Callable[[np.ndarray, float], Iterator[_Layer | None]],
) -> DecisionList:
    """Add the best proposed layers one by one, while they shorten the description.

    `most` limits the number of layers. `propose` gets the current labels and the bits of their
    errors.
    """
    labels = np.zeros_like(examples.labels)
    layers: list[DecisionTable | Box] = []
    spent, loss = 0.0, examples.loss(labels)
    while len(layers) < most and loss > 0:
        proposals = (layer for layer in propose(labels, loss) if layer)
        best = min(proposals, key=lambda layer: layer.total, default=None)
        if best is None or best.total >= loss:
            break
        layers.append(best.layer)
        labels = best.layer.apply(examples.inputs, labels)
        spent, loss = spent + best.bits, best.loss
    return DecisionList(tuple(layers), spent + loss)


def _best_table(
    examples: LabelledRows, labels: np.ndarray, most: int, limit: float
) -> _Layer | None:
    """Return the table that shortens the description most, if any does.

    The table contains the keys that save more bits than they cost.
    """
    best, least, wrong = None, limit - 1e-9, labels != examples.labels
    for chosen, bits in examples.inputs.subsets(most):
        if bits < least:
            prices = _prices(examples, wrong, chosen)
            total = bits + np.minimum(prices.stay, prices.change).sum()
            if total < least:
                best, least = chosen, total
    if best is None:
        return None
    stay, change, counts = _prices(examples, wrong, best)
    inputs = examples.inputs
    _, first = np.unique(inputs.codes(best), return_index=True)
    keys = zip(inputs.values[first][:, best].tolist(), counts.argmax(axis=1), strict=True)
    labelled = {
        tuple(key): int(label)
        for (key, label), pays in zip(keys, change < stay, strict=True)
        if pays
    }
    table = DecisionTable(tuple(inputs.columns[index] for index in best), best, labelled)
    bits = inputs.bits(best) + len(labelled) * examples.key_bits
    return _Layer(table, bits, examples.loss(table.apply(inputs, labels)))


class _Prices(NamedTuple):
    """For each key: the bits without it, the bits with it, and the weight of each label."""

    stay: np.ndarray
    change: np.ndarray
    counts: np.ndarray


def _prices(examples: LabelledRows, wrong: np.ndarray, chosen: tuple[int, ...]) -> _Prices:
    """Return the prices of all keys of a table, given the mask of wrong rows."""
    group, keys = _key_indices(examples.inputs.codes(chosen))
    kinds = examples.kinds
    counts = np.bincount(
        group * kinds + examples.labels, weights=examples.weights, minlength=keys * kinds
    ).reshape(-1, kinds)
    weights = examples.weights * wrong
    stay = np.bincount(group, weights=weights, minlength=keys) * examples.error_bits
    missed = counts.sum(axis=1) - counts.max(axis=1)
    change = missed * examples.error_bits + examples.key_bits
    return _Prices(stay, change, counts)


def _key_indices(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the index of the key of each row, and the number of keys."""
    if codes.min(initial=0) < 0 or codes.max(initial=0) > MOST_CODES_PER_ROW * len(codes):
        values, group = np.unique(codes, return_inverse=True)
        return group, len(values)
    numbers = np.cumsum(np.bincount(codes) > 0)
    return numbers[codes] - 1, int(numbers[-1]) if len(numbers) else 0


def _best_run(examples: LabelledRows, labels: np.ndarray) -> _Layer | None:
    """Return the run with the shortest description: a range of one column for a value of another.

    A run also covers gaps without observations and the next value on each side, so it must be
    long enough to be cheaper than its keys.
    """
    if examples.kinds > MOST_RUN_KINDS:
        return None
    wrong = labels != examples.labels
    columns = [pair for pair in enumerate(examples.inputs.columns) if pair[1].size >= LEAST_RUN]
    pairs = [
        (place, along)
        for (place, fixed), (along, other) in product(columns, columns)
        if min(fixed.factor, other.factor) >= 0 and fixed.factor != other.factor
    ]
    runs = [
        run
        for label in np.unique(examples.labels[wrong]).tolist()
        for pair in pairs
        for run in _runs(examples, labels, wrong & (examples.labels == label), pair)
    ]
    return min(runs, key=lambda run: run.total, default=None)


def _runs(
    examples: LabelledRows, labels: np.ndarray, wanted: np.ndarray, pair: tuple[int, int]
) -> list[_Layer]:
    """Return a run for each value of the first column with enough `wanted` values in the second."""
    inputs, (fixed, along) = examples.inputs, pair
    columns = inputs.columns[fixed], inputs.columns[along]
    label = int(examples.labels[wanted][0])
    bits = inputs.bits(pair) + examples.key_bits + log2(columns[0].size) + 2 * log2(columns[1].size)
    runs = []
    for value in np.unique(inputs.values[wanted, fixed]).tolist():
        places = np.unique(inputs.values[wanted & (inputs.values[:, fixed] == value), along])
        if len(places) >= LEAST_RUN:
            known = np.unique(inputs.values[inputs.values[:, fixed] == value, along])
            ends = ColumnBound(columns[1], along, *_with_neighbours(places, known))
            box = Box((ColumnBound(columns[0], fixed, value, value), ends), label)
            runs.append(_Layer(box, bits, examples.loss(box.apply(inputs, labels))))
    return runs


def _with_neighbours(places: np.ndarray, known: np.ndarray) -> tuple[int, int]:
    """Return the ends of a run, extended by an unseen value on each side.

    An end stays if the next value was seen, or if no value beyond it was seen.
    """
    low, high = int(places[0]), int(places[-1])
    below, above = known[known < low], known[known > high]
    lower = len(below) > 0 and int(below[-1]) < low - 1
    higher = len(above) > 0 and int(above[0]) > high + 1
    return low - lower, high + higher


class _Split(NamedTuple):
    """A test whether a column is equal to a value, or at most that value."""

    place: int
    value: int
    equal: bool

    def holds(self, values: np.ndarray) -> np.ndarray:
        column = values[:, self.place]
        answer: np.ndarray = column == self.value if self.equal else column <= self.value
        return answer


class _Node(NamedTuple):
    """A subtree: its boxes and their description length."""

    boxes: tuple[Box, ...]
    bits: float


def fit_tree(examples: LabelledRows) -> DecisionList:
    """Grow a tree over all columns and keep the splits that save more bits than they cost."""
    bounds = tuple(
        ColumnBound(column, index, 0, column.size - 1)
        for index, column in enumerate(examples.inputs.columns)
    )
    node = _grow(examples, bounds, MAX_DEPTH)
    return DecisionList(tuple(box for box in node.boxes if box.label), node.bits + TREE_BITS)


def _grow(examples: LabelledRows, bounds: tuple[ColumnBound, ...], depth: int) -> _Node:
    """Return the cheaper of a leaf and the best split."""
    counts = np.bincount(examples.labels, weights=examples.weights, minlength=examples.kinds)
    label = int(counts.argmax())
    narrow = (b for b in bounds if b.low > 0 or b.high < b.column.size - 1 or b.excluded)
    missed = (counts.sum() - counts[label]) * examples.error_bits
    leaf = _Node((Box(tuple(narrow), label),), 1 + log2(examples.kinds) + missed)
    if depth == 0 or np.count_nonzero(counts) < 2 or not (split := _best_split(examples)):
        return leaf
    mask = split.holds(examples.inputs.values)
    inner, outer = _cut(bounds, split)
    yes = _grow(examples.select(mask), inner, depth - 1)
    no = _grow(examples.select(~mask), outer, depth - 1)
    size = examples.inputs.columns[split.place].size
    bits = 1 + log2(len(bounds)) + log2(size) + yes.bits + no.bits
    return _Node(yes.boxes + no.boxes, bits) if bits < leaf.bits else leaf


def _cut(
    bounds: tuple[ColumnBound, ...], split: _Split
) -> tuple[tuple[ColumnBound, ...], tuple[ColumnBound, ...]]:
    """Return the bounds of the rows that fulfil the split, and of the other rows."""
    bound = bounds[split.place]
    if split.equal:
        inside = bound._replace(low=split.value, high=split.value, excluded=())
        outside = bound._replace(excluded=(*bound.excluded, split.value))
    else:
        inside = bound._replace(high=split.value)
        outside = bound._replace(low=split.value + 1)
    before, after = bounds[: split.place], bounds[split.place + 1 :]
    return (*before, inside, *after), (*before, outside, *after)


def _best_split(examples: LabelledRows) -> _Split | None:
    """Return the split with the least remaining entropy; prefer thresholds to equality."""
    best, least = None, np.inf
    for index in range(len(examples.inputs.columns)):
        values, group = np.unique(examples.inputs.values[:, index], return_inverse=True)
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
    """Return the entropy of each row of counts, in bits, times the total of the row."""
    totals = counts.sum(axis=-1, keepdims=True)
    share = np.where(counts > 0, counts / np.maximum(totals, 1e-300), 1.0)
    entropy: np.ndarray = -(counts * np.log2(share)).sum(axis=-1)
    return entropy


class _Comparisons(NamedTuple):
    """Bounds on columns, a mask (bounds, rows) of the rows within, and the bits of each bound."""

    bounds: list[ColumnBound]
    holds: np.ndarray
    bits: np.ndarray


class _Claim(NamedTuple):
    """A conjunction of bounds, the mask of the rows within, and the bits of the claim."""

    bounds: tuple[ColumnBound, ...]
    holds: np.ndarray
    bits: float


def fit_claims(examples: LabelledRows) -> DecisionList | None:
    """Fit a list of claims, or return None if there are too many comparisons, or none."""
    known = _comparisons(examples.inputs)
    if not known.bounds or known.holds.size > MOST_CELLS:
        return None

    def propose(labels: np.ndarray, loss: float) -> Iterator[_Layer]:
        for label in np.unique(examples.labels[labels != examples.labels]).tolist():
            for claim in _search(examples, labels, label, known):
                loss = examples.loss(np.where(claim.holds, label, labels))
                yield _Layer(Box(claim.bounds, label), claim.bits, loss)

    return _add_layers(examples, MOST_CLAIMS, propose)


def _search(
    examples: LabelledRows, labels: np.ndarray, label: int, known: _Comparisons
) -> list[_Claim]:
    """Return the best claims for a label with one bound, two bounds and so on (beam search)."""
    weights, wrong = examples.weights * examples.error_bits, labels != examples.labels
    gains = weights * (wrong & (examples.labels == label))
    harms = weights * (~wrong & (examples.labels != label))
    start = CLAIM_BITS + log2(examples.kinds)
    beam = [_Claim((), np.ones(len(labels), dtype=bool), start)]
    claims: list[_Claim] = []
    for _ in range(MOST_BOUNDS):
        narrower = [
            option for claim in beam for option in _refinements(claim, known, (gains, harms))
        ]
        narrower.sort(key=lambda option: option[0])
        different = {claim.holds.tobytes(): claim for _, claim in narrower}
        beam = list(different.values())[::-1][:BEAM]
        claims += beam
    return claims


def _refinements(
    claim: _Claim, known: _Comparisons, worth: tuple[np.ndarray, np.ndarray]
) -> list[tuple[float, _Claim]]:
    """Return the most promising claims with one more bound, each with its value, best first."""
    gains, harms = (part * claim.holds for part in worth)
    right, wrong = known.holds @ gains, known.holds @ harms
    start = np.log2((gains.sum() + 1) / (gains.sum() + harms.sum() + 1))
    value = right * (np.log2((right + 1) / (right + wrong + 1)) - start) - known.bits
    value = np.maximum(value, right - wrong - known.bits)
    chosen = np.argsort(-value, kind="stable")[:BEAM]
    refinements = []
    for n in chosen[right[chosen] > 0].tolist():
        bounds, holds = (*claim.bounds, known.bounds[n]), claim.holds & (known.holds[n] > 0)
        refinements.append(
            (float(value[n]), _Claim(bounds, holds, claim.bits + float(known.bits[n])))
        )
    return refinements


def _comparisons(inputs: RuleInputs) -> _Comparisons:
    """List the comparisons of all columns: each value, and limits between values."""
    bounds, holds, bits = [], [], []
    kinds = [column.kind for column in inputs.columns]
    for place, column in enumerate(inputs.columns):
        seen = np.unique(inputs.values[:, place])
        price = log2(len(set(kinds))) + log2(kinds.count(column.kind))
        price += RELATION_BITS * (column.kind == "gap")
        for low, high in _limits(column, seen):
            bound = ColumnBound(column, place, low, high)
            inside = bound.holds(inputs)
            if 0 < inside.sum() < len(inside):
                bounds.append(bound)
                holds.append(inside)
                bits.append(price + _value_bits(column, low, high))
    return _Comparisons(bounds, np.array(holds, dtype=np.float32), np.array(bits))


def _limits(column: RuleColumn, seen: np.ndarray) -> list[tuple[int, int]]:
    """List the ranges of a column: each value, at least each value, at most each value."""
    values, last = seen.tolist(), column.size - 1
    single = [(value, value) for value in values]
    if column.kind == "reward" or len(values) < 3:
        return single
    return single + [(value, last) for value in values] + [(0, value) for value in values]


def _value_bits(column: RuleColumn, low: int, high: int) -> float:
    """Return the bits of a range; the ends of a column and no change are cheaper than others."""
    centre = column.size // 2 if column.is_signed else 0
    plain = (centre, column.size - 1) if low == high else (centre + 1, centre - 1)
    if column.size == 2:
        return 1.0
    is_plain = column.kind != "action" and (low in plain or high in plain)
    return 2.0 if is_plain else 1 + log2(column.size)
