"""Measure how many programs per second one worker and two workers judge.

One worker is measured on a single core, and with both: there the processes for
the next programs are made on the second core while a program runs on the first.
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.scoring import PROGRAM, ROWS, cartpole, machine
from cwm_cli.sandbox import Sandbox
from cwm_cli.transitions import Dataset

CORES = sorted(os.sched_getaffinity(0))


def main() -> None:
    """Measure all in every round, one after the other, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--programs", type=int, default=40, help="per round")
    arguments = parser.parse_args()
    dataset = cartpole(ROWS)
    with Sandbox(workers=1) as pinned, Sandbox(workers=1) as one, Sandbox(workers=2) as two:
        sides = ((pinned, 1), (one, 2), (two, 2))
        for sandbox, cores in sides:
            rate(sandbox, dataset, 10, cores)
        rounds = [
            [rate(sandbox, dataset, arguments.programs, cores) for sandbox, cores in sides]
            for _ in range(arguments.rounds)
        ]
    rates = [median(column) for column in zip(*rounds, strict=True)]
    ratios = [median(line[2] / line[side] for line in rounds) for side in (0, 1)]
    print(
        f"{ROWS} CartPole rows, programs per second: one worker on one core {rates[0]:.0f}, on two"
        f" {rates[1]:.0f}; two workers on two cores {rates[2]:.0f}: {ratios[0]:.2f} and"
        f" {ratios[1]:.2f} times as many (medians of {arguments.rounds} rounds; {machine()})"
    )


def rate(sandbox: Sandbox, dataset: Dataset, programs: int, cores: int) -> float:
    """Return how many programs per second are judged when two threads ask."""

    def judge() -> None:
        for _ in range(programs // 2):
            if failure := sandbox.predict(PROGRAM, dataset).failure:
                raise SystemExit(str(failure))

    with on(cores):
        threads = [threading.Thread(target=judge) for _ in range(2)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return programs / (time.perf_counter() - started)


@contextmanager
def on(cores: int) -> Iterator[None]:
    """Keep this thread, and what it starts, to some cores."""
    os.sched_setaffinity(0, CORES[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


if __name__ == "__main__":
    main()
