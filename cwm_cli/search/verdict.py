"""What a search thinks of a program."""

from pydantic import Field
from pydantic.dataclasses import dataclass

from cwm_cli.sandbox.failure import Failure


@dataclass(frozen=True, slots=True)
class Verdict:
    """How good a program is: its score in [0, 1] and what is wrong with it.

    `score` is over the whole train set and `validation` over the trajectories
    of it that nothing may be fitted to; the latter breaks ties. `parts` are
    unweighted means, for the reader.
    """

    score: float
    validation: float = 0.0
    parts: dict[str, float] = Field(default_factory=dict)
    failure: Failure | None = None

    @property
    def is_bug(self) -> bool:
        """Whether the program failed to run."""
        return self.failure is not None and self.failure.is_bug

    @property
    def solved(self) -> bool:
        """Whether every prediction on the train set is right."""
        return self.score >= 1.0
