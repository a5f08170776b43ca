"""Programs that read standard input and write standard output."""

from collections.abc import Iterator

import pytest

from cwm_apps.judging import run_script
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.failures import LONGEST_PROGRAM


@pytest.fixture(scope="module")
def console() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_seconds=0.5, output_bytes=1 << 16)) as sandbox:
        yield sandbox


LATE = """
import atexit, io, sys
buffer = io.StringIO()
sys.stdout = buffer
@atexit.register
def write():
    sys.__stdout__.write(buffer.getvalue())
print("late")
"""
EXITS = """
import atexit
for word in ("last", "between", "first"):
    atexit.register(print, word, end=" ")
atexit.register(lambda: 1 / 0)
def dropped(): print("dropped")
atexit.unregister(atexit.register(dropped))
"""
WORKING = {
    "input": ("n = int(input())\nprint(n + 1, input())", "41\nx\n", "42 x\n"),
    "sys.stdin": ("import sys\nprint(sys.stdin.read()[::-1])", "abc", "cba\n"),
    "lines of bytes": ("import sys\nfor x in sys.stdin.buffer: print(len(x))", "ab\nc", "3\n1\n"),
    "open(0)": ("print(*open(0))", "a", "a\n"),
    "os.write": ("import os\nos.write(1, os.read(0, 9))", "abc", "abc"),
    "sys.exit": ("import sys\nprint(1)\nsys.exit()", "", "1\n"),
    "exit": ("print(1)\nexit(0)", "", "1\n"),
    "a main block": ("if __name__ == '__main__': print(1)", "", "1\n"),
    "errors apart": ("import sys\nprint(1, file=sys.stderr)\nprint(2)", "", "2\n"),
    "at exit": (LATE, "", "late\n"),
    "several at exit": (EXITS, "", "first between last "),
    "other letters": ("print(input() + 'é☃')", "ü😀", "ü😀é☃\n"),
    "seeded": ("import random\nprint(random.Random(1).random() == random.random())", "", "False\n"),
}


def test_script_output_is_returned(console: Sandbox) -> None:
    found = {
        name: run_script(console, program, stdin) for name, (program, stdin, _) in WORKING.items()
    }
    assert {name: one for name, one in found.items() if one != (WORKING[name][2], None)} == {}


FAILING = {
    "a syntax error": ("x = (", "load_error", 1, ""),
    "an exception": ("print(1)\n1 / 0", "step_error", 2, "1\n"),
    "an exit code": ("import sys\nsys.exit(3)", "step_error", 2, ""),
    "no more input": ("print(1)\ninput()", "step_error", 2, "1\n"),
    "a loop": ("print(1, flush=True)\nwhile True: pass", "timeout_cpu", 2, "1\n"),
    "a file": ("open('/etc/passwd')", "step_error", 1, ""),
    "an abrupt end": ("import os\nprint(1, flush=True)\nos._exit(0)", "early_exit", None, "1\n"),
    "a crash": ("import ctypes\nctypes.string_at(0)", "crash", 2, ""),
    "a large list": ("x = [0] * 10**10", "memory", 1, ""),
}


def test_failing_script_returns_failure_and_output(console: Sandbox) -> None:
    found = {}
    for name, (program, *_) in FAILING.items():
        text, failure = run_script(console, program)
        found[name] = (program, failure.kind, failure.line, text) if failure else text
    assert found == FAILING


def test_output_is_cut_at_the_limit(console: Sandbox) -> None:
    printed, failure = run_script(console, "while True: print('x' * 1000)")
    assert failure is not None
    assert "File too large" in failure.message
    assert printed.replace("\n", "") == "x" * printed.count("x")
    assert 1 << 15 < len(printed) <= 1 << 16


def test_large_input_and_output_pass() -> None:
    with Sandbox(Limits(output_bytes=1 << 23)) as sandbox:
        text = "0123456789" * 500_000
        assert run_script(sandbox, "print(input(), end='')", text) == (text, None)


def test_scripts_do_not_affect_each_other(console: Sandbox) -> None:
    run_script(console, "import builtins, sys\nbuiltins.print = None\nsys.modules['left'] = 1")
    assert run_script(console, "import sys\nprint('left' in sys.modules)") == ("False\n", None)


def test_same_seed_gives_same_random_numbers(console: Sandbox) -> None:
    program = "import random\nprint(random.random())"
    once, again, other = (run_script(console, program, seed=seed).text for seed in (1, 1, 2))
    assert once == again != other


def test_too_long_program_is_not_run(console: Sandbox) -> None:
    printed, failure = run_script(console, "#" * (LONGEST_PROGRAM + 1))
    assert failure is not None
    assert (printed, failure.kind) == ("", "load_error")


@pytest.mark.slow
def test_hanging_program_reports_its_loop():
    hanging = "def spin(n):\n    while True:\n        n += 1\n        n -= 1\n\nspin(0)\n"
    with Sandbox(Limits(cpu_seconds=0.2)) as sandbox:
        lines = {run_script(sandbox, hanging).failure.line for _ in range(4)}
    assert lines == {2}
