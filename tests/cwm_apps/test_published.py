"""Where the rules of the published evaluator and ours let different programs pass."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from cwm_apps.judging import LIMITS, judge
from cwm_apps.published import accepts, shift, wrapped
from cwm_apps.tasks import CodingTask, TaskTest
from cwm_cli.sandbox import Sandbox
from folders import ROOT


class Kind(NamedTuple):
    """A program, its input, and whether it passes by our rules and by the published rules."""

    program: str
    expected: Any
    ours: bool
    published: bool
    given: Any = "3\n1 2 3\n"
    function: str = ""


def kind(program: str, expected: str, passes: str, given: str = "3\n1 2 3\n") -> Kind:
    return Kind(program, expected, passes == "ours", passes == "published", given)


def called(body: str, expected: Any, passes: str, given: Any = (1,)) -> Kind:
    program = f"def f(n):\n    {body}\n"
    return Kind(program, expected, passes == "ours", passes == "published", list(given), "f")


READ = "n, *a = map(int, sys.stdin.read().split())\n"

PUBLISHED_ALONE = {
    "modules without an import": kind(
        "print(math.gcd(*map(int, input().split())))", "2", "published", "4 6"
    ),
    "names without an import": kind(
        "print(Counter(input()).most_common(1)[0][0])", "b", "published", "abb"
    ),
    "numbers to three digits": kind("print(0.33339)", "0.33342", "published"),
    "large whole numbers nearly": kind("print(1000001)", "1000000", "published"),
    "lines in another order": kind("print('b 2\\na 1')", "a 1\nb 2", "published"),
    "words in another order": kind("print('2 1')", "1 2", "published"),
    "lines and words repeated": kind("print('1 1\\n1')", "1", "published"),
    "an exit code": kind("print(3)\nsys.exit(1)", "3", "published"),
    "a return at the top": kind("print(3)\nif input(): return\nprint(4)", "3", "published"),
    "any file is the input": kind("print(open('input.txt').read().split()[-1])", "3", "published"),
    "output past print": kind("import os\nos.write(1, b'noise')\nprint(3)", "3", "published"),
    "a dict with whole numbers as keys": called(
        "return {k + 1: v for k, v in n.items()}", [{"2": 5}], "published", ({"1": 5},)
    ),
}
"""Kinds of program that pass by the published rules alone."""

OURS_ALONE = {
    "a main block": kind("if __name__ == '__main__':\n    print(3)", "3", "ours"),
    "bytes of the input": kind("import sys\nprint(len(sys.stdin.buffer.readline()))", "2", "ours"),
    "bytes of the output": kind("import sys\nsys.stdout.buffer.write(b'3')", "3", "ours"),
    "exit": kind("print(3)\nexit()", "3", "ours"),
    "global variables": kind(
        "n = 2\ndef f():\n    global n\n    n += 1\nf()\nprint(n)", "3", "ours"
    ),
    "an output imported by name": kind("from sys import stdout\nstdout.write('3')", "3", "ours"),
    "lines of an input imported by name": kind(
        "from sys import stdin\nprint(sum(1 for _ in stdin) + 1)", "3", "ours"
    ),
    "a star import below": kind("n = 3\nfrom math import *\nprint(floor(n))", "3", "ours"),
    "the input past sys": kind("import os\nprint(len(os.read(0, 9)))", "8", "ours"),
    "the output past sys": kind("import os\nos.write(1, b'3')", "3", "ours"),
    "printed at exit": kind("import atexit\natexit.register(lambda: print(3))", "3", "ours"),
    "a closed output": kind("import sys\nprint(3)\nsys.stdout.close()", "3", "ours"),
    "a module for limits": kind("import resource\nprint(3)", "3", "ours"),
    "a text over several lines": kind("print('''1\n2'''.count('\\t') + 3)", "3", "ours"),
    "other line breaks": kind("print('1\\n2 3')", "1 2\n3", "ours"),
    "a large number with a fraction beside a word": kind(
        "print('x 1000000.5')", "x 1000000.0", "ours"
    ),
    "a fraction nearly": called("return 0.1 + 0.2", 0.3, "ours"),
    "tuples within a list": called("return [(1, 2)]", [[1, 2]], "ours"),
    "an array": called("import numpy as np; return np.array([1, 2])", [1, 2], "ours"),
}
"""Kinds of program that pass by our rules alone."""

READS = "import sys\n"
ALIKE = {
    "printed": Kind("input()\nprint(sum(map(int, input().split())))", "6", True, True),
    "read at once": Kind(READS + READ + "print(sum(a))", "6", True, True),
    "read by lines": Kind(
        "import sys\ninput = sys.stdin.readline\ninput()\nprint(sum(map(int, input().split())))",
        "6\n",
        True,
        True,
    ),
    "read by a name": Kind(
        "from sys import stdin\nprint(stdin.readline().strip())", "3", True, True
    ),
    "lines of the input": Kind(
        "import sys\nprint(len([l for l in sys.stdin]) + 1)", "3", True, True
    ),
    "the file 0": Kind("print(open(0).read().split()[0])", "3", True, True),
    "functions": Kind("def f(n):\n    return n and 1 + f(n - 1)\nprint(f(3))", "3", True, True),
    "a class": Kind(
        "class A:\n    def f(self):\n        return 3\nprint(A().f())", "3", True, True
    ),
    "sys.exit": Kind("import sys\nprint(3)\nsys.exit()", "3", True, True),
    "a thread": Kind(
        "import threading\nt = threading.Thread(target=lambda: print(3))\nt.start()\nt.join()",
        "3",
        True,
        True,
    ),
    "spaces": Kind("print(' 1   2 ')", "1 2", True, True),
    "a method": Kind(
        "class Solution:\n    def f(self, n: List[int]):\n        return (n, n)",
        [1, 1],
        True,
        True,
        [1],
        "f",
    ),
    "an array of one": called("import numpy as np; return np.array([n])", [1], "")._replace(
        ours=True, published=True
    ),
    "in a list of its own": called("return n + 1", [2], "")._replace(ours=True, published=True),
    "wrong": Kind("print(4)", "3", False, False),
    "no input left": Kind("for _ in range(9): input()", "3", False, False),
    "an error": Kind("print(3)\n1 / 0", "3", False, False),
    "a syntax error": Kind("print(", "3", False, False),
    "imports alone": Kind("import math", "3", False, False),
    "nothing returned": called("pass", [2], ""),
    "no function": Kind("def g(n): pass", [2], False, False, [1], "f"),
    "other letters": Kind("print('YES')", "Yes", False, False),
}
"""Kinds of program that both judge alike."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        sandbox.prepare("cwm_apps.scripts:ScriptHandler")
        yield sandbox


@pytest.mark.parametrize(
    "kinds", [PUBLISHED_ALONE, OURS_ALONE, ALIKE], ids=["published", "ours", "alike"]
)
def test_each_kind_passes_only_by_rules_that_accept_it(
    sandbox: Sandbox, kinds: dict[str, Kind]
) -> None:
    otherwise = {}
    for name, one in kinds.items():
        task = CodingTask(0, "", "", (TaskTest(one.given, one.expected),), function=one.function)
        ours = judge(one.program, task, task.tests, sandbox)
        published = judge(one.program, task, task.tests, sandbox, rules="published")
        if (ours.passed, published.passed) != ((one.ours,), (one.published,)):
            otherwise[name] = ours, published
    assert otherwise == {}


def test_page_on_published_results_names_exactly_these_kinds() -> None:
    page = (ROOT / "docs" / "reference" / "published.md").read_text()
    _, alone, ours = page.split("rules alone:\n")
    for text, kinds in ((alone, PUBLISHED_ALONE), (ours, OURS_ALONE)):
        rows = [line.split("|")[1].strip() for line in text.splitlines() if line[:1] == "|"]
        assert rows[2:] == list(kinds)


def test_input_is_passed_as_stored(sandbox: Sandbox) -> None:
    task = CodingTask(0, "", "", (TaskTest("a\r\nb", "['a\\r\\n', 'b']"),))
    program = "import sys\nprint(sys.stdin.readlines())"
    assert judge(program, task, task.tests, sandbox, rules="published").passed == (True,)


def test_failure_names_line_of_original_program(sandbox: Sandbox) -> None:
    program = "import sys\nn = int(input())\n1 / 0\n"
    task = CodingTask(0, "", "", (TaskTest("3", "3"),))
    failure = judge(program, task, task.tests, sandbox, rules="published").failure
    assert failure is not None
    assert (failure.kind, failure.line) == ("mismatch", 3)
    assert "at line 3: 1 / 0" in failure.message
    assert failure.is_bug is False
    broken = judge("import sys\nprint(\n", task, task.tests, sandbox, rules="published").failure
    assert broken is not None and broken.is_bug


def test_wrapped_program_keeps_first_imports_outside() -> None:
    program = "import sys\nfrom math import *\n\nimport os\nprint(1)\n"
    assert wrapped(program) == (
        "import sys\nfrom math import *\ndef code():\n\t\n\timport os\n\tprint(1)\n\t\n"
    )
    assert [shift(program)(line) for line in (1, 2, 4, 6)] == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("printed", "expected", "passes"),
    [
        ("1\n2\n", "1\n2", True),
        (" 1 \n 2 \n", "1\n2\n", True),
        ("1\n\n2\n", "1\n2", True),
        ("1e3\n2.50", "1000\n2.5", True),
        ("1.00001", "1", True),
        ("1.01", "1", False),
        ("x 0.1231", "x 0.1234", False),
        ("7 0.1231", "7 0.1234", True),
        ("", "", True),
        ("", "1", False),
        ("1 nan", "nan 1", True),
        ("inf", "inf", True),
    ],
)
def test_output_is_compared_in_several_ways(printed: str, expected: str, passes: bool) -> None:
    assert accepts(printed, expected) is passes
