"""When a rule applies: the shortest conditions that hold where it must and nowhere else.

A condition is a sum of products over properties of a situation, such as `front.kind == "door"`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

DENIED = 0.6
"""What "is not" costs beyond "is": it says something of all that was never seen."""

WIDEST = 14
"""Pairs of properties that a third one is looked for to."""

PARTS = 8
"""Products that a condition may have: with more it retells the rows."""


@dataclass(frozen=True)
class Property:
    """Something that can be said of a situation: an expression, and what it costs."""

    text: str
    cost: float


class PropertyTest(NamedTuple):
    """A property that has a value, or has it not; of true and false the value says it all."""

    text: str
    value: Any
    holds: bool = True

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return self.text if self.value == self.holds else f"not {self.text}"
        return f"{self.text} {'==' if self.holds else '!='} {self.value!r}"


Product = tuple[PropertyTest, ...]
Scored = tuple[tuple[int, ...], float, float]
"""Literals by number, how many wanted rows they cover, and what they cost."""


@dataclass(frozen=True)
class DecidingCondition:
    """A sum of products; one product without literals holds everywhere."""

    products: tuple[Product, ...]

    def __str__(self) -> str:
        """Write the condition, as short as it goes; "" where it always holds."""
        grouped: dict[tuple[str, Product], list[Any]] = {}
        for product in self.products:
            if not product:
                return ""
            first, *rest = product
            told = first.holds and not isinstance(first.value, bool)
            key = (first.text, tuple(rest)) if told else ("", product)
            grouped.setdefault(key, []).append(first.value)
        texts = []
        for (text, others), values in grouped.items():
            one = f"{text} == {values[0]!r}" if len(values) == 1 else f"{text} in {tuple(values)!r}"
            texts.append(" and ".join([one] * bool(text) + [str(each) for each in others]))
        return " or ".join(texts)


class DecidingCases:
    """The properties of some rows, and the conditions that tell some of them from others."""

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
                    costs.append(each.cost + (0 if holds else DENIED))
        size = len(next(iter(columns.values()))) if columns else 0
        self.masks = np.array(masks, np.bool_).reshape(len(masks), size)
        self.costs = np.array(costs)

    def condition(
        self, wanted: Array, refused: Array, keys: Sequence[tuple[str, ...]] = ()
    ) -> tuple[DecidingCondition, float]:
        """Return a condition that holds in no refused row, and in as many wanted ones as it can.

        With `keys`, properties, all values of some of them together are spoken of by themselves:
        nothing is said of values that were not wanted yet. What is cheapest is taken; also its
        cost.
        """
        if not keys:
            return self._products(wanted, refused)
        found = [self._keyed(key, wanted, refused) for key in keys]
        return min(found, key=lambda each: (self._left(each[0], wanted), each[1]))

    def holds(self, condition: DecidingCondition, rows: int) -> Array:
        """Return the mask of the rows in which a condition holds."""
        mask = np.zeros(rows, np.bool_)
        for product in condition.products:
            part = np.ones(rows, np.bool_)
            for text, value, positive in product:
                part &= np.array(self.values[text] == value, np.bool_) == positive
            mask |= part
        return mask

    def _left(self, condition: DecidingCondition, wanted: Array) -> int:
        return int((wanted & ~self.holds(condition, len(wanted))).sum())

    def _keyed(
        self, keys: tuple[str, ...], wanted: Array, refused: Array
    ) -> tuple[DecidingCondition, float]:
        """Return a condition that begins with the values of some properties."""
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
        """Return products that cover the wanted rows one after the other, the most at first."""
        if not refused.any():
            return DecidingCondition(((),)), 0.0
        products: list[Product] = []
        left, cost = wanted.copy(), 0.0
        while left.any() and len(products) < PARTS:
            best = self._product(left, refused)
            if best is None:
                break
            chosen, price = best
            products.append(tuple(self.literals[index] for index in chosen))
            left &= ~self.masks[list(chosen)].all(0)
            cost += price + 1
        return DecidingCondition(tuple(products)), cost

    def _product(self, wanted: Array, refused: Array) -> tuple[tuple[int, ...], float] | None:
        """Return the product of up to three literals that covers most wanted rows and no other."""
        good = self.masks[:, wanted].astype(np.float32)
        bad = self.masks[:, refused].astype(np.float32)
        hits, misses = good.sum(1), bad.sum(1)
        alone = np.flatnonzero((misses == 0) & (hits > 0)).tolist()
        found: list[Scored] = [((i,), float(hits[i]), float(self.costs[i])) for i in alone]
        most = hits.max(initial=0)
        if not any(count == most for _, count, _ in found):
            both, wrong = good @ good.T, bad @ bad.T
            price = self.costs[:, None] + self.costs
            pairs = np.argwhere(np.triu((wrong == 0) & (both > 0), 1))
            found += [((i, j), float(both[i, j]), price[i, j]) for i, j in pairs.tolist()]
            if not any(count == most for _, count, _ in found):
                found += self._triples(good, bad, both, wrong)
        if not found:
            return None
        found.sort(key=lambda each: (-each[1], each[2]))
        alike = [each for each in found if each[1] == found[0][1]]
        indices, _, cost = alike[min(self.rank, len(alike) - 1)]
        return indices, cost

    def _triples(self, good: Array, bad: Array, both: Array, wrong: Array) -> list[Scored]:
        """Return products of three literals, from the pairs that leave the fewest refused rows."""
        order = np.lexsort((wrong.ravel(), -both.ravel()))
        found: list[Scored] = []
        firsts = [divmod(int(index), len(both)) for index in order[: 40 * WIDEST]]
        firsts = sorted((pair for pair in firsts if pair[0] < pair[1]), key=lambda p: wrong[p])
        for i, j in firsts[:WIDEST]:
            hits = good @ (good[i] * good[j])
            misses = bad @ (bad[i] * bad[j])
            for k in np.flatnonzero((misses == 0) & (hits > 0)).tolist():
                cost = self.costs[i] + self.costs[j] + self.costs[k]
                found.append(((i, j, k), float(hits[k]), float(cost)))
        return found
