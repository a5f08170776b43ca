"""Measure how fast test cases of coding problems are judged, and whether memory stays constant.

Trivial programs, one that prints and one that is called, are judged on a single core with all
protections. The other side is a new interpreter per test, the minimum that separates tests.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.claims import Claim, Measured
from benchmarks.cores import CORES, on
from benchmarks.main_job import memory
from benchmarks.measuring import calls, in_turn
from benchmarks.script import main
from cwm_apps.judging import LIMITS, judge
from cwm_apps.tasks import CodingTask, TaskTest
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


def speed(quick: bool, *, program: str, function: str = "") -> Measured:
    """Judge a program on all tests, and run it in an interpreter per test, alternately."""
    task = problem(0, function)
    with on(1), Sandbox(LIMITS, workers=1) as sandbox:
        judge_all = partial(check, program, task, sandbox, is_right=True)
        times = in_turn(lambda _: run_interpreters(), lambda _: judge_all(), 3 if quick else 9)
        counts = {"calls per test": calls(judge_all) // TESTS}
    rates = {
        f"{name} tests per second": TESTS * 1e3 / taken
        for name, taken in zip(
            ("interpreter", "sandbox"), times.milliseconds().values(), strict=True
        )
    }
    return Measured(times.gains, rates, counts)


def run_interpreters() -> None:
    """Run the program that prints in a new interpreter per test."""
    for case in problem(0).tests:
        command = [sys.executable, "-I", "-S", "-c", PRINTING]
        done = subprocess.run(command, input=case.input, capture_output=True, text=True, check=True)
        assert done.stdout == case.output


def memory_growth(quick: bool) -> Measured:
    """Judge correct and wrong programs alternately; compare the memory of all processes."""
    problems = 100 if quick else 1_000
    samples, marks = [], {problems // 10, problems // 2, problems - 1}
    programs = alternate_programs()
    began = time.perf_counter()
    with Sandbox(LIMITS, workers=len(CORES)) as sandbox:
        for number in range(problems):
            program, is_right = next(programs)
            check(program, problem(number), sandbox, is_right=is_right)
            if number in marks:
                time.sleep(0.3)  # until the sandbox has cleaned up after the last program
                samples.append(memory(os.getpid()) / 2**20)
    rate = problems * TESTS / (time.perf_counter() - began)
    figures = {"tenth MB": samples[0], "all MB": samples[-1], "tests per second": rate}
    return Measured([one / samples[0] for one in samples[1:]], figures)


def alternate_programs() -> Iterator[tuple[str, bool]]:
    """Yield programs for sums, and whether they are correct."""
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
        cases.append(TaskTest([numbers], total) if function else TaskTest(text, f"{total}\n"))
    return CodingTask(number, "Add.", "introductory", tuple(cases), function=function)


def check(program: str, task: CodingTask, sandbox: Sandbox, *, is_right: bool) -> None:
    """Judge a program; exit if a verdict is wrong."""
    passed, failure = judge(program, task, task.tests, sandbox)
    if passed != (is_right,) * TESTS or (failure is None) != is_right:
        raise SystemExit(f"{sum(passed)} of {TESTS} tests passed: {failure}")


CLAIMS = (
    Claim(
        "judging-printing",
        "test cases per second of a program that prints, against an interpreter for each",
        partial(speed, program=PRINTING),
        goal=1,
    ),
    Claim(
        "judging-called",
        "the same for a program that is called",
        partial(speed, program=RETURNING, function=CALLED),
        goal=1,
    ),
    Claim(
        "judging-memory",
        "memory of all processes after half and all of 1,000 problems against a tenth of them",
        memory_growth,
        goal=1.1,
        is_cost=True,
        in_quick=False,
    ),
)

if __name__ == "__main__":
    main(CLAIMS)
