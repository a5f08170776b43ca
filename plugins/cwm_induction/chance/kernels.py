"""Kernels: ways to draw one output, with the likelihood of every row for every parameter.

A kernel computes its likelihoods once. The search for conditions then compares many sets of
rows by matrix products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from cwm_induction.chance.families import LEAST, Family
from cwm_induction.chance.quantities import KnownQuantity, number, plus
from cwm_induction.writing.rounding import literal, rounded

Array = np.ndarray

LOG_2 = float(np.log(2))

ROUNDING_LOSS = 0.15
"""Log-likelihood in nats that a shorter number may lose: about half a standard error."""

MISS_BITS = -LEAST / LOG_2
"""Price of a row whose outcome a kernel excludes."""

COST_ROUNDS = 8
"""The same while the costs of conditions are compared."""

ROUNDS = 12
"""Rounds of expectation maximisation, when several alternatives lead to the same value."""

UNSEEN_BITS = 8.0
"""Price of choices for very few rows, which may have missed an outcome."""

EVENT_GRID = np.array([0.05, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95])
"""Probabilities to start from of the event that a count is drawn."""

PRIOR = 1.0
"""Rows that the shares of the whole output count in a condition with few rows."""


@dataclass(frozen=True)
class OutcomeTarget:
    """An output to draw: values, and the bounds at which the environment limits it."""

    name: str
    values: Array
    low: Array
    high: Array
    own: KnownQuantity | None = None
    is_label: bool = False
    """Whether values are names, so that no count is tried."""


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


@dataclass(frozen=True)
class CountKernel:
    """An output `base + draws`, limited to the bounds of the target or to a quantity."""

    target: OutcomeTarget
    base: KnownQuantity
    draws: tuple[Draw, ...]
    bits: float
    limit: KnownQuantity | None = None
    idle: KnownQuantity | None = None
    """The output without a draw; then an event decides whether the count is drawn."""

    @property
    def size(self) -> int:
        """Number of fitted parameters; the last one is the probability of the event."""
        return sum(draw.family.has_parameter for draw in self.draws) + (self.idle is not None)

    @cached_property
    def grid(self) -> Array:
        """Parameters to start from (points, parameters)."""
        grids = [draw.family.grid[:: self._stride] for draw in self.draws]
        return np.array(list(product(*grids, *([EVENT_GRID] if self.idle else []))))

    @property
    def _stride(self) -> int:
        return 2 if len(self.draws) == 1 and self.idle is None else 4

    @cached_property
    def table(self) -> Array:
        """Log-likelihood of every row for every point of the grid (points, rows)."""
        count = len(self.target.values)
        if len(self.draws) == 1:
            [draw] = self.draws
            found = self._single(draw.family.grid[:: self._stride, None])
            found = np.broadcast_to(found, (np.atleast_2d(found).shape[0], count))
        else:
            found = self._sums(
                [draw.family.grid[:: self._stride, None, None] for draw in self.draws]
            )
        if self.idle is not None:
            found = self._or_idle(found[:, None], EVENT_GRID[:, None]).reshape(-1, count)
        logs: Array = np.log(np.maximum(found, np.exp(LEAST))).astype(np.float32)
        return logs

    @property
    def columns(self) -> Array:
        """Numbers of every row that add up to what `costs` needs (rows, numbers)."""
        return self.table.T

    def costs(self, sums: Array, counts: Array) -> Array:
        """Return the description length in bits of sets of rows, by sums of their columns.

        Args:
            sums: Sums of the columns over each set (sets, numbers).
            counts: Rows of each set.
        """
        best = -sums.max(axis=1) / LOG_2
        costs: Array = best + self.bits + 0.5 * self.size * np.log2(counts + 1)
        return costs

    def likelihood(self, parameters: Sequence[Array] | Array) -> Array:
        """Return P(output) of every row for parameters that broadcast with the rows."""
        given = list(parameters)
        chance = given.pop() if self.idle is not None else None
        given += [np.zeros(1)] * (len(self.draws) - len(given))
        if len(self.draws) == 2:
            found = self._sums([np.asarray(p)[..., None] for p in given], pairs=False)
        else:
            found = self._single(np.asarray(given[0]))
        return found if chance is None else self._or_idle(found, chance)

    def _single(self, parameter: Array) -> Array:
        [draw] = self.draws
        gap = draw.sign * (self.target.values - self.base.values)
        return self._limited(draw, gap, parameter)

    def _or_idle(self, found: Array, chance: Array) -> Array:
        """Mix the count with the output that has no draw."""
        assert self.idle is not None
        still = self.idle.values.clip(self.target.low, self.target.high) == self.target.values
        mixed: Array = chance * found + (1 - chance) * still
        return mixed

    def _limited(self, draw: Draw, gap: Array, parameter: Array) -> Array:
        """Return P(K = gap), or the probability of the tail at a limit."""
        family, count = draw.family, np.broadcast_to(draw.count, self.target.values.shape)
        top, bottom = self.ends
        over, under = (top, bottom) if draw.sign > 0 else (bottom, top)
        count = count[:, None] if gap.ndim > 1 else count
        found = np.array(family.mass(gap, count, parameter))
        wide = np.broadcast_shapes(found.shape, np.shape(parameter), gap.shape)
        found = np.array(np.broadcast_to(found, wide))
        axis = -gap.ndim
        for rows, above in ((over, True), (under, False)):
            places = np.flatnonzero(rows)
            if not len(places):
                continue
            some = parameter
            if np.ndim(parameter) and np.shape(parameter)[axis:][0] == len(rows) > 1:
                some = np.take(parameter, places, axis=axis)
            limit = gap[places] if above else gap[places] + 1
            tail = family.tail(limit, count[places], some)
            found[(..., places) if axis == -1 else (..., places, slice(None))] = (
                tail if above else 1 - tail
            )
        if self.limit is not None:
            beyond = self.target.values > self.limit.values
            found = np.where(beyond[:, None] if gap.ndim > 1 else beyond, 0.0, found)
        return found

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """Masks of the rows at the upper limit and at the lower one."""
        values, high = self.target.values, self.target.high
        if self.limit is not None:
            high = np.minimum(high, self.limit.values)
        return values >= high, values <= self.target.low

    def _sums(self, parameters: Sequence[Array], *, pairs: bool = True) -> Array:
        """Sum over the second of two draws; `pairs` combines all parameters of both."""
        first, second = self.draws
        most = self._most(second)
        counts = np.arange(most + 1)
        gap = (self.target.values - self.base.values)[:, None] - second.sign * counts
        one = self._limited(first, first.sign * gap, parameters[0])
        trials = np.broadcast_to(second.count, self.target.values.shape)[:, None]
        two = second.family.mass(np.broadcast_to(counts, gap.shape), trials, parameters[1])
        if pairs:
            both: Array = np.einsum("gnj,hnj->ghn", one, two)
            return both.reshape(-1, both.shape[-1])
        return np.asarray((one * two).sum(axis=-1))

    def _most(self, draw: Draw) -> int:
        """Return the largest count of a draw that matters."""
        spread = np.abs(self.target.values - self.base.values).max()
        most = draw.count.max() if draw.family.counts_trials else 2 * spread + 8
        return int(min(most, 2 * spread + 12, 60))

    def fit(self, rows: Array) -> "CountLeaf":
        """Fit the parameters to a mask of rows by maximum likelihood."""
        scores = self.table[:, rows].sum(axis=1)
        start = np.atleast_1d(self.grid[int(scores.argmax())])
        if not self.size:
            return CountLeaf(self, (), -float(scores.max()) / LOG_2 + self.bits)

        def loss(parameters: Array) -> float:
            chances = self.likelihood([np.full(1, p) for p in parameters])[rows]
            return -float(np.log(np.maximum(chances, np.exp(LEAST))).sum())

        if self.size == 1 and self.idle is None:
            grid = self.draws[0].family.grid
            place = int(np.searchsorted(grid, start[0]))
            low, high = grid[max(place - 2, 0)], grid[min(place + 2, len(grid) - 1)]
            found = minimize_scalar(
                lambda p: loss(np.array([p])), bounds=(low / 2 if place == 0 else low, high)
            )
            best = np.array([float(found.x)])
        else:
            found = minimize(
                lambda logs: loss(np.exp(logs)),
                np.log(np.maximum(start, 0.01)),
                method="Nelder-Mead",
                options={"maxfev": 60, "xatol": 1e-3, "fatol": 1e-2},
            )
            best = np.exp(found.x)
        best = self._within(best)
        short = shortest(best, loss)
        bits = loss(short) / LOG_2 + self.bits + 0.5 * self.size * np.log2(rows.sum() + 1)
        return CountLeaf(self, tuple(map(literal, short.tolist())), float(bits))

    def _within(self, parameters: Array) -> Array:
        fitted = [draw.family for draw in self.draws if draw.family.has_parameter]
        tops = [0.999 if family.grid[-1] < 1 else np.inf for family in fitted]
        limited: Array = np.minimum(parameters, [*tops, *([0.999] if self.idle else [])])
        return limited

    def text(self, parameters: Sequence[str]) -> list[str]:
        """Write the list of probabilities and values, before the limits of the target."""
        names = ["p", "q"][: len(self.draws)]
        counts = ["k", "j"][: len(self.draws)]
        given = list(parameters)
        calls, value = [], self.base
        for name, count, draw in zip(names, counts, self.draws, strict=True):
            parameter = given.pop(0) if draw.family.has_parameter else ""
            calls.append(f"for {name}, {count} in {draw.call(parameter)}")
            value = plus(value, draw.sign, KnownQuantity(count, self.base.values))
        text = value.text if self.limit is None else f"min({value.text}, {self.limit.text})"
        if self.idle is None:
            return [f"return [({' * '.join(names)}, {text}) {' '.join(calls)}]"]
        chance = given.pop()
        names.append(chance)
        drawn = f"[({' * '.join(names)}, {text}) {' '.join(calls)}]"
        return [f"return [({literal(1 - float(chance))}, {self.idle.text})] + {drawn}"]


@dataclass(frozen=True)
class CountLeaf:
    """A kernel with parameters, which may be expressions."""

    kernel: CountKernel
    parameters: tuple[str, ...]
    bits: float

    def lines(self) -> list[str]:
        """Write the statement that returns the distribution."""
        return self.kernel.text(self.parameters)

    def refitted(self, rows: Array) -> "CountLeaf":
        """Fit the parameters to other rows."""
        return self.kernel.fit(rows)

    @property
    def sources(self) -> set[str]:
        """The functions that the program needs."""
        return {draw.family.source for draw in self.kernel.draws}


@dataclass(frozen=True)
class ChoiceKernel:
    """An output that is one of a few expressions."""

    target: OutcomeTarget
    choices: tuple[KnownQuantity, ...]
    bits: float
    learn: Array
    size: int = field(default=0, init=False)

    @cached_property
    def matches(self) -> Array:
        """Whether each choice equals the output (rows, choices)."""
        low, high = self.target.low, self.target.high
        found = [choice.values.clip(low, high) == self.target.values for choice in self.choices]
        return np.stack(found, axis=1)

    @cached_property
    def patterns(self) -> Array:
        """The sets of choices that some row matches (patterns, choices); the first one is empty."""
        found = np.unique(self.matches, axis=0)
        found = found[found.any(axis=1)]
        return np.concatenate([np.zeros((1, found.shape[1]), bool), found])

    @cached_property
    def table(self) -> Array:
        """Which pattern each row has (rows, patterns)."""
        same: Array = (self.matches[:, None] == self.patterns).all(axis=2).astype(np.float32)
        return same

    @property
    def columns(self) -> Array:
        """Numbers of every row that add up to what `costs` needs (rows, patterns)."""
        return self.table

    def costs(self, sums: Array, _: Array) -> Array:
        """Return the description length in bits of sets of rows, by sums of their columns."""
        misses, counts = sums[:, 0], sums[:, 1:]
        patterns = self.patterns[1:].astype(np.float32)
        if not len(patterns):
            nothing: Array = MISS_BITS * misses + self.bits
            return nothing
        shares = np.ones((len(sums), patterns.shape[1]), np.float32)
        for _round in range(COST_ROUNDS if (patterns.sum(axis=1) > 1).any() else 1):
            chances = np.maximum(shares @ patterns.T, 1e-9)
            shares = shares * ((counts / chances) @ patterns)
            shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-9)
        chances = np.maximum(shares @ patterns.T, 1e-9)
        costs = -(counts * np.log2(chances)).sum(axis=1) + MISS_BITS * misses
        used = (shares > 0.5 / np.maximum(counts.sum(axis=1, keepdims=True), 1)).sum(axis=1)
        free = np.maximum(used - 1, 0)
        total = counts.sum(axis=1)
        found: Array = costs + self.bits + free * (0.5 * np.log2(total + 1) + 2.0)
        found += UNSEEN_BITS * np.exp(-total / 10)
        return found

    def shares(self, rows: Array, prior: Array | None = None) -> Array:
        """Return the probability of each choice by expectation maximisation."""
        matches = self.matches[rows].astype(float)
        shares = np.full(len(self.choices), 1 / len(self.choices))
        for _ in range(ROUNDS):
            belief = matches * shares
            belief /= np.maximum(belief.sum(axis=1, keepdims=True), 1e-12)
            counts = belief.sum(axis=0) + (0.0 if prior is None else PRIOR * prior)
            shares = counts / max(counts.sum(), 1e-12)
        return shares

    def fit(self, rows: Array) -> "ChoiceLeaf":
        """Fit the shares to a mask of rows."""
        sums, count = self.columns[rows].sum(axis=0), rows.sum()
        bits = float(self.costs(sums[None], np.array([count]))[0])
        prior = self.shares(self.learn)
        sure = self.matches[rows].all(axis=0)
        if sure.any():
            prior = np.eye(len(self.choices))[int(sure.argmax())]
        shares = self.shares(rows, prior)
        return ChoiceLeaf(self, tuple(shares.tolist()), int(rows.sum()), bits)


@dataclass(frozen=True)
class ChoiceLeaf:
    """Choices with their probabilities."""

    kernel: ChoiceKernel
    shares: tuple[float, ...]
    count: int
    bits: float
    smooth: str = ""

    @property
    def is_certain(self) -> bool:
        """Whether one choice has all the probability."""
        return max(self.shares) > 1 - 1e-9

    def lines(self) -> list[str]:
        """Write the statement that returns the distribution."""
        choices = self.kernel.choices
        if self.smooth:
            first, second = choices
            chance = f"chance = min(max({self.smooth}, 0.0), 1.0)"
            return [chance, f"return [(chance, {second.text}), (1 - chance, {first.text})]"]
        kept = [n for n in np.argsort(self.shares)[::-1].tolist() if self.shares[n] > 1e-3]
        texts = simple_shares([self.shares[n] for n in kept], self.count)
        pairs = [f"({text}, {choices[n].text})" for text, n in zip(texts, kept, strict=True)]
        return [f"return [{', '.join(pairs)}]"]

    def refitted(self, rows: Array) -> "ChoiceLeaf":
        """Fit the shares to other rows."""
        return self.kernel.fit(rows)

    @property
    def sources(self) -> set[str]:
        """The functions that the program needs: none."""
        return set()


Kernel = CountKernel | ChoiceKernel
Leaf = CountLeaf | ChoiceLeaf


def simple_shares(shares: Sequence[float], count: int) -> list[str]:
    """Write probabilities: as equal fractions or round decimals if the rows allow that."""
    size = len(shares)
    if size == 1:
        return ["1"]
    weights = np.array(shares) * count
    if float((weights * np.log(np.array(shares) * size)).sum()) < 0.5 * (size - 1) * 2:
        return [f"1 / {size}" if size > 2 else "0.5"] * size
    for digits in (1, 2, 3):
        short = np.round(shares, digits)
        short[0] = np.round(1 - short[1:].sum(), digits)
        if short.min() > 0:
            loss = float((weights * np.log(np.array(shares) / short)).sum())
            if loss < ROUNDING_LOSS * (size - 1):
                break
    else:
        short = np.round(np.maximum(shares, 1e-4), 4)
    return [literal(float(share)) for share in short]


def shortest(parameters: Array, loss: Callable[[Array], float]) -> Array:
    """Return parameters with as few digits as the likelihood allows."""
    found = np.array(parameters, float)
    least = loss(found)
    for place in range(len(found)):
        for digits in (1, 2, 3, 4):
            trial = found.copy()
            trial[place] = rounded(float(parameters[place]), digits)
            if loss(trial) <= least + ROUNDING_LOSS * (place + 1):
                found = trial
                break
    return found


def constant(value: float, like: Array) -> KnownQuantity:
    """Return a constant as a quantity."""
    return KnownQuantity(number(value), np.full(len(like), float(value)))
