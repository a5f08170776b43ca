"""Permutation tests whether the history of rows explains differences between their outcomes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from cwm_cli.evaluation.history import paired

MAX_P_VALUE = 0.001
"""Largest p-value, corrected for the number of tests, at which a context counts."""
SHUFFLES = 60
"""Shuffled copies of the outcomes: enough to fit the distribution of the largest statistic."""
PREFERRED = 0.75
"""Recent steps are named if they explain at least this fraction of what older history explains."""
AS_STRONG = 0.9
"""Of tied contexts the first is named whose statistic is this fraction of the largest."""
TIED = 0.05
"""Contexts whose shares differ by less are tied; the most significant one is named."""


class ShuffledOutcomes:
    """Outcomes, and copies that are shuffled among the rows of each cell."""

    def __init__(self, cell: np.ndarray, outcomes: np.ndarray) -> None:
        """Take the cell and the outcome (rows, columns) of each row."""
        rng = np.random.default_rng(0)
        self.cell = np.unique(cell, return_inverse=True)[1].reshape(-1)
        self._sizes = np.bincount(self.cell)
        order = np.argsort(self.cell, kind="stable")
        starts = np.flatnonzero(np.diff(self.cell[order], prepend=-1))
        means = np.add.reduceat(outcomes[order], starts) / self._sizes[:, None]
        self.outcomes = outcomes - means[self.cell]
        self._spread = np.bincount(self.cell, (self.outcomes**2).sum(axis=1))
        copies = [self.outcomes]
        for _ in range(SHUFFLES):
            copy = np.empty_like(self.outcomes)
            copy[order] = self.outcomes[np.lexsort((rng.random(len(cell)), self.cell))]
            copies.append(copy)
        self.copies = np.stack(copies, axis=1).reshape(len(cell), -1).astype(np.float32)

    @property
    def cells(self) -> float:
        """The effective number of cells that the differences are spread over."""
        return float(self._spread.sum() ** 2 / max(1e-300, (self._spread**2).sum()))

    def explained(self, context: np.ndarray) -> float:
        """Return the share of the differences that a context explains, less that by chance."""
        group, usual = self._groups(context)
        left = self._spread.sum() - usual
        if left <= 1e-6 * self._spread.sum():
            return 0.0
        return float((self._between(group, self.outcomes).sum() - usual) / left)

    def strengths(self, context: np.ndarray) -> np.ndarray:
        """Return the standardised statistic of the outcomes and of each shuffled copy."""
        group, usual = self._groups(context)
        between = self._between(group, self.copies).reshape(SHUFFLES + 1, -1).sum(axis=1)
        deviation = float(np.sqrt(((between[1:] - usual) ** 2).mean()))
        if deviation <= 1e-6 * self._spread.sum():
            return np.zeros(SHUFFLES + 1)
        strengths: np.ndarray = (between - usual) / deviation
        return strengths

    def _groups(self, context: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the rows' groups of one cell and context, and the expected spread of means."""
        group = paired(self.cell, context)
        first = np.unique(group, return_index=True)[1]
        groups = np.bincount(self.cell[first], minlength=len(self._sizes))
        usual = self._spread * (groups - 1) / np.maximum(self._sizes - 1, 1)
        return group, float(usual.sum())

    def _between(self, group: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
        """Return the sum of squares between groups, for each column."""
        sizes = np.bincount(group)
        places = np.arange(len(group))
        member = csr_array((np.ones(len(group), outcomes.dtype), (group, places)))
        spread: np.ndarray = ((member @ outcomes) ** 2 / sizes[:, None]).sum(axis=0)
        return spread

    def split(self, inputs: np.ndarray) -> float:
        """Return the share that one threshold per cell explains, less that by chance.

        The best component and threshold are searched in each cell: differences that a boundary
        in the observation explains need neither memory nor chance.
        """
        copies = self.copies.reshape(len(inputs), SHUFFLES + 1, -1)
        size = self._sizes[self.cell]
        best = np.zeros((len(self._sizes), SHUFFLES + 1))
        for column in inputs.T:
            order = np.lexsort((column, self.cell))
            cells, values = self.cell[order], column[order]
            starts = np.flatnonzero(np.diff(cells, prepend=-1))
            rank = np.arange(len(order)) - starts[cells] + 1
            sums = np.cumsum(copies[order], axis=0, dtype=np.float64)
            before = np.concatenate([np.zeros_like(sums[:1]), sums])[starts]
            sums -= before[cells]
            rest = size[order] - rank
            apart = np.append(values[1:] > values[:-1], False) & (rest > 0)
            gain = (sums**2).sum(axis=2) * (1 / rank + 1 / np.maximum(rest, 1))[:, None]
            best = np.maximum(best, np.maximum.reduceat(gain * apart[:, None], starts))
        total = best.sum(axis=0)
        usual, spread = float(total[1:].mean()), float(self._spread.sum())
        return 0.0 if spread <= usual else float((total[0] - usual) / (spread - usual))


class Explanation(NamedTuple):
    """A part of the history that explains differences, as fields of a finding."""

    told_by: str
    told: float
    tests: int
    p_value: float


class ContextTests:
    """Tests whether parts of the history explain outcomes, corrected for their number.

    The largest statistic of all tests on a shuffled copy corrects for the number of tests
    (Westfall and Young, 1993). It follows a Gumbel distribution, so that few copies suffice. It is
    fitted to a sample of the tests; Bonferroni's factor corrects for the remaining tests.
    """

    SAMPLE = 60
    MOST = 20

    def __init__(
        self, tests: Sequence[tuple[str, ShuffledOutcomes, np.ndarray]], recent: np.ndarray
    ) -> None:
        """Evaluate tests.

        Args:
            tests: Name, outcomes and context of each test.
            recent: Indices of the tests of recent steps. They are the likeliest causes, so half of
                the error probability is reserved for them, and they are preferred as explanation.
        """
        self._tests, self._recent = tests, recent
        self.shares = np.array([outcomes.explained(code) for _, outcomes, code in tests])
        best = np.argsort(-self.shares, kind="stable")[: self.MOST]
        sample = np.linspace(0, len(tests) - 1, min(self.SAMPLE, len(tests))).astype(int)
        every = np.union1d(np.union1d(best, sample), recent)
        strengths = {i: tests[i][1].strengths(tests[i][2]) for i in every.tolist()}
        real = np.array([strength[0] for strength in strengths.values()])
        self._strengths, self.p_values = np.zeros(len(tests)), np.ones(len(tests))
        self._strengths[every] = real
        self.p_values[every] = self._tail(strengths, sample, real) * len(tests) / len(sample)
        if len(recent):
            alone = self._tail(strengths, recent, self._strengths[recent])
            self.p_values[recent] = np.minimum(self.p_values[recent], alone)
            self.p_values = np.minimum(1.0, 2 * self.p_values)

    def _tail(
        self, strengths: Mapping[int, np.ndarray], sample: np.ndarray, real: np.ndarray
    ) -> np.ndarray:
        """Return the probability that the largest of the sampled statistics is as large."""
        largest = np.max([strengths[i][1:] for i in sample.tolist()], axis=0)
        scale = max(float(largest.std()), 0.4) * np.sqrt(6) / np.pi
        location = float(largest.mean()) - np.euler_gamma * scale
        tail: np.ndarray = -np.expm1(-np.exp(-(real - location) / scale))
        return tail

    def significant(self, least: float | np.ndarray, p_value: float = MAX_P_VALUE) -> np.ndarray:
        """Return the tests that are significant and explain at least a share."""
        return np.flatnonzero((self.p_values < p_value) & (self.shares >= least))

    def strongest(
        self, least: float | np.ndarray, p_value: float = MAX_P_VALUE
    ) -> Explanation | None:
        """Return the test that explains most, if one is significant.

        Of tests that explain about as much, and are about as significant, the first is returned.
        Older history is only returned if it explains clearly more than recent steps.
        """
        some = self.significant(least, p_value)
        if not len(some):
            return None
        recent = np.intersect1d(some, self._recent)
        if len(recent) and self.shares[recent].max() >= PREFERRED * self.shares[some].max():
            some = recent
        tied = some[self.shares[some] >= self.shares[some].max() - TIED]
        strong = self._strengths[tied]
        best = int(tied[strong >= AS_STRONG * strong.max()][0])
        return Explanation(
            self._tests[best][0],
            float(np.clip(self.shares[best], 0, 1)),
            len(self._tests),
            float(self.p_values[best]),
        )
