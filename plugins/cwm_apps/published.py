"""Judge programs like the published evaluator of coding problems, including its quirks.

A program that reads and prints is the body of a function there. Some modules and names are
available without an import, but the program is not `__main__` and has no global variables, and
standard input and output are replacements without `buffer`. The output is compared in several
ways, one after the other. The last comparison ignores the order and the number of lines and
words, and rounds numbers. A value that a function returns has to be equal.

Unlike the published evaluator, each test has its own process and its own time limit.
"""

import builtins
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from cwm_cli.sandbox.handlers import Complaint

HEADER = """
import sys, time, itertools, collections, math, fractions, random, heapq
import numpy as np
from itertools import accumulate, product, permutations, combinations
from collections import Counter, OrderedDict, deque, defaultdict, ChainMap
from functools import lru_cache
from math import sqrt, sin, cos, tan, ceil, fabs, floor, gcd, exp, log, log2
from typing import List, Tuple
from heapq import *
"""
"""The imports that each program starts with."""

MISSING = {
    builtins: "exit quit",
    os: "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename "
    "renames truncate replace unlink fchmod fchown chmod chown chroot getcwd chdir",
}
"""Functions that are set to None. `MISSING_MODULES` are modules that cannot be imported."""

MISSING_MODULES = ("ipdb", "joblib", "resource", "psutil", "tkinter")

BODY = "def code():\n"


def wrapped(program: str) -> str:
    """Return a program that reads and prints as the body of a function after its first imports.

    Each line is indented by a tab, including lines within a string. One line is added.
    """
    lines = program.split("\n")
    starts = (n for n, line in enumerate(lines) if not line.startswith(("from ", "import ")))
    first = next(starts, len(lines))
    body = "".join(f"\t{line}\n" for line in lines[first:])
    return "".join(f"{line}\n" for line in lines[:first]) + (BODY + body if body else "")


def shift(program: str) -> Callable[[int], int]:
    """Return a function that maps a line number of the wrapped program to the program."""
    first = wrapped(program).split("\n").index(BODY.strip()) + 1
    return lambda line: line - 1 if line > first else line


def accepts(printed: str, expected: str) -> bool:
    """Return whether the output matches the expected text in any of the comparisons."""
    lines = printed.splitlines()
    stripped = [line.strip() for line in lines]
    if expected.strip() in ("\n".join(lines).strip(), "\n".join(stripped).strip()):
        return True
    wanted = [line.strip() for line in expected.split("\n") if line]
    nonempty = [line for line in lines if line]
    if wanted in (lines, nonempty) or _near(nonempty, wanted):
        return True
    theirs, ours = ([line.split() for line in side] for side in (wanted, nonempty))
    ours = [words for words in ours if words]
    if _sets(ours, str) == _sets(theirs, str):
        return True
    with suppress(ValueError, OverflowError):
        return _sets(ours, _rounded) == _sets(theirs, _rounded)
    return False


def equals(returned: Any, expected: Any) -> bool:
    """Return whether a value matches the expected value, or its first element."""
    expected = _keyed(expected)
    returned = list(returned) if isinstance(returned, tuple) else returned
    first = expected[0] if isinstance(expected, list) and expected else object()
    if returned in (expected, first):
        return True
    nested = isinstance(returned, list) and returned and isinstance(returned[0], tuple)
    if not nested or not all(isinstance(each, list | tuple | str | dict) for each in returned):
        return False
    return list(map(list, returned)) == first


def _near(nonempty: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether each line is one number that is close to the expected number."""
    if len(nonempty) != len(wanted):
        return False
    try:
        return bool(np.allclose(list(map(float, nonempty)), list(map(float, wanted))))
    except ValueError:
        return False


def _sets(lines: Sequence[Sequence[str]], word: Callable[[str], Any]) -> set[frozenset[Any]]:
    """Return the set of lines, each the set of its words."""
    return {frozenset(map(word, line)) for line in lines}


def _rounded(word: str) -> float:
    digits = 3  # digits after the decimal point that the last comparison of numbers keeps
    return round(float(word), digits)


def _keyed(value: Any) -> Any:
    """Return a dict, alone or first in a list, with integer keys if all keys are integers."""
    found = value[0] if isinstance(value, list) and value else value
    if not isinstance(found, dict):
        return value
    try:
        return [{int(key): part for key, part in found.items()}]
    except ValueError:
        return value


def read(text: str, integer: Callable[[str], Any]) -> Any:
    """Parse a value that `call` has written."""
    return json.loads(text, object_hook=_decoded, parse_int=integer)


def _decoded(value: dict[str, Any]) -> Any:
    return tuple(value["tuple"]) if "tuple" in value else dict(map(tuple, value["dict"]))


# The functions below run in the process of a program.


def keep_output() -> int:
    """Discard all output that bypasses the replaced streams; return a descriptor for answers."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def run(code: Any, begin: Callable[[], None], answers: int) -> None:
    """Run a wrapped program and write its output to the descriptor `answers`."""
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    vars(sys).update(stdin=_first_input(text), stdout=io.StringIO())
    names = _names(code)
    vars(sys).update(stdin=io.StringIO(text), stdout=(printed := io.StringIO()))
    vars(builtins)["open"] = lambda *_, **__: io.StringIO(text)
    begin()
    if "code" not in names:
        raise Complaint("the program contains only imports")
    with suppress(SystemExit):
        names["code"]()
    _write(answers, printed.getvalue())


def call(code: Any, name: str, begin: Callable[[], None], answers: int, *, method: bool) -> None:
    """Call a function, or a `method` of the class Solution, and write its return value."""
    arguments = json.load(sys.stdin)
    names = _names(code)
    owner = names["Solution"]() if method else None
    function = getattr(owner, name) if method else names.get(name)
    if function is None:
        raise Complaint(f"the program defines no function {name}")
    begin()
    given = (
        _keyed(arguments) if isinstance(arguments[0] if arguments else None, dict) else arguments
    )
    try:
        text = json.dumps(_encoded(function(*given)))
    except (TypeError, ValueError, RecursionError) as error:
        raise Complaint(
            f"the function returned a value that equals no JSON value: {error}"
        ) from error
    _write(answers, text)


def _names(code: Any) -> dict[str, Any]:
    """Run the source of a program with its preset names and without the removed functions."""
    for owner, names in MISSING.items():
        vars(owner).update(dict.fromkeys(names.split()))
    sys.modules.update(dict.fromkeys(MISSING_MODULES))  # type: ignore[arg-type]
    module = ModuleType("tmp_sol")
    sys.modules[module.__name__] = module
    exec(HEADER, vars(module))  # noqa: S102
    vars(module).update(stdin=sys.stdin, stdout=sys.stdout)
    exec(code, vars(module))  # noqa: S102
    return vars(module)


def _first_input(text: str) -> io.TextIOWrapper:
    """Return standard input for the time of loading: only three methods return the text."""
    lines = iter(text.split("\n"))
    first = io.TextIOWrapper(io.BytesIO())
    vars(first).update(
        read=lambda *_: text,
        readline=lambda *_: next(lines),
        readlines=lambda *_: text.split("\n"),
    )
    return first


def _encoded(value: Any) -> Any:
    """Encode a value as JSON that distinguishes tuples and dicts with any keys."""
    if isinstance(value, tuple):
        return {"tuple": list(map(_encoded, value))}
    if isinstance(value, dict):
        return {"dict": [[_encoded(key), _encoded(part)] for key, part in value.items()]}
    if isinstance(value, list):
        return list(map(_encoded, value))
    one = isinstance(value, np.ndarray) and value.size == 1  # larger arrays have no truth value
    return value.tolist() if one or isinstance(value, np.generic) else value


def _write(answers: int, text: str) -> None:
    data, size = text.encode("utf-8", "replace"), 1 << 20  # one call may not write all
    for start in range(0, len(data), size):
        os.write(answers, data[start : start + size])
