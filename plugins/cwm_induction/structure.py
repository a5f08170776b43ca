"""What was found in fewer rows of an environment: where a search begins once there are more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cwm_induction.discrete.transitions import Layout
    from cwm_induction.mechanics.motion import Mechanics

FEW_MORE, GROWN = 1.15, 1.5
"""With so many times the rows everything is searched again, where what was found leaves something
unexplained, and anyway: what looked likely may be so no more. All searches of rows that grow one by
one together then cost a few times what the last one does."""


@dataclass
class KnownStructure:
    """The structure of what was found in `rows` rows; empty where nothing was.

    `layouts` are readings of whole numbers, `mechanics` is a mechanism.
    """

    rows: int = 0
    layouts: tuple[Layout, ...] = ()
    mechanics: Mechanics | None = None

    def holds_for(self, rows: int) -> bool:
        """Whether it is to be tried first for so many rows."""
        return 0 < self.rows <= rows < GROWN * self.rows

    def is_fresh(self, rows: int) -> bool:
        """Whether it was found in nearly as many rows, so that another search would tell little."""
        return 0 < self.rows <= rows < FEW_MORE * self.rows
