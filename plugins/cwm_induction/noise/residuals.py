"""What equations leave of real numbers, as noise: how large it is, and what it moves together.

The mean of a change is a regression on generic terms. What is left of several variables may come
from few sources, such as a force that pushes all of them: so the mean of each may read what was
drawn for the ones before it.
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
"""Terms of a mean: with noise, more of them are rarely told from none."""

ROUNDING = 1e-6
"""Share of a change up to which what is left is what stored numbers are rounded by."""

SOURCE = "noise_"
"""What names of sources begin with."""

SCALE_GAIN = 8.0
"""Nats of log-likelihood that a noise which depends on something has to gain, beside half the
logarithm of the rows for its number: by chance one of some twenty candidates hardly ever does."""

NEAR_ZERO = 0.05
"""Share of its mean size below which a quantity counts as this large: the mean is not known so
well that noise next to nothing could be told."""

DIGITS = 3
"""Digits of what noise is multiplied by: a thousand rows tell no more of a standard deviation."""


class Scale(NamedTuple):
    """What the standard deviation of noise is multiplied by in every row, and as an expression."""

    values: Array
    text: str = ""


class Noise(NamedTuple):
    """The mean of a change, which may read what was drawn for others, and noise of its own.

    The own noise is `deviation` times the scale times a source, drawn from N(0, 1).
    """

    mean: Formula
    deviation: float
    source: str
    scale: str = ""

    def text(self, name: str) -> str:
        """Write the next value."""
        text = self.mean.text(name)
        if not self.deviation:
            return text
        parts = " * ".join(filter(None, [literal(self.deviation), self.scale, self.source]))
        return f"{text} + {parts}"

    @property
    def sources(self) -> set[str]:
        """Names of what is drawn for it and for others that it reads."""
        own = {self.source} if self.deviation else set()
        return own | {name for name in self.mean.names if name.startswith(SOURCE)}


def drawn_reward(
    samples: Samples,
    now: Sequence[NamedColumn],
    then: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> Noise | None:
    """Return a reward with noise of its own, in terms of what was, is done and follows."""
    rows = samples.learn
    if rows.sum() < 4 * MOST_TERMS:
        return None
    terms = distinct([*library(now, inputs, 2), *library(then, [], 2)])
    return _fitted("reward", samples.rewards, terms, rows, [*now, *inputs]).noise


def noises(
    open_variables: Sequence[Variable],
    samples: Samples,
    columns: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> dict[str, Noise]:
    """Return the noise of every variable that no equation explains.

    Each may read what was drawn for the ones before it: a force that pushes several of them.
    """
    rows = samples.learn & samples.smooth
    for variable in open_variables:
        rows = rows & variable.free
    found: dict[str, Noise] = {}
    if rows.sum() < 4 * MOST_TERMS:
        return found
    sources: list[NamedColumn] = []
    for variable in open_variables:
        terms = distinct(library(columns, [*inputs, *sources], 2))
        fitted = _fitted(variable.name, variable.change, terms, rows, [*columns, *inputs])
        found[variable.name] = fitted.noise
        if fitted.noise.deviation:
            sources.append(NamedColumn(fitted.noise.source, fitted.drawn))
    return found


class _Fitted(NamedTuple):
    """A noise, and what was drawn in every row according to it."""

    noise: Noise
    drawn: Array


def _fitted(
    name: str, target: Array, terms: Sequence[Term], rows: Array, columns: Sequence[NamedColumn]
) -> _Fitted:
    """Fit a mean, what the size of the rest depends on, and how large it is."""
    mean = _mean(target, terms, rows)
    rest = target - mean.values(len(target))
    scale = noise_scale(rest, rows, columns)
    unit = rest / scale.values
    deviation = rounded(float(np.std(unit[rows])), DIGITS)
    if deviation <= ROUNDING * float(np.abs(target[rows]).max()):
        return _Fitted(Noise(mean, 0.0, ""), np.zeros(len(target)))
    return _Fitted(Noise(mean, deviation, SOURCE + name, scale.text), unit / deviation)


def _mean(target: Array, terms: Sequence[Term], rows: Array) -> Formula:
    """Return the terms that something depends on surely, weighed by least squares."""
    chosen = supported(terms, target, rows)
    if not chosen:
        return Formula((), ())
    matrix = np.stack([term.values[rows] for term in chosen], 1)
    weights = solve(matrix, target[rows])
    rest = float(np.std(target[rows] - matrix @ weights))
    sizes = np.abs(matrix).max(0)
    short = [_short(*pair, slack=0.01 * rest) for pair in zip(weights, sizes, strict=True)]
    return Formula(tuple(chosen), tuple(short))


def supported(terms: Sequence[Term], target: Array, rows: Array) -> list[Term]:
    """Add the term that gains most beyond its cost, while one does: the plainest ones first.

    The gain is the log-likelihood of normal noise, the price of a unit of cost half the logarithm
    of the rows for a weight and the logarithm of how many there are to choose from.
    """
    matrix = np.stack([term.values[rows] for term in terms], 1)
    remaining = matrix / (np.linalg.norm(matrix, axis=0) + 1e-300)
    rest, count = target[rows].copy(), int(rows.sum())
    price = (0.5 * np.log(count) + np.log(len(terms))) * np.array([t.cost for t in terms])
    chosen: list[int] = []
    plain = np.array([term.cost <= 1 for term in terms])
    while len(chosen) < MOST_TERMS:
        norms = np.einsum("ij,ij->j", remaining, remaining)
        fresh = norms > DEPENDENT
        removed = np.where(fresh, (remaining.T @ rest) ** 2 / np.where(fresh, norms, 1), 0.0)
        left = np.maximum(1 - removed / max(float(rest @ rest), 1e-300), 1e-12)
        gains = -0.5 * count * np.log(left) - price
        gains = np.where(fresh & (gains > 0), gains, -np.inf)
        gains = np.where(plain, gains, -np.inf) if np.isfinite(gains[plain]).any() else gains
        best = int(np.argmax(gains))
        if not np.isfinite(gains[best]):
            break
        chosen.append(best)
        direction = remaining[:, best] / np.sqrt(norms[best])
        rest -= direction * (direction @ rest)
        remaining = remaining - np.outer(direction, direction @ remaining)
    return [terms[place] for place in chosen]


def _short(weight: float, size: float, slack: float) -> float:
    """Return a weight with as few digits as change no row by more than the slack."""
    digits = range(2, 9)
    found = (rounded(float(weight), each) for each in digits)
    return next((w for w in found if abs(w - weight) * size <= slack), float(weight))


def noise_scale(rest: Array, rows: Array, columns: Sequence[NamedColumn]) -> Scale:
    """Return what the size of the noise depends on: nothing, the size of a quantity, or a case."""
    count = int(rows.sum())
    plain = _likelihood(rest[rows], np.ones(count))
    best, gained = Scale(np.ones(len(rest))), SCALE_GAIN + 0.5 * np.log(count)
    for text, values, _ in columns:
        for scale in _scales(rest, rows, text, values):
            if (gain := _likelihood(rest[rows], scale.values[rows]) - plain) > gained:
                best, gained = scale, gain
    return best


def _scales(rest: Array, rows: Array, text: str, values: Array) -> list[Scale]:
    """Return how noise may depend on a quantity: in proportion, or by which of two cases it is."""
    levels = np.unique(values[rows])
    if len(levels) == 2:
        first, second = (float(np.std(rest[rows & (values == level)])) for level in levels)
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


def _likelihood(rest: Array, scale: Array) -> float:
    """Return the log-likelihood of a rest as normal noise of this scale, at its best size."""
    unit = rest / scale
    variance = max(float(np.mean(unit**2)), 1e-300)
    return float(-0.5 * len(rest) * np.log(variance) - np.log(scale).sum())
