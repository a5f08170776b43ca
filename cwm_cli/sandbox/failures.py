"""Why a program failed: what is known of it in words; all that it left behind may be forged."""

import re
import signal
import sys
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.abilities import MisreadChoice
from cwm_cli.sandbox.job import KINDS, Job, Limits, Phase
from cwm_cli.sandbox.pool import JobResult
from cwm_cli.sandbox.protocol import EndReason

FailureKind = Literal[
    "no_answer",
    "no_program",
    "load_error",
    "step_error",
    "wrong_output",
    "timeout_cpu",
    "timeout_wall",
    "memory",
    "crash",
    "early_exit",
    "wrong_contract",
    "wrong_probabilities",
    "contradiction",
    "nondeterministic",
    "mismatch",
]


NO_ANSWER: FailureKind = "no_answer"
"""There was no whole program to judge: the message says why."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a program is not yet right, in words that the next prompt can use.

    `line` is the line of the program, counted from 1, where there is one.
    """

    kind: FailureKind
    message: str
    line: int | None = None

    @property
    def is_bug(self) -> bool:
        """Whether the program failed to run, as opposed to predicting wrongly."""
        return self.kind != "mismatch"

    @property
    def is_timeout(self) -> bool:
        """Whether the program took more time than it may."""
        return self.kind in ("timeout_cpu", "timeout_wall")


KILLED_WORKERS = Failure(kind="crash", message="the program killed its sandbox process twice")

LONGEST_PROGRAM = 1 << 18
TOO_LONG = Failure(
    kind="load_error",
    message=f"the program is longer than the limit of {LONGEST_PROGRAM} characters",
)

_TEXT_CHARACTERS, _LINE_CHARACTERS, _VALUE_CHARACTERS = 1000, 200, 300
"""How much of a message, a line and a value is shown: a prompt has to have room for several."""

_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_BY_THE_CLOCK = (EndReason.OUT_OF_TIME, EndReason.ASLEEP)
_PLACE = re.compile(rb'File "<program>", line (\d{1,9}) in')
_LOOP = re.compile(r"\s*(async\s+)?(while|for)\b")
_FUNCTION = re.compile(r"\s*(async\s+def|def|class)\b")
_STACK = b"(most recent call first):"
_DUMP = re.compile(rb"(Fatal Python error: |Stack \(most recent call first\):).*", re.DOTALL)
_PRINTED_LINES = 5
_FOLDERS = {Path(file).parents[1] for file in (__file__, np.__file__, re.__file__) if file}
_HOST = re.compile(
    "|".join(
        re.escape(str(folder))
        for folder in sorted({*_FOLDERS, Path(sys.prefix), Path.home()}, key=str, reverse=True)
        if len(folder.parts) > 1
    )
)
"""The folders of this machine that a program may come across: a prompt goes to others."""


class Cause(NamedTuple):
    """Why a program ended before its time; line 0 is unknown."""

    kind: FailureKind
    text: str
    line: int = 0


def failure_of(
    result: JobResult,
    views: Columns,
    job: Job,
    limits: Limits,
    asked: Callable[[int], str] | None = None,
) -> Failure | None:
    """Return what went wrong, or None when the program did all of its job.

    What was `asked` follows from how far the program has come, and from the job if nobody says it.
    """
    report = result.report
    finished = report.reason is EndReason.EXITED and report.code == 0
    if finished and views["phase"] == Phase.DONE and views["status"].all():
        return None
    cause = _cause(result, views, job, limits)
    lines, line = _lines(job.program), cause.line if cause.line > 0 else None
    parts = [printable(_HOST.sub("...", cause.text), _TEXT_CHARACTERS)]
    if line is not None and line <= len(lines):
        parts.append(f"at line {line}: {printable(lines[line - 1], _LINE_CHARACTERS)}")
    else:
        line = None
    if views["phase"] == Phase.STEPPING:
        progress = int(views["progress"])
        what = asked(progress) if asked else asked_for(job, job.row(progress))
        parts.append(what and f"when asked for {what}")
    return Failure(kind=cause.kind, message="\n".join(filter(None, parts)), line=line)


def pointing(failure: Failure, program: str, line: int) -> Failure:
    """Return a failure that names a line of the program, unless it names one."""
    lines = _lines(program)
    if failure.line is not None or not 0 < line <= len(lines):
        return failure
    text = f"{failure.message}\nat line {line}: {printable(lines[line - 1], _LINE_CHARACTERS)}"
    return Failure(kind=failure.kind, message=text, line=line)


def without_index(misread: MisreadChoice) -> Failure:
    """Return the failure of a program that reads an entry of `CHOICES` without `[0]`."""
    text = printable(misread.expression, _LINE_CHARACTERS)
    message = (
        f"{text} is the list of all alternatives, not the one in force. Write {text}[0]: the first "
        "item of the list is in force."
    )
    return Failure(kind="load_error", message=message)


def overflow(limits: Limits) -> Failure:
    """Say that a program printed more than it may."""
    most = f"{limits.output_bytes / 2**20:.3g} MB"
    return Failure(
        kind="wrong_output", message=f"the program printed more than {most} (File too large)"
    )


def printable(text: str, characters: int) -> str:
    """Shorten a text and remove what could steer a terminal or hide in it."""
    kept = "".join(
        character
        for character in text[: 2 * characters].replace("\t", " ")
        if character == "\n" or unicodedata.category(character) not in _UNPRINTABLE
    ).strip()
    return kept if len(kept) <= characters else f"{kept[:characters]}..."


def _cause(result: JobResult, views: Columns, job: Job, limits: Limits) -> Cause:
    """Tell the endings apart: first those that the worker saw, then what the program reports."""
    reason, code, log = result.report.reason, result.report.code, result.log
    if reason is EndReason.FORKED:
        return Cause("crash", "the program started another process, which is not allowed")
    if reason is not EndReason.EXITED or code == -signal.SIGXCPU:
        kind: FailureKind = "timeout_wall" if reason in _BY_THE_CLOCK else "timeout_cpu"
        text = _overrun(reason, views, job, limits)
        return Cause(kind, text, _loop(job.program, _stuck_line(log)))
    if 0 < views["kind"] <= len(KINDS):
        text = bytes(views["message"][()]).decode("utf-8", "replace")
        return Cause(KINDS[views["kind"] - 1], text, int(views["line"]))
    if code < 0:
        name = f"signal {-code}"  # those for real-time use have no names of their own
        with suppress(ValueError):
            name = signal.Signals(-code).name
        text = f"the process of the program was ended by {name}"
        return Cause("crash", text, _stuck_line(log))
    text = f"the program ended its own process (exit code {code}) before {job.aim}"
    printed = _DUMP.sub(b"", log).decode("utf-8", "replace").strip().splitlines()
    if printed:
        text = "\n".join([text, "it had printed:", *printed[-_PRINTED_LINES:]])
    return Cause("early_exit", text)


def _overrun(reason: EndReason, views: Columns, job: Job, limits: Limits) -> str:
    """Say which limit was exceeded, and at what."""
    if reason is EndReason.OUT_OF_TIME:
        return f"the program took more than {limits.wall_seconds:g} s"
    if reason is EndReason.ASLEEP:
        return f"the program slept or waited for more than {limits.sleep_seconds:g} s"
    if reason is not EndReason.STALLED or job.in_one_step:
        return f"the program took more than {limits.cpu_seconds:g} s of CPU time"
    loading = views["phase"] == Phase.LOADING
    what = "importing the program and making an Environment" if loading else "a single step"
    return f"{what} took more than {limits.stall_seconds:g} s of CPU time"


def _stuck_line(log: bytes) -> int:
    """Return the innermost line of the program in the last stack in the log, or 0."""
    _, stack, calls = log.rpartition(_STACK)
    place = _PLACE.search(calls) if stack else None
    return int(place[1]) if place else 0


def _loop(program: str, number: int) -> int:
    """Return the line where the loop around a line begins, as it depends on chance where in it.

    It is read off the indentation, since a program may be such that it cannot be parsed.
    """
    lines = _lines(program)[:number]
    inner = _indent(lines[-1]) + 1 if lines else 0
    for place in range(len(lines), 0, -1):
        line = lines[place - 1]
        if line.strip() and _indent(line) < inner:
            inner = _indent(line)
            if _LOOP.match(line):
                return place
            if _FUNCTION.match(line):
                break
    return number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _lines(program: str) -> list[str]:
    """Return the lines of a program as Python counts them."""
    return program.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def asked_for(job: Job, row: int) -> str:
    """Describe what a program is asked in a row, or return "" where it is asked for none."""
    question = job.question(row)
    if question is None:
        return ""
    observation, action = question
    return f"set_state({shown(observation)}) and {job.method}({shown(action)})"


def shown(value: Any) -> str:
    """Return a value as a short text."""
    with np.printoptions(threshold=20, floatmode="maxprec", precision=8):
        return printable(_literal(value), _VALUE_CHARACTERS)


def _literal(value: Any) -> str:
    """Return a value as Python writes it, arrays as lists."""
    if isinstance(value, np.ndarray):
        return np.array2string(value, separator=", ").replace("\n", " ")
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_literal(part)}' for key, part in value.items())}}}"
    return repr(value)
