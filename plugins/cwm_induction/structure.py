"""What was found in fewer rows of an environment: where a search begins once there are more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cwm_induction.discrete.transitions import Layout
    from cwm_induction.mechanics.motion import Mechanics

GROWN = 1.5
"""With so many times the rows everything is searched again: what looked likely may be so no more.
All searches of rows that grow one by one together then cost about three times the last one."""


@dataclass
class KnownStructure:
    """The structure of what was found in `rows` rows; empty where nothing was.

    `layouts` are the likeliest readings of whole numbers, `mechanics` is a mechanism.
    """

    rows: int = 0
    layouts: tuple[Layout, ...] = ()
    mechanics: Mechanics | None = None

    def holds_for(self, rows: int) -> bool:
        """Whether it is to be tried first for so many rows."""
        return 0 < self.rows <= rows < GROWN * self.rows
