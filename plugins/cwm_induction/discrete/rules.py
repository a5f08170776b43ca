"""Rules over columns of small integers: decision lists that select a label for each row."""

from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.decision_list import Bias, RelationFeature, RelationList, Spend, learn
from cwm_induction.discrete.features import FactoredTransitions, RuleColumn, Sizes

CASE_BITS = 4.0
"""Price of a case of a decision list, in addition to its comparisons and its label."""


class CaseList(NamedTuple):
    """A decision list: the first case that holds gives the label, otherwise the label is 0.

    Conditions name columns by their number. `bits` is the description length, errors included.
    """

    columns: tuple[RuleColumn, ...]
    found: RelationList
    bits: float

    def labels(self, factored: FactoredTransitions, sizes: Sizes) -> np.ndarray:
        """Return the label of each transition."""
        used = {n: factored.column(self.columns[int(n)], sizes) for n in self.found.features}
        return self.found.effects(used, len(factored.action))


class CaseSearch(NamedTuple):
    """A search for decision lists about transitions.

    `error_bits` is the price of a wrong row, `search_error_bits` that while rules are extended.
    """

    sizes: Sizes
    spend: Spend
    error_bits: float
    search_error_bits: float | None = None

    def learn(
        self,
        factored: FactoredTransitions,
        columns: tuple[RuleColumn, ...],
        correct: np.ndarray,
        effect_bits: tuple[float, ...] = (),
        rows: np.ndarray | None = None,
    ) -> CaseList:
        """Learn the list with the shortest description.

        Args:
            factored: Transitions, one row each.
            columns: Columns that conditions may compare.
            correct: Mask of shape (rows, labels): the label gives the recorded outcome.
            effect_bits: Price of each label.
            rows: Mask of the rows that count; without it, all rows.
        """
        chosen = np.arange(len(correct)) if rows is None else np.flatnonzero(rows)
        features = [
            RelationFeature(str(n), column.order, values[chosen], column.bits)
            for n, column in enumerate(columns)
            for values in [factored.column(column, self.sizes)]
        ]
        kinds = correct.shape[1]
        bias = Bias(
            self.error_bits, effect_bits, default=0, search_error_bits=self.search_error_bits
        )
        found = learn(features, correct[chosen], self.spend, bias)
        values = {feature.name: feature.values for feature in features}
        labels = found.effects(values, len(chosen))
        wrong = np.count_nonzero(~correct[chosen, labels])
        each = log2(2 + sum(column.size for column in columns))
        bits = len(found.rules) * (CASE_BITS + log2(max(2, kinds))) + wrong * self.error_bits
        bits += sum(each for rule in found.rules for _ in rule.conditions)
        return CaseList(columns, found, float(bits))
