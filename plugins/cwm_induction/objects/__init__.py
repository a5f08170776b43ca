"""Rules over objects, such as the object in front of the agent or the object that it carries."""

from cwm_induction.objects.experience import Experience
from cwm_induction.objects.inducing import (
    composed,
    forgetful,
    induce,
    reward_program,
    supports,
    transition_program,
)

__all__ = [
    "Experience",
    "composed",
    "forgetful",
    "induce",
    "reward_program",
    "supports",
    "transition_program",
]
