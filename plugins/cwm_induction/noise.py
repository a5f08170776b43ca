"""Stochastic programs for real-valued boxes: equations, plus noise for their residuals.

`induce` fits a model, and `write` returns code. Variables with exact equations stay exact. The
search first looks for noise on an action, because known applied actions may make all equations
exact. Any other variable gets a mean and noise.

If noisy actions are clipped to limits, many rows contain no noise: the applied action equals the
limit. These rows determine an exact equation, and the equation determines the applied action of
all other rows. Once the applied actions replace the recorded ones, the remaining variables can be
explained by deterministic equations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from cwm_induction.chance.normal import DIGITS, MOST_TERMS, NormalFit, fit_normal, supported
from cwm_induction.continuous import inducing
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import EquationsWriter, SystemFindings, listed
from cwm_induction.continuous.regression import Formula, exact, solve
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, library
from cwm_induction.continuous.variables import Variable, inputs_of, latents
from cwm_induction.effort import Effort, Share
from cwm_induction.writing.rounding import literal, rounded
from cwm_induction.writing.statements import Statement

HYPOTHESIS = Hypothesis(mechanics=False)
"""Model classes for the mean; no mechanisms, because these need rows without noise."""

SOURCE = "noise_"
"""Prefix of the names of noise sources."""

RIGHT = 0.98
"""Fraction of rows that a reward formula must predict; otherwise the reward has noise."""


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


@dataclass(frozen=True)
class NoisyFindings:
    """Equations of an environment, and the noise of its variables, reward and action."""

    system: SystemFindings
    noise: dict[str, NormalFit] = field(default_factory=dict)
    """By variable; the mean of a variable may contain the noise of variables before it."""
    reward: NormalFit | None = None
    action: NoisyAction | None = None

    @property
    def draws(self) -> bool:
        """Whether the environment contains any noise."""
        return bool(self.noise) or self.action is not None or self.reward is not None


def induce(samples: Samples, rng: np.random.Generator, effort: Effort) -> NoisyFindings:
    """Find equations and noise that explain stochastic transitions."""
    action = noisy_action(latents(samples).variables, samples, effort.share(0.2))
    if action is not None:
        samples = with_applied_actions(samples, action)
    system = inducing.induce(samples, HYPOTHESIS, rng, effort)
    moving = [variable for variable in system.latents.variables if not variable.still]
    now, then = [v.column for v in moving], [v.next_column for v in moving]
    inputs, rough = inputs_of(samples), system.dynamics.rough
    noise = _fit_noises([v for v in moving if v.name in rough], samples, now, inputs)
    left = {name: formula for name, formula in rough.items() if name not in noise}
    system = replace(system, dynamics=replace(system.dynamics, rough=left))
    is_noisy = system.reward.right <= RIGHT
    reward = _fit_reward(samples, now, then, inputs) if is_noisy else None
    return NoisyFindings(system, noise, reward, action)


def _fit_reward(
    samples: Samples,
    now: Sequence[NamedColumn],
    then: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> NormalFit | None:
    """Fit a noisy reward to terms of the state, the action and the next state."""
    rows = samples.learn
    if rows.sum() < 4 * MOST_TERMS:
        return None
    terms = distinct([*library(now, inputs, 2), *library(then, [], 2)])
    chosen = supported(terms, samples.rewards, rows)
    return fit_normal(chosen, samples.rewards, rows, [*now, *inputs])


def _fit_noises(
    open_variables: Sequence[Variable],
    samples: Samples,
    columns: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> dict[str, NormalFit]:
    """Fit mean and noise of every variable without an exact equation.

    A mean may contain the noise of earlier variables, such as a random force on several variables.
    """
    rows = samples.learn & samples.smooth
    for variable in open_variables:
        rows = rows & variable.free
    noises: dict[str, NormalFit] = {}
    if rows.sum() < 4 * MOST_TERMS:
        return noises
    sources: list[NamedColumn] = []
    for variable in open_variables:
        terms = supported(distinct(library(columns, [*inputs, *sources], 2)), variable.change, rows)
        found = fit_normal(terms, variable.change, rows, [*columns, *inputs])
        noises[variable.name] = found
        if found.deviation:
            sources.append(NamedColumn(SOURCE + variable.name, found.draws))
    return noises


def write(findings: NoisyFindings) -> str:
    """Return the program as Python code."""
    return NoiseWriter(findings.system, findings).text()


@dataclass(frozen=True)
class NoiseWriter(EquationsWriter):
    """Writer of equations with noise from `self.rng`."""

    noisy: NoisyFindings

    def text(self) -> str:
        """Write the program; the random draws come first."""
        program = self.program
        program.summary[1:] = self._paragraphs(program.summary[1:])
        if (action := self.noisy.action) is not None:
            deviation = program.constant(
                "ACTION_NOISE",
                literal(action.deviation),
                "Standard deviation of the noise on the action.",
            )
            low, high = literal(action.low), literal(action.high)
            noisy_action = f"action + {deviation} * self.rng.normal(size=np.shape(action))"
            program.statements.append(Statement(f"action = np.clip({noisy_action}, {low}, {high})"))
        noises = {
            **self.noisy.noise,
            **({"reward": self.noisy.reward} if self.noisy.reward else {}),
        }
        sources = [SOURCE + name for name, noise in noises.items() if noise.deviation]
        program.statements += [Statement(f"{source} = self.rng.normal()") for source in sources]
        return super().text()

    def explained(self, name: str) -> str | None:
        """Write the next value of a variable that has noise."""
        noise = self.noisy.noise.get(name)
        return None if noise is None else noise.text(name, SOURCE + name)

    def rewarded(self) -> Statement:
        """Write the reward, which may have noise of its own."""
        noise = self.noisy.reward
        return (
            super().rewarded()
            if noise is None
            else Statement(f"reward = {noise.text('', SOURCE + 'reward')}")
        )

    def _paragraphs(self, plain: list[str]) -> list[str]:
        """Describe the noise; drop the note on an approximate reward if the reward has noise."""
        sentences = ["Outcomes are random: `step` draws noise from self.rng."]
        if (action := self.noisy.action) is not None:
            sentences.append(
                f"Normal noise with standard deviation {literal(action.deviation)} is added to "
                f"the action, which is then clipped to {literal(action.low)} to "
                f"{literal(action.high)}."
            )
        if noise := self.noisy.noise:
            shared = any(SOURCE in term for each in noise.values() for term in each.mean.names)
            have = "have" if len(noise) > 1 else "has"
            sentences.append(f"{listed(noise)} {have} {'correlated ' * shared}normal noise.")
        if self.noisy.reward is not None:
            sentences.append("The reward has its own noise.")
            plain = [paragraph for paragraph in plain if "reward" not in paragraph]
        return [" ".join(sentences), *filter(None, plain)]


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
    errors = (applied - chosen)[(applied > low) & (applied < high)]
    tails = np.concatenate([(high - chosen)[applied >= high], (chosen - low)[applied <= low]])
    squares, count = float((errors**2).sum()), len(errors)

    def loss(log: float) -> float:
        deviation = np.exp(log)
        inner = 0.5 * squares / deviation**2 + count * log
        return float(inner - log_ndtr(-tails / deviation).sum())

    size = np.log(max(np.sqrt(squares / count) if count else 1.0, 1e-12))
    return float(np.exp(minimize_scalar(loss, bounds=(size - 1, size + 1)).x))
