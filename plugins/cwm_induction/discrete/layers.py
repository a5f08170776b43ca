"""Layers of tables and runs, laid over each other while that shortens the description."""

from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.tables import Bound, Box, Examples, Rules, Table

MAX_LAYERS = 3
LEAST_RUN = 3
MOST_RUN_KINDS = 6
MOST_GAPS = 10
"""Codes per row up to which keys are counted in a table of all codes, which needs no sorting."""


class _Layer(NamedTuple):
    """A layer, its description length and that of the rows that stay wrong under it."""

    layer: Table | Box
    bits: float
    loss: float

    @property
    def total(self) -> float:
        return self.bits + self.loss


def fit_layers(examples: Examples, most_columns: int, *, runs: bool) -> Rules:
    """Lay tables, and runs if asked for, over each other."""
    labels = np.zeros_like(examples.labels)
    layers: list[Table | Box] = []
    spent, loss = 0.0, examples.loss(labels)
    while len(layers) < MAX_LAYERS and loss > 0:
        found = [_best_table(examples, labels, most_columns, loss)]
        if runs:
            found.append(_best_run(examples, labels))
        best = min((layer for layer in found if layer), key=lambda layer: layer.total, default=None)
        if best is None or best.total >= loss:
            break
        layers.append(best.layer)
        labels = best.layer.apply(examples.pool, labels)
        spent, loss = spent + best.bits, best.loss
    return Rules(tuple(layers), spent + loss)


def _best_table(examples: Examples, labels: np.ndarray, most: int, limit: float) -> _Layer | None:
    """Return the table that shortens the description most, if any does."""
    best, least, wrong = None, limit - 1e-9, labels != examples.labels
    for chosen, bits in examples.pool.subsets(most):
        if bits < least:
            prices = _prices(examples, wrong, chosen)
            total = bits + np.minimum(prices.stay, prices.change).sum()
            if total < least:
                best, least = chosen, total
    if best is None:
        return None
    table = _table(examples, labels, best)
    loss = examples.loss(table.apply(examples.pool, labels))
    return _Layer(table, examples.pool.bits(best) + len(table.labels) * examples.key_bits, loss)


def _table(examples: Examples, labels: np.ndarray, chosen: tuple[int, ...]) -> Table:
    """Keep the keys that pay for themselves."""
    stay, change, counts = _prices(examples, labels != examples.labels, chosen)
    _, first = np.unique(examples.pool.codes(chosen), return_index=True)
    columns = tuple(examples.pool.columns[index] for index in chosen)
    rows = examples.pool.values[first][:, chosen].tolist()
    keys = {
        tuple(row): int(label)
        for row, label, worth in zip(rows, counts.argmax(axis=1), change < stay, strict=True)
        if worth
    }
    return Table(columns, chosen, keys)


class _Prices(NamedTuple):
    """Per key: bits without it, bits with it, how often it has every label."""

    stay: np.ndarray
    change: np.ndarray
    counts: np.ndarray


def _prices(examples: Examples, wrong: np.ndarray, chosen: tuple[int, ...]) -> _Prices:
    """Price every key of a table over the given columns, given the rows that are wrong so far."""
    group, keys = _grouped(examples.pool.codes(chosen))
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
    if codes.min(initial=0) < 0 or codes.max(initial=0) > MOST_GAPS * len(codes):
        values, group = np.unique(codes, return_inverse=True)
        return group, len(values)
    numbers = np.cumsum(np.bincount(codes) > 0)
    return numbers[codes] - 1, int(numbers[-1]) if len(numbers) else 0


def _best_run(examples: Examples, labels: np.ndarray) -> _Layer | None:
    """Return the run of neighbouring values, beside one fixed value, that explains most.

    A run also claims the gaps in which nothing was seen and the next value on each
    side, so it must be long enough to be cheaper than its keys.
    """
    if examples.kinds > MOST_RUN_KINDS:
        return None
    wrong = labels != examples.labels
    found = [
        run
        for label in np.unique(examples.labels[wrong]).tolist()
        for fixed, along in _pairs(examples)
        for run in _runs(examples, labels, wrong & (examples.labels == label), (fixed, along))
    ]
    return min(found, key=lambda run: run.total, default=None)


def _pairs(examples: Examples) -> list[tuple[int, int]]:
    """List the pairs of columns about different factors at the same time."""
    columns = [pair for pair in enumerate(examples.pool.columns) if pair[1].size >= LEAST_RUN]
    return [
        (i, j)
        for i, one in columns
        for j, other in columns
        if min(one.factor, other.factor) >= 0 and one.factor != other.factor
    ]


def _runs(
    examples: Examples, labels: np.ndarray, wanted: np.ndarray, pair: tuple[int, int]
) -> list[_Layer]:
    """Return a run for every fixed value beside which enough values are wanted."""
    pool, (fixed, along) = examples.pool, pair
    columns = pool.columns[fixed], pool.columns[along]
    label = int(examples.labels[wanted][0])
    bits = pool.bits(pair) + examples.key_bits + log2(columns[0].size) + 2 * log2(columns[1].size)
    found = []
    for value in np.unique(pool.values[wanted, fixed]).tolist():
        places = np.unique(pool.values[wanted & (pool.values[:, fixed] == value), along])
        if len(places) >= LEAST_RUN:
            known = np.unique(pool.values[pool.values[:, fixed] == value, along])
            ends = Bound(columns[1], along, *_with_neighbours(places, known))
            box = Box((Bound(columns[0], fixed, value, value), ends), label)
            found.append(_Layer(box, bits, examples.loss(box.apply(pool, labels))))
    return found


def _with_neighbours(places: np.ndarray, known: np.ndarray) -> tuple[int, int]:
    """Return the ends of a run that takes in a value on each side, if neither was seen nor last."""
    low, high = int(places[0]), int(places[-1])
    below, above = known[known < low], known[known > high]
    lower = len(below) > 0 and int(below[-1]) < low - 1
    higher = len(above) > 0 and int(above[0]) > high + 1
    return low - lower, high + higher
