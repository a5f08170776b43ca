"""What an induction found."""

from dataclasses import dataclass

from cwm_induction.ending import Ending
from cwm_induction.explanations import Dynamics
from cwm_induction.latents import Latents
from cwm_induction.rewards import Reward
from cwm_induction.samples import Samples


@dataclass(frozen=True)
class Findings:
    """Everything that was found about an environment; `capped` when time ran out on the way."""

    samples: Samples
    latents: Latents
    dynamics: Dynamics
    ending: Ending
    reward: Reward
    capped: bool
