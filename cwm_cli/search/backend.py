"""What a search asks of a backend, and what it gets back."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict
from pydantic.dataclasses import dataclass

from cwm_cli.search.verdict import Verdict

ROOT = -1
"""The parent of nodes that were written from scratch."""


class Action(StrEnum):
    """What a strategy may ask for."""

    GENERATE = "generate"
    IMPROVE = "improve"
    FIX = "fix"


class Move(NamedTuple):
    """A strategy's choice: apply `action` to node `parent`, whose program and verdict these are.

    `prefix` holds the lines that a generated program has to begin with.
    """

    action: Action
    parent: int = ROOT
    program: str = ""
    verdict: Verdict | None = None
    prefix: str = ""


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant"]
    content: str


def unheard(words: str) -> None:
    """Tell nobody."""


class Request(NamedTuple):
    """One question: a language model reads the messages, other backends the move and the problem.

    `problem` is the object that wrote the messages; a backend that works from
    data checks its type (`cwm_cli.problems`) before it uses it. `step` is
    the number of the question in the search, and `occurrence` counts how
    often the search asked the same messages before. A backend may `tell` in a
    few words what it is doing, from any thread.
    """

    messages: tuple[Message, ...]
    seed: int
    move: Move
    problem: object
    step: int = 0
    occurrence: int = 0
    tell: Callable[[str], None] = unheard

    @property
    def key(self) -> str:
        """Hash of the messages: equal questions have equal keys."""
        text = "\x1e".join(f"{message.role}\x1f{message.content}" for message in self.messages)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a completion took; `cost` in US dollars is None when the price is unknown."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of the answer."""
        return self.prompt_tokens + self.completion_tokens


def total(usages: Sequence[Usage]) -> Usage:
    """Add up what completions took; the cost is None when one of them is."""
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cost=sum(costs) if len(costs) == len(usages) else None,
        seconds=sum(usage.seconds for usage in usages),
    )


class Completion(NamedTuple):
    """An answer and what it took; `final` if further questions would bring nothing better."""

    text: str
    usage: Usage = Usage()
    final: bool = False


class Backend(Protocol):
    """Whatever answers requests: a language model, a recording, an inducer."""

    def complete(self, request: Request) -> Completion:
        """Answer; called from several threads at once when completions run in parallel.

        Raises `CwmError` for what the user can mend: a missing key, an unknown model.
        """
        ...

    def worst_cost(self, request: Request) -> float | None:
        """Return the most that answering can cost in US dollars, None when the price is unknown."""
        ...
