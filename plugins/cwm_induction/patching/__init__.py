"""The refiner *patch*: what a program leaves over is looked at, and corrected in its text."""

from cwm_induction.patching.patch import Patch

__all__ = ["Patch"]
