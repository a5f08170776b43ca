"""Failures of programs, as messages for the next prompt. All data of a program may be forged."""

import ast
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.job import KINDS, Job, Phase, parse_program
from cwm_cli.sandbox.pool import JobResult
from cwm_cli.sandbox.protocol import EndReason, Limits

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
"""Kind of a failure without a complete program to judge; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a program is not correct, in words for the next prompt.

    `line` is the line of the program at fault, counted from 1, or None if it is unknown.
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

# Maximum lengths of a message, a source line and a value, so that a prompt has room for several.
_TEXT_CHARACTERS, _LINE_CHARACTERS, _VALUE_CHARACTERS = 1000, 200, 300

# Folders of this machine, which must not appear in prompts, since those go to third parties.
_PACKAGE_FOLDERS = {Path(file).parents[1] for file in (__file__, np.__file__, re.__file__) if file}
_HOST_FOLDERS = re.compile(
    "|".join(
        re.escape(str(folder))
        for folder in sorted(
            {*_PACKAGE_FOLDERS, Path(sys.prefix), Path.home()}, key=str, reverse=True
        )
        if len(folder.parts) > 1
    )
)


class Cause(NamedTuple):
    """The kind, message and line of a failure; line 0 is unknown."""

    kind: FailureKind
    text: str
    line: int = 0


def failure_of(
    result: JobResult,
    views: Columns,
    job: Job,
    limits: Limits,
    describe: Callable[[int], str] | None = None,
) -> Failure | None:
    """Return the failure of a job, or None if the program completed the job.

    Args:
        result: The result of the worker.
        views: Arrays over the slots of the job.
        job: The job.
        limits: The limits to name in the message.
        describe: Returns the question in words, given the progress of the program. The default
            describes a row of the job.
    """
    report = result.report
    finished = report.reason is EndReason.EXITED and report.code == 0
    if finished and views["phase"] == Phase.DONE and views["status"].all():
        return None
    cause = _find_cause(result, views, job, limits)
    lines, line = _lines(job.program), cause.line if cause.line > 0 else None
    parts = [printable(_HOST_FOLDERS.sub("...", cause.text), _TEXT_CHARACTERS)]
    if line is not None and line <= len(lines):
        parts.append(_quote_line(lines, line))
    else:
        line = None
    if views["phase"] == Phase.STEPPING:
        progress = int(views["progress"])
        question = describe(progress) if describe else describe_question(job, job.row(progress))
        parts.append(question and f"when asked for {question}")
    return Failure(kind=cause.kind, message="\n".join(filter(None, parts)), line=line)


def add_line(failure: Failure, program: str, line: int) -> Failure:
    """Return a failure that names a line of the program, unless it already names one."""
    lines = _lines(program)
    if failure.line is not None or not 0 < line <= len(lines):
        return failure
    text = f"{failure.message}\n{_quote_line(lines, line)}"
    return Failure(kind=failure.kind, message=text, line=line)


def _quote_line(lines: list[str], line: int) -> str:
    return f"at line {line}: {printable(lines[line - 1], _LINE_CHARACTERS)}"


def output_overflow(limits: Limits) -> Failure:
    """Return the failure of a program that printed more than its limit."""
    size = f"{limits.output_bytes / 2**20:.3g} MB"
    return Failure(
        kind="wrong_output", message=f"the program printed more than {size} (File too large)"
    )


def printable(text: str, characters: int) -> str:
    """Shorten a text, and remove control and invisible characters, which could steer a terminal."""
    unprintable = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    kept = "".join(
        character
        for character in text[: 2 * characters].replace("\t", " ")
        if character == "\n" or unicodedata.category(character) not in unprintable
    ).strip()
    return kept if len(kept) <= characters else f"{kept[:characters]}..."


def _find_cause(result: JobResult, views: Columns, job: Job, limits: Limits) -> Cause:
    """Return the cause of a failure, from the worker if it reports one, else from the program."""
    reason, code, log = result.report.reason, result.report.code, result.log
    if reason is EndReason.FORKED:
        return Cause("crash", "the program started another process, which is not allowed")
    if reason is not EndReason.EXITED or code == -signal.SIGXCPU:
        by_wall_clock = reason in (EndReason.OUT_OF_TIME, EndReason.ASLEEP)
        kind: FailureKind = "timeout_wall" if by_wall_clock else "timeout_cpu"
        text = _describe_timeout(reason, views, job, limits)
        return Cause(kind, text, _loop_line(job.program, _innermost_line(log)))
    if 0 < views["kind"] <= len(KINDS):
        text = bytes(views["message"][()]).decode("utf-8", "replace")
        return Cause(KINDS[views["kind"] - 1], text, int(views["line"]))
    if code < 0:
        name = f"signal {-code}"  # real-time signals have no names
        with suppress(ValueError):
            name = signal.Signals(-code).name
        text = f"the process of the program was ended by {name}"
        return Cause("crash", text, _innermost_line(log))
    text = f"the program ended its own process (exit code {code}) before {job.aim}"
    stack = rb"(Fatal Python error: |Stack \(most recent call first\):).*"  # of faulthandler
    printed = (
        re.sub(stack, b"", log, flags=re.DOTALL).decode("utf-8", "replace").strip().splitlines()
    )
    if printed:
        text = "\n".join([text, "it had printed:", *printed[-5:]])
    return Cause("early_exit", text)


def _describe_timeout(reason: EndReason, views: Columns, job: Job, limits: Limits) -> str:
    if reason is EndReason.OUT_OF_TIME:
        return f"the program took more than {limits.wall_seconds:g} s"
    if reason is EndReason.ASLEEP:
        return f"the program slept or waited for more than {limits.sleep_seconds:g} s"
    if reason is not EndReason.STALLED or job.in_one_step:
        return f"the program took more than {limits.cpu_seconds:g} s of CPU time"
    is_loading = views["phase"] == Phase.LOADING
    activity = "importing the program and making an Environment" if is_loading else "a single step"
    return f"{activity} took more than {limits.stall_seconds:g} s of CPU time"


def _innermost_line(log: bytes) -> int:
    """Return the innermost line of the program in the last stack of the log, or 0."""
    _, stack, calls = log.rpartition(b"(most recent call first):")
    place = re.search(rb'File "<program>", line (\d{1,9}) in', calls) if stack else None
    return int(place[1]) if place else 0


def _loop_line(program: str, number: int) -> int:
    """Return the line where the innermost loop around a line begins, or the line itself.

    A time-out stops a loop at a random line. The loop is found by indentation, since some programs
    cannot be parsed.
    """
    lines = _lines(program)[:number]
    inner = _indent(lines[-1]) + 1 if lines else 0
    for place in range(len(lines), 0, -1):
        line = lines[place - 1]
        if line.strip() and _indent(line) < inner:
            inner = _indent(line)
            if re.match(r"\s*(async\s+)?(while|for)\b", line):
                return place
            if re.match(r"\s*(async\s+def|def|class)\b", line):
                break
    return number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _lines(program: str) -> list[str]:
    # Not `splitlines`, which also splits at form feeds and other characters: Python does not.
    return program.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def describe_question(job: Job, row: int) -> str:
    """Return the question of a row in words, or "" if the job has no such row."""
    question = job.question(row)
    if question is None:
        return ""
    observation, action = question
    return f"set_state({shown(observation)}) and {job.method}({shown(action)})"


def shown(value: Any) -> str:
    """Return a value as a short text, as in Python; arrays as lists."""
    with np.printoptions(threshold=20, floatmode="maxprec", precision=8):
        return printable(_literal(value), _VALUE_CHARACTERS)


def _literal(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return np.array2string(value, separator=", ").replace("\n", " ")
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_literal(part)}' for key, part in value.items())}}}"
    return repr(value)


def find_unrepeatable_line(program: str) -> int:
    """Return the first line that may make answers differ between processes, or 0.

    The line calls a function that reads the clock, the operating system or random numbers without
    our seed. If there is none, it assigns an empty container in the module or a class, which the
    program may use as memory.
    """
    unseeded = re.compile(
        "default_rng|RandomState|Random|SystemRandom|urandom|getrandom|token_bytes|token_hex|"
        "randbelow|uuid1|uuid4|(time|perf_counter|monotonic|process_time)(_ns)?|now|today|getpid"
    )
    if (tree := parse_program(program)) is None:
        return 0
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    call_lines = [node.lineno for node in calls if unseeded.fullmatch(_called_name(node))]
    classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    container_lines = [
        node.lineno
        for body in (tree.body, *classes)
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_empty_container(node.value)
    ]
    return min(call_lines or container_lines, default=0)


def _called_name(call: ast.Call) -> str:
    """Return the last part of the name of a called function."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_empty_container(value: ast.expr | None) -> bool:
    containers = {"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"}
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(args=[]) | ast.Call(func=ast.Name(id="defaultdict")):
            return _called_name(value) in containers
    return False


def find_misread_choice(program: str) -> Failure | None:
    """Return the failure of a program that uses an entry of `CHOICES` without `[0]`.

    `CHOICES = {"integrator": ["euler", "rk4"]}` declares alternatives; the first item is active. A
    comparison of the list itself with "euler" is False without an error. Entries that are not
    lists, and programs without such a dictionary, are not checked.
    """
    if "CHOICES" not in program or (tree := parse_program(program)) is None:
        return None
    listed = set(_listed_choices(tree))
    if not listed:
        return None
    indexed = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == 0
    }
    misread = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.expr)
        and id(node) not in indexed
        and not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        and _reads_choice(node, listed)
    ]
    if not misread:
        return None
    first = min(misread, key=lambda node: (node.lineno, node.col_offset))
    text = ast.get_source_segment(program.removeprefix("\ufeff"), first) or ast.unparse(first)
    text = printable(text, _LINE_CHARACTERS)
    message = (
        f"{text} is the list of all alternatives, not the one in force. Write {text}[0]: the first "
        "item of the list is in force."
    )
    return add_line(Failure(kind="load_error", message=message), program, first.lineno)


def _listed_choices(tree: ast.Module) -> Iterator[object]:
    """Yield the keys of `CHOICES` whose values are lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_is_choices(target) for target in targets):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.List | ast.Tuple):
                        yield key.value


def _is_choices(node: ast.expr) -> bool:
    """Return whether an expression is `CHOICES`, as a name or an attribute."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "CHOICES"
    return False


def _reads_choice(node: ast.expr, listed: Collection[object]) -> bool:
    """Return whether an expression is `CHOICES[key]` or `CHOICES.get(key)` for a listed key."""
    match node:
        case ast.Subscript(value=value, slice=key):
            pass
        case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[key, *_]):
            pass
        case _:
            return False
    return _is_choices(value) and (not isinstance(key, ast.Constant) or key.value in listed)
