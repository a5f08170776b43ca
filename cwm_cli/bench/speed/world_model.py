"""What a program does when it is timed: steps in each of its forms, until it fails."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from cwm_cli.bench.speed.pace import Pace, Walk, paces
from cwm_cli.data.dataset import Dataset
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure
from cwm_cli.sandbox.pacing import PACED
from cwm_cli.sandbox.timing import Broke, Timer


class Stepped(NamedTuple):
    """Paces by name, why the program has none in some form, and why it failed, if it did.

    `rows` are those on which it was timed, all at once in the batched form.
    """

    rows: int
    paces: dict[str, Pace]
    notes: dict[str, str]
    failure: Failure | None = None


def step_program(
    program: str, rows: Dataset, sandbox: Sandbox, others: Mapping[str, Walk], *, seed: int = 0
) -> Stepped:
    """Time a program in each of its forms, in turn with other walks.

    If it fails the others are timed alone.
    """

    def attempt() -> Stepped:
        with Timer(sandbox, program, rows, seed=seed) as timer:
            forms = {form: partial(timer.walk, form) for form in PACED}
            return Stepped(len(rows), paces({**forms, **others}), timer.notes)

    try:
        found, failure = sandbox.insist(attempt), KILLED_WORKERS
    except Broke as error:
        found, failure = None, error.failure
    return found or Stepped(len(rows), paces(others), {}, failure)
