"""Zero-shot synthesis: request whole programs independently of each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from cwm_cli.presets import PUBLISHED_ALONE
from cwm_cli.search.contracts import GENERATE, Move, Node, Strategy


@dataclass
class ZeroShot(Strategy):
    """Writes every program from scratch, independently of earlier results."""

    moves = (GENERATE,)
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": PUBLISHED_ALONE,
    }

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options of the backend."""

    @property
    def repeats(self) -> bool:
        """Return True: all programs answer the same prompt, so that they are independent."""
        return True

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Return the move for another program."""
        return Move(GENERATE)

    def update(self, node: Node) -> None:
        """Do nothing: the programs are independent."""

    def state(self, node: int) -> str:
        """Return "": nodes have no status."""
        return ""
