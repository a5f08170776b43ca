"""Programs are judged only by their answers in each test."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cwm_apps.judging import FAILURE_CHARACTERS, LIMITS, judge, run_script
from cwm_apps.tasks import CodingTask, TaskTest
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.failures import Failure

HASTY = Limits(wall_seconds=20.0, cpu_seconds=0.3, stall_seconds=0.3, output_bytes=1 << 16)


@pytest.fixture(scope="module")
def patient() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def hasty() -> Iterator[Sandbox]:
    with Sandbox(HASTY) as sandbox:
        yield sandbox


def task_of(*tests: tuple[Any, Any], function: str = "") -> CodingTask:
    cases = tuple(TaskTest(*test) for test in tests)
    return CodingTask(0, "", "interview", cases, function=function)


def verdict(
    program: str, sandbox: Sandbox, *tests: tuple[Any, Any], function: str = ""
) -> tuple[tuple[bool, ...], Failure | None]:
    task = task_of(*tests, function=function)
    return judge(program, task, task.tests, sandbox)


SUMS = [("2\n1 2\n", "3\n"), ("3\r\n4 5 6\r\n", "15"), ("1\n-7", "-7\n")]
"""The sum of n numbers; once with the line ends of Windows, once without the last one."""

READING = {
    "input": "n = int(input())\nprint(sum(map(int, input().split())))",
    "prompts to nobody": "n = int(input(''))\nprint(sum(map(int, input('').split())))",
    "readline": "import sys\nn = int(sys.stdin.readline())\n"
    "print(sum(map(int, sys.stdin.readline()[:-1].split(' '))))",
    "input is readline": "import sys\ninput = sys.stdin.readline\nn = int(input())\n"
    "sys.stdout.write(str(sum(map(int, input().split()))) + '\\n')",
    "read": "import sys\nn, *a = map(int, sys.stdin.read().split())\nprint(sum(a))",
    "lines": "import sys\nlines = [line for line in sys.stdin]\n"
    "print(sum(map(int, lines[1].split())))",
    "bytes": "import sys\nn, *a = map(int, sys.stdin.buffer.read().split())\nprint(sum(a))",
    "open(0)": "n, *a = map(int, open(0).read().split())\nprint(sum(a), flush=True)",
    "os.read": "import os\nn, *a = map(int, os.read(0, os.fstat(0).st_size).split())\n"
    "os.write(1, str(sum(a)).encode())",
    "BytesIO": "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n"
    "n = int(input())\nprint(sum(map(int, input().split())))",
    "a main block": "def main():\n    n, *a = map(int, open(0).read().split())\n    print(sum(a))\n"
    "if __name__ == '__main__':\n    main()",
    "exit": "n = int(input())\nprint(sum(map(int, input().split())))\nexit()\nprint('late')",
    "quit": "n = int(input())\nprint(sum(map(int, input().split())))\nquit()",
    "sys.exit": "import sys\nn = int(input())\nprint(sum(map(int, input().split())))\nsys.exit(0)",
    "SystemExit": "n = int(input())\nprint(sum(map(int, input().split())))\nraise SystemExit",
    "atexit": "import atexit\nn = int(input())\ns = sum(map(int, input().split()))\n"
    "atexit.register(lambda: print(s))",
    "a file left open": "n, *a = map(int, open(0).read().split())\n"
    "out = open(1, 'w')\nout.write(str(sum(a)))",
    "a closed output": "import sys\nn = int(input())\nprint(sum(map(int, input().split())))\n"
    "sys.stdout.close()",
    "another output": "import io, sys\nreal, sys.stdout = sys.stdout, io.StringIO()\nn = input()\n"
    "print(sum(map(int, input().split())))\nreal.write(sys.stdout.getvalue())",
    "the end of the input": "total = -int(input())\ntotal = 0\nwhile True:\n    try:\n"
    "        total += sum(map(int, input().split()))\n    except EOFError:\n        break\n"
    "print(total)",
    "a thread": "import sys, threading\nthreading.stack_size(2**27)\nsys.setrecursionlimit(10**6)\n"
    "def main():\n    n = int(input())\n    print(sum(map(int, input().split())))\n"
    "thread = threading.Thread(target=main)\nthread.start()\nthread.join()\n"
    "assert not thread.is_alive()",
    "a class of threads": "import threading\nclass Work(threading.Thread):\n    def run(self):\n"
    "        input(); print(sum(map(int, input().split())))\nWork().start()",
    "a larger stack": "import resource\nn = input()\n"
    "resource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\nprint(sum(map(int, input().split())))",
    "arguments and files as usual": "import os, sys\nassert len(sys.argv) == 1\n"
    "if os.path.exists('input.txt'): sys.stdin = open('input.txt')\n"
    "input(); print(sum(map(int, input().split())))",
    "line ends of Windows": "n = int(input())\r\n"
    "print(sum(map(int, input().split())), end='\\r\\n')",
}
STREAMS = """
import os, sys
from io import BytesIO, IOBase

class Fast(IOBase):
    def __init__(self, file):
        self.number = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None

    def readline(self):
        self.buffer = self.buffer if self.buffer.getvalue() else BytesIO(os.read(self.number, 4096))
        return self.buffer.readline()

    def flush(self):
        if self.writable:
            os.write(self.number, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)

class Texts(IOBase):
    def __init__(self, file):
        self.buffer = Fast(file)
        self.flush = self.buffer.flush
        self.write = lambda text: self.buffer.write(text.encode())
        self.readline = lambda: self.buffer.readline().decode()

sys.stdin, sys.stdout = Texts(sys.stdin), Texts(sys.stdout)
input = lambda: sys.stdin.readline().rstrip()
n = int(input())
print(sum(map(int, input().split())))
"""


def test_right_program_passes_with_any_way_to_read_and_print(patient: Sandbox) -> None:
    programs = {**READING, "streams of its own": STREAMS}
    found = {name: verdict(program, patient, *SUMS) for name, program in programs.items()}
    assert {name: one for name, one in found.items() if one != ((True,) * 3, None)} == {}


WRONG = {
    "nothing printed": ("", "print(end='')", "mismatch"),
    "an early exit": ("", "exit()", "mismatch"),
    "an exit code": ("", "print(3)\nimport sys\nsys.exit(1)", "step_error"),
    "an abrupt end": ("", "print(3, flush=True)\nimport os\nos._exit(0)", "early_exit"),
    "an error after the answer": ("", "print(3)\n1 / 0", "step_error"),
    "an error in a thread": (
        "",
        "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
        "mismatch",
    ),
    "too much": ("", "print(3, 15)", "mismatch"),
    "another case": ("", "print('THREE')", "mismatch"),
    "a syntax error": ("", "print(", "load_error"),
    "no input left": ("", "for _ in range(9): input()", "step_error"),
    "a crash": ("", "import os\nos.abort()", "crash"),
    "endless output": ("", "while True: print('x' * 1000)", "wrong_output"),
    "waiting": ("", "import time\ntime.sleep(99)", "timeout_wall"),
    "no program": ("", " \n", "no_program"),
    "no function": ("f", "def g(n): return n", "load_error"),
    "no method": ("f", "class Solution:\n    def g(self, n): return n", "load_error"),
    "a usual name": ("gcd", "def g(n): return n", "load_error"),
    "a set": ("f", "def f(n): return {3}", "wrong_output"),
    "text for a number": ("f", "def f(n): return '3'", "mismatch"),
    "nothing returned": ("f", "def f(n): pass", "mismatch"),
    "printed, not returned": ("f", "def f(n): print(3)", "mismatch"),
    "printed past print": ("f", "import os\ndef f(n): os.write(1, b'3')", "mismatch"),
    "other arguments": ("f", "def f(n, m): return 3", "step_error"),
    "an exit in a call": ("f", "def f(n): exit()", "step_error"),
    "an endless list": (
        "f",
        "def f(n):\n    x = []\n    x.append(x)\n    return x",
        "wrong_output",
    ),
}


@pytest.mark.slow
def test_wrong_program_fails_with_its_reason(hasty: Sandbox) -> None:
    otherwise = {}
    for name, (function, program, kind) in WRONG.items():
        test = ([2], 3) if function else ("2\n1 2\n", "3")
        passed, failure = verdict(program, hasty, test, function=function)
        if passed != (False,) or failure is None or failure.kind != kind:
            otherwise[name] = passed, failure
    assert otherwise == {}


FUNCTIONS = {
    "a function": "def total(a, b): return [x + y for x, y in zip(a, b)]",
    "a class": "class Solution:\n    def total(self, a: List[int], b: list) -> Optional[list]:\n"
    "        return [x + y for x, y in zip(a, b)]",
    "a static method": "class Solution:\n    @staticmethod\n    def total(a, b):\n"
    "        return [x + y for x, y in zip(a, b)]",
    "tuples": "def total(a, b): return tuple(x + y for x, y in zip(a, b))",
    "arrays": "import numpy as np\ndef total(a, b): return np.array(a) + np.array(b)",
    "numbers of numpy": "def total(a, b): return [np.int64(x) + y for x, y in zip(a, b)]",
    "usual names": "total = lambda a, b: list(map(operator.add, deque(a), list(chain(b))))",
    "printing": "print('loaded')\ndef total(a, b):\n    print(a, flush=True)\n"
    "    return [x + y for x, y in zip(a, b)]",
    "a main block": "def total(a, b): return [x + y for x, y in zip(a, b)]\n"
    "if __name__ == '__main__': print(total(*eval(input())))",
    "data classes": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\n"
    "def total(a, b): return [P(x).x + y for x, y in zip(a, b)]",
}


def test_functions_and_methods_are_called(patient: Sandbox) -> None:
    tests = [([[1, 2], [3, 4]], [4, 6]), ([[1], [1]], [[2]]), ([[], []], [])]
    found = {
        name: verdict(program, patient, *tests, function="total")
        for name, program in FUNCTIONS.items()
    }
    assert {name: one for name, one in found.items() if one != ((True,) * 3, None)} == {}


ANSWERS = [None, True, "é\ud800\u2028", 0.5, 10**30, [[], {}], {"1": [None]}, float("inf")]


def test_json_values_are_returned_unchanged(patient: Sandbox) -> None:
    tests = [([value], value) for value in ANSWERS]
    assert verdict("def f(x): return x", patient, *tests, function="f").failure is None


RECURSIONS = {
    "plain": "def f(n): return 0 if n == 0 else 1 + f(n - 1)",
    "cached": "import functools\n@functools.cache\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)",
    "through a sort": "def f(n): return n and sorted([n], key=lambda n: f(n - 1))[0]",
    "in a thread": "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nimport threading\n"
    "threading.stack_size(1 << 29)\nthread = threading.Thread(target=f, args=(50_000,))\n"
    "thread.start(); thread.join()",
}


THROUGH_C = ("cached", "through a sort")
"""CPython 3.12 and 3.13 limit recursion through C functions regardless of the recursion limit."""


@pytest.mark.parametrize("kind", RECURSIONS)
def test_deep_recursion_has_enough_stack(patient: Sandbox, kind: str) -> None:
    if kind in THROUGH_C and (3, 12) <= sys.version_info < (3, 14):
        pytest.skip("this CPython limits recursion through C functions")
    beginning, end = "import sys\nsys.setrecursionlimit(10**6)\n", "\nf(int(input()))\nprint(1)"
    program = beginning + RECURSIONS[kind] + end
    assert verdict(program, patient, ("50000", "1")) == ((True,), None)


def test_integers_may_have_any_number_of_digits(patient: Sandbox) -> None:
    many = "9" * 6000
    assert verdict("print(int(input()))", patient, (many, many)) == ((True,), None)
    tests = [([4200], 10**4200), ([6000], 10**4200)]
    passed, _ = verdict("def f(n): return 10 ** n", patient, *tests, function="f")
    assert passed == (True, False)


def test_tests_pass_and_fail_independently(hasty: Sandbox) -> None:
    program = "n = int(input())\nif n == 2: 1 / 0\nif n == 3: n += 1\nprint(n)"
    passed, failure = verdict(program, hasty, *[(str(n), str(n)) for n in range(5)])
    assert passed == (True, True, False, False, True)
    assert failure is not None
    assert failure.kind == "mismatch"
    assert "Input:\n```\n2\n```" in failure.message
    assert "ZeroDivisionError" in failure.message


def test_tests_do_not_affect_each_other(hasty: Sandbox) -> None:
    program = (
        "import builtins, os\nn = input()\nold = getattr(builtins, 'kept', '')\nbuiltins.kept = n\n"
        "try: open('kept', 'w').write(n)\nexcept OSError: pass\n"
        "print(n, old or os.path.exists('kept'))"
    )
    assert verdict(program, hasty, *[(str(n), f"{n} False") for n in range(6)]).failure is None


def test_answers_of_another_test_do_not_pass(hasty: Sandbox) -> None:
    passed, _ = verdict("print(15)", hasty, *SUMS)
    assert passed == (False, True, False)


@pytest.mark.slow
def test_hanging_program_is_not_run_on_every_test(hasty: Sandbox) -> None:
    began = time.monotonic()
    passed, failure = verdict("while True: pass", hasty, *[("1", "1")] * 200)
    assert time.monotonic() - began < 30
    assert passed == (False,) * 200
    assert failure is not None
    assert (failure.kind, failure.line) == ("timeout_cpu", 1)
    assert "the program took more than 0.3 s of CPU time" in failure.message


@pytest.mark.slow
def test_remaining_tests_fail_after_three_timeouts(hasty: Sandbox) -> None:
    program = "n = int(input())\nwhile n in (1, 2, 4): pass\nprint(n)"
    passed, failure = verdict(program, hasty, *[(str(n), str(n)) for n in range(8)])
    assert passed == (True, False, False, True, False, False, False, False)
    assert failure is not None
    assert failure.kind == "mismatch"


def test_random_numbers_depend_only_on_the_seed(hasty: Sandbox) -> None:
    text = run_script(hasty, "import random\nprint(random.random())", seed=7).text
    task = task_of(("", text), ("", text))
    program = "import random\nprint(random.random())"
    assert judge(program, task, task.tests, hasty, seed=7).passed == (True, True)
    assert judge(program, task, task.tests, hasty, seed=8).passed == (False, False)


def test_failure_shows_input_expected_and_actual_output(hasty: Sandbox) -> None:
    _, failure = verdict("print(input()[::-1])", hasty, ("ab\n", "ab\n"))
    assert failure == Failure(
        kind="mismatch",
        message="Input:\n```\nab\n```\n\nExpected:\n```\nab\n```\n\nGot:\n```\nba\n```",
    )


def test_failure_is_short_and_printable(patient: Sandbox) -> None:
    program = "print('\\x1b[31m' + 'y' * 50_000)"
    _, failure = verdict(program, patient, ("x" * 100_000 + "END", "1"))
    assert failure is not None
    assert len(failure.message) < FAILURE_CHARACTERS + 200
    assert "characters left out) ... xxx" in failure.message
    assert "END\n" in failure.message
    assert "\n1\n" in failure.message
    assert "\x1b" not in failure.message


@pytest.mark.slow
def test_ten_megabytes_pass_through_the_sandbox(patient: Sandbox) -> None:
    text = "123456789\n" * 1_000_000
    program = "import sys\nsys.stdout.write(sys.stdin.read())"
    assert verdict(program, patient, (text, text)) == ((True,), None)
    numbers = list(range(1_300_000))
    assert len(json.dumps(numbers)) > 10_000_000
    passed, _ = verdict("def f(x): return x", patient, ([numbers], numbers), function="f")
    assert passed == (True,)


def test_long_answer_to_short_question_is_not_parsed(patient: Sandbox) -> None:
    passed, _ = verdict("def f(): return [[]] * 10**6", patient, ([], []), function="f")
    assert passed == (False,)
