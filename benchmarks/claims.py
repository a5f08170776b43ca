"""Claims of the suite: ratios between two sides that are measured alternately in one run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Measured(NamedTuple):
    """The measurements of a claim.

    Attributes:
        ratios: A ratio for each round.
        figures: Medians of the measured values; names include the unit, such as "ours ms".
        counts: Calls, steps or bytes, which are equal on every machine. Lower is better.
    """

    ratios: Sequence[float]
    figures: Mapping[str, float]
    counts: Mapping[str, int] = {}


@dataclass(frozen=True)
class Claim:
    """A ratio between two sides.

    Attributes:
        name: Unique name.
        says: Description of the two sides.
        measure: Measures the claim. With True it uses fewer rounds and smaller sides.
        goal: Minimum of the ratio, or its maximum if it is a cost.
        is_cost: Whether a lower ratio is better.
        in_quick: Whether a quick run includes the claim.
    """

    name: str
    says: str
    measure: Callable[[bool], Measured] = field(repr=False)
    goal: float | None = None
    is_cost: bool = False
    in_quick: bool = True
