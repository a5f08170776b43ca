"""The journal lines of a learning run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator

from cwm_cli.runs.observer import Measures
from cwm_cli.search.contracts import Usage
from cwm_learn.certificate import Certificate, EpisodeRecord
from cwm_learn.questions import RecordedQuestion


def _read_column(found: Any) -> np.ndarray:
    """Return a column of a dataset, from JSON if it is not an array already."""
    if isinstance(found, np.ndarray):
        return found
    try:
        return np.array(found["values"], dtype=np.dtype(found["dtype"]))
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error  # pydantic accepts no other error


def _write_column(column: np.ndarray) -> dict[str, Any]:
    return {"dtype": column.dtype.str, "values": column.tolist()}


class StepsTaken(BaseModel):
    """A journal line: consecutive steps as the columns of a dataset."""

    model_config = ConfigDict(
        frozen=True, arbitrary_types_allowed=True, ser_json_inf_nan="constants"
    )

    kind: Literal["steps"] = "steps"
    columns: dict[
        str, Annotated[np.ndarray, PlainValidator(_read_column), PlainSerializer(_write_column)]
    ]


class ProgramRecord(BaseModel):
    """A journal line: a new program.

    `origin` is its source, and `rows` the number of rows that it was written from. Its rules
    mispredict `unexplained` rows, and the whole program `wrong` rows. `cost` is in US dollars, None
    if unknown.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["program"] = "program"
    number: int
    steps: int
    rows: int
    origin: str
    lines: int
    unexplained: int = 0
    wrong: int = 0
    seconds: float = 0.0
    completions: int = 0
    cost: float | None = 0.0

    def measures(self) -> Measures:
        """Return the numbers for trackers."""
        names = ("lines", "unexplained", "wrong", "completions", "cost", "seconds")
        return Measures(self.steps, {f"program/{name}": getattr(self, name) for name in names})

    @property
    def file(self) -> str:
        """Path of the program in the folder of the run."""
        return f"programs/{self.number:04}.py"


class WritingRecord(BaseModel):
    """A journal line: the result of writing a program, so that a replay need not compute it.

    Attributes:
        origin: Source of the program.
        rules: The program without its lookup table; None if the program did not change.
        looks_up: Whether the program looks up the rows that its rules mispredict.
        unexplained: Numbers of the rows that the rules mispredict.
        wrong: Numbers of the rows that the whole program mispredicts.
        in_vain: Number of rows at the last attempt that did not help, by source.
        induced: Whether a program was induced from the rows.
        spent: Cost of the completions in US dollars.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["writing"] = "writing"
    origin: str
    rules: str | None
    looks_up: bool
    unexplained: tuple[int, ...]
    wrong: tuple[int, ...]
    usage: Usage
    in_vain: dict[str, int]
    induced: bool
    completions: int
    spent: float
    seconds: float


class ComparisonRecord(BaseModel):
    """A journal line: other programs that replay every row, to compare predictions."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["comparison"] = "comparison"
    programs: tuple[str, ...]


class ComputedRecord(BaseModel):
    """A journal line: a result of `LearningSession.compute`, with its time and its completions."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["computed"] = "computed"
    work: Literal["writing", "planning"]
    result: Any
    seconds: float
    completions: int = 0
    cost: float = 0.0


LearnRecord = (
    StepsTaken
    | EpisodeRecord
    | ProgramRecord
    | WritingRecord
    | ComparisonRecord
    | ComputedRecord
    | RecordedQuestion
    | Certificate
)
"""A journal line."""
