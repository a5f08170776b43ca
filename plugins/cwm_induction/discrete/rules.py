"""Decision lists over rows of small integers: tables of keys and boxes between bounds, in layers.

The cost of rules is their description length in bits. Each key costs bits, and so does each
wrong row. Ignoring a part of the state also costs bits, because such a rule makes predictions
about states that were never seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import comb, log2
from typing import NamedTuple, Self

import numpy as np

KEY_BITS = 3.0
"""Price of a key without its label: less than a wrong row if under one in nine rows disagree."""

IGNORED_BITS = 3.0
"""Price of ignoring one bit of the state: such a rule predicts more than was observed."""

MOST_IGNORED_BITS = 14.0
"""Largest price of ignored factors, so that rules about a few of many factors stay cheap."""

MIXED_BITS = 3.0
"""Price of each further time (before or after the step) whose state a rule uses."""

RELATION_BITS = 3.0
"""Price of a comparison of two factors, as there are many pairs."""

MAX_SUBSETS = 2000
"""Stop combining columns if there are more combinations of one size, to save time."""

NEXT_KINDS = ("aimed", "new", "edge", "total")
"""Kinds of columns that depend on the action, so that rules with them do not ignore it."""

RESULT_KINDS = ("done", "reward")
"""Kinds of columns that are outcomes: rules about outcomes alone ignore nothing."""

TRUTHS = ("same", "done", "meets", "at", "perhaps", "site", "outside", "alike", "rising")
"""Kinds of columns with boolean values."""


class RuleColumn(NamedTuple):
    """An input of rules with `size` values: the action, or a property of factors.

    Kinds with further fields:
        "part": The part `other` of the action.
        "meets": Whether `factor` and `other` have the same value.
        "at", "perhaps": Whether `factor` represents (or may represent) the current cell, which
            the factors in `cell` determine.
        "site": Whether any value represents the current cell.
        "pick": The value of the factor in `cell` that `factor` selects.
        "change": The increase of `factor`, plus `size // 2`.
        "gap": The difference of `factor` and `other`, plus `size // 2`.
        "total": The number of factors in `cell` that are set.
        "sum": The sum of the factors in `cell`.
        "count": The number of factors in `cell` with the value `other`.
        "alike", "rising": Whether the factors in `cell` are equal, or in ascending order.
    """

    kind: str
    factor: int
    size: int
    other: int = -1
    cell: tuple[int, ...] = ()

    @property
    def is_truth(self) -> bool:
        """Whether the values are boolean."""
        return self.kind in TRUTHS

    @property
    def is_signed(self) -> bool:
        """Whether the values start at `-(size // 2)`."""
        return self.kind in ("change", "gap")


@dataclass(frozen=True)
class RuleInputs:
    """The columns that rules can use, and their values in each row.

    `factors` has the sizes of the factors that vary, and `actions` is the number of actions. The
    price of ignored factors is multiplied by `caution`.
    """

    columns: tuple[RuleColumn, ...]
    values: np.ndarray
    factors: dict[int, int]
    actions: int
    caution: float = 1.0

    def subsets(self, most: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Yield choices of up to `most` columns with their description length in bits.

        Choices are smaller if there are many columns.
        """
        numbers = range(len(self.columns))
        for size in range(1, most + 1):
            if size > 1 and comb(len(numbers), size) > MAX_SUBSETS:
                return
            for chosen in combinations(numbers, size):
                yield chosen, self.bits(chosen)

    def codes(self, chosen: tuple[int, ...]) -> np.ndarray:
        """Return a code of the values of the chosen columns for each row."""
        total = self.values[:, chosen[0]]
        for index in chosen[1:]:
            total = total * self.columns[index].size + self.values[:, index]
        return total

    def bits(self, chosen: tuple[int, ...]) -> float:
        """Return the bits of a choice of columns: for their number, ignored factors, and mixing."""
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
        """The time of each column, before or after the step; empty if the time is irrelevant."""
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
    """Labels by key, which is a combination of values; other rows keep their label."""

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
    """A range of a column, from `low` to `high` inclusive, without the values `excluded`.

    `place` is the index of the column among the inputs of rules.
    """

    column: RuleColumn
    place: int
    low: int
    high: int
    excluded: tuple[int, ...] = ()

    def holds(self, inputs: RuleInputs) -> np.ndarray:
        """Return a mask of the rows within the bound."""
        values = inputs.values[:, self.place]
        inside: np.ndarray = (values >= self.low) & (values <= self.high)
        return inside & ~np.isin(values, self.excluded)


@dataclass(frozen=True)
class Box:
    """One label for the rows within all bounds."""

    bounds: tuple[ColumnBound, ...]
    label: int

    def apply(self, inputs: RuleInputs, labels: np.ndarray) -> np.ndarray:
        """Overwrite the labels of the rows within all bounds."""
        inside = np.ones(len(labels), dtype=bool)
        for bound in self.bounds:
            inside &= bound.holds(inputs)
        return np.where(inside, self.label, labels)


@dataclass(frozen=True)
class DecisionList:
    """A list of layers and their description length; later layers overwrite earlier labels.

    Rows outside all layers have label 0.
    """

    layers: tuple[DecisionTable | Box, ...]
    bits: float

    def apply(self, inputs: RuleInputs) -> np.ndarray:
        """Return the label of each row."""
        labels = np.zeros(len(inputs.values), dtype=np.int64)
        for layer in self.layers:
            labels = layer.apply(inputs, labels)
        return labels


@dataclass(frozen=True)
class LabelledRows:
    """Rows to explain: the inputs of rules, labels, weights, and the price of an error."""

    inputs: RuleInputs
    labels: np.ndarray
    weights: np.ndarray
    error_bits: float

    @cached_property
    def kinds(self) -> int:
        """Number of labels, label 0 included."""
        return max(2, int(self.labels.max(initial=0)) + 1)

    def loss(self, predicted: np.ndarray) -> float:
        """Return the bits of the rows with a wrong label."""
        return float(self.weights[predicted != self.labels].sum() * self.error_bits)

    @cached_property
    def key_bits(self) -> float:
        """Price of one key and its label."""
        return KEY_BITS + log2(self.kinds)

    def select(self, rows: np.ndarray) -> Self:
        """Return the rows of a mask."""
        inputs = replace(self.inputs, values=self.inputs.values[rows])
        return type(self)(inputs, self.labels[rows], self.weights[rows], self.error_bits)


def error_bits(disagreement: float, kinds: int) -> float:
    """Return the price of a wrong row, given the rate of different outcomes of equal rows."""
    odds = max((1 - disagreement) / disagreement, 1.2)
    return log2(odds) + log2(kinds)
