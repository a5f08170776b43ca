"""Rules for single quantities: counters, colours and other components that are no cells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias, RelationFeature, RelationList, learn
from cwm_induction.relations.boards import evaluate
from cwm_induction.relations.stages import (
    BoardTerm,
    CellEffect,
    Names,
    Spend,
    branch_lines,
    define,
    useful_effects,
)

MAX_CONSTANTS = 8
"""Different values that rules may set; a quantity with more values is a number."""


@dataclass(frozen=True)
class RelationQuantity:
    """Rules for the next value of a component."""

    component: int
    terms: tuple[BoardTerm, ...]
    effects: tuple[CellEffect, ...]
    rules: RelationList

    def values(self, names: Names, count: int) -> Array:
        """Return the next values of `count` rows."""
        found = dict(names)
        define(self.terms, found)
        which = self.rules.effects(found, count)
        values = np.zeros(count, np.int64)
        for number, effect in enumerate(self.effects):
            mask = which == number
            values[mask] = np.broadcast_to(evaluate(effect.text, found), mask.shape)[mask]
        return values

    @property
    def lines(self) -> list[str]:
        """Write the rules as lines of `step`."""
        name = f"new_x{self.component}"
        return branch_lines(self.rules, self.effects, lambda text: f"{name} = {text}")


def fit_quantity(
    component: int,
    after: Array,
    names: Names,
    terms: Sequence[BoardTerm],
    copies: Sequence[CellEffect],
    spend: Spend,
) -> RelationQuantity:
    """Learn rules for one component.

    Args:
        component: Its number, n; its value before the step is named `xn`.
        after: Values after the step.
        names: Values of variables, one entry per row.
        terms: Terms that conditions may compare.
        copies: Other expressions that it may take its value from.
        spend: Takes multiplications.
    """
    found = dict(names)
    define(terms, found)
    own, values = f"x{component}", np.unique(after).tolist()
    effects = [CellEffect(own), CellEffect(f"{own} + 1"), CellEffect(f"{own} - 1")]
    effects += [CellEffect(str(value)) for value in values[:MAX_CONSTANTS]]
    effects += copies
    low, size = min(values), len(values)
    numbers = [
        t.name for t in terms if t.kind == "number" and t.name != own and t.name.isidentifier()
    ]
    origin = f" + {low}" if low else ""
    for shift in range(size if 1 < size <= MAX_CONSTANTS else 0):
        # a cycle of values that advances by one or by another quantity
        ahead = f" + {shift - low}" if shift != low else ""
        effects.append(CellEffect(f"({own}{ahead}) % {size}{origin}", 1.0))
        effects += [
            CellEffect(f"({own} {sign} {number}{ahead}) % {size}{origin}", 3.0)
            for sign in "+-"
            for number in numbers
        ]
    correct = np.stack(
        [np.broadcast_to(evaluate(e.text, found) == after, after.shape) for e in effects], axis=1
    )
    useful = useful_effects(correct)
    features = [RelationFeature(t.name, t.kind, found[t.name], t.price) for t in terms]
    bias = Bias(effect_bits=[effects[index].price for index in useful])
    rules = learn(features, correct[:, useful], spend, bias)
    return RelationQuantity(component, tuple(terms), tuple(effects[i] for i in useful), rules)
