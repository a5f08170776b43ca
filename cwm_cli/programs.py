"""Candidate programs and the verdicts on them."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

FailureKind = Literal[
    "no_program",
    "load_error",
    "step_error",
    "wrong_output",
    "timeout_cpu",
    "timeout_wall",
    "memory",
    "crash",
    "early_exit",
    "nondeterministic",
    "mismatch",
]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a program is not yet right, in words that the next prompt can use.

    `line` is the line of the program, counted from 1, where there is one.
    """

    kind: FailureKind
    message: str
    line: int | None = None

    @property
    def is_bug(self) -> bool:
        """Whether the program failed to run, as opposed to predicting wrongly."""
        return self.kind != "mismatch"


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
