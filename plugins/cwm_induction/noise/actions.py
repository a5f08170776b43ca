"""Noise on actions, measured by its effect on a variable.

If noisy actions are clipped to limits, many rows contain no noise: the applied action equals the
limit. These rows determine an exact equation, and the equation determines the applied action of
all other rows. Once the applied actions replace the recorded ones, the remaining variables can be
explained by deterministic equations.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import erf
from typing import NamedTuple

import numpy as np

from cwm_induction.chance.normal import DIGITS, MOST_TERMS, supported
from cwm_induction.continuous.regression import Formula, exact, solve
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, library
from cwm_induction.continuous.variables import Variable, inputs_of
from cwm_induction.effort import Share
from cwm_induction.writing.rounding import rounded

INTERIOR = 0.6
"""Central part of the action range for the first fit: few noisy actions are clipped there."""

LEAST_ROWS = 6
"""Minimum number of clipped rows that agree on one equation, plus two for each of its terms: noisy
rows do not agree."""

CLOSE = 0.3
"""A row may be clipped if the first fit puts its applied action within this many standard
deviations of a limit; the first fit has about this error."""

ROUNDS = 30
"""Maximum number of concentration steps: the iteration converges after a few or not at all."""


class NoisyAction(NamedTuple):
    """Noise that is added to an action, and the applied action of every row.

    The noise is normal with standard deviation `deviation`; the sum is clipped to the range from
    `low` to `high`. `place` is the column of the action, and `known` masks the rows whose applied
    action is known.
    """

    place: int
    applied: Array
    known: Array
    deviation: float
    low: float
    high: float


def noisy_action(
    variables: Sequence[Variable], samples: Samples, effort: Share
) -> NoisyAction | None:
    """Find noise on an action, using a variable without any other noise in its equation."""
    space = samples.action_space
    if space.kind == "discrete" or not np.isfinite([*space.low, *space.high]).all():
        return None
    columns = [variable.column for variable in variables]
    for place, given in enumerate(inputs_of(samples)):
        for variable in variables:
            bounds = float(space.low[place]), float(space.high[place])
            noise = _ActionSearch(variable, samples, columns, given, *bounds).search(effort)
            if noise is not None:
                return noise._replace(place=place)
    return None


def with_applied_actions(samples: Samples, noise: NoisyAction) -> Samples:
    """Return the rows with a known applied action, which replaces the recorded one."""
    actions = samples.actions.copy()
    actions[:, noise.place] = noise.applied
    fields = ("before", "after", "rewards", "terminated", "learn")
    parts = {name: getattr(samples, name)[noise.known] for name in fields}
    return replace(samples, actions=actions[noise.known], **parts)


class _ActionSearch(NamedTuple):
    """Search for action noise in a variable whose change may be linear in the applied action."""

    variable: Variable
    samples: Samples
    columns: Sequence[NamedColumn]
    given: NamedColumn
    low: float
    high: float

    def search(self, effort: Share) -> NoisyAction | None:
        """Return the noise on the action, or None if clipped rows give no exact equation."""
        action, variable = self.given.values, self.variable
        rows = self.samples.smooth & variable.free
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        inner = rows & (np.abs(action - middle) < INTERIOR * half)
        if inner.sum() < 4 * MOST_TERMS or variable.still:
            return None
        state = distinct(library(self.columns, [], 2))
        support = self._support(state, inner)
        if support is None:
            return None
        matrix = np.stack([*(term.values for term in support), action], 1)
        weights = solve(matrix[inner], variable.change[inner])
        rest = variable.change - matrix @ weights
        spread = float(np.std(rest[inner]))
        if weights[-1] == 0 or variable.agrees(matrix @ weights, inner, 0.5):
            return None  # without an action term or noise, there is nothing to find
        implied = action + rest / weights[-1]
        spread_in_action = spread / abs(weights[-1])
        bound = np.where(implied > middle, self.high, self.low)
        clipped = (
            rows
            & (np.abs(implied - bound) < CLOSE * spread_in_action)
            & (np.abs(action - bound) < 2 * spread_in_action)
        )
        formula = self._exact(support, bound, clipped, effort)
        return None if formula is None else self._noise(formula, rows)

    def _support(self, state: Sequence[Term], rows: Array) -> list[Term] | None:
        """Return the terms of the change besides the action, or None without an action term."""
        terms = [Term(self.given.text, self.given.values, 1.0), *state]
        chosen = supported(terms, self.variable.change, rows)
        return (
            [term for term in chosen if term is not terms[0]]
            if any(term is terms[0] for term in chosen)
            else None
        )

    def _exact(
        self, support: Sequence[Term], bound: Array, clipped: Array, effort: Share
    ) -> Formula | None:
        """Return the equation of most clipped rows.

        Each concentration step fits the rows and keeps those with the smallest residuals.
        """
        target = self.variable.change
        limit = Term(self.given.text, bound, 1.0)
        matrix = np.stack([*(term.values for term in support), bound], 1)
        rows = np.flatnonzero(clipped)
        least = LEAST_ROWS + 2 * len(matrix[0])
        for _ in range(ROUNDS):
            if len(rows) < least:
                return None
            residuals = np.abs(
                target[clipped] - matrix[clipped] @ solve(matrix[rows], target[rows])
            )
            kept = np.flatnonzero(clipped)[
                np.argsort(residuals, kind="stable")[: max(least, len(residuals) // 2)]
            ]
            if set(kept.tolist()) == set(rows.tolist()):
                break
            rows = kept
        mask = np.zeros(len(target), bool)
        mask[rows] = True
        return exact([*support, limit], target, self.variable.quarter, mask, effort)

    def _noise(self, formula: Formula, rows: Array) -> NoisyAction | None:
        """Solve an exact equation for the applied action, and fit the standard deviation."""
        place = next((i for i, t in enumerate(formula.terms) if t.text == self.given.text), None)
        if place is None:
            return None
        weight = formula.weights[place]
        others = Formula(
            tuple(term for i, term in enumerate(formula.terms) if i != place),
            tuple(w for i, w in enumerate(formula.weights) if i != place),
        )
        applied = (self.variable.change - others.values(len(rows))) / weight
        slack = self.variable.quarter / abs(weight)
        outside = rows & ((applied > self.high + 4 * slack) | (applied < self.low - 4 * slack))
        if outside.sum() > 0.01 * rows.sum():
            return None
        applied = np.clip(applied, self.low, self.high)
        for limit in (self.low, self.high):
            applied = np.where(np.abs(applied - limit) <= 4 * slack, limit, applied)
        known = rows | self.samples.terminated
        deviation = _deviation(self.given.values[rows], applied[rows], low=self.low, high=self.high)
        return NoisyAction(0, applied, known, rounded(deviation, DIGITS), self.low, self.high)


def _deviation(chosen: Array, applied: Array, *, low: float, high: float) -> float:
    """Return the maximum-likelihood standard deviation of noise that is clipped at limits."""
    inner = (applied > low) & (applied < high)
    errors = (applied - chosen)[inner]
    above, below = (high - chosen)[applied >= high], (chosen - low)[applied <= low]

    def log_likelihood(deviation: float) -> float:
        tails = np.concatenate([above, below]) / deviation
        tail_terms = np.log(
            [max(0.5 * (1 - erf(tail / 2**0.5)), 1e-300) for tail in tails.tolist()]
        )
        return float(
            -0.5 * (errors**2).sum() / deviation**2 - len(errors) * np.log(deviation)
        ) + float(tail_terms.sum())

    size = max(float(np.sqrt((errors**2).mean())) if len(errors) else 1.0, 1e-12)
    deviations = size * np.geomspace(0.5, 2.0, 401)
    return float(max(deviations.tolist(), key=log_likelihood))
