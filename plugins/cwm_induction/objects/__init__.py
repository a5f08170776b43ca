"""Rules over objects: what stands before the agent, what it carries, and what a mission names."""

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
