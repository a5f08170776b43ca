"""Stochastic programs for real-valued boxes: `induce` fits a model, `write` returns code.

Variables with exact equations stay exact. The search first looks for noise on an action, because
known applied actions may make all equations exact. Any other variable gets a mean and noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cwm_induction.chance.normal import MOST_TERMS, NormalFit, fit_normal, supported
from cwm_induction.continuous import inducing
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import EquationsWriter, SystemFindings, listed
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import NamedColumn, distinct, library
from cwm_induction.continuous.variables import Variable, inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.noise.actions import NoisyAction, noisy_action, with_applied_actions
from cwm_induction.writing.rounding import literal
from cwm_induction.writing.statements import Statement

HYPOTHESIS = Hypothesis(mechanics=False)
"""Model classes for the mean; no mechanisms, because these need rows without noise."""

SOURCE = "noise_"
"""Prefix of the names of noise sources."""

RIGHT = 0.98
"""Fraction of rows that a reward formula must predict; otherwise the reward has noise."""


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
