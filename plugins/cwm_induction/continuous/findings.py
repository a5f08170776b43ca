"""What an induction found."""

from dataclasses import dataclass

from cwm_induction.continuous.ending import Ending
from cwm_induction.continuous.explanations import Dynamics
from cwm_induction.continuous.latents import Latents
from cwm_induction.continuous.samples import Samples
from cwm_induction.rewards.reward import Reward


@dataclass(frozen=True)
class Findings:
    """Everything that was found about an environment; `capped` when time ran out on the way."""

    samples: Samples
    latents: Latents
    dynamics: Dynamics
    ending: Ending
    reward: Reward
    capped: bool
