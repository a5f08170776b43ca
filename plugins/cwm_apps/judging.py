"""Run a program on the tests of a task, each in its own process, and compare its answers.

Expected answers never enter the process that a program runs in.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import repeat, zip_longest
from math import isfinite, isnan
from typing import Any, Literal, NamedTuple

from cwm_apps import published
from cwm_apps.scripts import ScriptJob
from cwm_apps.tasks import CodingTask, TaskTest
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.failures import Failure, printable

JudgeRules = Literal["ours", "published"]
"""The rules for judging a program."""

LIMITS = Limits(
    wall_seconds=20.0, cpu_seconds=4.0, stall_seconds=4.0, memory_mb=1024, output_bytes=32 << 20
)
"""The resources that a program may use on one test."""

FAILURE_CHARACTERS = 1500
"""Approximate maximum length of the text of a failure."""

NO_PROGRAM = Failure(kind="no_program", message="there is no program to run")

_MAX_INT_DIGITS = 4000  # `int` rejects a text of more than 4,300
_LONG_ANSWER_CHARACTERS = 1 << 20  # any shorter answer can be parsed with little memory
_MAX_LENGTH_RATIO = 16  # to the expected answer; leaves room for extra spaces and digits

_CHUNK = re.compile(r"[\s\S]{1,65536}\S*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


class ScriptOutput(NamedTuple):
    """The text that a program wrote to standard output, up to its end or its failure."""

    text: str
    failure: Failure | None


class Judgement(NamedTuple):
    """Which tests a program passes, and a description of the first failed test for a prompt.

    The failure is a bug if the program answered no test at all, otherwise a mismatch.
    """

    passed: tuple[bool, ...]
    failure: Failure | None

    @property
    def share(self) -> float:
        """The share of tests passed."""
        return sum(self.passed) / len(self.passed)


def judge(
    program: str,
    task: CodingTask,
    tests: Sequence[TaskTest],
    sandbox: Sandbox,
    *,
    seed: int = 0,
    rules: JudgeRules = "ours",
) -> Judgement:
    """Run a program on some tests of a task, in parallel up to the workers of the sandbox.

    A program that runs out of time on three tests fails the tests after them without being run.
    A program that cannot be loaded fails all tests.

    Args:
        program: Source code of the program.
        task: The task that the tests belong to.
        tests: The tests to run, in this order.
        sandbox: The sandbox that runs the program.
        seed: Seed of the random numbers that the program draws.
        rules: With "published", the program is run and its answers are compared as in the
            published evaluator (`cwm_apps.published`).
    """
    if not program.strip():
        return Judgement((False,) * len(tests), NO_PROGRAM)
    run = partial(_run if rules == "ours" else _run_as_published, program, task, sandbox, seed)
    passes = _passes if rules == "ours" else _passes_as_published
    passed, first, answered, timeouts = [], None, False, 0
    # a program that runs out of time on this number of tests is not run on the remaining tests
    max_timeouts = 3
    runs = _run_in_order(run, tests, lambda: min(sandbox.workers + 1, max_timeouts - timeouts))
    for printed, case in zip(runs, tests, strict=True):
        passed.append(passes(task, case, printed))
        if not passed[-1] and first is None:
            first = case, printed
        answered |= printed.failure is None
        timeouts += printed.failure is not None and printed.failure.kind.startswith("timeout")
        if timeouts == max_timeouts or _cannot_be_loaded(printed):
            break
    passed += repeat(False, len(tests) - len(passed))
    is_bug = rules == "ours" and not answered  # published rules: only load errors are bugs
    failure = _failure(*first, is_bug=is_bug) if first else None
    return Judgement(tuple(passed), failure)


def _run_in_order(
    run: Callable[[TaskTest], ScriptOutput], tests: Sequence[TaskTest], width: Callable[[], int]
) -> Iterator[ScriptOutput]:
    """Yield the output of each test in order, with at most `width()` tests running."""
    waiting: deque[Future[ScriptOutput]] = deque()
    with ThreadPoolExecutor(width()) as pool:
        try:
            for case in tests:
                while len(waiting) >= width():
                    yield waiting.popleft().result()
                waiting.append(pool.submit(run, case))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run(
    program: str, task: CodingTask, sandbox: Sandbox, seed: int, case: TaskTest
) -> ScriptOutput:
    """Run a program on one test. Lines end as on Linux, including the last line."""
    if task.function:
        arguments = json.dumps(case.input)
        return run_script(sandbox, program, arguments, function=task.function, seed=seed)
    text = case.input.replace("\r\n", "\n")
    return run_script(sandbox, program, text + "\n" * (text[-1:] not in ("", "\n")), seed=seed)


def _run_as_published(
    program: str, task: CodingTask, sandbox: Sandbox, seed: int, case: TaskTest
) -> ScriptOutput:
    """Run a program on one test with the rules of the published evaluator."""
    run = partial(run_script, sandbox, seed=seed, published=True)
    if task.function:
        return run(program, json.dumps(case.input), function=task.function)
    text, failure = run(published.wrapped(program), case.input)
    if failure is None or failure.line is None:
        return ScriptOutput(text, failure)
    line = published.shift(program)(failure.line)
    message = failure.message.replace(f"at line {failure.line}:", f"at line {line}:")
    return ScriptOutput(text, replace(failure, line=line, message=message))


def run_script(
    sandbox: Sandbox,
    program: str,
    stdin: str = "",
    *,
    function: str = "",
    seed: int = 0,
    published: bool = False,
) -> ScriptOutput:
    """Run a program that reads standard input and writes standard output.

    With a `function`, that function is called with the JSON list in standard input as arguments,
    and the output is its return value as JSON.
    """
    job = ScriptJob(program=program, seed=int(seed), function=function, published=published)
    reply = sandbox.run(job, stdin.encode("utf-8", "replace"))
    return ScriptOutput(reply.output.decode("utf-8", "replace"), reply.failure)


def _passes(task: CodingTask, case: TaskTest, printed: ScriptOutput) -> bool:
    """Return whether a program ended with the expected answer."""
    if printed.failure:
        return False
    if not task.function:
        return matches(printed.text, case.output)
    size = len(printed.text)
    if size > _LONG_ANSWER_CHARACTERS and size > _MAX_LENGTH_RATIO * len(json.dumps(case.output)):
        return False  # parsing it takes much more memory than its number of characters
    try:
        return equals(json.loads(printed.text, parse_int=_integer), case.output)
    except (ValueError, RecursionError):
        return False


def _passes_as_published(task: CodingTask, case: TaskTest, printed: ScriptOutput) -> bool:
    """Return whether a program ended with an answer that the published evaluator accepts."""
    if printed.failure:
        return False
    if not task.function:
        return published.accepts(printed.text, case.output)
    try:
        return published.equals(published.read(printed.text, _integer), case.output)
    except (ValueError, RecursionError):
        return False


def _integer(digits: str) -> int | Decimal:
    """Parse an integer, including one with more digits than `int` accepts."""
    return int(digits) if len(digits) < _MAX_INT_DIGITS else Decimal(digits)


def _cannot_be_loaded(printed: ScriptOutput) -> bool:
    return printed.failure is not None and printed.failure.kind == "load_error"


def _failure(case: TaskTest, printed: ScriptOutput, *, is_bug: bool) -> Failure:
    """Describe the failure in a test, within the limit of characters."""
    failed = printed.failure
    if failed and _cannot_be_loaded(printed):
        return failed
    answer = ("Error", failed.message) if failed else ("Got", printed.text)
    texts = dict([("Input", _text(case.input)), ("Expected", _text(case.output)), answer])
    message = "\n\n".join(
        f"{head}:\n```\n{text or '(nothing)'}\n```" for head, text in _shortened(texts).items()
    )
    kind = failed.kind if failed and is_bug else "mismatch"
    return Failure(kind=kind, message=message, line=failed.line if failed else None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shortened(texts: dict[str, str]) -> dict[str, str]:
    """Shorten the longest texts, so that all texts fit together."""
    room, kept = FAILURE_CHARACTERS, dict(texts)
    for done, head in enumerate(sorted(texts, key=lambda head: len(texts[head]))):
        kept[head] = _cut(texts[head], room // (len(texts) - done))
        room -= len(kept[head])
    return kept


def _cut(text: str, most: int) -> str:
    """Leave out the middle of a text that is too long."""
    if len(text) > most:
        head, tail = text[: most * 2 // 3], text[len(text) - most // 3 :]
        text = f"{head} ... ({len(text) - most:,} characters left out) ... {tail}"
    return printable(text, len(text))


def matches(printed: str, expected: str) -> bool:
    """Return whether a text has the tokens of the expected text, in the same order.

    Spaces and line ends only separate tokens. Two tokens are equal if their texts are equal. If
    at least one has a fraction or an exponent, they are also equal if their numbers are equal,
    within the tolerance if the expected token has a fraction or an exponent.
    """
    pairs = zip_longest(_tokens(printed), _tokens(expected))
    return all(one == other or _is_near(one, other) for one, other in pairs)


def equals(returned: Any, expected: Any) -> bool:
    """Return whether a JSON value equals the expected value, or its only element.

    The data often contains the answer in a list of length one. Numbers are compared within the
    tolerance if the expected number has a fraction.
    """
    try:
        return _equals(returned, expected) or (
            isinstance(expected, list) and len(expected) == 1 and _equals(returned, expected[0])
        )
    except RecursionError:
        return False


def _tokens(text: str) -> Iterator[str]:
    """Yield the words of a text without a list of all words."""
    for chunk in _CHUNK.finditer(text):
        yield from chunk[0].split()


def _is_near(token: str | None, expected: str | None) -> bool:
    """Return whether two tokens are equal numbers, at least one with a fraction."""
    if token is None or expected is None:
        return False
    if not _NUMBER.fullmatch(token) or not _NUMBER.fullmatch(expected):
        return False
    if _WHOLE.fullmatch(expected):
        return not _WHOLE.fullmatch(token) and Decimal(token) == Decimal(expected)
    return _is_close(float(token), float(expected))


def _is_close(number: float, expected: float) -> bool:
    """Compare within the tolerance. Numbers that are not finite are close to no number."""
    # maximum difference, absolute or relative, from an expected number with a fraction
    tolerance = 1e-6
    room = tolerance * max(1.0, abs(expected))
    return isfinite(number) and isfinite(expected) and abs(number - expected) <= room


def _equals(returned: Any, expected: Any) -> bool:
    """Compare two JSON values recursively."""
    if isinstance(expected, list):
        return (
            isinstance(returned, list)
            and len(returned) == len(expected)
            and all(map(_equals, returned, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(returned, dict)
            and returned.keys() == expected.keys()
            and all(_equals(returned[key], value) for key, value in expected.items())
        )
    if isinstance(expected, float) and isinstance(returned, int | float):
        return _is_near_float(returned, expected)
    return bool(returned == expected)


def _is_near_float(number: float, expected: float) -> bool:
    """Compare a number with a float. NaN and infinity equal themselves."""
    if number == expected or (isnan(expected) and number != number):
        return True
    try:
        return _is_close(float(number), expected)
    except OverflowError:
        return False
