"""A coding task: its question, and the tests that a program has to pass."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cwm_cli.errors import CwmError


class TaskTest(NamedTuple):
    """A test: an input and the expected output.

    For a program that reads standard input and writes standard output, both are strings. For a
    function, they are the list of its arguments and its return value.
    """

    input: Any
    output: Any


@dataclass(frozen=True)
class CodingTask:
    """A problem to write a program for.

    `function` is the name of the function to call, empty for a program that reads standard input.
    `solutions` are known correct programs.
    """

    id: int
    question: str
    difficulty: str
    tests: tuple[TaskTest, ...]
    function: str = ""
    starter_code: str = ""
    url: str = ""
    solutions: tuple[str, ...] = ()

    @property
    def public(self) -> tuple[TaskTest, ...]:
        """The tests that a prompt may show: the first half, at least one."""
        return self.tests[: self._boundary]

    @property
    def hidden(self) -> tuple[TaskTest, ...]:
        """The tests that judge the final program. There are none if the task has a single test."""
        return self.tests[self._boundary :]

    @property
    def _boundary(self) -> int:
        return max(1, min(len(self.tests) - 1, len(self.tests) // 2))


UNKNOWN = "unknown"
"""The difficulty of a problem whose data contain none."""


def to_record(task: CodingTask) -> dict[str, Any]:
    """Return a task as a record in the format of the hub."""
    tests: dict[str, Any] = {"fn_name": task.function} if task.function else {}
    tests["inputs"] = [case.input for case in task.tests]
    tests["outputs"] = [case.output for case in task.tests]
    return {
        "id": task.id,
        "question": task.question,
        "solutions": json.dumps(task.solutions),
        "input_output": json.dumps(tests),
        "difficulty": task.difficulty,
        "url": task.url,
        "starter_code": task.starter_code,
    }


def from_record(record: Mapping[str, Any]) -> CodingTask:
    """Return the task of a record.

    Unreadable solutions are left out, because no judgement depends on them.

    Raises:
        CwmError: If the record is not a valid task; the message states the problem.
    """
    number = record.get("id")
    if not isinstance(number, int):
        raise CwmError("it has no id")
    starter = _text(record, "starter_code")
    tests = _tests(record.get("input_output"))
    function = tests.get("fn_name") or ""
    if not isinstance(function, str):
        raise CwmError("fn_name is not a text")
    question = _text(record, "question")
    if not question.strip():
        raise CwmError("it has no question")
    return CodingTask(
        id=number,
        question=question,
        difficulty=_text(record, "difficulty") or UNKNOWN,
        tests=tuple(_cases(tests, called=bool(function))),
        function=function,
        starter_code=starter if starter.strip() else "",
        url=_text(record, "url"),
        solutions=_solutions(record.get("solutions")),
    )


def digest(task: CodingTask) -> str:
    """Return a checksum of a task without its solutions."""
    record = {name: value for name, value in to_record(task).items() if name != "solutions"}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def parse(text: str | bytes, name: str) -> Any:
    """Parse JSON. Numbers with more digits than Python's limit are rejected."""
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise CwmError(f"{name} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise CwmError(f"{name} is not JSON ({error})") from error
    except ValueError as error:
        raise CwmError(f"{name} contains a number with too many digits") from error
    except RecursionError as error:
        raise CwmError(f"{name} is nested too deeply") from error


def _text(record: Mapping[str, Any], name: str) -> str:
    """Return a text field, which may be missing."""
    found = record.get(name)
    if found is not None and not isinstance(found, str):
        raise CwmError(f"{name} is not a text")
    return _unicode(found or "", name)


def _unicode(text: str, name: str) -> str:
    """Raise if a text contains lone surrogates, which JSON can contain but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CwmError(f"{name} is not Unicode") from error
    return text


def _tests(found: Any) -> dict[str, Any]:
    """Return the tests, which are an object or its JSON text."""
    if found is None or (isinstance(found, str) and not found.strip()):
        raise CwmError("it has no tests")
    tests = parse(found, "input_output") if isinstance(found, str) else found
    if not isinstance(tests, dict):
        raise CwmError("input_output is not an object")
    return tests


def _cases(tests: Mapping[str, Any], *, called: bool) -> Iterator[TaskTest]:
    """Yield the tests, at least one."""
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise CwmError("inputs and outputs are not both lists")
    if len(inputs) != len(outputs):
        raise CwmError(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    if not inputs:
        raise CwmError("it has no tests")
    for number, (given, expected) in enumerate(zip(inputs, outputs, strict=True), 1):
        if called:
            yield _call(given, expected, number)
        else:
            yield TaskTest(_lines(given, f"input {number}"), _lines(expected, f"output {number}"))


def _call(given: Any, expected: Any, number: int) -> TaskTest:
    """Return the test of a function."""
    if not isinstance(given, list):
        raise CwmError(f"input {number} is not a list of arguments")
    try:
        text = json.dumps([given, expected], ensure_ascii=False)
    except RecursionError as error:
        raise CwmError(f"test {number} is nested too deeply") from error
    _unicode(text, f"test {number}")
    return TaskTest(given, expected)


def _lines(found: Any, name: str) -> str:
    """Return a text, which the data may contain as a list of lines."""
    lines = found if isinstance(found, list) else [found]
    if not all(isinstance(line, str) for line in lines):
        raise CwmError(f"{name} is neither a text nor a list of lines")
    return _unicode("\n".join(lines), name)


def _solutions(found: Any) -> tuple[str, ...]:
    """Return the programs of a field that is a list, the JSON text of a list, or empty."""
    try:
        programs = parse(found, "solutions") if isinstance(found, str) else found
    except CwmError:
        return ()
    listed = programs if isinstance(programs, list) else []
    return tuple(program for program in listed if isinstance(program, str))
