"""Next values that are sums or multiples of the values before, by action."""

from collections.abc import Iterator
from itertools import combinations, permutations
from math import log2
from typing import NamedTuple

import numpy as np

MOST_MULTIPLES = 24
MOST_PAIRED = 5
WEIGHT_BITS = 8.0
BLOCKED_WORTH = 0.7

Fitted = tuple[bool, np.ndarray, np.ndarray, float, float]
"""Whether values wrap, what is added, the weights, their bits, the transitions missed."""


class Sums(NamedTuple):
    """Transitions in factors and the next values of one of them."""

    factors: np.ndarray
    action: np.ndarray
    after: np.ndarray
    radices: tuple[int, ...]

    def fits(self, factor: int, actions: int, stays: np.ndarray) -> Iterator[Fitted]:
        """Yield the best sums that stop at the bounds, then the best that wrap around."""
        radix = self.radices[factor]
        for wraps in (False, True):
            choices = list(_weights(factor, len(self.radices), radix, wraps=wraps))
            deltas = np.zeros((actions, 1), dtype=np.int64)
            weights = np.tile(choices[0], (actions, 1))
            bits, misses = 2.0 + wraps, 0.0
            for number in np.unique(self.action).tolist():
                rows = self.action == number
                best = max(
                    (self._best(rows, weight, radix, stays, wraps=wraps), -place)
                    for place, weight in enumerate(choices)
                )
                (worth, delta), place = best
                deltas[number], weights[number] = delta, choices[-place]
                cost = (log2(radix) + 2) * (delta != 0) + WEIGHT_BITS * (place != 0)
                bits, misses = bits + cost, misses + max(0.0, float(rows.sum()) - worth)
            same = len({tuple(row) for row in weights.tolist()}) == 1
            if (weights != choices[0]).any():
                yield wraps, deltas, weights, bits - same * WEIGHT_BITS * (actions - 1), misses

    def _best(
        self, rows: np.ndarray, weight: np.ndarray, radix: int, stays: np.ndarray, *, wraps: bool
    ) -> tuple[float, int]:
        """Return what a choice of weights explains with the best addition, and that addition."""
        base, after = (self.factors[rows] * weight).sum(axis=1), self.after[rows]
        changes = (after - base) % radix if wraps else after - base
        deltas, counts = np.unique(changes, return_counts=True)
        delta = int(deltas[counts.argmax()])
        landing = (base + delta) % radix if wraps else np.clip(base + delta, 0, radix - 1)
        right = landing == after
        worth = float(np.where(right, 1.0, BLOCKED_WORTH * stays[rows]).sum())
        return worth, delta


def _weights(factor: int, factors: int, radix: int, *, wraps: bool) -> Iterator[np.ndarray]:
    """Yield weights of factors: itself alone, then multiples, other factors and sums with them."""
    unit = np.eye(factors, dtype=np.int64)
    own = unit[factor]
    yield own
    if wraps:
        yield from (own * multiple for multiple in range(2, min(radix, MOST_MULTIPLES)))
    for other in range(factors):
        if other != factor:
            yield from (unit[other], own + unit[other], own - unit[other])
    if factors <= MOST_PAIRED:
        others = [other for other in range(factors) if other != factor]
        yield from (unit[one] + unit[two] for one, two in combinations(others, 2))
        yield from (unit[one] - unit[two] for one, two in permutations(others, 2))
