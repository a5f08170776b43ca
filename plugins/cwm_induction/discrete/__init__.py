"""Programs for few whole numbers: factors, moves, exceptions and chance."""

from cwm_induction.discrete.inducing import improve, induce, induce_chances, recall
from cwm_induction.discrete.transitions import supports

__all__ = ["improve", "induce", "induce_chances", "recall", "supports"]
