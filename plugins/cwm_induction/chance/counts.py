"""Random counts: families of distributions, and outputs that are a base plus or minus counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Self

import numpy as np
from scipy import special

from cwm_induction.chance.kernels import (
    LEAST,
    LOG_2,
    MAX_CHANCE,
    FittedKernel,
    OutcomeTarget,
    ParametricKernel,
    minimised,
    shortest,
)
from cwm_induction.chance.quantities import KnownQuantity, plus
from cwm_induction.writing.rounding import literal

Array = np.ndarray

EVENT_GRID = np.array([0.05, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95])
"""Probabilities to start from of the event that a count is drawn."""

ALWAYS = 0.995
"""Minimum probability of an event that counts as certain."""

MAX_MEAN = 99.0
"""Upper limit of a mean that changes with a quantity, as in the function `poisson`."""

MAX_COUNT = 60
"""Largest value of the second of two counts, so that their sum takes few operations."""


@dataclass(frozen=True)
class Family:
    """A family of distributions on 0, 1, 2, ..., or on all whole numbers.

    `mass` and `tail` return P(K = k) and P(K >= k); the second argument is the number of trials,
    the third one the parameter. `grid` are parameters to start from; a family without
    a parameter has one entry. `source` is the function in the program, and `drawn` an expression
    that draws a number.
    """

    name: str
    mass: Callable[[Array, Array, Array], Array]
    tail: Callable[[Array, Array, Array], Array]
    grid: Array
    source: str
    drawn: str
    counts_trials: bool = False

    @property
    def has_parameter(self) -> bool:
        """Whether a parameter is fitted."""
        return len(self.grid) > 1

    @property
    def top(self) -> float:
        """Upper limit of the parameter."""
        return MAX_CHANCE if self.grid[-1] < 1 else MAX_MEAN


def _poisson(k: Array, _: Array, mean: Array) -> Array:
    good = np.maximum(k, 0)
    found: Array = np.exp(special.xlogy(good, mean) - mean - special.gammaln(good + 1))
    return np.where(k < 0, 0.0, found)


def _poisson_tail(k: Array, _: Array, mean: Array) -> Array:
    return np.where(k <= 0, 1.0, special.gammainc(np.maximum(k, 1), mean))


def _geometric(k: Array, _: Array, chance: Array) -> Array:
    return np.where(k < 0, 0.0, chance * (1 - chance) ** np.maximum(k, 0))


def _geometric_tail(k: Array, _: Array, chance: Array) -> Array:
    found: Array = (1 - chance) ** np.maximum(k, 0)
    return found


def _binomial(k: Array, trials: Array, chance: Array) -> Array:
    inside = (k >= 0) & (k <= trials)
    good, n = np.where(inside, k, 0), np.maximum(trials, 0)
    ways = special.gammaln(n + 1) - special.gammaln(good + 1) - special.gammaln(n - good + 1)
    logs = ways + special.xlogy(good, chance) + special.xlog1py(n - good, -chance)
    return np.where(inside, np.exp(logs), 0.0)


def _binomial_tail(k: Array, trials: Array, chance: Array) -> Array:
    good = np.clip(k, 1, np.maximum(trials, 1))
    found = special.betainc(good, np.maximum(trials - good + 1, 1e-9), chance)
    return np.where(k <= 0, 1.0, np.where(k > trials, 0.0, found))


def _rounded_normal(k: Array, _: Array, deviation: Array) -> Array:
    found: Array = special.ndtr((k + 0.5) / deviation) - special.ndtr((k - 0.5) / deviation)
    return found


def _rounded_normal_tail(k: Array, _: Array, deviation: Array) -> Array:
    found: Array = special.ndtr((0.5 - k) / deviation)
    return found


POISSON = Family(
    "poisson",
    _poisson,
    _poisson_tail,
    np.geomspace(0.03, 60, 48),
    '''def poisson(mean):
    """Return the probability of each count of a Poisson distribution."""
    mean = min(max(mean, 1e-9), 99.0)
    most = int(mean + 5 * mean**0.5 + 4)
    return [(exp(k * log(mean) - mean - lgamma(k + 1)), k) for k in range(most + 1)]''',
    "self.rng.poisson({parameter})",
)
GEOMETRIC = Family(
    "geometric",
    _geometric,
    _geometric_tail,
    np.concatenate([np.geomspace(0.03, 0.3, 14), np.linspace(0.33, 0.97, 18)]),
    '''def geometric(chance):
    """Return the probability of each number of failures before a success."""
    chance = min(max(chance, 0.01), 1.0)
    return [(chance * (1 - chance) ** k, k) for k in range(int(10 / chance) + 1)]''',
    "(self.rng.geometric({parameter}) - 1)",
)
BINOMIAL = Family(
    "binomial",
    _binomial,
    _binomial_tail,
    np.concatenate([np.geomspace(0.003, 0.08, 12), np.linspace(0.1, 0.9, 26), [0.94, 0.97, 0.99]]),
    '''def binomial(trials, chance):
    """Return the probability of each number of successes."""
    trials, chance = int(trials), min(max(chance, 0.0), 1.0)
    return [
        (comb(trials, k) * chance**k * (1 - chance) ** (trials - k), k) for k in range(trials + 1)
    ]''',
    "self.rng.binomial({trials}, {parameter})",
    counts_trials=True,
)
NORMAL = Family(
    "rounded_normal",
    _rounded_normal,
    _rounded_normal_tail,
    np.geomspace(0.25, 60, 48),
    '''def rounded_normal(deviation):
    """Return the probability of each value of normal noise that is rounded to whole numbers."""
    most = int(4 * deviation + 1)
    below = [erf((k - 0.5) / (2**0.5 * deviation)) / 2 for k in range(-most, most + 2)]
    return [(below[k + most + 1] - below[k + most], k) for k in range(-most, most + 1)]''',
    "round(self.rng.normal(0.0, {parameter}))",
)
DICE_SOURCE = '''def dice(count, sides):
    """Return the probability of each sum of some dice."""
    sums = {0: 1.0}
    for _ in range(count):
        before, sums = sums, {}
        for total, chance in before.items():
            for side in range(1, sides + 1):
                sums[total + side] = sums.get(total + side, 0.0) + chance / sides
    return [(chance, total) for total, chance in sums.items()]'''


def dice(count: int, sides: int) -> Family:
    """Return the family of the sum of some dice, which has no parameter."""
    masses = np.ones(1)
    for _ in range(count):
        masses = np.convolve(masses, np.full(sides, 1 / sides))
    masses = np.concatenate([np.zeros(count), masses])
    tails = np.concatenate([np.cumsum(masses[::-1])[::-1], [0.0]])

    def mass(k: Array, _: Array, __: Array) -> Array:
        inside = (k >= 0) & (k < len(masses))
        return np.where(inside, masses[np.where(inside, k, 0).astype(int)], 0.0)

    def tail(k: Array, _: Array, __: Array) -> Array:
        found: Array = tails[np.clip(k, 0, len(masses)).astype(int)]
        return found

    drawn = f"int(self.rng.integers(1, {sides + 1}, {count}).sum())"
    return Family(f"dice({count}, {sides})", mass, tail, np.zeros(1), DICE_SOURCE, drawn)


@dataclass(frozen=True)
class Draw:
    """One random count: a family, its number of trials, and whether it is added or subtracted."""

    family: Family
    sign: int
    trials: KnownQuantity | None = None

    @property
    def count(self) -> Array:
        """Number of trials in every row."""
        return np.zeros(1) if self.trials is None else self.trials.values

    def call(self, parameter: str) -> str:
        """Write the call of the function that returns the probabilities."""
        if not self.family.has_parameter:
            return self.family.name
        trials = "" if self.trials is None else f"{self.trials.text}, "
        return f"{self.family.name}({trials}{parameter})"

    def drawn(self, parameter: str) -> str:
        """Write the expression that draws a number; parameters that change are limited."""
        trials = "" if self.trials is None else self.trials.text
        if trials and not trials.isdigit():
            trials = f"max({trials}, 0)"
        if parameter and not parameter.replace(".", "").isdigit():
            most = 1.0 if self.family.top < 1 else MAX_MEAN
            parameter = f"min(max({parameter}, {0.01 if most == 1 else 0.0}), {most})"
        return self.family.drawn.format(parameter=parameter, trials=trials)


@dataclass(frozen=True)
class CountKernel(ParametricKernel):
    """An output `base + draws`, limited to the bounds of the target or to a quantity.

    If `idle` is given, an event decides whether the counts are drawn; otherwise the output is
    `idle`. The probability of the event is the last parameter.
    """

    target: OutcomeTarget
    base: KnownQuantity
    draws: tuple[Draw, ...]
    bits: float
    limit: KnownQuantity | None = None
    idle: KnownQuantity | None = None

    @property
    def tops(self) -> list[float]:
        """Upper limit of each parameter."""
        fitted = [draw.family.top for draw in self.draws if draw.family.has_parameter]
        return [*fitted, *([MAX_CHANCE] if self.idle else [])]

    @property
    def top(self) -> float | None:
        """Upper limit of the parameter of a single draw without an event."""
        alone = len(self.draws) == len(self.tops) == 1 and self.idle is None
        return self.tops[0] if alone else None

    @cached_property
    def grid(self) -> Array:
        """Parameters to start from (points, parameters)."""
        return np.array(list(product(*(grid for grid in self._axes if len(grid) > 1))))

    @property
    def _axes(self) -> list[Array]:
        """Parameters of every draw, and of the event."""
        return [*self._grids, *([EVENT_GRID] if self.idle else [])]

    @property
    def _grids(self) -> list[Array]:
        stride = 1 if len(self.draws) == 1 and self.idle is None else 4
        return [draw.family.grid[::stride] for draw in self.draws]

    @cached_property
    def table(self) -> Array:
        """Log-likelihood of every row for every point of the grid (points, rows)."""
        if len(self.draws) == 1:
            found = self._single(self._grids[0][:, None])
        else:
            found = self._sums([grid[:, None, None] for grid in self._grids], "gjn,hjn->ghn")
        found = found.reshape(-1, found.shape[-1])
        if self.idle is not None:
            found = self._or_idle(found[:, None], EVENT_GRID[:, None]).reshape(-1, found.shape[-1])
        logs: Array = np.log(np.maximum(found, np.exp(LEAST))).astype(np.float32)
        return logs

    @property
    def columns(self) -> Array:
        """Log-likelihood of every row for every point of the grid (rows, points)."""
        return self.table.T

    def costs(self, sums: Array, counts: Array) -> Array:
        """Return the description length in bits of sets of rows, by sums of their columns."""
        best = -self._peaks(sums) / LOG_2
        costs: Array = best + self.bits + 0.5 * len(self.tops) * np.log2(counts + 1)
        return costs

    def _peaks(self, sums: Array) -> Array:
        """Return the maximum of every row of sums, by parabolas between points of the grid."""
        rows, places = np.arange(len(sums)), sums.argmax(axis=1)
        found: Array = sums[rows, places].astype(float)
        top, stride = found.copy(), sums.shape[1]
        for grid in [grid for grid in self._axes if len(grid) > 1]:
            stride //= len(grid)
            place = places // stride % len(grid)
            inside = (place > 0) & (place < len(grid) - 1)
            below = sums[rows, np.where(inside, places - stride, places)]
            above = sums[rows, np.where(inside, places + stride, places)]
            bend = np.maximum(2 * top - below - above, 1e-9)
            gain = (above - below) ** 2 / (8 * bend)
            # Outcomes that a neighbour excludes make the curve steeper than a parabola.
            found += np.minimum(gain, top - np.maximum(below, above))
        return found

    def likelihood(self, parameters: Sequence[Array]) -> Array:
        """Return P(output) of every row for parameters that broadcast with the rows."""
        given = list(parameters)
        chance = given.pop() if self.idle is not None else None
        given += [np.zeros(1)] * (len(self.draws) - len(given))
        found = self._sums(given, "jn,jn->n") if len(self.draws) == 2 else self._single(given[0])
        return found if chance is None else self._or_idle(found, chance)

    def _single(self, parameter: Array) -> Array:
        [draw] = self.draws
        return self._limited(draw, draw.sign * (self.target.values - self.base.values), parameter)

    def _sums(self, parameters: Sequence[Array], pairs: str) -> Array:
        """Sum over the second of two draws; `pairs` combines (..., counts, rows) of both."""
        (first, second), (one, two) = self.draws, parameters
        gaps = self.target.values - self.base.values
        spread = np.abs(gaps).max()
        most = second.count.max() if second.family.counts_trials else 2 * spread + 8
        counts = np.arange(int(min(most, 2 * spread + 12, MAX_COUNT)) + 1)[:, None]
        gap = first.sign * (gaps - second.sign * counts)
        other = second.family.mass(np.broadcast_to(counts, gap.shape), second.count, two)
        return np.asarray(np.einsum(pairs, self._limited(first, gap, one), other))

    def _or_idle(self, found: Array, chance: Array) -> Array:
        """Mix the count with the output that has no draw."""
        assert self.idle is not None
        still = self.idle.values.clip(self.target.low, self.target.high) == self.target.values
        mixed: Array = chance * found + (1 - chance) * still
        return mixed

    def _limited(self, draw: Draw, gap: Array, parameter: Array) -> Array:
        """Return P(K = gap), or the probability of the tail at a limit (..., rows)."""
        family, shape = draw.family, np.broadcast_shapes(np.shape(parameter), gap.shape)
        found = np.array(np.broadcast_to(family.mass(gap, draw.count, parameter), shape))
        over, under = self.ends if draw.sign > 0 else self.ends[::-1]
        for places, is_under in ((np.flatnonzero(over), 0), (np.flatnonzero(under), 1)):
            if len(places):
                parts = gap + is_under, draw.count, parameter
                tail = family.tail(*(np.broadcast_to(part, shape)[..., places] for part in parts))
                found[..., places] = 1 - tail if is_under else tail
        if self.limit is not None:
            found[..., self.target.values > self.limit.values] = 0.0
        return found

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """Masks of the rows at the upper limit and at the lower one."""
        values, high = self.target.values, self.target.high
        if self.limit is not None:
            high = np.minimum(high, self.limit.values)
        return values >= high, values <= self.target.low

    def on(self, rows: Array) -> Self:
        """Return the kernel for the rows of a mask only."""
        limit, idle = (None if part is None else part.on(rows) for part in (self.limit, self.idle))
        draws = tuple(
            draw if draw.trials is None else replace(draw, trials=draw.trials.on(rows))
            for draw in self.draws
        )
        target, base = self.target.on(rows), self.base.on(rows)
        return replace(self, target=target, base=base, draws=draws, limit=limit, idle=idle)

    def start(self, rows: Array) -> float:
        """Return the first parameter of the likeliest point of the grid."""
        return float(self._best(rows)[0])

    def _best(self, rows: Array) -> Array:
        best: Array = self.grid[int(self.table[:, rows].sum(axis=1).argmax())]
        return best

    def fit(self, rows: Array) -> FittedKernel:
        """Fit the parameters to a mask of rows by maximum likelihood."""
        inner = self.on(rows)

        def loss(parameters: Array) -> float:
            return inner.loss(list(np.minimum(parameters, self.tops)[:, None]))

        short = np.zeros(0)
        if self.tops:
            best = np.minimum(minimised(loss, self._best(rows)), self.tops)
            short = shortest(best, loss)
        if self.idle is not None and short[-1] >= ALWAYS:
            return replace(self, idle=None).fit(rows)
        size = 0.5 * len(self.tops) * np.log2(rows.sum() + 1)
        return self._leaf(
            [literal(part) for part in short.tolist()],
            float(loss(short) / LOG_2 + self.bits + size),
            self.fit,
        )

    def leaf(
        self, parameter: str, bits: float, refit: Callable[[Array], FittedKernel]
    ) -> FittedKernel:
        """Return a leaf whose only parameter is an expression."""
        return self._leaf([parameter], bits, refit)

    def _leaf(
        self, parameters: Sequence[str], bits: float, refit: Callable[[Array], FittedKernel]
    ) -> FittedKernel:
        """Write the list of probabilities and values, before the limits of the target."""
        names, counts = ["p", "q"][: len(self.draws)], ["k", "j"]
        given = list(parameters)
        calls, value = [], self.base
        single = self.base
        for name, count, draw in zip(names, counts, self.draws, strict=False):
            parameter = given.pop(0) if draw.family.has_parameter else ""
            calls.append(f"for {name}, {count} in {draw.call(parameter)}")
            value = plus(value, draw.sign, KnownQuantity(count, self.base.values))
            number = KnownQuantity(draw.drawn(parameter), self.base.values)
            single = plus(single, draw.sign, number)
        text, drawn_text = value.text, single.text
        if self.limit is not None:
            text, drawn_text = (f"min({each}, {self.limit.text})" for each in (text, drawn_text))
        drawn = f"[({' * '.join([*names, *given])}, {text}) {' '.join(calls)}]"
        if self.idle is not None:
            drawn = f"[({literal(1 - float(given[0]))}, {self.idle.text})] + {drawn}"
            event = f"self.rng.random() < {given[0]}"
            drawn_text = f"{drawn_text} if {event} else {self.idle.text}"
        sources = frozenset(draw.family.source for draw in self.draws)
        values = [np.max(draw.count, initial=0) or self._width for draw in self.draws]
        return FittedKernel(
            bits,
            [f"return {drawn}"],
            refit,
            sources=sources,
            drawn=drawn_text,
            pairs=int(np.prod(values)),
        )

    @property
    def _width(self) -> float:
        """Number of values that a count without trials may have."""
        return float(np.abs(self.target.values - self.base.values).max()) + 1
