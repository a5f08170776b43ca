"""Why a program failed, as data."""

from typing import Literal

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
