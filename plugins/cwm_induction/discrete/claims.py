"""Rules as general claims: a few comparisons that hold together give a label."""

from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.tables import (
    RELATION_BITS,
    Bound,
    Box,
    Column,
    Examples,
    Pool,
    Rules,
    Table,
)

MOST_BOUNDS = 3
MOST_CLAIMS = 8
BEAM = 12
MOST_CELLS = 6_000_000
"""How many answers of comparisons are kept in memory."""

CLAIM_BITS = 4.0


class _Comparisons(NamedTuple):
    """Bounds on columns, what each holds of, and the bits that it costs."""

    bounds: list[Bound]
    holds: np.ndarray
    bits: np.ndarray


class _Claim(NamedTuple):
    """Bounds that hold together, the rows where they do, and their bits."""

    bounds: tuple[Bound, ...]
    holds: np.ndarray
    bits: float


def fit_claims(examples: Examples) -> Rules | None:
    """Lay claims over each other while that shortens the description."""
    known = _comparisons(examples.pool)
    if not known.bounds or known.holds.size > MOST_CELLS:
        return None
    labels = np.zeros_like(examples.labels)
    layers: list[Box | Table] = []
    spent, loss = 0.0, examples.loss(labels)
    while loss > 0 and len(layers) < MOST_CLAIMS:
        found = [
            (claim.bits + examples.loss(np.where(claim.holds, label, labels)), label, claim)
            for label in np.unique(examples.labels[labels != examples.labels]).tolist()
            for claim in _search(examples, labels, label, known)
        ]
        total, label, claim = min(found, key=lambda one: one[0], default=(loss, 0, None))
        if claim is None or total >= loss:
            break
        layers.append(Box(claim.bounds, label))
        labels = np.where(claim.holds, label, labels)
        spent, loss = spent + claim.bits, total - claim.bits
    return Rules(tuple(layers), spent + loss)


def table_bits(rules: Rules, key_bits: float) -> float:
    """Price rules with every key of a table at the choice among all possible keys."""
    more = 0.0
    for layer in rules.layers:
        if isinstance(layer, Table):
            possible = sum(log2(max(column.size, 2)) for column in layer.columns)
            more += len(layer.labels) * max(0.0, possible - key_bits)
    return rules.bits + more


def _search(
    examples: Examples, labels: np.ndarray, label: int, known: _Comparisons
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
    return [
        (
            float(value[n]),
            _Claim(
                (*claim.bounds, known.bounds[n]),
                claim.holds & (known.holds[n] > 0),
                claim.bits + float(known.bits[n]),
            ),
        )
        for n in chosen.tolist()
        if right[n] > 0
    ]


def _comparisons(pool: Pool) -> _Comparisons:
    """List what columns can be compared with: each value, and limits between values."""
    bounds, holds, bits = [], [], []
    kinds = [column.kind for column in pool.columns]
    for place, column in enumerate(pool.columns):
        seen = np.unique(pool.values[:, place])
        price = log2(len(set(kinds))) + log2(kinds.count(column.kind))
        price += RELATION_BITS * (column.kind == "gap")
        for low, high in _limits(column, seen):
            bound = Bound(column, place, low, high)
            inside = bound.holds(pool)
            if 0 < inside.sum() < len(inside):
                bounds.append(bound)
                holds.append(inside)
                bits.append(price + _value_bits(column, low, high))
    return _Comparisons(bounds, np.array(holds, dtype=np.float32), np.array(bits))


def _limits(column: Column, seen: np.ndarray) -> list[tuple[int, int]]:
    """List the ranges of a column: single values, at least and at most a value."""
    values, last = seen.tolist(), column.size - 1
    single = [(value, value) for value in values]
    if column.kind == "reward" or len(values) < 3:
        return single
    return single + [(value, last) for value in values] + [(0, value) for value in values]


def _value_bits(column: Column, low: int, high: int) -> float:
    """Price a range: the ends of a column and no change are plainer than other values."""
    centre = column.size // 2 if column.is_signed else 0
    plain = (centre, column.size - 1) if low == high else (centre + 1, centre - 1)
    if column.size == 2:
        return 1.0
    is_plain = column.kind != "action" and (low in plain or high in plain)
    return 2.0 if is_plain else 1 + log2(column.size)
