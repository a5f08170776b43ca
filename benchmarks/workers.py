"""Compare the programs per second of two workers on two cores and of one worker.

One worker is measured on a single core, and on both. On both cores, the processes for the next
programs start on the second core while a program runs on the first.
"""

import threading
import time
from functools import partial
from statistics import median

from benchmarks.claims import Claim, Measured
from benchmarks.cores import on
from benchmarks.measuring import calls
from benchmarks.scoring import PROGRAM, ROWS, cartpole
from benchmarks.script import main
from cwm_cli.data.dataset import Dataset
from cwm_cli.sandbox import Sandbox

PROGRAMS = 40
"""Programs judged on each side in a round."""


def measure(quick: bool, *, cores: int) -> Measured:
    """Judge alternately with one worker on `cores` cores and with two workers on two."""
    dataset, programs = cartpole(ROWS), 10 if quick else PROGRAMS
    one, two = [], []
    with Sandbox(workers=1) as single, Sandbox(workers=2) as double:
        for _ in range(1 + (3 if quick else 15)):
            one.append(rate(single, dataset, programs, cores))
            two.append(rate(double, dataset, programs, 2))
        counts = {"calls per program": calls(lambda: judge_program(single, dataset))}
    ratios = [more / less for more, less in zip(two[1:], one[1:], strict=True)]
    figures = {"one per second": median(one[1:]), "two per second": median(two[1:])}
    return Measured(ratios, figures, counts)


def rate(sandbox: Sandbox, dataset: Dataset, programs: int, cores: int) -> float:
    """Return the number of judged programs per second, requested from two threads."""

    def judge() -> None:
        for _ in range(programs // 2):
            judge_program(sandbox, dataset)

    with on(cores):
        threads = [threading.Thread(target=judge) for _ in range(2)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return programs / (time.perf_counter() - started)


def judge_program(sandbox: Sandbox, dataset: Dataset) -> None:
    """Judge a correct program; exit if it fails."""
    if failure := sandbox.predict(PROGRAM, dataset).failure:
        raise SystemExit(str(failure))


CLAIMS = (
    Claim(
        "workers",
        "programs per second: two workers on two cores against one worker on one core",
        partial(measure, cores=1),
        goal=1.5,
    ),
    Claim(
        "workers-two-cores",
        "programs per second: two workers against one worker, both on two cores",
        partial(measure, cores=2),
        in_quick=False,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
