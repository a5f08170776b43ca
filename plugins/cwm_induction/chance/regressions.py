"""Real numbers with normal noise: linear regressions as kernels of a tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cwm_induction.chance.kernels import OutcomeTarget
from cwm_induction.chance.quantities import KnownQuantity, OutcomeRows
from cwm_induction.continuous.regression import Formula, solve
from cwm_induction.continuous.terms import NamedColumn, Term, library
from cwm_induction.noise.residuals import noise_scale, supported
from cwm_induction.writing.rounding import literal, rounded

Array = np.ndarray

FLOOR = 1e-4
"""Noise, in units of the usual change, below which an equation counts as exact."""

DIGITS = 3
"""Digits of a standard deviation."""

MAX_TERMS = 8
"""Terms of an equation at most."""


def regressions(target: OutcomeTarget, rows: OutcomeRows, learn: Array) -> list["RegressionKernel"]:
    """Return regressions of an output on no, one, few and all linear terms."""
    columns = [NamedColumn(*part) for part in (*rows.now, *rows.earlier)]
    inputs = [NamedColumn(*part) for part in rows.actions]
    terms = [term for term in library(columns, inputs, 2) if not term.text.startswith("np.")]
    linear = [term for term in terms if term.cost <= 1]
    supports: list[Sequence[Term]] = [[], terms[:1]]
    supports += [[terms[0], term] for term in linear[1:]]
    change = _change(target)
    for group in rows.groups():
        if (group & learn).sum() > 3 * MAX_TERMS:
            supports.append(supported(terms, change, group & learn)[:MAX_TERMS])
    texts: dict[tuple[str, ...], RegressionKernel] = {}
    known = tuple(part for part in rows.known if np.ptp(part.values) > 0)
    for support in [*supports, linear]:
        kernel = RegressionKernel(target, tuple(support), known, learn)
        texts.setdefault(tuple(sorted(term.text for term in support)), kernel)
    return list(texts.values())


def _change(target: OutcomeTarget) -> Array:
    return target.values - (0.0 if target.own is None else target.own.values)


@dataclass(frozen=True)
class RegressionKernel:
    """An output that is linear in some terms, with normal noise."""

    target: OutcomeTarget
    terms: tuple[Term, ...]
    known: tuple[KnownQuantity, ...]
    learn: Array

    @property
    def bits(self) -> float:
        """Price of the terms."""
        return 4.0 * len(self.terms)

    @cached_property
    def table(self) -> Array:
        """Terms and output in their usual sizes (rows, terms + 1)."""
        change = _change(self.target)
        parts = [*(term.values for term in self.terms), change]
        sizes = [max(float(np.abs(part[self.learn]).std()), 1e-9) for part in parts]
        sizes = [size if np.ptp(part) else 1.0 for part, size in zip(parts, sizes, strict=True)]
        sizes[-1] = max(float(change[self.learn].std()), 1e-9)
        scaled = [part / size for part, size in zip(parts, sizes, strict=True)]
        return np.stack(scaled, axis=1)

    @cached_property
    def columns(self) -> Array:
        """Products of all terms and the output (rows, products)."""
        table = self.table
        products: Array = (table[:, :, None] * table[:, None]).reshape(len(table), -1)
        return products

    def costs(self, sums: Array, counts: Array) -> Array:
        """Return the description length in bits of sets of rows, by sums of products."""
        width = len(self.terms)
        grams = sums.reshape(-1, width + 1, width + 1)
        ridge = 1e-9 * np.eye(width) * np.maximum(counts, 1)[:, None, None]
        crossed = grams[:, :width, width:]
        weights = np.linalg.solve(grams[:, :width, :width] + ridge, crossed)
        left = grams[:, width, width] - (crossed * weights).sum(axis=(1, 2))
        variance = np.maximum(left / np.maximum(counts, 1), 0.0) + FLOOR**2
        costs = 0.5 * counts * np.log2(variance / FLOOR**2)
        costs += self.bits + 0.5 * (width + 1) * np.log2(counts + 1)
        found: Array = np.where(counts > 2 * width, costs, np.inf)
        return found

    def fit(self, rows: Array) -> "RegressionLeaf":
        """Fit the weights and the noise to a mask of rows."""
        sums, count = self.columns[rows].sum(axis=0)[None], np.array([rows.sum()])
        bits = float(self.costs(sums, count)[0])
        change = _change(self.target)
        if not self.terms:
            formula = Formula((), ())
        else:
            matrix = np.stack([term.values[rows] for term in self.terms], axis=1)
            weights = solve(matrix, change[rows])
            rest = float(np.std(change[rows] - matrix @ weights))
            sizes = np.abs(matrix).max(axis=0) + 1e-12
            short = [
                _short(float(weight), 0.02 * rest / size)
                for weight, size in zip(weights, sizes, strict=True)
            ]
            formula = Formula(self.terms, tuple(short))
        rest = change - formula.values(len(change))
        scale = noise_scale(rest, rows, [NamedColumn(*part) for part in self.known])
        deviation = rounded(float(np.sqrt(((rest / scale.values)[rows] ** 2).mean())), DIGITS)
        usual = float(change[self.learn].std())
        if float(np.sqrt((rest[rows] ** 2).mean())) < 3 * FLOOR * usual:
            deviation = 0.0
        return RegressionLeaf(self, formula, deviation, scale.text, bits)


def _short(weight: float, slack: float) -> float:
    """Return the weight with the fewest digits within some slack."""
    digits = (rounded(weight, count) for count in range(1, 9))
    return next((short for short in digits if abs(short - weight) <= slack), weight)


@dataclass(frozen=True)
class RegressionLeaf:
    """A mean and the standard deviation of normal noise, which may have a factor."""

    kernel: RegressionKernel
    formula: Formula
    deviation: float
    factor: str
    bits: float

    @property
    def is_certain(self) -> bool:
        """Whether there is no noise."""
        return not self.deviation

    @property
    def sources(self) -> set[str]:
        """The functions that the program needs: none."""
        return set()

    def lines(self) -> list[str]:
        """Write the statement that draws the output."""
        own = self.kernel.target.own
        mean = self.formula.text("" if own is None else own.text)
        parts = [literal(self.deviation), self.factor, "self.rng.normal()"]
        noise = f" + {' * '.join(filter(None, parts))}" if self.deviation else ""
        return [f"return {mean}{noise}"]

    def refitted(self, rows: Array) -> "RegressionLeaf":
        """Fit the weights and the noise to other rows."""
        return self.kernel.fit(rows) if rows.sum() > 2 * len(self.kernel.terms) else self
