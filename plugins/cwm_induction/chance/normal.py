"""Normal noise: regressions whose residuals have a constant or varying standard deviation.

The mean is a least-squares formula of few terms. The noise may be proportional to a quantity, or
differ between two cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_induction.chance.kernels import FittedKernel, Kernel, OutcomeTarget
from cwm_induction.chance.quantities import KnownQuantity, OutcomeRows, is_whole
from cwm_induction.continuous.regression import DEPENDENT, Formula, solve
from cwm_induction.continuous.terms import NamedColumn, Term, library
from cwm_induction.writing.rounding import literal, rounded

Array = np.ndarray

MOST_TERMS = 12
"""Maximum number of terms of a mean: more terms are rarely identifiable under noise."""

MOST_CASE_TERMS = 8
"""Maximum number of terms of a mean that holds under some conditions only."""

FLOOR = 1e-4
"""Noise, in units of the usual change, below which a formula counts as exact."""

DIGITS = 3
"""Digits of standard deviations and their ratios: a thousand rows determine no more."""

SCALE_GAIN = 8.0
"""Minimum gain of a variable noise scale in log-likelihood (nats), plus half the logarithm of the
number of rows for its parameter: chance rarely gives one of about twenty candidates this gain."""

NEAR_ZERO = 0.05
"""Lower bound of a noise scale, as a fraction of the mean absolute value of its quantity: the
fitted mean is not accurate enough to identify smaller noise."""


class Scale(NamedTuple):
    """A factor of the standard deviation of noise: its value in every row and its expression."""

    values: Array
    text: str = ""


class NormalFit(NamedTuple):
    """A mean plus noise: `deviation` times `scale` times a draw from N(0, 1).

    `draws` has the draw of every row. The deviation is 0 if the mean is exact.
    """

    mean: Formula
    deviation: float
    scale: str
    draws: Array

    def text(self, name: str, source: str) -> str:
        """Return the expression of the next value of `name`; `source` is the draw."""
        parts = [literal(self.deviation), self.scale, source]
        noise = f" + {' * '.join(filter(None, parts))}" if self.deviation else ""
        return self.mean.text(name) + noise


def fit_normal(
    terms: Sequence[Term], target: Array, rows: Array, columns: Sequence[NamedColumn]
) -> NormalFit:
    """Fit a mean, and the scale and standard deviation of the residuals, to a mask of rows.

    Weights have the fewest digits that change no row by more than a hundredth of the noise.
    """
    mean = Formula((), ())
    if terms:
        matrix = np.stack([term.values[rows] for term in terms], 1)
        weights = solve(matrix, target[rows])
        slacks = 0.01 * np.std(target[rows] - matrix @ weights) / (np.abs(matrix).max(0) + 1e-300)
        short = [_shortened(*pair) for pair in zip(weights.tolist(), slacks.tolist(), strict=True)]
        mean = Formula(tuple(terms), tuple(short))
    residuals = target - mean.values(len(target))
    scale = noise_scale(residuals, rows, columns)
    unit = residuals / scale.values
    deviation = rounded(float(np.sqrt((unit[rows] ** 2).mean())), DIGITS)
    if np.sqrt((residuals[rows] ** 2).mean()) <= 3 * FLOOR * np.std(target):
        return NormalFit(mean, 0.0, "", np.zeros(len(target)))
    return NormalFit(mean, deviation, scale.text, unit / deviation)


def _shortened(weight: float, slack: float) -> float:
    """Return the number with the fewest digits within some slack of a weight."""
    short = (rounded(weight, digits) for digits in range(1, 9))
    return next((number for number in short if abs(number - weight) <= slack), weight)


def supported(terms: Sequence[Term], target: Array, rows: Array) -> list[Term]:
    """Select terms by forward regression: add the term with the largest gain beyond its price.

    The gain is the increase in log-likelihood of normal noise. The price of a unit of cost is half
    the logarithm of the number of rows, for the weight, plus the logarithm of the number of terms,
    for the choice. The selection stops without a positive gain; terms with a cost of at most 1
    take precedence.
    """
    matrix = np.stack([term.values[rows] for term in terms], 1)
    remaining = matrix / (np.linalg.norm(matrix, axis=0) + 1e-300)
    residuals, count = target[rows].copy(), int(rows.sum())
    price = (0.5 * np.log(count) + np.log(len(terms))) * np.array([t.cost for t in terms])
    chosen: list[int] = []
    plain = np.array([term.cost <= 1 for term in terms])
    while len(chosen) < MOST_TERMS:
        norms = np.einsum("ij,ij->j", remaining, remaining)
        independent = norms > DEPENDENT
        removed = np.where(
            independent, (remaining.T @ residuals) ** 2 / np.where(independent, norms, 1), 0.0
        )
        left = np.maximum(1 - removed / max(float(residuals @ residuals), 1e-300), 1e-12)
        gains = -0.5 * count * np.log(left) - price
        gains = np.where(independent & (gains > 0), gains, -np.inf)
        gains = np.where(plain, gains, -np.inf) if np.isfinite(gains[plain]).any() else gains
        best = int(np.argmax(gains))
        if not np.isfinite(gains[best]):
            break
        chosen.append(best)
        direction = remaining[:, best] / np.sqrt(norms[best])
        residuals -= direction * (direction @ residuals)
        remaining = remaining - np.outer(direction, direction @ remaining)
    return [terms[place] for place in chosen]


def noise_scale(residuals: Array, rows: Array, columns: Sequence[NamedColumn]) -> Scale:
    """Return the most likely noise scale: constant, proportional to a quantity, or two levels."""
    count = int(rows.sum())
    plain = _likelihood(residuals[rows], np.ones(count))
    best, gained = Scale(np.ones(len(residuals))), SCALE_GAIN + 0.5 * np.log(count)
    for text, values, _ in columns:
        for scale in _scales(residuals, rows, text, values):
            if (gain := _likelihood(residuals[rows], scale.values[rows]) - plain) > gained:
                best, gained = scale, gain
    return best


def _scales(residuals: Array, rows: Array, text: str, values: Array) -> list[Scale]:
    """Return the possible noise scales of a quantity: proportional, or a level for each value."""
    levels = np.unique(values[rows])
    if len(levels) == 2:
        first, second = (float(np.std(residuals[rows & (values == level)])) for level in levels)
        if min(first, second) <= 0:
            return []
        ratio = rounded(second / first, DIGITS)
        case = f"({literal(ratio)} if {text} == {literal(float(levels[1]))} else 1.0)"
        return [Scale(np.where(values == levels[1], ratio, 1.0), case)]
    size = np.abs(values)
    if len(levels) < 2:
        return []
    least = rounded(NEAR_ZERO * float(size[rows].mean()), 2)
    if size[rows].min() > least:
        return [Scale(size, f"abs({text})")]
    return [Scale(np.maximum(size, least), f"max(abs({text}), {literal(least)})")]


def _likelihood(residuals: Array, scale: Array) -> float:
    """Return the log-likelihood of normal residuals with this scale and the best variance."""
    unit = residuals / scale
    variance = max(float(np.mean(unit**2)), 1e-300)
    return float(-0.5 * len(residuals) * np.log(variance) - np.log(scale).sum())


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
        if (group & learn).sum() > 3 * MOST_CASE_TERMS:
            supports.append(supported(terms, change, group & learn)[:MOST_CASE_TERMS])
    texts: dict[tuple[str, ...], RegressionKernel] = {}
    known = tuple(part for part in rows.known if np.ptp(part.values) > 0)
    for support in [*supports, linear]:
        kernel = RegressionKernel(target, tuple(support), known, learn)
        texts.setdefault(tuple(sorted(term.text for term in support)), kernel)
    return list(texts.values())


def _change(target: OutcomeTarget) -> Array:
    return target.values - (0.0 if target.own is None else target.own.values)


@dataclass(frozen=True)
class RegressionKernel(Kernel):
    """An output that is linear in some terms, with normal noise."""

    target: OutcomeTarget
    terms: tuple[Term, ...]
    known: tuple[KnownQuantity, ...]
    learn: Array

    @cached_property
    def is_whole(self) -> bool:
        """Whether the output is a whole number, so that predictions are rounded."""
        return is_whole(self.target.values)

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
        if self.is_whole:  # the bits of whole numbers, not of parts of the usual change
            unit = FLOOR * max(float(_change(self.target)[self.learn].std()), 1e-9)
            costs += counts * max(np.log2(unit * np.sqrt(2 * np.pi * np.e)), -13.0)
        found: Array = np.where(counts > 2 * width, costs, np.inf)
        return found

    def fit(self, rows: Array) -> FittedKernel:
        """Fit the weights and the noise to a mask of rows."""
        sums, count = self.columns[rows].sum(axis=0)[None], np.array([rows.sum()])
        bits = float(self.costs(sums, count)[0])
        known = [NamedColumn(*part) for part in self.known]
        found = fit_normal(self.terms, _change(self.target), rows, known)
        own = "" if self.target.own is None else self.target.own.text
        value = found.text(own, "self.rng.normal()")
        return FittedKernel(
            bits,
            [f"return [(1, round({value}))]" if self.is_whole else f"return {value}"],
            self.fit,
            not found.deviation,
            least_rows=2 * len(self.terms),
            draws=self.is_whole and bool(found.deviation),
        )
