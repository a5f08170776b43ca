"""Noise on actions: what really acted is read off what it did.

Where a limit cuts noisy actions off, many rows are free of noise: those in which the limit itself
acted. They give the equation exactly, and this gives what acted in all other rows. With that in
place of the recorded actions everything else can be explained as if there were no chance.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import erf
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import Formula, exact, solve
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, library
from cwm_induction.continuous.variables import Variable, inputs_of
from cwm_induction.effort import Share
from cwm_induction.noise.residuals import DIGITS, MOST_TERMS, supported
from cwm_induction.writing.rounding import rounded

INTERIOR = 0.6
"""Share of the range of actions around its middle, where few noisy ones are cut off."""

LEAST_ROWS = 6
"""Rows at a limit that have to agree on one equation, beside two for each of its terms: noise does
so in none."""

CLOSE = 0.3
"""Standard deviations within which a limit may have acted: a first fit is about as far off."""

ROUNDS = 30
"""Steps of concentration on the rows that agree: few are needed, or it does not come to an end."""


class NoisyAction(NamedTuple):
    """What acted in every row, where that is `known`, in place of the action as it was chosen.

    It was drawn with a standard deviation of `deviation` around the action, and cut off at the
    limits `low` and `high`.
    """

    place: int
    acted: Array
    known: Array
    deviation: float
    low: float
    high: float


def noisy_action(
    variables: Sequence[Variable], samples: Samples, effort: Share
) -> NoisyAction | None:
    """Find noise on an action: by a variable in whose equation what acted is all that is drawn."""
    space = samples.action_space
    if space.kind == "discrete" or not np.isfinite([*space.low, *space.high]).all():
        return None
    columns = [variable.column for variable in variables]
    for place, given in enumerate(inputs_of(samples)):
        for variable in variables:
            bounds = float(space.low[place]), float(space.high[place])
            found = _ActionSearch(variable, samples, columns, given, *bounds).found(effort)
            if found is not None:
                return found._replace(place=place)
    return None


def acting(samples: Samples, found: NoisyAction) -> Samples:
    """Return the rows in which it is known what acted, with that as the action."""
    actions = samples.actions.copy()
    actions[:, found.place] = found.acted
    fields = ("before", "after", "rewards", "terminated", "learn")
    parts = {name: getattr(samples, name)[found.known] for name in fields}
    return replace(samples, actions=actions[found.known], **parts)


class _ActionSearch(NamedTuple):
    """One variable whose change may be linear in what acted."""

    variable: Variable
    samples: Samples
    columns: Sequence[NamedColumn]
    given: NamedColumn
    low: float
    high: float

    def found(self, effort: Share) -> NoisyAction | None:
        """Return the noise on the action, None unless the limits show it exactly."""
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
            return None  # it holds as it is: nothing is drawn
        implied = action + rest / weights[-1]
        near = spread / abs(weights[-1])
        bound = np.where(implied > middle, self.high, self.low)
        cut = rows & (np.abs(implied - bound) < CLOSE * near) & (np.abs(action - bound) < 2 * near)
        formula = self._exact(support, bound, cut, effort)
        return None if formula is None else self._noise(formula, rows)

    def _support(self, state: Sequence[Term], rows: Array) -> list[Term] | None:
        """Return the terms that the change depends on beside the action, None where on that not."""
        terms = [Term(self.given.text, self.given.values, 1.0), *state]
        chosen = supported(terms, self.variable.change, rows)
        return (
            [term for term in chosen if term is not terms[0]]
            if any(term is terms[0] for term in chosen)
            else None
        )

    def _exact(
        self, support: Sequence[Term], bound: Array, cut: Array, effort: Share
    ) -> Formula | None:
        """Return the equation on which most rows agree whose action was cut off at a limit."""
        target = self.variable.change
        limit = Term(self.given.text, bound, 1.0)
        matrix = np.stack([*(term.values for term in support), bound], 1)
        rows = np.flatnonzero(cut)
        least = LEAST_ROWS + 2 * len(matrix[0])
        for _ in range(ROUNDS):
            if len(rows) < least:
                return None
            off = np.abs(target[cut] - matrix[cut] @ solve(matrix[rows], target[rows]))
            kept = np.flatnonzero(cut)[np.argsort(off, kind="stable")[: max(least, len(off) // 2)]]
            if set(kept.tolist()) == set(rows.tolist()):
                break
            rows = kept
        mask = np.zeros(len(target), bool)
        mask[rows] = True
        return exact([*support, limit], target, self.variable.quarter, mask, effort)

    def _noise(self, formula: Formula, rows: Array) -> NoisyAction | None:
        """Read what acted off an exact equation, and fit how far that is from the action."""
        place = next((i for i, t in enumerate(formula.terms) if t.text == self.given.text), None)
        if place is None:
            return None
        weight = formula.weights[place]
        others = Formula(
            tuple(term for i, term in enumerate(formula.terms) if i != place),
            tuple(w for i, w in enumerate(formula.weights) if i != place),
        )
        acted = (self.variable.change - others.values(len(rows))) / weight
        slack = self.variable.quarter / abs(weight)
        outside = rows & ((acted > self.high + 4 * slack) | (acted < self.low - 4 * slack))
        if outside.sum() > 0.01 * rows.sum():
            return None
        acted = np.clip(acted, self.low, self.high)
        for limit in (self.low, self.high):
            acted = np.where(np.abs(acted - limit) <= 4 * slack, limit, acted)
        known = rows | self.samples.terminated
        deviation = _deviation(self.given.values[rows], acted[rows], low=self.low, high=self.high)
        return NoisyAction(0, acted, known, rounded(deviation, DIGITS), self.low, self.high)


def _deviation(chosen: Array, acted: Array, *, low: float, high: float) -> float:
    """Return the standard deviation that is likeliest, of noise that is cut off at limits."""
    inner = (acted > low) & (acted < high)
    far = (acted - chosen)[inner]
    above, below = (high - chosen)[acted >= high], (chosen - low)[acted <= low]

    def likelihood(deviation: float) -> float:
        tails = np.concatenate([above, below]) / deviation
        missing = np.log([max(0.5 * (1 - erf(tail / 2**0.5)), 1e-300) for tail in tails.tolist()])
        return float(-0.5 * (far**2).sum() / deviation**2 - len(far) * np.log(deviation)) + float(
            missing.sum()
        )

    size = max(float(np.sqrt((far**2).mean())) if len(far) else 1.0, 1e-12)
    tried = size * np.geomspace(0.5, 2.0, 401)
    return float(max(tried.tolist(), key=likelihood))
