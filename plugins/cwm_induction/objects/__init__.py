"""Rules over objects, such as the object in front of the agent or the object that it carries."""

from cwm_induction.objects.experience import Experience
from cwm_induction.objects.inducing import forgetful, induce, program_of, supports

__all__ = ["Experience", "forgetful", "induce", "program_of", "supports"]
