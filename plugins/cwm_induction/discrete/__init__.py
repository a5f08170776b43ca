"""Programs for few whole numbers: factors, moves, exceptions, boards and chance."""

from cwm_induction.discrete.inducing import VARIANTS, improve, induce, recall
from cwm_induction.discrete.transitions import supports

__all__ = ["VARIANTS", "improve", "induce", "recall", "supports"]
