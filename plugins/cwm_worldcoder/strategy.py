"""WorldCoder as a strategy: which program is refined next, and what that teaches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from cwm_cli.llm import ROOT, Action, Move
from cwm_cli.search import Node


@dataclass(slots=True)
class Arm:
    """A program of the pool, and how many of its refinements were right and were not."""

    node: Node
    successes: int = 0
    failures: int = 0


@dataclass
class WorldCoder:
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

    prior_weight: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    sequential: bool = False
    _pool: dict[int, Arm] = field(default_factory=dict, init=False, repr=False)

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Write a first program, then refine one of those that are known."""
        if not self._pool:
            return Move(Action.GENERATE)
        node = self._newest() if self.sequential else self._sampled(rng, pending)
        action = Action.FIX if node.verdict.is_bug else Action.IMPROVE
        return Move(action, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Put a program into the pool, and count it for the one that it refines."""
        if node.parent != ROOT:
            parent = self._pool[node.parent]
            parent.successes += node.verdict.solved
            parent.failures += not node.verdict.solved
        self._pool[node.id] = Arm(node)

    def state(self, node: int) -> str:
        """Say how often a program was refined."""
        arm = self._pool[node]
        times = arm.successes + arm.failures
        return f"refined {times}x" if times else ""

    def _newest(self) -> Node:
        """Return the program that was learned last."""
        return self._pool[next(reversed(self._pool))].node

    def _sampled(self, rng: np.random.Generator, pending: Sequence[Move]) -> Node:
        """Draw a chance of success for every program, and return that of the highest."""
        arms = list(self._pool.values())
        awaited = Counter(move.parent for move in pending)
        scores = np.array([arm.node.verdict.score for arm in arms])
        successes = np.array([arm.successes for arm in arms])
        failures = np.array([arm.failures + awaited[arm.node.id] for arm in arms])
        weight = self.prior_weight
        draws = rng.beta(1 + weight * scores + successes, 1 + weight * (1 - scores) + failures)
        return arms[int(draws.argmax())].node
