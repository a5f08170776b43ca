"""Stochastic programs for real-valued data: equations, plus noise for their residuals."""

from cwm_induction.noise.inducing import NoisyFindings, induce, write

__all__ = ["NoisyFindings", "induce", "write"]
