"""WorldCoder as a strategy: which program is refined next, and what that teaches."""

from array import array
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cwm_cli.presets import PUBLISHED_ASKING
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move, Node, Strategy


@dataclass
class WorldCoder(Strategy):
    """Refines the program that Thompson sampling picks (Tang, Key and Ellis, 2024).

    The first program is written from scratch. Each one after that refines a
    program of the pool, by a fix if that raised, else by an improvement, and
    joins the pool. A program of score r is drawn from Beta(1 + C r, 1 + C (1 - r)),
    C being `prior_weight`; a refinement that is right adds 1 to the first
    number, any other adds 1 to the second. `sequential` refines the newest
    program instead.

    What is open with several completions in flight is settled as follows.
    While no program is known, each of them is written from scratch. A
    refinement in flight counts as one that is not right: if it is, the search
    is over and the draw does not matter.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PUBLISHED_ASKING}

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options of the problem and the backend."""
    prior_weight: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    """Number of refinements that a program's score counts for (C in the paper)."""
    sequential: bool = False
    """Refine the newest program instead of a drawn one."""
    _pool: list[Node] = field(default_factory=list, init=False, repr=False)
    _scores: MutableSequence[float] = field(
        default_factory=lambda: array("d"), init=False, repr=False
    )
    _successes: MutableSequence[int] = field(
        default_factory=lambda: array("q"), init=False, repr=False
    )
    _failures: MutableSequence[int] = field(
        default_factory=lambda: array("q"), init=False, repr=False
    )

    @property
    def repeats(self) -> bool:
        """Whether the same prompt is sent again, as published."""
        return self.preset == "paper"

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Write a first program, then refine one of those that are known."""
        if not self._pool:
            return Move(GENERATE)
        node = self._pool[-1 if self.sequential else self._sampled(rng, pending)]
        action = FIX if node.verdict.is_bug else IMPROVE
        return Move(action, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Put a program into the pool, and count an answer for the one that it refines."""
        if node.asked and node.parent != ROOT:
            counts = self._successes if node.verdict.solved else self._failures
            counts[node.parent] += 1
        self._pool.append(node)
        self._scores.append(node.verdict.score)
        self._successes.append(0)
        self._failures.append(0)

    def state(self, node: int) -> str:
        """Say how often a program was refined."""
        times = self._successes[node] + self._failures[node]
        return f"refined {times}x" if times else ""

    def _sampled(self, rng: np.random.Generator, pending: Sequence[Move]) -> int:
        """Draw a chance of success for every program, and return which has the highest."""
        scores, successes = np.array(self._scores), np.array(self._successes)
        failures = np.array(self._failures)
        for move in pending:
            if move.parent != ROOT:
                failures[move.parent] += 1
        weight = self.prior_weight
        draws = rng.beta(1 + weight * scores + successes, 1 + weight * (1 - scores) + failures)
        return int(draws.argmax())
