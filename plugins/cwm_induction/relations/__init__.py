"""Programs for many like parts: rules that are equal for all cells of a board or line."""

from cwm_induction.relations.inducing import ENOUGH, induce

__all__ = ["ENOUGH", "induce"]
