"""Measure the duration of a completion of the backend `induction` from the shipped datasets.

The unit of time is a least-squares fit of numpy with 1,000 rows and 100 columns, measured
alternately, so that machines can be compared. The script counts the work units of a completion, its
calls (only in a quick run, which uses the first rows), and the rows that its program predicts
wrongly.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from unittest.mock import patch

import numpy as np

from benchmarks.claims import Claim, Measured
from benchmarks.measuring import calls, in_turn
from benchmarks.script import main
from benchmarks.shipped_data import FOLDER
from cwm_cli.commands.collect import shipped_name
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.reading import extract_program
from cwm_induction import backend
from cwm_induction.effort import Effort

ROWS, COLUMNS, FITS = 1_000, 100, 20

PACKAGE = "cwm_induction"

QUICK_ROWS = 120
"""Number of rows in a quick run."""

QUICK = ("CliffWalking-v1", "MountainCar-v0", "Pendulum-v1")
OTHERS = (
    *("CartPole-v1", "Acrobot-v1", "Taxi-v4", "InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
    *("Reacher-v5", "Swimmer-v5", "Hopper-v5", "HalfCheetah-v5"),
)


def measure(quick: bool, *, env: str) -> Measured:
    """Fit least squares and request a completion alternately."""
    rng = np.random.default_rng(0)
    table, target = rng.normal(size=(ROWS, COLUMNS)), rng.normal(size=ROWS)

    def fit(_: int) -> None:
        for _ in range(FITS):
            np.linalg.lstsq(table, target)

    with problem(env, QUICK_ROWS if quick else None) as task, record_efforts() as efforts:
        programs: list[str] = []
        times = in_turn(
            fit, lambda _: programs.append(complete(task)), 1 if quick else 3, warm_up=0
        )
        call_count = {"calls": calls(lambda: complete(task))} if quick else {}
        counts = call_count | {
            "work units": math.ceil(backend.UNITS - efforts[-1].units),
            "wrong rows": count_wrong_rows(programs[-1], task),
        }
    ratios = [FITS * cost for cost in times.costs]
    return Measured(ratios, {"seconds": median(times.ours)}, counts)


def complete(task: WorldModelProblem) -> str:
    """Return the program of a completion, with empty caches."""
    for module in [module for name, module in sys.modules.items() if name.startswith(PACKAGE)]:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    request = Request((), 0, Move(GENERATE), task)
    return extract_program(backend.Induction().complete(request).text)


def count_wrong_rows(program: str, task: WorldModelProblem) -> int:
    """Return the number of rows that a program predicts wrongly."""
    exact = task.judge(program).parts.get("exact", 0.0)
    return round((1 - exact) * len(task.dataset))


@contextmanager
def problem(env: str, rows: int | None) -> Iterator[WorldModelProblem]:
    """Yield the problem of an environment, with started workers."""
    data = Dataset.load(FOLDER / shipped_name(env)).train
    data = data[np.arange(len(data))[:rows]]
    with Sandbox() as sandbox:
        sandbox.protection  # noqa: B018  # starts them
        yield WorldModelProblem("", data, sandbox, AccuracyMetric.of(data))


@contextmanager
def record_efforts() -> Iterator[list[Effort]]:
    """Record the effort objects of completions, which contain the remaining work units."""
    efforts: list[Effort] = []

    def record(*arguments: object) -> Effort:
        efforts.append(Effort(*arguments))  # type: ignore[arg-type]
        return efforts[-1]

    with patch.object(backend, "Effort", record):
        yield efforts


CLAIMS = tuple(
    Claim(
        f"induction-{env}",
        f"a completion for {env} in least-squares fits of {ROWS:,} rows by {COLUMNS} columns",
        partial(measure, env=env),
        is_cost=True,
        in_quick=env in QUICK,
    )
    for env in (*QUICK, *OTHERS)
)

if __name__ == "__main__":
    main(CLAIMS)
