"""The search strategy of WorldCoder: Thompson sampling over programs to refine."""

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
    """Refines the program with the highest Thompson sample (Tang, Key and Ellis, 2024).

    The first program is written from scratch. Each later program refines a program of the pool and
    joins the pool. A refinement is a fix if the program raised an exception, and an improvement
    otherwise. The chance of success of a program with score r is sampled from
    Beta(1 + C r, 1 + C (1 - r)), where C is `prior_weight`. A correct refinement adds 1 to the
    first parameter, and any other refinement adds 1 to the second. `sequential` refines the newest
    program instead.

    Several completions can be in flight. As long as the pool is empty, all programs are written
    from scratch. A refinement in flight counts as not correct: if it is correct, the search is over
    and the sample does not matter.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PUBLISHED_ASKING}

    preset: Literal["default", "paper"] = "default"
    """Preset for unset options of the problem and the backend."""
    prior_weight: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    """Number of refinements that a program's score counts for (C in the paper)."""
    sequential: bool = False
    """Refine the newest program instead of a sampled one."""
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
        """Return the next move: the first program, or a refinement."""
        if not self._pool:
            return Move(GENERATE)
        node = self._pool[-1 if self.sequential else self._sample(rng, pending)]
        action = FIX if node.verdict.is_bug else IMPROVE
        return Move(action, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Add a program to the pool, and count the completion for its parent."""
        if node.asked and node.parent != ROOT:
            counts = self._successes if node.verdict.solved else self._failures
            counts[node.parent] += 1
        self._pool.append(node)
        self._scores.append(node.verdict.score)
        self._successes.append(0)
        self._failures.append(0)

    def state(self, node: int) -> str:
        """Return the number of refinements of a program, as text."""
        count = self._successes[node] + self._failures[node]
        return f"refined {count}x" if count else ""

    def _sample(self, rng: np.random.Generator, pending: Sequence[Move]) -> int:
        """Sample a chance of success for each program; return the index of the highest."""
        scores, successes = np.array(self._scores), np.array(self._successes)
        failures = np.array(self._failures)
        for move in pending:
            if move.parent != ROOT:
                failures[move.parent] += 1
        weight = self.prior_weight
        draws = rng.beta(1 + weight * scores + successes, 1 + weight * (1 - scores) + failures)
        return int(draws.argmax())
