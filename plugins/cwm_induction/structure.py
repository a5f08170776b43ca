"""The structure found in fewer rows of an environment, as the start of later searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cwm_induction.discrete.transitions import Layout
    from cwm_induction.mechanics.motion import Mechanics

FEW_MORE, GROWN = 1.15, 2.0
"""Growth factors of the number of rows since the last search. Above the first, search again if the
known structure leaves rows unexplained. Above the second, search again in any case."""

FEW = 2
"""Maximum number of rows that a known structure may leave unexplained without a new search."""

EARLY = 40
"""Up to this number of rows, search again every time: few rows decide little, and it is quick."""


@dataclass
class KnownStructure:
    """The structure found so far; empty if there is none.

    `rows` is the number of rows at the last search. `layouts` are interpretations of whole numbers,
    `mechanics` is a mechanism.
    """

    rows: int = 0
    layouts: tuple[Layout, ...] = ()
    mechanics: Mechanics | None = None

    def holds_for(self, rows: int) -> bool:
        """Return whether to try the structure first for the given number of rows."""
        return 0 < self.rows <= rows < GROWN * self.rows

    def is_fresh(self, rows: int) -> bool:
        """Return whether the number of rows is less than 15 % larger than at the last search."""
        return 0 < self.rows <= rows < FEW_MORE * self.rows
