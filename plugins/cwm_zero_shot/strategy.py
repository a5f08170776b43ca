"""Zero-shot synthesis: ask for the whole program, again and again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from cwm_cli.presets import PUBLISHED_ALONE
from cwm_cli.search.contracts import GENERATE, Move, Node, Strategy


@dataclass
class ZeroShot(Strategy):
    """Writes every program from scratch and learns nothing from how it fared."""

    moves = (GENERATE,)
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": PUBLISHED_ALONE,
    }

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options of the backend."""

    @property
    def repeats(self) -> bool:
        """Every program answers the same prompt, on purpose: they are independent."""
        return True

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Ask for another program."""
        return Move(GENERATE)

    def update(self, node: Node) -> None:
        """Learn nothing: the programs are independent."""

    def state(self, node: int) -> str:
        """Return "": every program stands for itself."""
        return ""
