"""A coding task: what is asked, and the tests that a program has to pass."""

from dataclasses import dataclass
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A test: a question and its answer.

    Both are texts where a program reads standard input and writes standard
    output. Where a function is called they are its arguments and what it returns.
    """

    input: Any
    output: Any


@dataclass(frozen=True)
class CodingTask:
    """A problem to write a program for; `function` is what is called, empty for standard input.

    `solutions` are known to be right.
    """

    id: int
    question: str
    difficulty: str
    tests: tuple[Case, ...]
    function: str = ""
    starter_code: str = ""
    url: str = ""
    solutions: tuple[str, ...] = ()

    @property
    def public(self) -> tuple[Case, ...]:
        """The tests that may be shown, at least one: the first half of them."""
        return self.tests[: self._boundary]

    @property
    def hidden(self) -> tuple[Case, ...]:
        """The tests that judge the final program; none if there is a single test."""
        return self.tests[self._boundary :]

    @property
    def _boundary(self) -> int:
        return max(1, min(len(self.tests) - 1, len(self.tests) // 2))
