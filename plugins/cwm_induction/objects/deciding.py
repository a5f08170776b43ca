"""Conditions that separate the rows of a rule from all other rows.

A condition is a disjunction of conjunctions of tests, such as `front.kind == "door"`. This module
uses the names of Boolean algebra: a product is a conjunction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from cwm_induction.decision_list import (
    Bias,
    RelationCondition,
    RelationFeature,
    Spend,
    learn,
)

Array = np.ndarray

MISS_BITS = 60.0
"""Price of a wrong row: even one row justifies a product of several tests."""

MAX_PRODUCTS = 8
"""Maximum number of products of a condition; more products would overfit single rows."""


@dataclass(frozen=True)
class Property:
    """A property of a situation: an expression and its cost."""

    text: str
    cost: float


class PropertyTest(NamedTuple):
    """A test that a property has a value, or that it does not have the value if not `holds`."""

    text: str
    value: Any
    holds: bool = True

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return self.text if self.value == self.holds else f"not {self.text}"
        return f"{self.text} {'==' if self.holds else '!='} {self.value!r}"


Product = tuple[PropertyTest, ...]


@dataclass(frozen=True)
class DecidingCondition:
    """A disjunction of products; a product without literals always holds."""

    products: tuple[Product, ...]

    @property
    def size(self) -> int:
        """Number of products and tests."""
        return sum(1 + len(product) for product in self.products)

    def __str__(self) -> str:
        """Return the shortest source text of the condition, or "" if it always holds."""
        grouped: dict[tuple[str, Product], list[Any]] = {}
        for product in self.products:
            if not product:
                return ""
            first, *rest = product
            is_equality = first.holds and not isinstance(first.value, bool)
            key = (first.text, tuple(rest)) if is_equality else ("", product)
            grouped.setdefault(key, []).append(first.value)
        texts = []
        for (text, others), values in grouped.items():
            one = f"{text} == {values[0]!r}" if len(values) == 1 else f"{text} in {tuple(values)!r}"
            texts.append(" and ".join([one] * bool(text) + [str(each) for each in others]))
        return " or ".join(texts)


class DecidingCases:
    """Properties of rows, and a search for conditions that separate two groups of rows."""

    def __init__(self, columns: Mapping[Property, Sequence[Any]], spend: Spend) -> None:
        self.spend = spend
        self.values = {each.text: np.array(column, object) for each, column in columns.items()}
        self.kinds = {each.text: sorted(set(column), key=str) for each, column in columns.items()}
        self.features: list[RelationFeature] = []
        for each, column in columns.items():
            codes = np.array([self.kinds[each.text].index(value) for value in column])
            kind = "flag" if isinstance(column[0], bool) else "code"
            if kind == "flag":
                codes = np.array(column, int)
            self.features.append(RelationFeature(each.text, kind, codes, each.cost))

    def condition(
        self, wanted: Array, refused: Array, keys: Sequence[tuple[str, ...]] = ()
    ) -> DecidingCondition:
        """Return a condition that holds in wanted rows but in no refused row.

        Args:
            wanted: Mask of the rows to cover; the greedy search covers the most at each step.
            refused: Mask of the rows that the condition must not cover.
            keys: Groups of properties. Each product then begins with a test of all properties of
                one group, so that the condition does not hold for values that no wanted row has.
                The group that leaves the fewest wanted rows is chosen, then the shortest one.
        """
        if not keys:
            return self._products(wanted, refused)
        candidates = [self._keyed(key, wanted, refused) for key in keys]
        return min(candidates, key=lambda each: (self._uncovered(each, wanted), each.size))

    def holds(self, condition: DecidingCondition, rows: int) -> Array:
        """Return a mask that is true for each row if the condition holds."""
        mask = np.zeros(rows, np.bool_)
        for product in condition.products:
            part = np.ones(rows, np.bool_)
            for text, value, positive in product:
                part &= np.array(self.values[text] == value, np.bool_) == positive
            mask |= part
        return mask

    def _uncovered(self, condition: DecidingCondition, wanted: Array) -> int:
        return int((wanted & ~self.holds(condition, len(wanted))).sum())

    def _keyed(self, keys: tuple[str, ...], wanted: Array, refused: Array) -> DecidingCondition:
        """Return a condition whose products begin with tests of the key properties."""
        columns, products = [self.values[key] for key in keys], list[Product]()
        for values in sorted(set(zip(*(each[wanted] for each in columns), strict=True)), key=str):
            parts = [column == value for column, value in zip(columns, values, strict=True)]
            mask = np.array(np.logical_and.reduce(parts), np.bool_)
            condition = self._products(wanted & mask, refused & mask)
            first = tuple(map(PropertyTest, keys, values))
            products += [(*first, *each) for each in condition.products]
        return DecidingCondition(tuple(products))

    def _products(self, wanted: Array, refused: Array) -> DecidingCondition:
        """Return products that cover the wanted rows and no refused row."""
        if not refused.any():
            return DecidingCondition(((),))
        rows = np.flatnonzero(wanted | refused)
        features = [each._replace(values=each.values[rows]) for each in self.features]
        correct = np.stack([~wanted[rows], wanted[rows]], axis=1)
        # Only the second effect is allowed, so that all rules together are a disjunction.
        bias = Bias(MISS_BITS, (inf, 0.0), MAX_PRODUCTS, default=0)
        found = learn(features, correct, self.spend, bias)
        return DecidingCondition(
            tuple(tuple(map(self._test, rule.conditions)) for rule in found.rules)
        )

    def _test(self, condition: RelationCondition) -> PropertyTest:
        """Convert a condition on a code or flag."""
        if not condition.operator:
            return PropertyTest(condition.feature, True, bool(condition.value))
        value = self.kinds[condition.feature][condition.value]
        return PropertyTest(condition.feature, value, condition.operator == "==")
