"""Residuals of equations as noise: standard deviation, scale and correlation.

The mean of a change is a regression on generic terms. The noise of several variables may have a
common source, such as a random force. The mean of a variable may therefore contain the noise
sources of the variables before it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import DEPENDENT, Formula, solve
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, library
from cwm_induction.continuous.variables import Variable
from cwm_induction.writing.rounding import literal, rounded

MOST_TERMS = 12
"""Maximum number of terms of a mean: more terms are rarely identifiable under noise."""

ROUNDING = 1e-6
"""Residuals up to this fraction of the largest change are rounding errors of stored numbers."""

SOURCE = "noise_"
"""Prefix of the names of noise sources."""

SCALE_GAIN = 8.0
"""Minimum gain of a variable noise scale in log-likelihood (nats), plus half the logarithm of the
number of rows for its parameter: chance rarely gives one of about twenty candidates this gain."""

NEAR_ZERO = 0.05
"""Lower bound of a noise scale, as a fraction of the mean absolute value of its quantity: the
fitted mean is not accurate enough to identify smaller noise."""

DIGITS = 3
"""Digits of standard deviations and their ratios: a thousand rows determine no more."""


class Scale(NamedTuple):
    """A factor of the standard deviation of noise: its value in every row and its expression."""

    values: Array
    text: str = ""


class Noise(NamedTuple):
    """A mean, which may contain noise sources of other variables, and a separate noise term.

    The noise term is `deviation` times `scale` times `source`, a draw from N(0, 1).
    """

    mean: Formula
    deviation: float
    source: str
    scale: str = ""

    def text(self, name: str) -> str:
        """Return the expression of the next value of a variable."""
        text = self.mean.text(name)
        if not self.deviation:
            return text
        parts = " * ".join(filter(None, [literal(self.deviation), self.scale, self.source]))
        return f"{text} + {parts}"

    @property
    def sources(self) -> set[str]:
        """Names of the noise sources in the mean and the noise term."""
        own = {self.source} if self.deviation else set()
        return own | {name for name in self.mean.names if name.startswith(SOURCE)}


def fit_reward_noise(
    samples: Samples,
    now: Sequence[NamedColumn],
    then: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> Noise | None:
    """Fit a noisy reward to terms of the state, the action and the next state."""
    rows = samples.learn
    if rows.sum() < 4 * MOST_TERMS:
        return None
    terms = distinct([*library(now, inputs, 2), *library(then, [], 2)])
    return _fit_noise("reward", samples.rewards, terms, rows, [*now, *inputs]).noise


def fit_noises(
    open_variables: Sequence[Variable],
    samples: Samples,
    columns: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> dict[str, Noise]:
    """Fit mean and noise of every variable without an exact equation.

    A mean may contain the noise sources of earlier variables, such as a random force on several
    variables.
    """
    rows = samples.learn & samples.smooth
    for variable in open_variables:
        rows = rows & variable.free
    noises: dict[str, Noise] = {}
    if rows.sum() < 4 * MOST_TERMS:
        return noises
    sources: list[NamedColumn] = []
    for variable in open_variables:
        terms = distinct(library(columns, [*inputs, *sources], 2))
        fitted = _fit_noise(variable.name, variable.change, terms, rows, [*columns, *inputs])
        noises[variable.name] = fitted.noise
        if fitted.noise.deviation:
            sources.append(NamedColumn(fitted.noise.source, fitted.draws))
    return noises


class _NoiseFit(NamedTuple):
    """Fitted noise, and the value of its source in every row."""

    noise: Noise
    draws: Array


def _fit_noise(
    name: str, target: Array, terms: Sequence[Term], rows: Array, columns: Sequence[NamedColumn]
) -> _NoiseFit:
    """Fit a mean, and the scale and standard deviation of the residuals."""
    mean = _mean(target, terms, rows)
    residuals = target - mean.values(len(target))
    scale = noise_scale(residuals, rows, columns)
    unit = residuals / scale.values
    deviation = rounded(float(np.std(unit[rows])), DIGITS)
    if deviation <= ROUNDING * float(np.abs(target[rows]).max()):
        return _NoiseFit(Noise(mean, 0.0, ""), np.zeros(len(target)))
    return _NoiseFit(Noise(mean, deviation, SOURCE + name, scale.text), unit / deviation)


def _mean(target: Array, terms: Sequence[Term], rows: Array) -> Formula:
    """Return the least-squares formula of the supported terms, with short weights."""
    chosen = supported(terms, target, rows)
    if not chosen:
        return Formula((), ())
    matrix = np.stack([term.values[rows] for term in chosen], 1)
    weights = solve(matrix, target[rows])
    spread = float(np.std(target[rows] - matrix @ weights))
    sizes = np.abs(matrix).max(0)
    short = [_shortened(*pair, slack=0.01 * spread) for pair in zip(weights, sizes, strict=True)]
    return Formula(tuple(chosen), tuple(short))


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


def _shortened(weight: float, size: float, slack: float) -> float:
    """Round a weight to the fewest digits that change no row by more than `slack`."""
    digits = range(2, 9)
    candidates = (rounded(float(weight), each) for each in digits)
    return next((w for w in candidates if abs(w - weight) * size <= slack), float(weight))


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
