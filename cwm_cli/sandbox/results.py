"""What comes of running a program, and of planning with one."""

from typing import Any, NamedTuple

from cwm_cli.sandbox.failures import Failure


class Plan(NamedTuple):
    """The next actions; none after a failure."""

    actions: list[Any]
    failure: Failure | None


class Report(NamedTuple):
    """What plans are made with: the planner, the forms of the program, and why no other."""

    planner: str
    forms: tuple[str, ...]
    note: str
