"""What was found in fewer rows of an environment: where a search begins once there are more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cwm_induction.discrete.transitions import Layout
    from cwm_induction.mechanics.motion import Mechanics

FEW_MORE, GROWN = 1.15, 2.0
"""With so many times the rows one looks again, where what was found leaves something unexplained,
and anyway: what looked likely may be so no more."""

FEW = 2
"""Rows that may be left unexplained by what is known: they say nothing of what they share."""

EARLY = 40
"""Rows below which everything is looked at again each time: they settle little, and it is quick."""


@dataclass
class KnownStructure:
    """The structure of what was found; empty where nothing was.

    It was looked for in `rows` rows last, and everywhere in `thorough` rows. `layouts` are readings
    of whole numbers, `mechanics` is a mechanism.
    """

    rows: int = 0
    thorough: int = 0
    layouts: tuple[Layout, ...] = ()
    mechanics: Mechanics | None = None

    def holds_for(self, rows: int) -> bool:
        """Whether it is to be tried first for so many rows."""
        return 0 < self.rows <= rows < GROWN * self.rows

    def is_fresh(self, rows: int) -> bool:
        """Whether it was found in nearly as many rows, so that looking again would tell little."""
        return 0 < self.rows <= rows < FEW_MORE * self.rows
