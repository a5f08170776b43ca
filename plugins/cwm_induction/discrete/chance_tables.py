"""Decision trees of probabilities, with as few conditions as the transitions support."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb, log2
from typing import Self

import numpy as np

from cwm_induction.discrete.expressions import bracketed

DENOMINATORS = (1, 2, 3, 4, 5, 10, 6, 8, 12, 20, 13, 7, 9, 16, 25, 15, 100, 36, 52, 11, 14, 18, 50)
"""Denominators of probabilities, in the order of preference."""

ODD_BITS = 4.0
"""Price of probabilities without such a denominator."""

FINEST = 1_000
"""Denominator of all other probabilities; counts do not support more digits."""

PRIOR = 1.0
"""Weight, in rows, of the shares without a condition if few rows fulfil the condition."""

LEAST_COUNT = 0.5
"""An outcome with fewer rows was not seen; fractions of rows may belong to an outcome."""

SURE = 6.0
"""Rule out an outcome under a condition if its absence there is a surprise of this many bits."""

LEAST_ROWS = 4.0
"""Least number of rows on each side of a condition."""

MOST_CONDITIONS = 60
"""Largest number of conditions of a table; more conditions are not a rule."""

Shares = tuple[Fraction, ...]


@dataclass(frozen=True)
class ShareCondition:
    """A test of a column: equal to a value, or with `most` at most that value."""

    name: str
    value: int
    most: bool

    def holds(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return a mask of the rows that fulfil the condition."""
        values = columns[self.name]
        held: np.ndarray = values <= self.value if self.most else values == self.value
        return held


@dataclass(frozen=True)
class ChanceTable:
    """The probabilities of numbered outcomes: shares, or a condition and two tables.

    `bits` is the description length of the table and of the outcomes, given the table.
    """

    shares: Shares
    bits: float
    condition: ShareCondition | None = None
    held: "ChanceTable | None" = None
    otherwise: "ChanceTable | None" = None

    @classmethod
    def of(cls, columns: Mapping[str, np.ndarray], counts: np.ndarray) -> Self:
        """Grow a table from counts (rows, outcomes), while conditions save bits."""
        total = counts.sum(axis=0)
        return cls._grow(columns, counts, plain_shares(total), [MOST_CONDITIONS])

    @classmethod
    def _grow(
        cls,
        columns: Mapping[str, np.ndarray],
        counts: np.ndarray,
        shares: Shares,
        left: list[int],
    ) -> Self:
        condition, price = _best_condition(columns, counts) if left[0] else (None, 0.0)
        if condition is None:
            return cls(shares, float(_costs(counts.sum(axis=0))))
        left[0] -= 1
        holds = condition.holds(columns)
        parts = []
        for rows in (holds, ~holds):
            part = {name: values[rows] for name, values in columns.items()}
            inner = plain_shares(counts[rows].sum(axis=0), shares)
            parts.append(cls._grow(part, counts[rows], inner, left))
        bits = price + sum(part.bits for part in parts)
        return cls(shares, bits, condition, *parts)

    def leaves(self) -> Iterator["ChanceTable"]:
        """Yield the tables without a condition."""
        if self.held is None or self.otherwise is None:
            yield self
            return
        yield from self.held.leaves()
        yield from self.otherwise.leaves()

    @property
    def conditions(self) -> list[ShareCondition]:
        """All conditions, the first one first."""
        if self.condition is None or self.held is None or self.otherwise is None:
            return []
        return [self.condition, *self.held.conditions, *self.otherwise.conditions]

    def chances(self, columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        """Return the probability of each outcome in each row: (rows, outcomes)."""
        if self.condition is None or self.held is None or self.otherwise is None:
            return np.tile(np.array([float(share) for share in self.shares]), (rows, 1))
        held = self.held.chances(columns, rows)
        otherwise = self.otherwise.chances(columns, rows)
        chosen: np.ndarray = np.where(self.condition.holds(columns)[:, None], held, otherwise)
        return chosen

    def lines(
        self, spell: Callable[[ShareCondition], str], answer: Callable[[Shares], list[str]]
    ) -> list[str]:
        """Write the choice of a leaf as nested conditions; `answer` writes the lines of a leaf."""
        if self.condition is None or self.held is None or self.otherwise is None:
            return answer(self.shares)
        inner = [f"    {line}" for line in self.held.lines(spell, answer)]
        other = self.otherwise.lines(spell, answer)
        start = bracketed("if ", spell(self.condition), ":")
        if self.otherwise.condition is not None:
            chained = other[0].startswith("if ")
            return [*start, *inner, *([f"el{other[0]}", *other[1:]] if chained else other)]
        return [*start, *inner, "else:", *[f"    {line}" for line in other]]


def plain_shares(counts: np.ndarray, before: Shares = ()) -> Shares:
    """Return the simplest fractions that agree with counts of rows.

    `before` are the shares without the last condition. They weigh as much as one row. An
    outcome with a share in `before` is ruled out only if enough rows lack it.
    """
    counts = np.where(counts < LEAST_COUNT, 0.0, counts)
    rows = float(counts.sum())
    usual = np.array([float(share) for share in before]) if before else np.zeros(len(counts))
    missing = (counts == 0) & (usual > 0)
    if missing.any() and -rows * log2(max(1 - usual[missing].sum(), 1e-9)) < SURE:
        return _in_parts(counts + PRIOR * usual, FINEST)
    observed = np.flatnonzero(counts)
    if len(observed) == 0:
        return before
    free = 0.5 * (len(observed) - 1) * log2(rows + 1) + ODD_BITS
    best, least = _in_parts(counts, FINEST), _surprise(counts, counts / rows) + free
    for rank, denominator in enumerate(DENOMINATORS, 1):
        if denominator >= len(observed):
            shares = _in_parts(counts, denominator)
            kinds = len({share for share in shares if share})
            bits = 1.5 * log2(rank) + log2(comb(denominator - 1, kinds - 1))
            bits += 0.5 * (len(observed) - kinds)
            bits += _surprise(counts, np.array([float(share) for share in shares]))
            if bits < least:
                best, least = shares, bits
    return best


def fraction_text(share: Fraction) -> str:
    """Write a share as a decimal if that is exact and short, otherwise as a fraction."""
    text = repr(float(share))
    if share.denominator == 1:
        return str(share)
    return text if len(text) <= 5 and Fraction(text) == share else str(share).replace("/", " / ")


def _in_parts(counts: np.ndarray, denominator: int) -> Shares:
    """Return the nearest fractions with one denominator; observed outcomes are not 0."""
    exact = counts / counts.sum() * denominator
    whole = np.where(counts > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    while (over := int(whole.sum()) - denominator) > 0:
        whole[np.argmax(np.where(whole > 1, whole - exact, -np.inf))] -= 1
        if over > denominator:
            break
    for place in np.argsort(whole - exact, kind="stable")[: max(0, denominator - whole.sum())]:
        whole[place] += 1
    return tuple(Fraction(int(part), int(whole.sum())) for part in whole)


def _surprise(counts: np.ndarray, shares: np.ndarray) -> float:
    """Return the bits to encode outcomes, given their shares."""
    observed = counts > 0
    return float(-(counts[observed] * np.log2(np.maximum(shares[observed], 1e-12))).sum())


def _costs(counts: np.ndarray) -> np.ndarray:
    """Return the bits of counts (..., outcomes), including the bits of their shares."""
    rows = counts.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(counts > 0, np.log2(counts / rows), 0.0)
    kinds = np.maximum((counts > LEAST_COUNT).sum(axis=-1) - 1, 0)
    bits: np.ndarray = -(counts * logs).sum(axis=-1) + 0.5 * kinds * np.log2(rows[..., 0] + 1)
    return bits


def _best_condition(
    columns: Mapping[str, np.ndarray], counts: np.ndarray
) -> tuple[ShareCondition | None, float]:
    """Return the condition that saves most bits, if any, and its price."""
    total = counts.sum(axis=0)
    if not len(counts) or np.count_nonzero(total) < 2:
        return None, 0.0
    candidates: list[tuple[float, ShareCondition]] = []
    choices = 0
    for name, values in columns.items():
        low = int(values.min())
        sums = np.zeros((int(values.max()) - low + 1, counts.shape[1]))
        np.add.at(sums, values - low, counts)
        if len(sums) < 2:
            continue
        for most, part in ((False, sums), (True, sums.cumsum(axis=0)[:-1])):
            if most and len(sums) == 2:
                continue
            choices += len(part)
            rest = np.maximum(total - part, 0.0)
            small = np.minimum(part.sum(axis=1), rest.sum(axis=1)) < LEAST_ROWS
            bits = np.where(small, np.inf, _costs(part) + _costs(rest))
            best = int(bits.argmin())
            candidates.append((float(bits[best]), ShareCondition(name, best + low, most)))
    least, condition = min(candidates, key=lambda pair: pair[0], default=(np.inf, None))
    price = log2(max(choices, 1))
    return (condition if least + price < float(_costs(total)) else None), price
