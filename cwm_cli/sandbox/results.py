"""What comes of running a program, and of planning with one."""

from typing import Any, NamedTuple

from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.failures import Failure


class Predictions(NamedTuple):
    """What a program predicts for the rows of a dataset, in their order.

    The columns are `next_observations` (one per leaf: float64, int64 or str),
    `rewards` (float64) and `terminations` (bool). There are none when the
    program failed.
    """

    columns: Columns
    failure: Failure | None


class Plan(NamedTuple):
    """The next actions; none after a failure."""

    actions: list[Any]
    failure: Failure | None


class Report(NamedTuple):
    """What plans are made with: the planner, the forms of the program, and why no other."""

    planner: str
    forms: tuple[str, ...]
    note: str
