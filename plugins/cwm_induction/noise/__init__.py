"""Programs of chance for real numbers: equations, and what is drawn where they leave a rest."""

from cwm_induction.noise.inducing import NoisyFindings, induce, write

__all__ = ["NoisyFindings", "induce", "write"]
