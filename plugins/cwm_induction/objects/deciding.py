"""Find the shortest condition that separates the rows of a rule from all other rows.

A condition is a disjunction of conjunctions of tests, such as `front.kind == "door"`. This module
uses the names of Boolean algebra: a product is a conjunction, a literal is a test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

NEGATION_COST = 0.6
"""Extra cost of `!=` compared with `==`, because `!=` also holds for values without data."""

MAX_PAIRS = 14
"""Maximum number of pairs of literals that are extended by a third literal."""

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
Scored = tuple[tuple[int, ...], float, float]
"""Indices of literals, number of wanted rows that they cover, and cost."""


@dataclass(frozen=True)
class DecidingCondition:
    """A disjunction of products; a product without literals always holds."""

    products: tuple[Product, ...]

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

    def __init__(self, columns: Mapping[Property, Sequence[Any]], rank: int = 0) -> None:
        self.rank = rank
        self.literals: list[PropertyTest] = []
        self.values = {each.text: np.array(column, object) for each, column in columns.items()}
        masks, costs = [], []
        for each, column in columns.items():
            array = self.values[each.text]
            different = sorted(set(column), key=str)
            if len(different) < 2:
                continue
            for value in different if not isinstance(different[0], bool) else [True]:
                mask = np.array(array == value, np.bool_)
                for holds in (True, False):
                    self.literals.append(PropertyTest(each.text, value, holds))
                    masks.append(mask if holds else ~mask)
                    costs.append(each.cost + (0 if holds else NEGATION_COST))
        size = len(next(iter(columns.values()))) if columns else 0
        self.masks = np.array(masks, np.bool_).reshape(len(masks), size)
        self.costs = np.array(costs)

    def condition(
        self, wanted: Array, refused: Array, keys: Sequence[tuple[str, ...]] = ()
    ) -> tuple[DecidingCondition, float]:
        """Return a condition that holds in wanted rows but in no refused row, and its cost.

        Args:
            wanted: Mask of the rows to cover; the greedy search covers the most at each step.
            refused: Mask of the rows that the condition must not cover.
            keys: Groups of properties. Each product then begins with a test of all properties of
                one group, so that the condition does not hold for values that no wanted row has.
                The group that leaves the fewest wanted rows is chosen, then the cheapest one.
        """
        if not keys:
            return self._products(wanted, refused)
        candidates = [self._keyed(key, wanted, refused) for key in keys]
        return min(candidates, key=lambda each: (self._uncovered(each[0], wanted), each[1]))

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

    def _keyed(
        self, keys: tuple[str, ...], wanted: Array, refused: Array
    ) -> tuple[DecidingCondition, float]:
        """Return a condition whose products begin with tests of the key properties."""
        columns, products, cost = [self.values[key] for key in keys], [], 0.0
        for values in sorted(set(zip(*(each[wanted] for each in columns), strict=True)), key=str):
            parts = [column == value for column, value in zip(columns, values, strict=True)]
            mask = np.array(np.logical_and.reduce(parts), np.bool_)
            condition, more = self._products(wanted & mask, refused & mask)
            first = tuple(map(PropertyTest, keys, values))
            products += [(*first, *each) for each in condition.products]
            cost += 1 + more
        return DecidingCondition(tuple(products)), cost

    def _products(self, wanted: Array, refused: Array) -> tuple[DecidingCondition, float]:
        """Return products that cover the wanted rows greedily, the largest share first."""
        if not refused.any():
            return DecidingCondition(((),)), 0.0
        products: list[Product] = []
        left, cost = wanted.copy(), 0.0
        while left.any() and len(products) < MAX_PRODUCTS:
            best = self._product(left, refused)
            if best is None:
                break
            chosen, price = best
            products.append(tuple(self.literals[index] for index in chosen))
            left &= ~self.masks[list(chosen)].all(0)
            cost += price + 1
        return DecidingCondition(tuple(products)), cost

    def _product(self, wanted: Array, refused: Array) -> tuple[tuple[int, ...], float] | None:
        """Return the product of up to three literals that covers most wanted rows.

        The product covers no refused row. Equal products are sorted by cost; `rank` selects one.
        """
        good = self.masks[:, wanted].astype(np.float32)
        bad = self.masks[:, refused].astype(np.float32)
        hits, misses = good.sum(1), bad.sum(1)
        alone = np.flatnonzero((misses == 0) & (hits > 0)).tolist()
        candidates: list[Scored] = [((i,), float(hits[i]), float(self.costs[i])) for i in alone]
        most = hits.max(initial=0)
        if not any(count == most for _, count, _ in candidates):
            both, wrong = good @ good.T, bad @ bad.T
            price = self.costs[:, None] + self.costs
            pairs = np.argwhere(np.triu((wrong == 0) & (both > 0), 1))
            candidates += [((i, j), float(both[i, j]), price[i, j]) for i, j in pairs.tolist()]
            if not any(count == most for _, count, _ in candidates):
                candidates += self._triples(good, bad, both, wrong)
        if not candidates:
            return None
        candidates.sort(key=lambda each: (-each[1], each[2]))
        alike = [each for each in candidates if each[1] == candidates[0][1]]
        indices, _, cost = alike[min(self.rank, len(alike) - 1)]
        return indices, cost

    def _triples(self, good: Array, bad: Array, both: Array, wrong: Array) -> list[Scored]:
        """Return products of three literals, built from the pairs with the fewest refused rows."""
        order = np.lexsort((wrong.ravel(), -both.ravel()))
        triples: list[Scored] = []
        firsts = [divmod(int(index), len(both)) for index in order[: 40 * MAX_PAIRS]]
        firsts = sorted((pair for pair in firsts if pair[0] < pair[1]), key=lambda p: wrong[p])
        for i, j in firsts[:MAX_PAIRS]:
            hits = good @ (good[i] * good[j])
            misses = bad @ (bad[i] * bad[j])
            for k in np.flatnonzero((misses == 0) & (hits > 0)).tolist():
                cost = self.costs[i] + self.costs[j] + self.costs[k]
                triples.append(((i, j, k), float(hits[k]), float(cost)))
        return triples
