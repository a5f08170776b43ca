"""What an induction tries."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """Which families of explanations to try, and how far.

    `level` is the largest library of terms. Parts are variables by name,
    `reward` and `terminated`: those in `deeper` get larger libraries and more
    regimes, those in `plain` the simplest explanation that always runs.
    """

    level: int = 3
    mechanics: bool = True
    regimes: bool = True
    deeper: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
