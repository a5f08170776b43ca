"""Measure how many programs per second one worker and two workers judge."""

import argparse
import threading
import time
from statistics import median

from benchmarks.scoring import PROGRAM, ROWS, cartpole, machine
from cwm_cli.sandbox import Sandbox
from cwm_cli.transitions import Dataset


def main() -> None:
    """Measure both, one after the other in every round, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--programs", type=int, default=40, help="per round")
    arguments = parser.parse_args()
    dataset = cartpole(ROWS)
    with Sandbox(workers=1) as one, Sandbox(workers=2) as two:
        for sandbox in (one, two):
            rate(sandbox, dataset, 10)
        pairs = [
            (rate(one, dataset, arguments.programs), rate(two, dataset, arguments.programs))
            for _ in range(arguments.rounds)
        ]
    rates = [median(column) for column in zip(*pairs, strict=True)]
    ratio = median(two / one for one, two in pairs)
    print(
        f"{ROWS} CartPole rows: one worker {rates[0]:.0f}, two workers {rates[1]:.0f} programs per"
        f" second, ratio {ratio:.2f} (medians of {arguments.rounds} rounds; {machine()})"
    )


def rate(sandbox: Sandbox, dataset: Dataset, programs: int) -> float:
    """Return how many programs per second are judged when two threads ask."""

    def judge() -> None:
        for _ in range(programs // 2):
            if failure := sandbox.predict(PROGRAM, dataset).failure:
                raise SystemExit(str(failure))

    threads = [threading.Thread(target=judge) for _ in range(2)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return programs / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
