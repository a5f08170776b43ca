"""Stochastic programs for real-valued boxes: `induce` fits a model, `write` returns code.

Variables with exact equations stay exact. The search first looks for noise on an action, because
known applied actions may make all equations exact. Any other variable gets a mean and noise.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from cwm_induction.continuous import inducing
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import EquationsWriter, SystemFindings, listed
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.variables import inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.noise.actions import NoisyAction, noisy_action, with_applied_actions
from cwm_induction.noise.residuals import Noise, fit_noises, fit_reward_noise
from cwm_induction.writing.rounding import literal
from cwm_induction.writing.statements import Statement

HYPOTHESIS = Hypothesis(mechanics=False)
"""Model classes for the mean; no mechanisms, because these need rows without noise."""

RIGHT = 0.98
"""Fraction of rows that a reward formula must predict; otherwise the reward has noise."""


@dataclass(frozen=True)
class NoisyFindings:
    """Equations of an environment, and the noise of its variables, reward and action."""

    system: SystemFindings
    noise: dict[str, Noise] = field(default_factory=dict)
    reward: Noise | None = None
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
    noise = fit_noises([v for v in moving if v.name in rough], samples, now, inputs)
    left = {name: formula for name, formula in rough.items() if name not in noise}
    system = replace(system, dynamics=replace(system.dynamics, rough=left))
    is_noisy = system.reward.right <= RIGHT
    reward = fit_reward_noise(samples, now, then, inputs) if is_noisy else None
    return NoisyFindings(system, noise, reward, action)


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
        noises = [*self.noisy.noise.values(), *([self.noisy.reward] if self.noisy.reward else [])]
        sources = {name: None for noise in noises for name in sorted(noise.sources)}
        program.statements += [Statement(f"{source} = self.rng.normal()") for source in sources]
        return super().text()

    def explained(self, name: str) -> str | None:
        """Write the next value of a variable that has noise."""
        noise = self.noisy.noise.get(name)
        return None if noise is None else noise.text(name)

    def rewarded(self) -> Statement:
        """Write the reward, which may have noise of its own."""
        noise = self.noisy.reward
        return super().rewarded() if noise is None else Statement(f"reward = {noise.text('')}")

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
            shared = any(len(each.sources) > 1 for each in noise.values())
            have = "have" if len(noise) > 1 else "has"
            sentences.append(f"{listed(noise)} {have} {'correlated ' * shared}normal noise.")
        if self.noisy.reward is not None:
            sentences.append("The reward has its own noise.")
            plain = [paragraph for paragraph in plain if "reward" not in paragraph]
        return [" ".join(sentences), *filter(None, plain)]
