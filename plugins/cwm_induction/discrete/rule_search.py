"""Searches for the decision list with the shortest description: layers, trees and general claims.

Layers are tables of keys and runs of neighbouring values, trees are thresholds written
out as boxes, and claims are a few comparisons that hold together.
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
"""How often a transition counts at most, so that common ones do not outweigh all others."""

FULL_COLUMNS = 4
"""Columns that a table looks at at most."""

MAX_LAYERS = 3
"""Tables and runs over each other at most."""

LEAST_RUN = 3
"""Values of a run at least; fewer are told by keys."""

MOST_RUN_KINDS = 6
"""Labels above which no runs are looked for, which are searched label by label."""

MOST_CODES_PER_ROW = 10
"""Codes per row up to which keys are counted in a table of all codes, which needs no sorting."""

MAX_DEPTH = 6
"""Splits above one another in a tree, each of which may double its leaves."""

MAX_KINDS = 32
"""Labels above which no tree is grown."""

TREE_BITS = 10.0
"""What a tree pays for claiming something about whatever was not seen."""

MOST_BOUNDS = 3
"""Comparisons that hold together in a claim at most."""

MOST_CLAIMS = 8
"""Claims over each other at most."""

BEAM = 12
"""Claims that are narrowed further, and ways to narrow each of them."""

MOST_CELLS = 6_000_000
"""How many answers of comparisons are kept in memory."""

CLAIM_BITS = 4.0
"""Price of a claim beside its comparisons and its label."""


class RuleVariant(NamedTuple):
    """Which hypotheses are considered.

    `rank` is the place of the layout among the best, `shapes` admits trees
    and runs beside tables, `blocks` that all moves are blocked at once. Without
    `moves` what follows is looked up. With `shifts` exceptions may add to where moves lead.
    """

    rank: int = 0
    shapes: bool = True
    blocks: bool = True
    moves: bool = True
    shifts: bool = False


def choose_rules(examples: LabelledRows, variant: RuleVariant) -> DecisionList:
    """Return the shorter of layers and, where shapes are admitted, a tree."""
    layers = fit_layers(examples, FULL_COLUMNS, runs=variant.shapes)
    if not variant.shapes or not examples.labels.any() or examples.kinds > MAX_KINDS:
        return layers
    return min(layers, fit_tree(examples), key=lambda rules: rules.bits)


def general_rules(
    examples: LabelledRows, usual: DecisionList, inputs: RuleInputs
) -> DecisionList | None:
    """Return claims about other columns where these are shorter and explain no less than rules do.

    Every key of the rules' tables is priced at the choice among all possible keys.
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
    """A layer, its description length and that of the rows that stay wrong under it."""

    layer: DecisionTable | Box
    bits: float
    loss: float

    @property
    def total(self) -> float:
        return self.bits + self.loss


def fit_layers(examples: LabelledRows, most_columns: int, *, runs: bool) -> DecisionList:
    """Lay tables, and runs if asked for, over each other."""

    def propose(labels: np.ndarray, loss: float) -> Iterator[_Layer | None]:
        yield _best_table(examples, labels, most_columns, loss)
        if runs:
            yield _best_run(examples, labels)

    return _laid(examples, MAX_LAYERS, propose)


def _laid(
    examples: LabelledRows,
    most: int,
    propose: Callable[[np.ndarray, float], Iterator[_Layer | None]],
) -> DecisionList:
    """Lay the best of the proposed layers over those before while that shortens the description.

    Layers are proposed for the labels so far and the bits that their mistakes cost.
    """
    labels = np.zeros_like(examples.labels)
    layers: list[DecisionTable | Box] = []
    spent, loss = 0.0, examples.loss(labels)
    while len(layers) < most and loss > 0:
        found = (layer for layer in propose(labels, loss) if layer)
        best = min(found, key=lambda layer: layer.total, default=None)
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

    It has the keys that pay for themselves.
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
    """Per key: bits without it, bits with it, how often it has every label."""

    stay: np.ndarray
    change: np.ndarray
    counts: np.ndarray


def _prices(examples: LabelledRows, wrong: np.ndarray, chosen: tuple[int, ...]) -> _Prices:
    """Price every key of a table over the given columns, given the rows that are wrong so far."""
    group, keys = _grouped(examples.inputs.codes(chosen))
    kinds = examples.kinds
    counts = np.bincount(
        group * kinds + examples.labels, weights=examples.weights, minlength=keys * kinds
    ).reshape(-1, kinds)
    weights = examples.weights * wrong
    stay = np.bincount(group, weights=weights, minlength=keys) * examples.error_bits
    missed = counts.sum(axis=1) - counts.max(axis=1)
    change = missed * examples.error_bits + examples.key_bits
    return _Prices(stay, change, counts)


def _grouped(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the number of the key of every row, and how many keys there are."""
    if codes.min(initial=0) < 0 or codes.max(initial=0) > MOST_CODES_PER_ROW * len(codes):
        values, group = np.unique(codes, return_inverse=True)
        return group, len(values)
    numbers = np.cumsum(np.bincount(codes) > 0)
    return numbers[codes] - 1, int(numbers[-1]) if len(numbers) else 0


def _best_run(examples: LabelledRows, labels: np.ndarray) -> _Layer | None:
    """Return the run of neighbouring values, beside one fixed value, that explains most.

    A run also claims the gaps in which nothing was seen and the next value on each
    side, so it must be long enough to be cheaper than its keys.
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
    found = [
        run
        for label in np.unique(examples.labels[wrong]).tolist()
        for pair in pairs
        for run in _runs(examples, labels, wrong & (examples.labels == label), pair)
    ]
    return min(found, key=lambda run: run.total, default=None)


def _runs(
    examples: LabelledRows, labels: np.ndarray, wanted: np.ndarray, pair: tuple[int, int]
) -> list[_Layer]:
    """Return a run for every fixed value beside which enough values are wanted."""
    inputs, (fixed, along) = examples.inputs, pair
    columns = inputs.columns[fixed], inputs.columns[along]
    label = int(examples.labels[wanted][0])
    bits = inputs.bits(pair) + examples.key_bits + log2(columns[0].size) + 2 * log2(columns[1].size)
    found = []
    for value in np.unique(inputs.values[wanted, fixed]).tolist():
        places = np.unique(inputs.values[wanted & (inputs.values[:, fixed] == value), along])
        if len(places) >= LEAST_RUN:
            known = np.unique(inputs.values[inputs.values[:, fixed] == value, along])
            ends = ColumnBound(columns[1], along, *_with_neighbours(places, known))
            box = Box((ColumnBound(columns[0], fixed, value, value), ends), label)
            found.append(_Layer(box, bits, examples.loss(box.apply(inputs, labels))))
    return found


def _with_neighbours(places: np.ndarray, known: np.ndarray) -> tuple[int, int]:
    """Return the ends of a run that takes in a value on each side, if neither was seen nor last."""
    low, high = int(places[0]), int(places[-1])
    below, above = known[known < low], known[known > high]
    lower = len(below) > 0 and int(below[-1]) < low - 1
    higher = len(above) > 0 and int(above[0]) > high + 1
    return low - lower, high + higher


class _Split(NamedTuple):
    """A column is at most a value, or equal to it."""

    place: int
    value: int
    equal: bool

    def holds(self, values: np.ndarray) -> np.ndarray:
        column = values[:, self.place]
        answer: np.ndarray = column == self.value if self.equal else column <= self.value
        return answer


class _Node(NamedTuple):
    """A part of the tree: its boxes and their description length."""

    boxes: tuple[Box, ...]
    bits: float


def fit_tree(examples: LabelledRows) -> DecisionList:
    """Grow a tree over all columns and keep the splits that pay for themselves."""
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
    """Return the bounds on the side where the split holds and on the other."""
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
    """Return the split that leaves the least entropy; thresholds before equality."""
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
    """Return the entropy of every row of counts, in bits, times its total."""
    totals = counts.sum(axis=-1, keepdims=True)
    share = np.where(counts > 0, counts / np.maximum(totals, 1e-300), 1.0)
    entropy: np.ndarray = -(counts * np.log2(share)).sum(axis=-1)
    return entropy


class _Comparisons(NamedTuple):
    """Bounds on columns, what each holds of, and the bits that it costs."""

    bounds: list[ColumnBound]
    holds: np.ndarray
    bits: np.ndarray


class _Claim(NamedTuple):
    """Bounds that hold together, the rows where they do, and their bits."""

    bounds: tuple[ColumnBound, ...]
    holds: np.ndarray
    bits: float


def fit_claims(examples: LabelledRows) -> DecisionList | None:
    """Lay claims over each other while that shortens the description."""
    known = _comparisons(examples.inputs)
    if not known.bounds or known.holds.size > MOST_CELLS:
        return None

    def propose(labels: np.ndarray, loss: float) -> Iterator[_Layer]:
        for label in np.unique(examples.labels[labels != examples.labels]).tolist():
            for claim in _search(examples, labels, label, known):
                loss = examples.loss(np.where(claim.holds, label, labels))
                yield _Layer(Box(claim.bounds, label), claim.bits, loss)

    return _laid(examples, MOST_CLAIMS, propose)


def _search(
    examples: LabelledRows, labels: np.ndarray, label: int, known: _Comparisons
) -> list[_Claim]:
    """Return the claims for a label that are best with one bound, with two and so on."""
    weights, wrong = examples.weights * examples.error_bits, labels != examples.labels
    gains = weights * (wrong & (examples.labels == label))
    harms = weights * (~wrong & (examples.labels != label))
    start = CLAIM_BITS + log2(examples.kinds)
    beam = [_Claim((), np.ones(len(labels), dtype=bool), start)]
    found: list[_Claim] = []
    for _ in range(MOST_BOUNDS):
        narrower = [option for claim in beam for option in _narrower(claim, known, (gains, harms))]
        narrower.sort(key=lambda option: option[0])
        different = {claim.holds.tobytes(): claim for _, claim in narrower}
        beam = list(different.values())[::-1][:BEAM]
        found += beam
    return found


def _narrower(
    claim: _Claim, known: _Comparisons, worth: tuple[np.ndarray, np.ndarray]
) -> list[tuple[float, _Claim]]:
    """Add one bound to a claim in the most promising ways, the best of which come first."""
    gains, harms = (part * claim.holds for part in worth)
    right, wrong = known.holds @ gains, known.holds @ harms
    start = np.log2((gains.sum() + 1) / (gains.sum() + harms.sum() + 1))
    value = right * (np.log2((right + 1) / (right + wrong + 1)) - start) - known.bits
    value = np.maximum(value, right - wrong - known.bits)
    chosen = np.argsort(-value, kind="stable")[:BEAM]
    found = []
    for n in chosen[right[chosen] > 0].tolist():
        bounds, holds = (*claim.bounds, known.bounds[n]), claim.holds & (known.holds[n] > 0)
        found.append((float(value[n]), _Claim(bounds, holds, claim.bits + float(known.bits[n]))))
    return found


def _comparisons(inputs: RuleInputs) -> _Comparisons:
    """List what columns can be compared with: each value, and limits between values."""
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
    """List the ranges of a column: single values, at least and at most a value."""
    values, last = seen.tolist(), column.size - 1
    single = [(value, value) for value in values]
    if column.kind == "reward" or len(values) < 3:
        return single
    return single + [(value, last) for value in values] + [(0, value) for value in values]


def _value_bits(column: RuleColumn, low: int, high: int) -> float:
    """Price a range: the ends of a column and no change are plainer than other values."""
    centre = column.size // 2 if column.is_signed else 0
    plain = (centre, column.size - 1) if low == high else (centre + 1, centre - 1)
    if column.size == 2:
        return 1.0
    is_plain = column.kind != "action" and (low in plain or high in plain)
    return 2.0 if is_plain else 1 + log2(column.size)
