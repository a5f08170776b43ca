"""Send a request to a model until it has an answer or no attempts are left.

Temporary failures are retried, a prompt that is too long is shortened, an answer that was cut off
is requested again with more tokens, unsupported parameters are left out, and a request without an
answer is repeated. All attempts stay within the cost limit, and each has a line with its reason in
the log of the run.
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

from openai import OpenAIError  # the base class of LiteLLM's errors
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
    adapt,
    chat_model,
    context_for,
    dropped,
    find_context,
    format_messages,
    left_out,
    ollama_address,
    provider_of,
)
from cwm_litellm.responses import read_count, tokens_of
from cwm_litellm.retrying import Patience, error_of
from cwm_litellm.transport import begin_attempt, limits_apply, sent_names

litellm = load()

log = logging.getLogger("cwm.litellm")

USUAL_TOKENS = 16_384
"""Assumed maximum length of an answer if its cost is limited. A program needs a tenth, and written
reasoning needs most of the rest."""

MIN_TOKENS = 256
"""Fewer tokens are not enough for a program."""

MAX_PROMPT_SHARE = 0.75
"""Maximum share of the context for the prompt, so that the answer fits too."""

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
    """The price of a prompt and of each token of its answer, in US dollars."""

    prompt: float
    token: float


class Answer(NamedTuple):
    """The text and log-probability of a response; `lacking` says why it is incomplete."""

    text: str = ""
    lacking: str = ""
    cut: bool = False
    log_probability: float | None = None


@dataclass
class Question:
    """A request and its attempts. `fit` contains the limits of the model, shared by all requests.

    `most_tokens` is the user's limit for an answer, None for no limit. If the cost is limited, an
    attempt with unknown usage counts with its highest possible cost.
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

    def answer(self) -> Completion:
        """Send requests until an answer is complete or no attempts are left."""
        start, best, tries = time.perf_counter(), Answer(), 0
        # maximum number of answers to a request, if they are empty or cut: each answer costs money
        max_tries = 3
        while tries < max_tries:
            try:
                answer = self._request_answer(self.request.seed + tries)
            except (OpenAIError, TimeoutError, UnpayableError) as error:
                kind = classify(error)
                if kind is Kind.TOO_LONG and self._fit_context(
                    refusal_text(error), shorten=not tries
                ):
                    continue
                if kind not in ANSWERS and not tries:
                    raise explain(error, self.model, self._attempts, self._spent) from None
                if kind not in ANSWERS:
                    break  # an earlier incomplete answer is better than none
                answer = Answer(lacking=words_of(error, self.model, self._attempts))
            tries += 1
            best = answer if answer.text or not best.lacking else best
            if not answer.lacking or (answer.cut and not self._raise_limit()):
                break
            if not answer.cut and tries < max_tries:
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

    def _request_answer(self, seed: int) -> Answer:
        """Return the answer of the model, with retries after temporary failures."""
        attempts, began = self.patience.attempts(self._log_pause), time.perf_counter()
        try:
            response = attempts(self._attempt, seed)
        finally:
            self._attempts = attempts.statistics["attempt_number"]
        usage = usage_of(self.model, response)
        self._log_answer(response, usage, time.perf_counter() - began)
        self._usages.append(usage)
        self._spent += self._worst_cost() if usage.cost is None else usage.cost
        answer = read(response)
        context = self.fit.context if self._is_ollama else None
        self._full = context is not None and usage.tokens >= context
        if self._full:
            words = f"the context of {context:,} tokens was full, so the server dropped the prompt"
            return Answer(answer.text, words, cut=True)
        return answer

    def _attempt(self, seed: int) -> Any:
        """Send one request, and adapted requests immediately if the model rejects its form.

        `timeout` limits the time until the whole answer has arrived.
        """
        if not self._limit_to_allowance():
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
                    self._spent += self._worst_cost()  # its usage is unknown
                if classify(error) not in (Kind.REFUSED, Kind.BROKEN):
                    raise
                refusal = error_response_of(error)
                param = refusal.param if refusal else ""
                change = adapt(self.fit, asked, refusal_text(error), param)
                if change is None:
                    raise
                self._log(f"{brief(error)}: later requests are adapted")
                if change:
                    self._notes.append(f"{self.model} {change}")

    def _expected(self) -> int:
        """Estimate the tokens of the prompt and its answer."""
        messages = [message.model_dump() for message in self.messages]
        # tokens of an answer that count towards the rate limit until their number is known
        usual_answer = 1000
        return int(litellm.token_counter(self.model, messages=messages)) + usual_answer

    def _arguments(self, seed: int) -> dict[str, Any]:
        """Return the arguments of LiteLLM that the model accepts."""
        asked = self.settings | {
            "model": chat_model(self.model),
            "messages": format_messages(
                self.messages, self.fit, marked=needs_cache_mark(self.model)
            ),
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
        """Send a request through LiteLLM."""
        begin_attempt(time.monotonic() + self.timeout)
        if self.request.weighed or not self.stream:
            response = litellm.completion(**asked)
            if response is None:  # LiteLLM adapted the request, and failed without an error
                system = any(message["role"] == "system" for message in asked["messages"])
                # the likely message of a server whose error LiteLLM swallows
                roles = "Conversation roles must alternate"
                words = roles if system else "the request was refused twice without a reason"
                raise litellm.BadRequestError(words, self.model, provider_of(self.model))
            self._check_request(asked)
            return response
        counted = {"stream": True, "stream_options": {"include_usage": True}}
        pieces = list(litellm.completion(**asked, **counted))
        self._check_request(asked)
        return litellm.stream_chunk_builder(pieces, messages=asked["messages"])

    def _check_request(self, asked: Mapping[str, Any]) -> None:
        """Note once which parameters LiteLLM dropped, and whether it bypassed the limits."""
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
        """Whether the server is Ollama, which cuts prompts that exceed the requested context."""
        return provider_of(self.model) in OLLAMA

    def _find_context(self) -> None:
        """Request an Ollama context for prompt and answer; shorten a prompt that cannot fit."""
        fit = self.fit
        if self.context is not None:
            fit.context = fit.longest_context = self.context
        else:
            address = ollama_address(self.settings.get("api_base"))
            begin_attempt(time.monotonic() + SHORT_TIMEOUT)  # this thread may have an old deadline
            find_context(fit, self.model, address, litellm.client_session)
            context_for(fit, _size(self.messages), self.most_tokens or USUAL_TOKENS // 2)
        most = int(MAX_PROMPT_SHARE * CHARACTERS_PER_TOKEN * (fit.context or 0))
        if _size(self.messages) > most:
            self._shorten(most)

    def _widen_context(self) -> bool:
        """Double the context of Ollama; return False at the maximum of the model."""
        wider = 2 * (self.fit.context or 0)
        most = self.context or self.fit.longest_context or wider
        if (self.fit.context or 0) >= most:
            return False
        self.fit.context = min(wider, most)
        self._log(f"is asked again with a context of {self.fit.context:,} tokens")
        return True

    def _log(self, words: str) -> None:
        """Write a line without prompt and answer to the log of the run."""
        line = f"step {self.request.step}: {self.model} {words}"
        self.request.log(line)
        log.info("%s", line)

    def _log_pause(self, state: RetryCallState) -> None:
        """Log why and when a request is repeated."""
        error, pause = error_of(state), state.next_action.sleep if state.next_action else 0.0
        why = ", as the server requests" if retry_after(error) is not None else ""
        self._log(f"{brief(error)}, at attempt {state.attempt_number}: retry in {pause:.1f} s{why}")

    def _log_answer(self, response: Any, usage: Usage, seconds: float) -> None:
        """Log the tokens, the cost and the duration of an answer."""
        prompt = f"{usage.prompt_tokens:,} tokens of prompt"
        if usage.cached_tokens:
            prompt += f" ({usage.cached_tokens:,} cached)"
        answer = f"{usage.completion_tokens:,} of answer"
        if usage.reasoning_tokens:
            answer += f" ({usage.reasoning_tokens:,} reasoning)"
        cost = "cost unknown" if usage.cost is None else f"${usage.cost:.6f}"
        choices = response.choices or [None]
        self._log(
            f"answered {getattr(response, 'id', None) or 'without an id'} in {seconds:.1f} s, at "
            f"attempt {self._attempts}: {prompt}, {answer}, {cost}, finished by "
            f"{getattr(choices[0], 'finish_reason', None) or 'nothing'}"
        )

    def _limit_to_allowance(self) -> bool:
        """Return whether an answer is affordable, and limit its tokens to the affordable number."""
        self._limit = self._tokens
        if self.request.allowance is None or (cost := prices(self.model, self.messages)) is None:
            return True
        left = self.request.allowance - self._spent - cost.prompt
        most = [tokens for tokens in (self._tokens, self.fit.tokens) if tokens is not None]
        wanted = min(most or [most_output(self.model) or usual_tokens(self.model)])
        payable = wanted if cost.token == 0 else int(left / cost.token + 1e-6)
        self._limit = min(wanted, payable)
        return left >= 0 and self._limit >= min(wanted, MIN_TOKENS)

    def _worst_cost(self) -> float:
        """Return the cost of an answer with all of its tokens, 0 if the cost is not limited."""
        if self.request.allowance is None or (cost := prices(self.model, self.messages)) is None:
            return 0.0
        return cost.prompt + cost.token * (self._limit or usual_tokens(self.model))

    def _raise_limit(self) -> bool:
        """Raise the token limit after a cut answer; return whether another request makes sense."""
        if self._full:
            return self._widen_context()
        if self.most_tokens is not None:
            return False
        used = max(self._usages[-1].completion_tokens, self._limit or MIN_TOKENS)
        # factor of the token limit after a cut answer if the maximum output of the model is unknown
        token_growth = 4
        more = most_output(self.model) or token_growth * used
        self._tokens = min(more, self.fit.tokens or more)
        grows = self._limit_to_allowance() and (self._limit or more) > used
        if grows:
            self._log(f"is asked again for up to {self._limit or more:,} tokens")
        return grows

    def _fit_context(self, message: str, *, shorten: bool) -> bool:
        """Request fewer tokens, or shorten the prompt if the prompt itself is too long."""
        if self._is_ollama and self._widen_context():
            return True
        context, prompt = _number(CONTEXT, message), _number(PROMPT, message)
        known = bool(context and prompt)
        room = context - prompt if known else (self._limit or 0) // 2
        if self._limit is not None and MIN_TOKENS <= room < self._limit:
            self._tokens = self.fit.tokens = room
            self._log(f"has too little context for prompt and answer: requested {room:,} tokens")
            return True
        # share of a prompt that remains if the server does not report the size of the excess
        shortening = 0.7
        share = min(MAX_PROMPT_SHARE * context / prompt, shortening) if known else shortening
        return shorten and self._shorten(int(share * _size(self.messages)))

    def _shorten(self, room: int) -> bool:
        """Shorten the prompt to `room` characters; note once that the model needs it."""
        before, shorter = _size(self.messages), self.request.shorter
        if before <= room:
            return True
        min_prompt_characters = 500  # a shorter prompt does not contain a usable task
        if shorter is None or room < min_prompt_characters:
            return False
        prompt = shorter(room)
        if _size(prompt) >= before:
            return False
        self.messages = prompt
        if self.fit.characters is None or room < self.fit.characters:
            self.fit.characters = room
            self._notes = [each for each in self._notes if not each.startswith(TOO_LONG)]
            self._notes.append(
                f"{TOO_LONG} {self.model}: shortened from "
                f"{_size(self.request.messages):,} to {_size(prompt):,} characters, examples first"
            )
        self._log(f"accepts no prompt of {before:,} characters: shortened to {_size(prompt):,}")
        return True


def read(response: Any) -> Answer:
    """Read the answer of a response, with the reason if it is empty or incomplete."""
    if not response.choices:
        return Answer(lacking="the provider sent no completion")
    choice = response.choices[0]
    whole = choice.message.content or ""
    spoken = without_thinking(whole)
    # maximum characters of an answer: more than any model writes, and four large programs
    max_text_characters = 1 << 20
    text = spoken.text[:max_text_characters]
    fields = getattr(choice.message, "provider_specific_fields", None) or {}
    thought = getattr(choice.message, "reasoning_content", None) or fields.get("reasoning")
    if thought:  # LiteLLM keeps the line ends after the reasoning
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
        tokens = getattr(getattr(choice, "logprobs", None), "content", None)
        likely = None
        if tokens and text == whole:
            likely = float(sum(token.logprob for token in tokens))
        return Answer(text, lacking, log_probability=likely)
    lacking = "the answer was empty"
    if refusal := getattr(choice.message, "refusal", None) or fields.get("refusal"):
        lacking = f"the model refuses to answer ({clean(refusal, limit=160)})"
    elif thought or whole.strip():
        lacking = "the model returned reasoning, but no answer"
    return Answer(lacking=lacking)


def prices(model: str, messages: Sequence[Message]) -> Prices | None:
    """Return the prices of a request, None if LiteLLM does not know them."""
    if provider_of(model) in OLLAMA:  # local and free; LiteLLM would query the server
        return Prices(0.0, 0.0)
    dumped = [message.model_dump() for message in messages]

    def cost(prompt: int, answer: int) -> float:
        counts = {"prompt_tokens": prompt, "completion_tokens": answer}
        return float(sum(litellm.cost_per_token(model, **counts)))

    try:
        asking = cost(litellm.token_counter(model, messages=dumped), 0)
        return Prices(asking, cost(0, 1000) / 1000)
    except Exception:  # noqa: BLE001  # LiteLLM raises bare exceptions for unknown prices
        return None


def most_output(model: str) -> int | None:
    """Return the maximum number of output tokens of a model, None if LiteLLM does not know it."""
    if provider_of(model) in OLLAMA:
        return None
    try:
        most = litellm.get_model_info(model).get("max_output_tokens")
    except Exception:  # noqa: BLE001  # and for unknown models
        return None
    return int(most) if most else None


@cache
def needs_cache_mark(model: str) -> bool:
    """Return whether a provider caches the start of a prompt only up to an explicit mark."""
    try:
        _, provider, *_ = litellm.get_llm_provider(model)
        info = litellm.get_model_info(model)
        return provider in MARKED and bool(info.get("supports_prompt_caching"))
    except Exception:  # noqa: BLE001  # as above
        return False


def usual_tokens(model: str) -> int:
    """Return the assumed maximum length of an answer in tokens if its cost is limited."""
    thinks = False
    with suppress(Exception):  # as above
        thinks = provider_of(model) not in OLLAMA and litellm.supports_reasoning(model)
    # an answer that ends within its reasoning, of any length, costs money and contains no program
    return 32_768 if thinks else USUAL_TOKENS


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
    """Return a count that some servers omit, 0 by default."""
    return read_count(getattr(getattr(counts, details, None), name, None)) or 0


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _number(pattern: re.Pattern[str], text: str) -> int:
    """Return the number that a pattern finds in an error message, or 0."""
    found = pattern.search(text.replace(",", ""))
    return int(next(filter(None, found.groups()))) if found else 0
