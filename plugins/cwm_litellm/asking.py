"""One question to a model, asked until it is answered or there is no more to be tried.

A failure that may pass is waited for, a prompt that is too long is shortened, an answer that was
cut off is asked for again with more tokens, and where there is none the question is repeated: all
of it within what it may cost.
"""

import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import litellm
from openai import OpenAIError  # what all of LiteLLM's errors derive from

from cwm_cli.search.contracts import Completion, Message, Request, Usage, total
from cwm_cli.search.threads import waited
from cwm_cli.text import clean
from cwm_litellm.backend import ModelLimits
from cwm_litellm.failures import (
    ANSWERS,
    Kind,
    Patience,
    UnpayableError,
    classify,
    explain,
    words_of,
)
from cwm_litellm.transport import until

log = logging.getLogger("cwm.litellm")

MOST_TRIES = 3
"""How often a question is asked that brings nothing, or half of an answer: each time costs."""

USUAL_TOKENS = 16_384
"""What an answer is taken to need at most where its cost is limited: programs need a tenth, and
thinking about them most of the rest."""

LEAST_TOKENS = 256
"""In fewer no program is written."""

GROWTH = 4
"""By how much more is asked for after a cut where nobody knows how much a model can write."""

SMALLER = 0.7
"""How much of a prompt is left where the server does not say by how much it was too long."""

FOR_THE_PROMPT = 0.75
"""Share of a context that a prompt may take, so that the answer has room."""

SHORTEST_PROMPT = 500
"""Characters below which a prompt asks for nothing any more."""

LONGEST_TEXT = 1 << 20
"""Characters of an answer that are kept: all that any model writes, and four programs' worth."""

CONTEXT = re.compile(
    r"(?:context[ _](?:length|window|size|limit)|tokens allowed|configured limit)[^\d]{0,24}(\d+)"
    r"|> (\d+) maximum"
)
PROMPT = re.compile(
    r"(\d+) (?:in|from) the (?:messages|prompt)|has (\d+) input tokens"
    r"|(?:resulted in |passed |too long: |request \(|token count \()(\d+)"
)


class Prices(NamedTuple):
    """What a question costs in US dollars, and each token of its answer."""

    prompt: float
    token: float


class Answer(NamedTuple):
    """What a response says, and how likely; `lacking` says why that is nothing, or not all."""

    text: str = ""
    lacking: str = ""
    cut: bool = False
    log_probability: float | None = None


@dataclass
class Question:
    """A request on its way to an answer; `fit` is what all questions to the model learn.

    `most_tokens` is what the user allows an answer, None being as many as it takes. Where the
    cost is limited, an attempt of which nobody says what it took counts with the most it may.
    """

    model: str
    request: Request
    settings: dict[str, Any]
    patience: Patience
    fit: ModelLimits
    timeout: float
    most_tokens: int | None = None
    stream: bool = False
    messages: tuple[Message, ...] = field(init=False)
    _tokens: int | None = field(init=False)
    _limit: int | None = field(default=None, init=False)
    _note: str = field(default="", init=False)
    _usages: list[Usage] = field(default_factory=list, init=False)
    _spent: float = field(default=0.0, init=False)
    _attempts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.messages, self._tokens = self.request.messages, self.most_tokens
        if self.most_tokens is not None and self.fit.tokens is not None:
            self._tokens = min(self.most_tokens, self.fit.tokens)
        if self.fit.characters is not None:
            self._shorten(self.fit.characters)

    def answered(self) -> Completion:
        """Ask until there is a whole answer, or no more to be tried."""
        start, best, tries = time.perf_counter(), Answer(), 0
        while tries < MOST_TRIES:
            try:
                answer = self._asked(self.request.seed + tries)
            except (OpenAIError, TimeoutError, UnpayableError) as error:
                kind = classify(error)
                if kind is Kind.TOO_LONG and self._smaller(str(error), shorten=not tries):
                    continue
                if kind not in ANSWERS and not tries:
                    raise explain(error, self.model, self._attempts) from None
                if kind not in ANSWERS:
                    break  # what was answered before is better than nothing
                answer = Answer(lacking=words_of(error, self.model, self._attempts))
            tries += 1
            best = answer if answer.text or not best.lacking else best
            if not answer.lacking or (answer.cut and not self._grows()):
                break
        used = total(self._usages)
        usage = Usage(
            prompt_tokens=used.prompt_tokens,
            completion_tokens=used.completion_tokens,
            cost=used.cost if self.request.allowance is None else self._spent,
            seconds=time.perf_counter() - start,
        )
        return Completion(
            best.text,
            usage,
            lacking=best.lacking,
            note=self._note,
            log_probability=best.log_probability,
        )

    def _asked(self, seed: int) -> Answer:
        """Return what the model answers, after failures that may pass."""
        attempts, began = self.patience.attempts(), time.perf_counter()
        try:
            response = attempts(self._attempt, seed)
        finally:
            self._attempts = attempts.statistics["attempt_number"]
        usage = usage_of(self.model, response)
        log.info(
            "%s answered %s with %d of %d tokens in %.1f s, at attempt %d",
            self.model,
            getattr(response, "id", None) or "without an id",
            usage.completion_tokens,
            usage.tokens,
            time.perf_counter() - began,
            self._attempts,
        )
        self._usages.append(usage)
        self._spent += self._worst() if usage.cost is None else usage.cost
        answer = read(response)
        if self.stream and not answer.text:
            self.fit.streams = False  # which looks the same as an answer that is empty
        return answer

    def _attempt(self, seed: int) -> Any:
        """Ask once; `timeout` is for the whole answer, however it drips."""
        if not self._affords():
            raise UnpayableError
        asked = self.settings | {
            "model": self.model,
            "messages": [message.model_dump() for message in self.messages],
            "seed": seed,
            "timeout": self.timeout,
        }
        if self._limit is not None:
            asked["max_tokens"] = self._limit
        if self.request.weighed:
            asked["logprobs"] = True

        def ask() -> Any:
            until(time.monotonic() + self.timeout)
            if self.request.weighed or not (self.stream and self.fit.streams):
                return litellm.completion(**asked)
            counted = {"stream": True, "stream_options": {"include_usage": True}}
            pieces = list(litellm.completion(**asked, **counted))
            return litellm.stream_chunk_builder(pieces, messages=asked["messages"])

        try:
            return waited(ask, self.timeout)
        except (OpenAIError, TimeoutError) as error:
            if classify(error) in (Kind.TIMEOUT, Kind.OVERSIZED):
                self._spent += self._worst()  # nobody says what it took
            raise

    def _affords(self) -> bool:
        """Whether an answer can be paid; it is then limited to the tokens that can."""
        self._limit = self._tokens
        if self.request.allowance is None or (cost := prices(self.model, self.messages)) is None:
            return True
        left = self.request.allowance - self._spent - cost.prompt
        most = [tokens for tokens in (self._tokens, self.fit.tokens) if tokens is not None]
        wanted = min(most or [most_output(self.model) or USUAL_TOKENS])
        payable = wanted if cost.token == 0 else int(left / cost.token + 1e-6)
        self._limit = min(wanted, payable)
        return left >= 0 and self._limit >= min(wanted, LEAST_TOKENS)

    def _worst(self) -> float:
        """Return what an answer costs that takes all of its tokens, 0 where no one asks."""
        if self.request.allowance is None or (cost := prices(self.model, self.messages)) is None:
            return 0.0
        return cost.prompt + cost.token * (self._limit or USUAL_TOKENS)

    def _grows(self) -> bool:
        """Ask for more tokens than the answer that was cut off had, where that is allowed."""
        if self.most_tokens is not None:
            return False
        used = max(self._usages[-1].completion_tokens, self._limit or LEAST_TOKENS)
        more = most_output(self.model) or GROWTH * used
        self._tokens = min(more, self.fit.tokens or more)
        return self._affords() and (self._limit or 0) > used

    def _smaller(self, told: str, *, shorten: bool) -> bool:
        """Ask for fewer tokens or, where it is not they that are too many, say less."""
        context, prompt = _number(CONTEXT, told), _number(PROMPT, told)
        known = bool(context and prompt)
        room = context - prompt if known else (self._limit or 0) // 2
        if self._limit is not None and LEAST_TOKENS <= room < self._limit:
            self._tokens = self.fit.tokens = room
            return True
        share = min(FOR_THE_PROMPT * context / prompt, SMALLER) if known else SMALLER
        return shorten and self._shorten(int(share * _size(self.messages)))

    def _shorten(self, room: int) -> bool:
        """Say the same in so many characters; tell the user once what a model does not take."""
        before, shorter = _size(self.messages), self.request.shorter
        if before <= room:
            return True
        if shorter is None or room < SHORTEST_PROMPT or _size(said := shorter(room)) >= before:
            return False
        self.messages = said
        if self.fit.characters is None or room < self.fit.characters:
            self.fit.characters = room
            self._note = (
                f"the prompt is too long for {self.model}: shortened from "
                f"{_size(self.request.messages):,} to {_size(said):,} characters, examples first"
            )
        return True


def read(response: Any) -> Answer:
    """Return what a response says, and why that is nothing or not all."""
    if not response.choices:
        return Answer(lacking="the provider sent no answer")
    choice = response.choices[0]
    whole = choice.message.content or ""
    text = whole[:LONGEST_TEXT]
    if choice.finish_reason == "length":
        used = response.usage.completion_tokens
        return Answer(text, f"the answer was cut off after {used:,} tokens", cut=True)
    if choice.finish_reason == "content_filter":
        return Answer(text, "the provider's content filter withheld the answer")
    if text.strip():
        lacking = Kind.OVERSIZED.value if len(whole) > len(text) else ""
        return Answer(text, lacking, log_probability=_log_probability(choice))
    fields = getattr(choice.message, "provider_specific_fields", None) or {}
    if refusal := getattr(choice.message, "refusal", None) or fields.get("refusal"):
        return Answer(lacking=f"the model refuses to answer ({clean(refusal, limit=160)})")
    return Answer(lacking="the answer was empty")


def _log_probability(choice: Any) -> float | None:
    """Return the sum over the tokens of an answer, None where they are not told."""
    tokens = getattr(getattr(choice, "logprobs", None), "content", None)
    return float(sum(token.logprob for token in tokens)) if tokens else None


def prices(model: str, messages: Sequence[Message]) -> Prices | None:
    """Return what a question costs, None where LiteLLM does not know it."""
    said = [message.model_dump() for message in messages]

    def cost(prompt: int, answer: int) -> float:
        counts = {"prompt_tokens": prompt, "completion_tokens": answer}
        return float(sum(litellm.cost_per_token(model, **counts)))

    try:
        asking = cost(litellm.token_counter(model, messages=said), 0)
        return Prices(asking, cost(0, 1000) / 1000)
    except Exception:  # noqa: BLE001  # LiteLLM raises bare exceptions for unknown prices
        return None


def most_output(model: str) -> int | None:
    """Return how many tokens a model can write, None where LiteLLM does not know it."""
    try:
        most = litellm.get_model_info(model).get("max_output_tokens")
    except Exception:  # noqa: BLE001  # and for unknown models
        return None
    return int(most) if most else None


def usage_of(model: str, response: Any) -> Usage:
    """Return what a response took; a server that counts no tokens leaves the cost unknown."""
    counts = response.usage
    cost: float | None = None
    if counts.prompt_tokens:
        with suppress(Exception):  # as above
            cost = float(litellm.completion_cost(response, model=model))
    return Usage(counts.prompt_tokens, counts.completion_tokens, cost)


def _size(messages: Sequence[Message]) -> int:
    """Count the characters of messages."""
    return sum(len(message.content) for message in messages)


def _number(pattern: re.Pattern[str], text: str) -> int:
    """Return the number that a pattern finds in an error's text, or 0."""
    found = pattern.search(text.replace(",", ""))
    return int(next(filter(None, found.groups()))) if found else 0
