"""Decision lists over rows of small integers: tables of keys and boxes between bounds, in layers.

What is paid for is description length: a key costs bits, so does every row
that stays wrong, and so does leaving out a part of the state, because a rule
that ignores it claims something about states that were never seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import comb, log2
from typing import NamedTuple, Self

import numpy as np

KEY_BITS = 3.0
"""Price of a key beside its label: less than a wrong row where under one in nine disagree."""

IGNORED_BITS = 3.0
"""Price of leaving out a bit of the state: a rule that ignores it claims more than was seen."""

MOST_IGNORED_BITS = 14.0
"""What leaving out costs at most, so that rules about a few of many factors stay affordable."""

MIXED_BITS = 3.0
"""Price of looking at the state of one more time, before or after the step, in one rule."""

RELATION_BITS = 3.0
"""Price of comparing two factors, of which there are many pairs."""

MAX_SUBSETS = 2000
"""Combinations of columns of one size above which no more columns are combined, to save time."""

NEXT_KINDS = ("aimed", "new", "edge", "total")
"""Kinds of columns that follow from the action, so that it is not ignored where they are known."""

RESULT_KINDS = ("done", "reward")
"""Kinds of columns that are outcomes themselves: rules about them alone claim nothing more."""

TRUTHS = ("same", "done", "meets", "at", "perhaps", "site", "outside", "alike", "rising")
"""Kinds of columns whose values are no and yes."""


class RuleColumn(NamedTuple):
    """What a rule can look at: an action, or something about a factor, of `size` values.

    Of kind "meets" it is whether two factors have the same value, `factor` and `other`;
    of kinds "at" and "perhaps" whether the cell that the factors in `cell` give is the
    one that a factor stands for; of kind "site" whether it is any such cell. Of kind
    "total" it is how many of the factors in `cell` are set, of kind "pick" the value of the
    one that `factor` points at, of kind "part" the part `other` of the action.
    Of kinds "change" and "gap" it is how much a factor grew, or exceeds the factor `other`,
    plus `size // 2`; of kinds "sum", "count", "alike" and "rising" it is the sum of the
    factors in `cell`, how many of them are `other`, whether all are equal or in order.
    """

    kind: str
    factor: int
    size: int
    other: int = -1
    cell: tuple[int, ...] = ()

    @property
    def is_truth(self) -> bool:
        """Whether its values are no and yes."""
        return self.kind in TRUTHS

    @property
    def is_signed(self) -> bool:
        """Whether its values are counted from `-(size // 2)`."""
        return self.kind in ("change", "gap")


@dataclass(frozen=True)
class RuleInputs:
    """The columns that rules can look at, and their values in every row.

    `factors` are the sizes of the factors of which a full rule knows the
    value, `actions` the number of actions. `caution` is the share of the price of a
    claim that is paid.
    """

    columns: tuple[RuleColumn, ...]
    values: np.ndarray
    factors: dict[int, int]
    actions: int
    caution: float = 1.0

    def subsets(self, most: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Yield choices of up to `most` columns with their description length in bits.

        Of many columns fewer are combined.
        """
        numbers = range(len(self.columns))
        for size in range(1, most + 1):
            if size > 1 and comb(len(numbers), size) > MAX_SUBSETS:
                return
            for chosen in combinations(numbers, size):
                yield chosen, self.bits(chosen)

    def codes(self, chosen: tuple[int, ...]) -> np.ndarray:
        """Give every combination of values in the chosen columns a number."""
        total = self.values[:, chosen[0]]
        for index in chosen[1:]:
            total = total * self.columns[index].size + self.values[:, index]
        return total

    def bits(self, chosen: tuple[int, ...]) -> float:
        """Price a choice of columns: their number, what they ignore, what they mix."""
        columns = [self.columns[index] for index in chosen]
        kinds = {column.kind for column in columns}
        if kinds <= set(RESULT_KINDS):
            return 1 + 0.5 * len(chosen)
        known = {column.factor for column in columns if column.kind != "meets"}
        known |= {cell for column in columns if column.kind != "pick" for cell in column.cell}
        relations = RELATION_BITS * sum(column.kind == "meets" for column in columns)
        ignored = sum(log2(size) for factor, size in self.factors.items() if factor not in known)
        if not kinds & {"action", *NEXT_KINDS}:
            ignored += log2(self.actions)
            ignored -= sum(log2(column.size) for column in columns if column.kind == "part")
        share = 0.5 if kinds >= {"action", "same"} else 1.0
        times = {self._times[index] for index in chosen} - {""}
        mixed = MIXED_BITS * max(0, len(times) - 1)
        claims = share * min(IGNORED_BITS * ignored, MOST_IGNORED_BITS)
        return 1 + 0.5 * len(chosen) + mixed + self.caution * claims + relations

    @cached_property
    def _times(self) -> list[str]:
        """Whether each column is about the state before or after, empty if both are the same."""
        changing = {column.factor for column in self.columns if column.kind != "old"}
        times = {"pick": "old", "new": "next", "aimed": "next", "edge": "edge"}
        return [
            "old"
            if column.kind == "old" and column.factor in changing
            else times.get(column.kind, "")
            for column in self.columns
        ]


@dataclass(frozen=True)
class DecisionTable:
    """Labels of combinations of values in some columns; other rows keep the label they have."""

    columns: tuple[RuleColumn, ...]
    chosen: tuple[int, ...]
    labels: dict[tuple[int, ...], int]

    def apply(self, inputs: RuleInputs, labels: np.ndarray) -> np.ndarray:
        """Overwrite the labels of the rows whose values are keys."""
        result = labels.copy()
        for row, values in enumerate(inputs.values[:, self.chosen].tolist()):
            result[row] = self.labels.get(tuple(values), labels[row])
        return result


class ColumnBound(NamedTuple):
    """A column lies between two values, both included, and is none of `excluded`.

    `place` is the number of the column among what rules look at.
    """

    column: RuleColumn
    place: int
    low: int
    high: int
    excluded: tuple[int, ...] = ()

    def holds(self, inputs: RuleInputs) -> np.ndarray:
        """Say for every row whether it lies within."""
        values = inputs.values[:, self.place]
        inside: np.ndarray = (values >= self.low) & (values <= self.high)
        return inside & ~np.isin(values, self.excluded)


@dataclass(frozen=True)
class Box:
    """One label for the rows within all bounds."""

    bounds: tuple[ColumnBound, ...]
    label: int

    def apply(self, inputs: RuleInputs, labels: np.ndarray) -> np.ndarray:
        """Overwrite the labels of the rows within."""
        inside = np.ones(len(labels), dtype=bool)
        for bound in self.bounds:
            inside &= bound.holds(inputs)
        return np.where(inside, self.label, labels)


@dataclass(frozen=True)
class DecisionList:
    """Layers over label 0, later ones over earlier ones, and their description length."""

    layers: tuple[DecisionTable | Box, ...]
    bits: float

    def apply(self, inputs: RuleInputs) -> np.ndarray:
        """Return the label of every row."""
        labels = np.zeros(len(inputs.values), dtype=np.int64)
        for layer in self.layers:
            labels = layer.apply(inputs, labels)
        return labels


@dataclass(frozen=True)
class LabelledRows:
    """Rows to explain: what a rule sees, the labels, their weights and the price of an error."""

    inputs: RuleInputs
    labels: np.ndarray
    weights: np.ndarray
    error_bits: float

    @cached_property
    def kinds(self) -> int:
        """Number of labels, label 0 included."""
        return max(2, int(self.labels.max(initial=0)) + 1)

    def loss(self, predicted: np.ndarray) -> float:
        """Bits that the rows with another label cost."""
        return float(self.weights[predicted != self.labels].sum() * self.error_bits)

    @cached_property
    def key_bits(self) -> float:
        """Price of one key and its label."""
        return KEY_BITS + log2(self.kinds)

    def select(self, rows: np.ndarray) -> Self:
        """Return some of the rows."""
        inputs = replace(self.inputs, values=self.inputs.values[rows])
        return type(self)(inputs, self.labels[rows], self.weights[rows], self.error_bits)


def error_bits(disagreement: float, kinds: int) -> float:
    """Price one wrong row, given how often rows disagree by nature."""
    odds = max((1 - disagreement) / disagreement, 1.2)
    return log2(odds) + log2(kinds)
