"""Best of n: write n programs, improve the best one, and restart if that no longer helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Move, Node, Strategy

if TYPE_CHECKING:
    import numpy as np


@dataclass
class BestOfN(Strategy):
    """A strategy that writes n programs from scratch, and then improves the best one.

    After `patience` attempts without an improvement, a new round starts with n new programs. The
    strategy makes no random choices.
    """

    n: Annotated[int, Field(ge=1)] = 4
    """Number of programs written from scratch in a round."""
    patience: Annotated[int, Field(ge=1)] = 4
    """Attempts without an improvement that end a round."""

    _drafts: int = field(default=0, init=False, repr=False)
    _stale: int = field(default=0, init=False, repr=False)
    _best: Node | None = field(default=None, init=False, repr=False)
    _rounds: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _round: int = field(default=1, init=False, repr=False)

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Write programs until there are n in this round, then improve the best one."""
        pending_drafts = sum(move.action == GENERATE for move in pending)
        if self._best is None or self._drafts + pending_drafts < self.n:
            return Move(GENERATE)
        best = self._best
        action = FIX if best.verdict.is_bug else IMPROVE
        return Move(action, best.id, best.program, best.verdict)

    def update(self, node: Node) -> None:
        """Update the best program of the round, or count an attempt without an improvement."""
        self._rounds[node.id] = self._round
        is_draft = node.asked and node.action == GENERATE
        self._drafts += is_draft
        if self._best is None or node.verdict.rank > self._best.verdict.rank:
            self._best, self._stale = node, 0
        elif node.asked and not is_draft:
            self._stale += 1
        if self._stale >= self.patience:
            self._best, self._stale, self._drafts = None, 0, 0
            self._round += 1

    def state(self, node: int) -> str:
        """Return the round of a node, such as "round 1"."""
        return f"round {self._rounds[node]}" if node in self._rounds else ""
