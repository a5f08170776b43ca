"""Kernels: ways to draw one output, with the likelihood of every row for every parameter.

A kernel computes its likelihoods once. The search for conditions then compares many sets of
rows by matrix products.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Self

import numpy as np
from scipy.optimize import minimize

from cwm_induction.chance.quantities import KnownQuantity
from cwm_induction.discrete.chance_tables import FINEST, Shares, fraction_text, plain_shares
from cwm_induction.writing.rounding import literal, rounded

Array = np.ndarray

LEAST = np.log(1e-6)
"""Log-probability of an outcome that a model excludes, as in the smoothed skill."""

LOG_2 = float(np.log(2))

ROUNDING_LOSS = 0.15
"""Log-likelihood in nats that a shorter number may lose: about half a standard error."""

MISS_BITS = -LEAST / LOG_2
"""Price of a row whose outcome a kernel excludes."""

COST_ROUNDS, ROUNDS = 8, 12
"""Rounds of expectation maximisation if several choices lead to the same value: while the costs
of conditions are compared, and in a fit."""

AGREEMENT = 1.2
"""A simple fraction is used if the observed share is at most this many standard errors away. With a
larger limit, 1 / 2 for a share of 0.54 of 700 rows would hide which outcome is likelier."""

UNSEEN_BITS = 8.0
"""Price of choices for very few rows, which may have missed an outcome."""

PRIOR = 1.0
"""Rows that the shares of the whole output count in a condition with few rows."""

MIN_CHANCE, MAX_CHANCE = 1e-3, 0.999
"""Limits of probabilities that change with a quantity."""

SMOOTH_BITS = 6.0
"""Price of a parameter that changes with a quantity: the quantity and the form."""


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

    def on(self, rows: Array) -> "OutcomeTarget":
        """Return the target for the rows of a mask only."""
        own = None if self.own is None else self.own.on(rows)
        values, low, high = self.values[rows], self.low[rows], self.high[rows]
        return replace(self, values=values, low=low, high=high, own=own)


@dataclass(frozen=True)
class FittedKernel:
    """A kernel that was fitted to some rows.

    `lines` are the statements that return the distribution, and `sources` the functions that
    they call. `drawn` is an expression that draws a value without listing all values, if there is
    one, and `pairs` the number of pairs that the listing loops over. `refit` fits the kernel to a
    mask of other rows; it needs more than `least_rows`. If the kernel `draws`, its only value is a
    draw.
    """

    bits: float
    lines: list[str]
    refit: "Callable[[Array], FittedKernel]"
    is_certain: bool = False
    sources: frozenset[str] = frozenset()
    least_rows: int = 0
    draws: bool = False
    drawn: str = ""
    pairs: int = 1

    @property
    def drawing_lines(self) -> list[str]:
        """The statements that draw a value."""
        *before, last = self.lines
        value = last.removeprefix("return ")
        if self.drawn:
            value = self.drawn
        elif self.draws or self.is_certain:
            value = value.removeprefix("[(1, ").removesuffix(")]")
        elif value.startswith("["):
            value = f"self.draw({value})"
        return [*before, f"return {value}"]


class Kernel(ABC):
    """A way to draw an output, with parameters that are fitted to rows."""

    @property
    @abstractmethod
    def columns(self) -> Array:
        """Numbers of every row that add up to what `costs` needs (rows, numbers)."""

    @abstractmethod
    def costs(self, sums: Array, counts: Array) -> Array:
        """Return the description length in bits of sets of rows, by sums of their columns.

        Args:
            sums: Sums of the columns over each set (sets, numbers).
            counts: Rows of each set.
        """

    @abstractmethod
    def fit(self, rows: Array) -> FittedKernel:
        """Fit the parameters to a mask of rows."""


class ParametricKernel(Kernel):
    """A kernel whose only parameter may be a function of a quantity."""

    bits: float
    """Price of the kernel without its parameters."""

    @property
    @abstractmethod
    def top(self) -> float | None:
        """Upper limit of the parameter; None if there is not exactly one parameter."""

    @abstractmethod
    def likelihood(self, parameters: Sequence[Array]) -> Array:
        """Return P(output) of every row for parameters that broadcast with the rows."""

    @abstractmethod
    def start(self, rows: Array) -> float:
        """Return a parameter to start from."""

    @abstractmethod
    def leaf(
        self, parameter: str, bits: float, refit: Callable[[Array], FittedKernel]
    ) -> FittedKernel:
        """Return a leaf whose parameter is an expression."""

    @abstractmethod
    def on(self, rows: Array) -> Self:
        """Return the kernel for the rows of a mask only."""

    def loss(self, parameters: Sequence[Array]) -> float:
        """Return the negative log-likelihood in nats."""
        chances = self.likelihood(parameters)
        return -float(np.log(np.maximum(chances, np.exp(LEAST))).sum())


@dataclass(frozen=True)
class ChoiceKernel(ParametricKernel):
    """An output that is one of a few expressions."""

    target: OutcomeTarget
    choices: tuple[KnownQuantity, ...]
    bits: float
    learn: Array

    @property
    def top(self) -> float | None:
        """Upper limit of the probability of the second of two choices."""
        return MAX_CHANCE if len(self.choices) == 2 else None

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
    def columns(self) -> Array:
        """Which pattern each row has (rows, patterns)."""
        same: Array = (self.matches[:, None] == self.patterns).all(axis=2).astype(np.float32)
        return same

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

    def fit(self, rows: Array) -> FittedKernel:
        """Fit the shares to a mask of rows."""
        sums, count = self.columns[rows].sum(axis=0), int(rows.sum())
        bits = float(self.costs(sums[None], np.array([count]))[0])
        shares = self._simple_shares(rows, count)
        pairs = [
            f"({fraction_text(shares[n])}, {self.choices[n].text})"
            for n in sorted(range(len(shares)), key=lambda n: -shares[n])
            if shares[n]
        ]
        return FittedKernel(bits, [f"return [{', '.join(pairs)}]"], self.fit, max(shares) == 1)

    def _simple_shares(self, rows: Array, count: int) -> Shares:
        """Return the simplest shares that agree with a mask of rows."""
        sure = self.matches[rows].all(axis=0)
        if sure.any():
            return tuple(Fraction(n == int(sure.argmax())) for n in range(len(sure)))
        prior = self.shares(self.learn)
        counts = self.shares(rows, prior) * (count + PRIOR) - PRIOR * prior
        before = tuple(Fraction(share).limit_denominator(FINEST) for share in prior.tolist())
        found = plain_shares(counts, before)
        exact = np.maximum(counts, 0) / max(counts.sum(), 1e-9)
        errors = np.sqrt(exact * (1 - exact) / max(count, 1))
        apart = np.abs(np.array([float(share) for share in found]) - exact)
        if (apart <= AGREEMENT * errors + 1e-3).all():
            return found
        digits = 100 if count < 1000 else FINEST
        return tuple(Fraction(round(share * digits), digits) for share in exact.tolist())

    def likelihood(self, parameters: Sequence[Array]) -> Array:
        """Return P(output) of every row, given the probability of the second of two choices."""
        first, second = self.matches.T
        chances: Array = first * (1 - parameters[0]) + second * parameters[0]
        return chances

    def on(self, rows: Array) -> Self:
        """Return the kernel for the rows of a mask only."""
        choices = tuple(choice.on(rows) for choice in self.choices)
        target, learn = self.target.on(rows), self.learn[rows]
        return replace(self, target=target, choices=choices, learn=learn)

    def start(self, rows: Array) -> float:
        """Return the share of the second of two choices."""
        return float(self.shares(rows)[1].clip(0.01, 0.99))

    def leaf(
        self, parameter: str, bits: float, refit: Callable[[Array], FittedKernel]
    ) -> FittedKernel:
        """Return a leaf whose second choice has a probability that is an expression."""
        first, second = self.choices
        chance = f"chance = min(max({parameter}, 0.0), 1.0)"
        pairs = f"(chance, {second.text}), (1 - chance, {first.text})"
        return FittedKernel(bits, [chance, f"return [{pairs}]"], refit)


@dataclass(frozen=True)
class SlopeKernel:
    """A kernel whose parameter is linear or geometric in a quantity."""

    kernel: ParametricKernel
    quantity: KnownQuantity

    def fit(self, rows: Array) -> FittedKernel:
        """Return the shortest of all forms, fitted to a mask of rows."""
        forms = (self._form(kind, rows) for kind in ("linear", "geometric", "proportional"))
        return min(forms, key=lambda leaf: leaf.bits)

    def _form(self, kind: str, rows: Array) -> FittedKernel:
        inner, values = self.kernel.on(rows), self.quantity.values[rows]

        def loss(parts: Array) -> float:
            return inner.loss([self._curve(kind, parts, values)])

        parts = shortest(self._parts(kind, rows, loss), loss)
        size = 0.5 * len(parts) * float(np.log2(rows.sum() + 1))
        bits = loss(parts) / LOG_2 + self.kernel.bits + SMOOTH_BITS + size
        return self.kernel.leaf(self._text(kind, parts), bits, self.fit)

    def _curve(self, kind: str, parts: Array, values: Array) -> Array:
        """Return the parameter for every value of the quantity."""
        if kind == "proportional":
            return self._within(parts[0] * values)
        curve = (
            parts[0] * parts[1] ** values if kind == "geometric" else parts[0] + parts[1] * values
        )
        return self._within(curve)

    def _parts(self, kind: str, rows: Array, loss: Callable[[Array], float]) -> Array:
        """Fit the numbers of a form by the values of the parameter at both ends."""
        values = self.quantity.values[rows]
        low, high = float(values.min()), float(values.max())

        def parts(logs: Array) -> Array:
            if kind == "proportional":
                return np.array(np.exp(logs) / max(abs(high), 1e-9))
            first, last = self._within(np.exp(logs))
            if kind == "geometric":
                rate = (last / first) ** (1 / (high - low))
                return np.array([first * rate**-low, rate])
            slope = (last - first) / (high - low)
            return np.array([first - slope * low, slope])

        start = np.full(1 if kind == "proportional" else 2, self.kernel.start(rows))
        return parts(np.log(minimised(lambda ends: loss(parts(np.log(ends))), start)))

    def _text(self, kind: str, parts: Array) -> str:
        first, name = literal(float(parts[0])), self.quantity.text
        if kind == "proportional":
            return f"{first} * {name}"
        second = literal(abs(float(parts[1])))
        if kind == "geometric":
            return f"{first} * {second}**{name}"
        return f"{first} {'-' if parts[1] < 0 else '+'} {second} * {name}"

    def _within(self, parameter: Array) -> Array:
        found: Array = np.clip(parameter, MIN_CHANCE, self.kernel.top)
        return found


def minimised(loss: Callable[[Array], float], start: Array) -> Array:
    """Return positive parameters of low loss, found by a simplex search of their logarithms."""
    logs = np.log(np.maximum(start, 0.01))
    simplex = logs + 0.1 * np.eye(len(logs) + 1, len(logs))
    found = minimize(
        lambda logs: loss(np.exp(logs)),
        logs,
        method="Nelder-Mead",
        options={"maxfev": 60, "xatol": 1e-3, "fatol": 1e-2, "initial_simplex": simplex},
    )
    return np.asarray(np.exp(found.x))


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
