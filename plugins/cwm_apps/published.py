"""Judging as the published evaluator of coding problems does, with all that it lets pass or not.

A program that reads and prints is the body of a function there: some modules and names are there
without an import, but it is no `__main__`, has no global variables, and standard input and output
are stand-ins without `buffer`. What it prints is compared in one way after the other, the last of
which knows neither the order nor the number of lines and words, and rounds numbers. A value that
a function returns has to be equal.

Otherwise than there each test has a process and a limit of time of its own.
"""

import builtins
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
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
"""What every program finds imported."""

MISSING = {
    builtins: "exit quit",
    os: "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename "
    "renames truncate replace unlink fchmod fchown chmod chown chroot getcwd chdir",
}
"""Functions that are None, and below modules that cannot be imported."""

MISSING_MODULES = ("ipdb", "joblib", "resource", "psutil", "tkinter")

DIGITS = 3
"""Digits after the point that are left of numbers when all else differs."""

BODY = "def code():\n"


def wrapped(program: str) -> str:
    """Return a program that reads and prints as the body of a function, its first imports before.

    Each line is indented by a tab, also those within a text; one line is added.
    """
    lines = program.split("\n")
    starts = (n for n, line in enumerate(lines) if not line.startswith(("from ", "import ")))
    first = next(starts, len(lines))
    body = "".join(f"\t{line}\n" for line in lines[first:])
    return "".join(f"{line}\n" for line in lines[:first]) + (BODY + body if body else "")


def shift(program: str) -> Callable[[int], int]:
    """Return what a line of the wrapped program is called in the program itself."""
    first = wrapped(program).split("\n").index(BODY.strip()) + 1
    return lambda line: line - 1 if line > first else line


def accepts(printed: str, expected: str) -> bool:
    """Return whether what was printed passes for the expected text, by any of the comparisons."""
    lines = printed.splitlines()
    stripped = [line.strip() for line in lines]
    if expected.strip() in ("\n".join(lines).strip(), "\n".join(stripped).strip()):
        return True
    wanted = [line.strip() for line in expected.split("\n") if line]
    told = [line for line in lines if line]
    if wanted in (lines, told) or _near(told, wanted):
        return True
    theirs, ours = ([line.split() for line in side] for side in (wanted, told))
    ours = [words for words in ours if words]
    if _sets(ours, str) == _sets(theirs, str):
        return True
    with suppress(ValueError, OverflowError):
        return _sets(ours, _rounded) == _sets(theirs, _rounded)
    return False


def equals(returned: Any, expected: Any) -> bool:
    """Return whether a value passes for the expected one, or for the first element of that."""
    expected = _keyed(expected)
    returned = list(returned) if isinstance(returned, tuple) else returned
    first = expected[0] if isinstance(expected, list) and expected else object()
    if returned in (expected, first):
        return True
    nested = isinstance(returned, list) and returned and isinstance(returned[0], tuple)
    return bool(nested) and all(map(_is_listable, returned)) and list(map(list, returned)) == first


def _near(told: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether every line is one number, and near the expected one."""
    if len(told) != len(wanted):
        return False
    try:
        return bool(np.allclose(list(map(float, told)), list(map(float, wanted))))
    except ValueError:
        return False


def _sets(lines: Sequence[Sequence[str]], word: Callable[[str], Any]) -> set[frozenset[Any]]:
    """Return the set of lines, each the set of its words."""
    return {frozenset(map(word, line)) for line in lines}


def _rounded(word: str) -> float:
    return round(float(word), DIGITS)


def _keyed(value: Any) -> Any:
    """Return a dict, alone or first in a list, with whole numbers as keys where they are that."""
    found = value[0] if isinstance(value, list) and value else value
    if not isinstance(found, dict):
        return value
    try:
        return [{int(key): part for key, part in found.items()}]
    except ValueError:
        return value


def _is_listable(value: Any) -> bool:
    return isinstance(value, list | tuple | str | dict)


def read(text: str, integer: Callable[[str], Any]) -> Any:
    """Read a value that `call` has written."""
    return json.loads(text, object_hook=_decoded, parse_int=integer)


def _decoded(value: dict[str, Any]) -> Any:
    return tuple(value["tuple"]) if "tuple" in value else dict(map(tuple, value["dict"]))


# In the process of a program.


def keep_output() -> int:
    """Have everything that is written past the stand-ins go nowhere; return where answers go."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def run(code: Any, begin: Callable[[], None], answers: int) -> None:
    """Run a wrapped program, and write down what it printed to its standard output."""
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
    """Call a function, or a `method` of the class Solution, and write down what it returns."""
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
    """Run the text of a program with what it finds there, and without what is taken away."""
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
    """Return what standard input is while the program is loaded: three methods know the text."""
    lines = iter(text.split("\n"))
    first = io.TextIOWrapper(io.BytesIO())
    vars(first).update(
        read=lambda *_: text,
        readline=lambda *_: next(lines),
        readlines=lambda *_: text.split("\n"),
    )
    return first


def _encoded(value: Any) -> Any:
    """Return a value in JSON that tells tuples and dicts of any keys from the rest."""
    if isinstance(value, tuple):
        return {"tuple": list(map(_encoded, value))}
    if isinstance(value, dict):
        return {"dict": [[_encoded(key), _encoded(part)] for key, part in value.items()]}
    if isinstance(value, list):
        return list(map(_encoded, value))
    one = isinstance(value, np.ndarray) and value.size == 1  # the truth of several is unknown
    return value.tolist() if one or isinstance(value, np.generic) else value


def _write(answers: int, text: str) -> None:
    """Write all of a text to a descriptor."""
    for piece in _pieces(text.encode("utf-8", "replace")):
        os.write(answers, piece)


def _pieces(data: bytes, size: int = 1 << 20) -> Iterator[bytes]:
    """Yield data in pieces that one call writes."""
    yield from (data[at : at + size] for at in range(0, len(data), size))
