"""Programs of chance for a box of real numbers: `induce` explains rows, `write` puts it in Python.

What equations explain exactly stays exact. Then noise on an action is looked for, with which all
else may be exact. What is left is a mean and noise.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from cwm_induction.continuous import inducing
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import EquationsWriter, SystemFindings, listed
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.variables import inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.noise.actions import NoisyAction, acting, noisy_action
from cwm_induction.noise.residuals import Noise, drawn_reward, noises
from cwm_induction.writing.rounding import literal
from cwm_induction.writing.statements import Statement

HYPOTHESIS = Hypothesis(mechanics=False)
"""What is tried for the mean: a mechanism is fitted through every row, which noise does not let."""

RIGHT = 0.98
"""Share of rows in which a reward is right that is not drawn."""


@dataclass(frozen=True)
class NoisyFindings:
    """What was found about an environment in which real numbers are drawn."""

    system: SystemFindings
    noise: dict[str, Noise] = field(default_factory=dict)
    reward: Noise | None = None
    action: NoisyAction | None = None

    @property
    def draws(self) -> bool:
        """Whether anything is drawn."""
        return bool(self.noise) or self.action is not None or self.reward is not None


def induce(samples: Samples, rng: np.random.Generator, effort: Effort) -> NoisyFindings:
    """Explain transitions of which chance decides a part."""
    action = noisy_action(latents(samples).variables, samples, effort.share(0.2))
    if action is not None:
        samples = acting(samples, action)
    system = inducing.induce(samples, HYPOTHESIS, rng, effort)
    moving = [variable for variable in system.latents.variables if not variable.still]
    now, then = [v.column for v in moving], [v.next_column for v in moving]
    inputs, rough = inputs_of(samples), system.dynamics.rough
    noise = noises([v for v in moving if v.name in rough], samples, now, inputs)
    left = {name: formula for name, formula in rough.items() if name not in noise}
    system = replace(system, dynamics=replace(system.dynamics, rough=left))
    is_drawn = system.reward.right <= RIGHT
    reward = drawn_reward(samples, now, then, inputs) if is_drawn else None
    return NoisyFindings(system, noise, reward, action)


def write(findings: NoisyFindings) -> str:
    """Return the text of the program."""
    return NoiseWriter(findings.system, findings).text()


@dataclass(frozen=True)
class NoiseWriter(EquationsWriter):
    """Writes equations, and what is drawn from `self.rng`."""

    noisy: NoisyFindings

    def text(self) -> str:
        """Write the program, with what is drawn first."""
        program = self.program
        program.summary[1:] = self._paragraphs(program.summary[1:])
        if (action := self.noisy.action) is not None:
            deviation = program.constant(
                "ACTION_NOISE",
                literal(action.deviation),
                "Standard deviation of the noise on the action.",
            )
            low, high = literal(action.low), literal(action.high)
            drawn = f"action + {deviation} * self.rng.normal(size=np.shape(action))"
            program.statements.append(Statement(f"action = np.clip({drawn}, {low}, {high})"))
        every = [*self.noisy.noise.values(), *([self.noisy.reward] if self.noisy.reward else [])]
        sources = {name: None for noise in every for name in sorted(noise.sources)}
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
        """Say what is drawn; that a reward is an approximation is no news where it is drawn."""
        said = ["Outcomes are random: `step` draws noise from self.rng."]
        if (action := self.noisy.action) is not None:
            said.append(
                f"Normal noise with standard deviation {literal(action.deviation)} is added to "
                f"the action, which is then clipped to {literal(action.low)} to "
                f"{literal(action.high)}."
            )
        if noise := self.noisy.noise:
            shared = any(len(each.sources) > 1 for each in noise.values())
            have = "have" if len(noise) > 1 else "has"
            said.append(f"{listed(noise)} {have} {'correlated ' * shared}normal noise.")
        if self.noisy.reward is not None:
            said.append("The reward has its own noise.")
            plain = [paragraph for paragraph in plain if "reward" not in paragraph]
        return [" ".join(said), *filter(None, plain)]
