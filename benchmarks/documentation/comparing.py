"""Compare outputs on a page with outputs of its commands, except for text that varies."""

import re
from collections.abc import Sequence

VARYING = (
    (r"\x1b\[[0-9;?]*[A-Za-z]", ""),  # colours
    (r"\b\d{4}-\d\d-\d\d[T -]?\d\d[:-]?\d\d[:-]?\d\d(\.\d+)?(\+\d\d:\d\d|Z)?", "DATE"),
    (r"\b\d{8}-\d{6}\b", "DATE"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (r"\((commit|files) [0-9a-f]{7}(\+changes)?\)", "(CODE)"),
    (r"\b[0-9a-f]{12,64}\b", "DIGEST"),
    (r"(?<![\w.])(/[\w.@+-]+){2,}", "PATH"),
    (r"\b\d+:\d\d(:\d\d)?\b", "TIME"),
    (r"\b\d[\d,.]*(e-?\d+)? ?(s|ms|us|µs|min|h|seconds?|minutes?|hours?)\b", "TIME"),
    (r"\b\d[\d,.]* ?([kKMG]i?B|bytes)\b", "SIZE"),
    (
        r"\b\d[\d,.]* ((\w+ )?(steps?|decisions?|transitions?|calls?))( a|/| per) ?s(econd)?\b",
        "RATE",
    ),
    (r'("\w*seconds\w*": )[\d.e+-]+', r"\1TIME"),
)
"""Patterns of text that depends on the machine or the time, and their replacements."""

PASSING = re.compile(r"about [\d:.]+ ?\w* left$")
"""A progress line, which slow commands print every half minute."""

NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?%?")  # noqa: RUF001  the minus is printed
RULES = re.compile(r"[─━═│┃║┄┆╌╎┈┊╭╮╯╰┌┐└┘├┤┬┴┼╞╡╪┏┓┗┛┡┩╇┳┻╋╈╔╗╚╝╠╣╦╩╬|+-]{2,}|[│┃|]")
CUT = "..."
"""A line of a block that represents any number of lines."""


def mask(line: str) -> str:
    """Return a line without varying text, rules of tables and repeated spaces."""
    for pattern, instead in VARYING:
        line = re.sub(pattern, instead, line)
    return " ".join(RULES.sub(" ", line).split())


def alike(shown: str, printed: str, *, loose: bool = False) -> bool:
    """Return whether two lines are equal, with a tolerance for numbers.

    Decimals may differ by 5 % of the larger one, or by 0.02, because of processors and library
    versions. With `loose`, all numbers may differ.
    """
    one, other = mask(shown), mask(printed)
    if one == other:
        return True
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return loose or all(_near(a, b) for a, b in pairs)


def _near(one: str, other: str) -> bool:
    if one == other:
        return True
    if "." not in one + other and "%" not in one + other:
        return False
    a, b = (float(text.replace(",", "").replace("−", "-").rstrip("%")) for text in (one, other))  # noqa: RUF001
    return abs(a - b) <= max(0.05 * max(abs(a), abs(b)), 0.02 if "%" not in one else 2)


def matches(shown: str, printed: str, *, loose: bool = False) -> bool:
    """Return whether the shown lines equal the printed lines; `...` matches any lines."""
    want = [line for line in shown.splitlines() if mask(line) or line.strip() == CUT]
    have = [x for x in printed.splitlines() if mask(x) and not PASSING.search(x.rstrip())]
    return _match(want, have, loose)


def _match(want: Sequence[str], have: Sequence[str], loose: bool) -> bool:
    """Match from the first line; the lines after a cut may begin at any later line."""
    reached = {0}
    for line in want:
        if line.strip() == CUT:
            reached = set(range(min(reached), len(have) + 1))
        else:
            reached = {
                i + 1 for i in reached if i < len(have) and alike(line, have[i], loose=loose)
            }
        if not reached:
            return False
    return len(have) in reached


def cut(printed: str, *, head: int | None = None, tail: int | None = None) -> str:
    """Return an output as a page shows it: only the first and last lines if it is longer."""
    lines = [line.rstrip() for line in re.sub(VARYING[0][0], "", printed).splitlines()]
    lines = [line for line in lines if not PASSING.search(line)]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    if (head is None and tail is None) or len(lines) <= (head or 0) + (tail or 0) + 1:
        return "".join(f"{line}\n" for line in lines)
    kept = [*lines[: head or 0], CUT, *(lines[-tail:] if tail else [])]
    return "".join(f"{line}\n" for line in kept)
