"""What benchmarks claim: ratios between two sides that are measured in turn, in one run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Measured(NamedTuple):
    """A ratio for every round, medians of what was measured, and what can be counted.

    `figures` are named with their unit, such as "ours ms". `counts` are the same
    on every machine: calls, steps, bytes, each of them the fewer the better.
    """

    ratios: Sequence[float]
    figures: Mapping[str, float]
    counts: Mapping[str, int] = {}


@dataclass(frozen=True)
class Claim:
    """A ratio between two sides; `goal` is what it should be at least, or at most for a cost.

    `measure` is told whether to be quick: fewer rounds, smaller sides, the same claim.
    What cannot be quick is left out of a quick run.
    """

    name: str
    says: str
    measure: Callable[[bool], Measured] = field(repr=False)
    goal: float | None = None
    is_cost: bool = False
    in_quick: bool = True
