"""Measure how many test cases of coding problems are judged per second, and with what memory.

First trivial programs that read standard input, or are called, on a single core
with all guards up; then many problems with programs that are right, wrong, broken
and hasty, with the memory of all processes at the start, in the middle and at the end.
"""

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from statistics import median

from benchmarks.main_job import memory
from benchmarks.scoring import machine
from benchmarks.workers import CORES, on
from cwm_cli.coding.judging import LIMITS, judge
from cwm_cli.coding.tasks import Case, CodingTask
from cwm_cli.sandbox import Sandbox

TESTS = 20
CALLED = "total"

PRINTING = "n, *numbers = map(int, open(0).read().split())\nprint(sum(numbers))"
RETURNING = "class Solution:\n    def total(self, numbers: List[int]) -> int: return sum(numbers)"
WRONG = {
    "is off by one": "n, *numbers = map(int, open(0).read().split())\nprint(sum(numbers) + 1)",
    "raises": "raise ValueError",
    "is cut off": "n, *numbers = map(",
    "ends early": "import os\nos._exit(0)",
    "takes memory": "x = [0] * 10**7\nprint(len(x))",
}


def main() -> None:
    """Measure both and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for name, program, function in (("printing", PRINTING, ""), ("called", RETURNING, CALLED)):
        rate = speed(program, problem(0, function), arguments.rounds)
        print(f"trivial {name} program: {rate:.0f} test cases per second on one core")
    print(many(arguments.problems))
    print(machine())


def speed(program: str, task: CodingTask, rounds: int) -> float:
    """Return test cases per second on a single core, the median of some rounds."""
    rates = []
    with on(1), Sandbox(LIMITS, workers=1) as sandbox:
        for _ in range(rounds + 1):
            began = time.perf_counter()
            check(program, task, sandbox, is_right=True)
            rates.append(TESTS / (time.perf_counter() - began))
    return median(rates[1:])


def many(problems: int) -> str:
    """Judge a right and a wrong program by turns; say how fast, and what memory it took."""
    samples, marks = [], {problems // 10, problems // 2, problems - 1}
    programs = turns()
    began = time.perf_counter()
    with Sandbox(LIMITS, workers=len(CORES)) as sandbox:
        for number in range(problems):
            program, is_right = next(programs)
            check(program, problem(number), sandbox, is_right=is_right)
            if number in marks:
                time.sleep(0.3)  # in which what is left of the last program is cleaned up
                samples.append(memory(os.getpid()) / 2**20)
    seconds = time.perf_counter() - began
    used = ", ".join(f"{megabytes:.0f}" for megabytes in samples)
    return (
        f"{problems} problems x {TESTS} tests: {problems * TESTS / seconds:.0f} test cases per"
        f" second on {len(CORES)} cores; memory of all processes after a tenth, a half and all"
        f" of them: {used} MB"
    )


def turns() -> Iterator[tuple[str, bool]]:
    """Yield programs for sums and whether they are right."""
    for wrong in itertools.cycle(WRONG.values()):
        yield PRINTING, True
        yield wrong, False


def problem(number: int, function: str = "") -> CodingTask:
    """Return a problem whose answers are sums."""
    cases = []
    for test in range(TESTS):
        numbers = [number + test * step for step in range(1, 6)]
        text = f"{len(numbers)}\n{' '.join(map(str, numbers))}\n"
        total = sum(numbers)
        cases.append(Case([numbers], total) if function else Case(text, f"{total}\n"))
    return CodingTask(number, "Add.", "introductory", tuple(cases), function=function)


def check(program: str, task: CodingTask, sandbox: Sandbox, *, is_right: bool) -> None:
    """Judge a program; every verdict has to be as it should."""
    passed, failure = judge(program, task, task.tests, sandbox)
    if passed != (is_right,) * TESTS or (failure is None) != is_right:
        raise SystemExit(f"{sum(passed)} of {TESTS} tests passed: {failure}")


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
