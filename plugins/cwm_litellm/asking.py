"""One question to a model, asked until it is answered or there is no more to be tried.

A failure that may pass is waited for, a prompt that is too long is shortened, an answer that was
cut off is asked for again with more tokens, what a model does not take is left out, and where there
is no answer the question is repeated: all of it within what it may cost, and each with a line in
the log of the run that says why.
"""

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

from openai import OpenAIError  # what all of LiteLLM's errors derive from
from tenacity import RetryCallState

from cwm_cli.search.contracts import Completion, Message, Request, Usage, total
from cwm_cli.search.reading import without_thinking
from cwm_cli.search.spending import RateLimit
from cwm_cli.search.threads import run_in_thread
from cwm_cli.text import clean
from cwm_litellm.failures import (
    ANSWERS,
    Kind,
    UnpayableError,
    brief,
    classify,
    error_response_of,
    explain,
    may_be_charged,
    refusal_text,
    retry_after,
    words_of,
)
from cwm_litellm.library import load
from cwm_litellm.limits import (
    CHARACTERS_PER_TOKEN,
    MARKED,
    OLLAMA,
    SHORT_TIMEOUT,
    ModelLimits,
    adapted,
    chat_model,
    context_for,
    dropped,
    find_context,
    left_out,
    ollama_address,
    provider_of,
    worded,
)
from cwm_litellm.responses import read_count, tokens_of
from cwm_litellm.retrying import Patience, error_of
from cwm_litellm.transport import begin_attempt, limits_apply, sent_names

litellm = load()

log = logging.getLogger("cwm.litellm")

MOST_TRIES = 3
"""How often a question is asked that brings nothing, or half of an answer: each time costs."""

USUAL_TOKENS = 16_384
"""What an answer is taken to need at most where its cost is limited: programs need a tenth, and
thinking about them aloud most of the rest."""

THINKING_TOKENS = 32_768
"""The same for models that think before they answer, as long as they like: an answer that ends
within its thoughts is paid for and worth nothing."""

USUAL_ANSWER = 1000
"""Tokens that an answer is counted with in the rate of a provider until it is there."""

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

ROLES = "Conversation roles must alternate"
"""What LiteLLM may have been told by a server where it tells nothing."""

TOO_LONG = "the prompt is too long for"

CONTEXT = re.compile(
    r"(?:context[ _](?:length|window|size|limit)|tokens allowed|configured limit)[^\d]{0,24}(\d+)"
    r"|> (\d+) maximum"
)
PROMPT = re.compile(
    r"(\d+) (?:in|from) the (?:messages|prompt)|has (\d+) input tokens"
    r"|first (\d+) tokens"
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
    context: int | None = None
    rate: RateLimit = field(default_factory=partial(RateLimit, ""))
    messages: tuple[Message, ...] = field(init=False)
    _tokens: int | None = field(init=False)
    _limit: int | None = field(default=None, init=False)
    _full: bool = field(default=False, init=False)
    _notes: list[str] = field(default_factory=list, init=False)
    _usages: list[Usage] = field(default_factory=list, init=False)
    _spent: float = field(default=0.0, init=False)
    _attempts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.messages, self._tokens = self.request.messages, self.most_tokens
        if self.most_tokens is not None and self.fit.tokens is not None:
            self._tokens = min(self.most_tokens, self.fit.tokens)
        if self.fit.characters is not None:
            self._shorten(self.fit.characters)
        if self._is_ollama:
            self._find_context()

    def answered(self) -> Completion:
        """Ask until there is a whole answer, or no more to be tried."""
        start, best, tries = time.perf_counter(), Answer(), 0
        while tries < MOST_TRIES:
            try:
                answer = self._asked(self.request.seed + tries)
            except (OpenAIError, TimeoutError, UnpayableError) as error:
                kind = classify(error)
                if kind is Kind.TOO_LONG and self._smaller(refusal_text(error), shorten=not tries):
                    continue
                if kind not in ANSWERS and not tries:
                    raise explain(error, self.model, self._attempts, self._spent) from None
                if kind not in ANSWERS:
                    break  # what was answered before is better than nothing
                answer = Answer(lacking=words_of(error, self.model, self._attempts))
            tries += 1
            best = answer if answer.text or not best.lacking else best
            if not answer.lacking or (answer.cut and not self._grows()):
                break
            if not answer.cut and tries < MOST_TRIES:
                self._log(f"is asked again: {answer.lacking}")
        used = total(self._usages)
        usage = replace(
            used,
            cost=used.cost if self.request.allowance is None else self._spent,
            seconds=time.perf_counter() - start,
        )
        return Completion(
            best.text,
            usage,
            lacking=best.lacking,
            note="; ".join(self._notes),
            log_probability=best.log_probability,
        )

    def _asked(self, seed: int) -> Answer:
        """Return what the model answers, after failures that may pass."""
        attempts, began = self.patience.attempts(self._log_pause), time.perf_counter()
        try:
            response = attempts(self._attempt, seed)
        finally:
            self._attempts = attempts.statistics["attempt_number"]
        usage = usage_of(self.model, response)
        self._log_answer(response, usage, time.perf_counter() - began)
        self._usages.append(usage)
        self._spent += self._worst() if usage.cost is None else usage.cost
        answer = read(response)
        context = self.fit.context if self._is_ollama else None
        self._full = context is not None and usage.tokens >= context
        if self._full:
            words = f"the context of {context:,} tokens was full, so the server dropped the prompt"
            return Answer(answer.text, words, cut=True)
        return answer

    def _attempt(self, seed: int) -> Any:
        """Ask once, and again at once in a way that the model takes, where it took none before.

        `timeout` is for the whole answer, however it drips.
        """
        if not self._affords():
            raise UnpayableError
        while True:
            asked = self._arguments(seed)
            ask = partial(run_in_thread, partial(self._ask, asked), self.timeout)
            try:
                return self.patience.in_turn(
                    self.rate, ask, self._expected, tell=self.request.tell, log=self._log
                )
            except (OpenAIError, TimeoutError) as error:
                if may_be_charged(error):
                    self._spent += self._worst()  # nobody says what it took
                if classify(error) not in (Kind.REFUSED, Kind.BROKEN):
                    raise
                refusal = error_response_of(error)
                param = refusal.param if refusal else ""
                told = adapted(self.fit, asked, refusal_text(error), param)
                if told is None:
                    raise
                self._log(f"{brief(error)}: asked otherwise, from now on")
                if told:
                    self._notes.append(f"{self.model} {told}")

    def _expected(self) -> int:
        """Return about how many tokens the question and its answer take."""
        said = [message.model_dump() for message in self.messages]
        return int(litellm.token_counter(self.model, messages=said)) + USUAL_ANSWER

    def _arguments(self, seed: int) -> dict[str, Any]:
        """Return what LiteLLM is asked with, as far as the model takes it."""
        asked = self.settings | {
            "model": chat_model(self.model),
            "messages": worded(self.messages, self.fit, marked=keeps(self.model)),
            "seed": seed,
            "timeout": self.timeout,
        }
        if self._limit is not None:
            asked[self.fit.limit] = self._limit
        if self.request.weighed:
            asked["logprobs"] = True
        if self._is_ollama:
            asked["api_base"] = ollama_address(self.settings.get("api_base"))
            asked["num_ctx"] = self.fit.context
        return {name: value for name, value in asked.items() if name not in self.fit.refused}

    def _ask(self, asked: dict[str, Any]) -> Any:
        """Have LiteLLM ask."""
        begin_attempt(time.monotonic() + self.timeout)
        if self.request.weighed or not self.stream:
            response = litellm.completion(**asked)
            if response is None:  # it asked otherwise itself, in vain, and says nothing
                system = any(message["role"] == "system" for message in asked["messages"])
                words = ROLES if system else "the request was refused twice without a reason"
                raise litellm.BadRequestError(words, self.model, provider_of(self.model))
            self._check_request(asked)
            return response
        counted = {"stream": True, "stream_options": {"include_usage": True}}
        pieces = list(litellm.completion(**asked, **counted))
        self._check_request(asked)
        return litellm.stream_chunk_builder(pieces, messages=asked["messages"])

    def _check_request(self, asked: Mapping[str, Any]) -> None:
        """Note once what LiteLLM left out of a request, and if it bypassed the limits."""
        if self.fit.checked:
            return
        self.fit.checked = True
        if not limits_apply():
            self._notes.append(
                "this version of LiteLLM bypasses the limits on the size and the duration of "
                "answers: update cwm-cli, or install the versions of constraints.txt"
            )
        if words := left_out(dropped(asked, sent_names())):
            self._notes.append(f"{self.model} {words}")

    @property
    def _is_ollama(self) -> bool:
        """Whether the server is Ollama, which cuts what is longer than the context asked for."""
        return provider_of(self.model) in OLLAMA

    def _find_context(self) -> None:
        """Have Ollama hold the prompt and its answer; shorten what the model cannot hold."""
        fit = self.fit
        if self.context is not None:
            fit.context = fit.longest_context = self.context
        else:
            address = ollama_address(self.settings.get("api_base"))
            begin_attempt(time.monotonic() + SHORT_TIMEOUT)  # this thread may have an old deadline
            find_context(fit, self.model, address, litellm.client_session)
            context_for(fit, _size(self.messages), self.most_tokens or USUAL_TOKENS // 2)
        most = int(FOR_THE_PROMPT * CHARACTERS_PER_TOKEN * (fit.context or 0))
        if _size(self.messages) > most:
            self._shorten(most)

    def _widens(self) -> bool:
        """Have Ollama hold twice as much, as far as the model can."""
        wider = 2 * (self.fit.context or 0)
        most = self.context or self.fit.longest_context or wider
        if (self.fit.context or 0) >= most:
            return False
        self.fit.context = min(wider, most)
        self._log(f"is asked again with a context of {self.fit.context:,} tokens")
        return True

    def _log(self, words: str) -> None:
        """Write in the log of the run what is done to answer, without what is asked."""
        line = f"step {self.request.step}: {self.model} {words}"
        self.request.log(line)
        log.info("%s", line)

    def _log_pause(self, state: RetryCallState) -> None:
        """Say why a request is repeated, and when."""
        error, pause = error_of(state), state.next_action.sleep if state.next_action else 0.0
        why = " as its server asks" if retry_after(error) is not None else ""
        self._log(
            f"{brief(error)}, at attempt {state.attempt_number}: asked again in {pause:.1f} s{why}"
        )

    def _log_answer(self, response: Any, usage: Usage, seconds: float) -> None:
        """Say what an answer took."""
        prompt = f"{usage.prompt_tokens:,} tokens of prompt"
        if usage.cached_tokens:
            prompt += f" ({usage.cached_tokens:,} of them cached)"
        answer = f"{usage.completion_tokens:,} of answer"
        if usage.reasoning_tokens:
            answer += f" ({usage.reasoning_tokens:,} of them thinking)"
        cost = "cost unknown" if usage.cost is None else f"${usage.cost:.6f}"
        choices = response.choices or [None]
        self._log(
            f"answered {getattr(response, 'id', None) or 'without an id'} in {seconds:.1f} s, at "
            f"attempt {self._attempts}: {prompt}, {answer}, {cost}, finished by "
            f"{getattr(choices[0], 'finish_reason', None) or 'nothing'}"
        )

    def _affords(self) -> bool:
        """Whether an answer can be paid; it is then limited to the tokens that can."""
        self._limit = self._tokens
        if self.request.allowance is None or (cost := prices(self.model, self.messages)) is None:
            return True
        left = self.request.allowance - self._spent - cost.prompt
        most = [tokens for tokens in (self._tokens, self.fit.tokens) if tokens is not None]
        wanted = min(most or [most_output(self.model) or usual_tokens(self.model)])
        payable = wanted if cost.token == 0 else int(left / cost.token + 1e-6)
        self._limit = min(wanted, payable)
        return left >= 0 and self._limit >= min(wanted, LEAST_TOKENS)

    def _worst(self) -> float:
        """Return what an answer costs that takes all of its tokens, 0 where no one asks."""
        if self.request.allowance is None or (cost := prices(self.model, self.messages)) is None:
            return 0.0
        return cost.prompt + cost.token * (self._limit or usual_tokens(self.model))

    def _grows(self) -> bool:
        """Ask for more tokens than the answer that was cut off had, where that is allowed."""
        if self._full:
            return self._widens()
        if self.most_tokens is not None:
            return False
        used = max(self._usages[-1].completion_tokens, self._limit or LEAST_TOKENS)
        more = most_output(self.model) or GROWTH * used
        self._tokens = min(more, self.fit.tokens or more)
        grows = self._affords() and (self._limit or more) > used
        if grows:
            self._log(f"is asked again for up to {self._limit or more:,} tokens")
        return grows

    def _smaller(self, told: str, *, shorten: bool) -> bool:
        """Ask for fewer tokens or, where it is not they that are too many, say less."""
        if self._is_ollama and self._widens():
            return True
        context, prompt = _number(CONTEXT, told), _number(PROMPT, told)
        known = bool(context and prompt)
        room = context - prompt if known else (self._limit or 0) // 2
        if self._limit is not None and LEAST_TOKENS <= room < self._limit:
            self._tokens = self.fit.tokens = room
            self._log(f"is too small for prompt and completion: requested {room:,} tokens")
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
            self._notes = [each for each in self._notes if not each.startswith(TOO_LONG)]
            self._notes.append(
                f"{TOO_LONG} {self.model}: shortened from "
                f"{_size(self.request.messages):,} to {_size(said):,} characters, examples first"
            )
        self._log(f"takes no prompt of {before:,} characters: asked in {_size(said):,}")
        return True


def read(response: Any) -> Answer:
    """Return what a response says, and why that is nothing or not all."""
    if not response.choices:
        return Answer(lacking="the provider sent no completion")
    choice = response.choices[0]
    whole = choice.message.content or ""
    spoken = without_thinking(whole)
    text = spoken.text[:LONGEST_TEXT]
    fields = getattr(choice.message, "provider_specific_fields", None) or {}
    thought = getattr(choice.message, "reasoning_content", None) or fields.get("reasoning")
    if thought:  # LiteLLM leaves what stood between
        text = text.lstrip("\n")
    if choice.finish_reason == "length":
        _, used = tokens_of(response) or (0, 0)
        after = f" after {used:,} tokens" if used else ""
        where = " of thinking" if not text.strip() and (thought or not spoken.done) else ""
        return Answer(text, f"the answer was cut off{after}{where}", cut=True)
    if choice.finish_reason == "content_filter":
        return Answer(text, "the provider's content filter withheld the completion")
    if text.strip():
        lacking = Kind.OVERSIZED.value if len(spoken.text) > len(text) else ""
        likely = _log_probability(choice) if text == whole else None
        return Answer(text, lacking, log_probability=likely)
    lacking = "the answer was empty"
    if refusal := getattr(choice.message, "refusal", None) or fields.get("refusal"):
        lacking = f"the model refuses to answer ({clean(refusal, limit=160)})"
    elif thought or whole.strip():
        lacking = "the model returned reasoning, but no answer"
    return Answer(lacking=lacking)


def _log_probability(choice: Any) -> float | None:
    """Return the sum over the tokens of an answer, None where they are not told."""
    tokens = getattr(getattr(choice, "logprobs", None), "content", None)
    return float(sum(token.logprob for token in tokens)) if tokens else None


def prices(model: str, messages: Sequence[Message]) -> Prices | None:
    """Return what a question costs, None where LiteLLM does not know it."""
    if provider_of(model) in OLLAMA:  # on a machine of one's own; LiteLLM would ask one for it
        return Prices(0.0, 0.0)
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
    if provider_of(model) in OLLAMA:
        return None
    try:
        most = litellm.get_model_info(model).get("max_output_tokens")
    except Exception:  # noqa: BLE001  # and for unknown models
        return None
    return int(most) if most else None


@cache
def keeps(model: str) -> bool:
    """Whether a provider keeps what a prompt begins with where a mark says how far."""
    try:
        _, provider, *_ = litellm.get_llm_provider(model)
        info = litellm.get_model_info(model)
        return provider in MARKED and bool(info.get("supports_prompt_caching"))
    except Exception:  # noqa: BLE001  # as above
        return False


def usual_tokens(model: str) -> int:
    """Return what an answer of a model is taken to need at most where its cost is limited."""
    thinks = False
    with suppress(Exception):  # as above
        thinks = provider_of(model) not in OLLAMA and litellm.supports_reasoning(model)
    return THINKING_TOKENS if thinks else USUAL_TOKENS


def usage_of(model: str, response: Any) -> Usage:
    """Return the tokens and the cost of a response; without token counts the cost is unknown."""
    counts = getattr(response, "usage", None)
    tokens = tokens_of(response)
    cost: float | None = 0.0 if provider_of(model) in OLLAMA else None
    if tokens and cost is None:
        with suppress(Exception):  # as above
            cost = float(litellm.completion_cost(response, model=model))
    if cost is not None and not 0 <= cost < math.inf:
        cost = None
    cached = _detail(counts, "prompt_tokens_details", "cached_tokens")
    prompt, completion = tokens or (0, 0)
    return Usage(
        prompt,
        completion,
        cost,
        cached_tokens=cached or read_count(getattr(counts, "cache_read_input_tokens", None)) or 0,
        reasoning_tokens=_detail(counts, "completion_tokens_details", "reasoning_tokens"),
    )


def _detail(counts: Any, details: str, name: str) -> int:
    """Return a count that not every server sends, 0 by default."""
    return read_count(getattr(getattr(counts, details, None), name, None)) or 0


def _size(messages: Sequence[Message]) -> int:
    """Count the characters of messages."""
    return sum(len(message.content) for message in messages)


def _number(pattern: re.Pattern[str], text: str) -> int:
    """Return the number that a pattern finds in an error's text, or 0."""
    found = pattern.search(text.replace(",", ""))
    return int(next(filter(None, found.groups()))) if found else 0
