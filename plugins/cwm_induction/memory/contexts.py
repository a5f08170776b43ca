"""Contexts of recorded steps, and how well a remembered quantity explains their outcomes.

Steps with equal observation and action are in one context. If outcomes differ within a context,
a remembered quantity must separate the steps. The score of a quantity is the gain in marginal
likelihood if each context is split by the quantity where this helps (a context tree of depth one;
Willems et al., 1995, "The context-tree weighting method").
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.special import gammaln

from cwm_induction.continuous.samples import Array

MAX_VALUES = 64
"""Maximum number of different values of a quantity; larger values count as the largest."""

PRIOR = 0.1
"""Pseudo-count of each outcome; small, because outcomes in the right context are certain."""


@dataclass(frozen=True)
class Contexts:
    """Rows of contexts with different values of one output; contexts and outcomes are numbers."""

    rows: Array
    labels: Array
    outcomes: Array
    evidence: Array
    """Marginal log-likelihood of each context."""

    @classmethod
    def of(cls, labels: Array, outcomes: Array, rows: Array) -> Self:
        """Keep the rows whose context has different outcomes."""
        _, labels = np.unique(labels[rows], return_inverse=True)
        _, outcomes = np.unique(outcomes[rows], return_inverse=True)
        pairs = np.unique(labels * (outcomes.max(initial=0) + 1) + outcomes)
        kinds = np.bincount(
            pairs // (outcomes.max(initial=0) + 1), minlength=labels.max(initial=-1) + 1
        )
        open_ = kinds[labels] > 1
        rows, labels, outcomes = rows[open_], labels[open_], outcomes[open_]
        _, labels = np.unique(labels, return_inverse=True)
        _, outcomes = np.unique(outcomes, return_inverse=True)
        found = cls(rows, labels, outcomes, np.zeros(0))
        if not rows.size:
            return found
        return replace(found, evidence=found._evidence(np.zeros(len(rows), int), 1)[:, 0])

    def _evidence(self, values: Array, count: int) -> Array:
        """Return the log-likelihood (contexts, values) of the outcomes, by context and value."""
        kinds, size = self.outcomes.max() + 1, self.labels.max() + 1
        codes = (self.labels * count + values) * kinds + self.outcomes
        counts = np.bincount(codes, minlength=size * count * kinds).reshape(size, count, kinds)
        seen = (counts.sum(1) > 0).sum(1)[:, None]
        single, whole = _tables(len(self.rows), int(kinds))
        evidence: Array = single[counts].sum(2) - whole[seen, counts.sum(2)]
        return evidence

    def gains(self, values: Array) -> Array:
        """Return the gain of each context in nats if a quantity (of whole numbers) splits it."""
        if not self.rows.size:
            return np.zeros(0)
        part = np.minimum(values[self.rows], MAX_VALUES)
        split = self._evidence(part, int(part.max()) + 1).sum(1)
        gains: Array = np.maximum(split - self.evidence - np.log(2), 0.0)
        return gains

    def split(self, values: Array) -> Self:
        """Split each context if the quantity helps there."""
        helps = self.gains(values) > 0
        part = np.minimum(values[self.rows], MAX_VALUES)
        labels = self.labels * (MAX_VALUES + 1) + np.where(helps[self.labels], part, 0)
        every = np.zeros(int(self.rows.max(initial=-1)) + 1, int)
        outcomes = every.copy()
        every[self.rows], outcomes[self.rows] = labels, self.outcomes
        return type(self).of(every, outcomes, self.rows)


@lru_cache(maxsize=64)
def _tables(rows: int, kinds: int) -> tuple[Array, Array]:
    """Return the terms of the Dirichlet-multinomial likelihood, by count and by (kinds, count)."""
    counts, seen = np.arange(rows + 1), PRIOR * np.arange(1, kinds + 1)[:, None]
    single = gammaln(counts + PRIOR) - gammaln(PRIOR)
    whole = gammaln(counts + seen) - gammaln(seen)
    return single, np.concatenate([np.zeros((1, rows + 1)), whole])


def whole(values: Array) -> Array:
    """Return numbers as labels from 0, in their order."""
    _, labels = np.unique(values, return_inverse=True)
    return np.asarray(labels).ravel()


def total_gain(contexts: Sequence[Contexts], values: Array) -> float:
    """Return the gain of all outputs together."""
    return float(sum(part.gains(values).sum() for part in contexts))
