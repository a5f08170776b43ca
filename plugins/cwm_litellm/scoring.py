"""Score texts as answers by log-probabilities that a server echoes with the prompt.

A chat endpoint returns log-probabilities of its own output only. A completions endpoint that echoes
its prompt returns them for any text: conversation and answer are formatted as one prompt, no tokens
are generated, and the tokens of the answer are found by their offsets. The server of llama.cpp
does not echo, but supports grammars and returns the probability of each token among all tokens:
there a grammar forces the model to write the answer.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
from openai import OpenAIError

from cwm_cli.data.reading import UnreadableError, parse_json, read_text
from cwm_cli.errors import CwmError
from cwm_cli.search import threads
from cwm_cli.search.contracts import Message, Request, ScoreRequest, Usage, total
from cwm_cli.search.spending import RateLimit
from cwm_litellm.asking import usage_of
from cwm_litellm.failures import Kind, classify, explain, refusal_text
from cwm_litellm.library import load
from cwm_litellm.limits import ScoringState
from cwm_litellm.models import listed
from cwm_litellm.retrying import Patience
from cwm_litellm.transport import begin_attempt

litellm = load()

PLAIN = "plain"
"""The name of the format without special tokens."""

ROUNDED = 1e-3
"""Higher values than 0 up to this are rounding errors of half precision."""

UNLIKELY, CERTAIN = "Blue seven, quickly; under (of) a 1403 yes.", -5.0
"""An unlikely text for any model, and a log-probability that it exceeds only if the server does not
count other texts."""

SYSTEM, USER, ANSWER = "(what it is about)", "(what is asked)", "(what is answered)"
"""Contents of messages that reveal a format: they are searched in the output of a template."""

NO_ECHO = re.compile(r"\b(?:echo|log_?probs?)\b", re.IGNORECASE)
"""Words in errors of servers that cannot echo; llama.cpp uses the status of a crash."""

_lock = threading.Lock()


class NoEchoError(Exception):
    """The server returns no log-probabilities of given texts."""


class Format(NamedTuple):
    """The text that a chat template adds around the parts of a conversation.

    The answer begins with `header`, which starts an assistant's turn, and ends with `closing`, the
    end-of-turn mark, because the end of a text has a probability as well. If the template has no
    system message, `middle` is None and the user message contains the system text. `complete` means
    that the format includes the mark at the start of every prompt.
    """

    opening: str = ""
    middle: str | None = "\n\n"
    asked: str = "\n\n"
    header: str = ""
    closing: str = "\n"
    complete: bool = False

    def prompt(self, messages: Sequence[Message]) -> str:
        """Format a conversation. Turns after the system message are joined into one user turn."""
        first = messages[0].role == "system" and len(messages) > 1
        system = messages[0].content.strip() if first else ""
        user = "\n\n".join(message.content.strip() for message in messages[first:])
        if self.middle is None:
            return f"{self.opening}{system}\n\n{user}{self.asked}"
        return f"{self.opening}{system}{self.middle}{user}{self.asked}"

    def answer(self, text: str) -> str:
        """Format an answer."""
        return f"{self.header}{text.strip()}{self.closing}"

    @classmethod
    def learned(cls, word: Callable[[list[dict[str, str]]], str]) -> Self:
        """Learn a format from the output of a template for known messages."""
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": USER},
            {"role": "assistant", "content": ANSWER},
        ]
        try:
            asked, whole = word(messages[:2]), word(messages)
        except CwmError:  # Gemma's has no system message
            asked, whole = word(messages[1:2]), word(messages[1:])
        opening, known, rest = whole.rpartition(SYSTEM)
        middle, _, rest = rest.partition(USER)
        between, found, closing = rest.partition(ANSWER)
        if not found:
            raise CwmError("the chat template omits messages: add -o template=plain")
        end = asked.rpartition(USER)[2]  # of the user's turn; the header follows
        if not between.startswith(end):  # the prompt ends with a mark of its own
            turn = word(messages[2:]).partition(ANSWER)[0]
            places = range(len(between) + 1)
            end = next(between[:n] for n in places if turn.endswith(between[n:]))
        header = between[len(end) :]
        if not known:
            return cls(middle, None, end, header, closing, complete=True)
        return cls(opening, middle, end, header, closing, complete=True)

    @classmethod
    def before_answers(cls, word: Callable[[list[dict[str, str]]], str]) -> Self:
        """Learn the format of a prompt up to the start of its answer."""
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
        opening, _, rest = word(messages).rpartition(SYSTEM)
        middle, found, asked = rest.partition(USER)
        if not found:
            raise CwmError("the chat template omits messages: add -o template=plain")
        return cls(opening, middle, asked, "", "")


@dataclass
class TextScorer:
    """Scores texts with a server, in concurrent batches."""

    model: str
    settings: Mapping[str, Any]
    patience: Patience
    rate: RateLimit
    known: ScoringState
    timeout: float
    batch: int
    in_flight: int

    def probe(self, template: str) -> bool:
        """Return whether the server can score texts; learn its method and its chat format."""
        known, api_base = self.known, address(self.model, self.settings.get("api_base"))
        if completions_model(self.model, api_base) is None:
            return False
        known.forced, known.format = False, format_of(template, api_base, self.model)
        messages = (Message(role="user", content="Say that the door opens."),)
        probe = [ScoreRequest(messages, "The door opens.")]
        for known.generated in (0, 1):
            try:
                self.score(probe)
            except NoEchoError:
                continue
            return True
        known.forced = True
        known.format = format_of(template, api_base, self.model, forced=True)
        try:  # whether the grammar is obeyed, and forced tokens do not count as certain
            return sum(self.score([ScoreRequest(messages, UNLIKELY)])[0]) < CERTAIN
        except NoEchoError:
            return False

    def score(self, requests: Sequence[ScoreRequest]) -> list[list[float]]:
        """Return the log-probability of each token of each text. Equal prompts are sent once.

        A text that answers a `Request` is scored without the end-of-turn mark.
        """
        chat_format = self.known.format
        asked = [
            (chat_format.prompt(each.messages) + chat_format.header, each.text)
            if isinstance(each.question, Request)
            else (chat_format.prompt(each.messages), chat_format.answer(each.text))
            for each in requests
        ]
        found: dict[tuple[str, str], list[float]] = {}
        try:
            for pairs, scores in self._run_batches(self._split(dict.fromkeys(asked))):
                found.update(zip(pairs, scores, strict=True))
        except NoEchoError:
            if self.known.can is None:
                raise
            raise CwmError(
                f"{self.model} returned no log-probabilities for this text, but did before: "
                "try again "
                "later, or use another --statistician"
            ) from None
        return [found[pair] for pair in asked]

    def _split(self, pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
        """Split texts into requests that are small enough for the server and the limits."""
        batch: list[tuple[str, str]] = []
        size = 0
        # Maximum length of the prompts in a request. Each token returns about 120 bytes, and
        # responses may have 4 MB.
        max_characters = 60_000
        for pair in pairs:
            length = sum(map(len, pair))
            most = 1 if self.known.forced else self.batch
            if batch and (len(batch) >= most or size + length > max_characters):
                yield batch
                batch, size = [], 0
            batch.append(pair)
            size += length
        if batch:
            yield batch

    def _run_batches(
        self, batches: Iterator[list[tuple[str, str]]]
    ) -> Iterator[tuple[list[tuple[str, str]], list[list[float]]]]:
        """Yield batches in order with their results; `in_flight` requests run at a time."""
        flying: list[tuple[list[tuple[str, str]], Future[list[list[float]]]]] = []
        for batch in batches:
            flying.append((batch, threads.submit(partial(self._score_batch, batch))))
            if len(flying) >= self.in_flight:
                first, future = flying.pop(0)
                yield first, future.result()
        for batch, future in flying:
            yield batch, future.result()

    def _score_batch(self, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        """Send one request, with retries after temporary failures."""
        attempts = self.patience.attempts()
        start = time.perf_counter()
        try:
            response = attempts(self._request_scores, pairs)
        except (OpenAIError, TimeoutError) as error:
            raise explain(error, self.model, attempts.statistics["attempt_number"]) from None
        if response is None:
            raise NoEchoError
        usage, seconds = usage_of(self.model, response), time.perf_counter() - start
        took = Usage(usage.prompt_tokens, usage.completion_tokens, usage.cost, seconds)
        with _lock:  # several threads send requests
            self.known.usage = total([self.known.usage, took])
        choices = sorted(response.choices or (), key=lambda choice: choice.index or 0)
        if len(choices) != len(pairs):
            raise NoEchoError
        if self.known.forced:
            return [written(choices[0], pairs[0][1])]
        made = self.known.generated
        if usage.prompt_tokens:  # the server counts, and may have generated no tokens
            made = min(made, usage.completion_tokens // len(pairs))
        return [
            window(choice.logprobs, prompt, answer, made)
            for choice, (prompt, answer) in zip(choices, pairs, strict=True)
        ]

    def _request_scores(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """Send a request once; return None if the server does not support it."""
        asked = {
            **self.settings,
            "model": completions_model(self.model, address(self.model, self.settings["api_base"])),
            "logprobs": 1,
            "timeout": self.timeout,
        }
        if self.known.forced:
            prompt, answer = pairs[0]
            grammar = f"root ::= {json.dumps(answer, ensure_ascii=False)}"
            asked |= {"prompt": prompt, "max_tokens": len(answer.encode()) + 1, "temperature": 0.0}
            asked["extra_body"] = {"grammar": grammar}
        else:
            asked |= {"prompt": [prompt + answer for prompt, answer in pairs], "echo": True}
            asked["max_tokens"] = self.known.generated
            if self.known.format.complete:
                asked["extra_body"] = {"add_special_tokens": False}

        def ask() -> Any:
            begin_attempt(time.monotonic() + self.timeout)
            return litellm.text_completion(**asked)

        def expected() -> int:
            text = "".join(map("".join, pairs))
            made = len(pairs) * (0 if self.known.forced else self.known.generated)
            return int(litellm.token_counter(self.model, text=text)) + made

        try:
            return self.patience.in_turn(
                self.rate, partial(threads.run_in_thread, ask, self.timeout), expected
            )
        except OpenAIError as error:
            kind = classify(error)
            refused = kind in (Kind.REFUSED, Kind.NO_MODEL)
            if self.known.can is None and (refused or NO_ECHO.search(refusal_text(error))):
                return None
            raise


def window(logprobs: Any, prompt: str, answer: str, made: int) -> list[float]:
    """Return the log-probabilities of the tokens that overlap the answer.

    The last `made` tokens are generated. Offsets may include a mark that the server added before
    the prompt, so they are aligned at the end of the answer.
    """
    tokens = list(getattr(logprobs, "tokens", None) or ())
    values = list(getattr(logprobs, "token_logprobs", None) or ())
    lengths = [len(str(token)) for token in tokens]
    starts = getattr(logprobs, "text_offset", None) or [*accumulate(lengths, initial=0)][:-1]
    last = len(tokens) - made
    if not len(values) == len(starts) == len(tokens) > made or sum(lengths) < len(answer):
        raise NoEchoError
    shift = starts[last - 1] + lengths[last - 1] - len(prompt) - len(answer)
    ends = [*starts[1:last], len(prompt) + len(answer) + shift]
    found = [values[i] for i in range(last) if ends[i] - shift > len(prompt)]
    if not found or not all(isinstance(each, int | float) and each <= ROUNDED for each in found):
        raise NoEchoError  # NaN is not below 0 either
    return [min(0.0, each) for each in found]


def written(choice: Any, answer: str) -> list[float]:
    """Return the log-probabilities of the tokens of an answer that a grammar forced."""
    tokens = getattr(choice.logprobs, "content", None) or ()
    try:
        values = [float(token["logprob"]) for token in tokens]
    except (KeyError, TypeError, ValueError):
        raise NoEchoError from None
    if choice.text != answer or not values or not all(each <= ROUNDED for each in values):
        raise NoEchoError
    return [min(0.0, each) for each in values]


def address(model: str, api_base: str | None) -> str | None:
    """Return the address of the user's server, None for a hosted model."""
    if api_base is not None:
        return api_base
    names = {"hosted_vllm": ["HOSTED_VLLM_API_BASE"]}
    provider = model.partition("/")[0]
    here = names.get(provider, ["OPENAI_BASE_URL", "OPENAI_API_BASE"] * (provider == "openai"))
    return next(filter(None, map(os.environ.get, here)), None)


def completions_model(model: str, api_base: str | None) -> str | None:
    """Return LiteLLM's model name for completions of prompts, None if there is none.

    With any other name, LiteLLM would send a paid chat request that returns no usable result.
    """
    try:
        name, provider, *_ = litellm.get_llm_provider(model, api_base=api_base)
    except litellm.BadRequestError:
        return None
    if provider == "openai":
        hosted = api_base is None and listed(name).get("mode") == "chat"
        return None if hosted else f"text-completion-openai/{name}"
    # providers, by LiteLLM's names, with a completions endpoint that can echo log-probabilities
    echoing = ("hosted_vllm", "llamafile", "text-completion-openai", "together_ai", "fireworks_ai")
    return model if provider in echoing else None


def format_of(template: str, api_base: str | None, model: str, *, forced: bool = False) -> Format:
    """Return the chat format: the user's template, the server's, or a plain one."""
    if template and template != PLAIN:
        known = Format.learned(_read_template(Path(template)))
        return (
            known._replace(asked=known.asked + known.header, header="", closing="")
            if forced
            else known
        )
    if template or api_base is None:
        return Format(closing="" if forced else "\n")
    root = api_base.rstrip("/").removesuffix("/v1")
    try:
        if forced:
            return Format.before_answers(
                lambda messages: _post(root, "/apply-template", messages=messages)["prompt"]
            )
        return Format.learned(_server_formatter(root, model))
    except (CwmError, httpx.HTTPError, ValueError, KeyError, TypeError):
        return Format(closing="" if forced else "\n")


def _post(root: str, path: str, **body: Any) -> Any:
    """Send a request that needs no model."""
    # timeout in seconds of a server that formats messages, which needs no model
    short_timeout = 10.0
    begin_attempt(time.monotonic() + short_timeout)
    response = litellm.client_session.post(root + path, json=body, timeout=short_timeout)
    if response.status_code == httpx.codes.BAD_REQUEST:
        raise CwmError("the server cannot format this conversation")
    return response.raise_for_status().json()


def _server_formatter(root: str, model: str) -> Callable[[list[dict[str, str]]], str]:
    """Return a function that formats conversations on a vLLM server, as tokens and back as text."""
    name = model.partition("/")[2] or model

    def word(messages: list[dict[str, str]]) -> str:
        asked = {"messages": messages, "add_generation_prompt": False}
        found = _post(root, "/tokenize", model=name, **asked)
        return str(_post(root, "/detokenize", model=name, tokens=found["tokens"])["prompt"])

    return word


def _read_template(file: Path) -> Callable[[list[dict[str, str]]], str]:
    """Return a function that formats conversations by a Jinja file or a tokenizer's JSON."""
    from jinja2 import TemplateError

    marks: dict[str, str] = {}
    try:
        text = read_text(file)
        if file.suffix == ".json":
            settings = parse_json(text, values=len(text))  # tokenizers list many words
            text = settings["chat_template"]
            for name in ("bos_token", "eos_token"):
                mark = settings.get(name) or ""
                marks[name] = mark["content"] if isinstance(mark, dict) else mark
        return rendering(text, **marks)
    except (
        UnreadableError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        TemplateError,
    ) as error:
        reason = getattr(error, "reason", error)
        raise CwmError(f"{file} is not a chat template ({reason}): give a Jinja template") from None


def rendering(template: str, **marks: str) -> Callable[[list[dict[str, str]]], str]:
    """Return a function that formats conversations by a chat template in Jinja."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(words: str) -> None:
        raise CwmError(f"the chat template rejects a conversation: {words}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": refuse, "bos_token": "", "eos_token": "", **marks}
    compiled = environment.from_string(template)

    def word(messages: list[dict[str, str]]) -> str:
        try:
            return str(compiled.render(messages=messages, add_generation_prompt=False))
        except TemplateError as error:
            raise CwmError(f"the chat template cannot be filled in ({error})") from None

    return word
