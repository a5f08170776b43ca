"""The `litellm` backend."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from cwm_cli.credentials import without_credentials
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import (
    AnswerLength,
    Backend,
    Completion,
    Request,
    ScoreRequest,
    Usage,
)
from cwm_cli.search.spending import RateLimit
from cwm_litellm import spans
from cwm_litellm.library import check, load
from cwm_litellm.limits import ModelLimits, ScoringState
from cwm_litellm.models import (
    address_in_environment,
    answer_length,
    check_model,
    check_price,
    missing_key,
    price,
    provider_of,
)

if TYPE_CHECKING:
    from cwm_litellm.scoring import TextScorer

_probing = threading.Lock()


NOT_IDENTITY = {"identity": False}
"""Metadata of fields that may change when a run continues."""


@dataclass(frozen=True)
class LiteLLM(Backend):
    """Any model LiteLLM can name, such as `openai/gpt-4o-mini` or `ollama/llama3`.

    Parameters that a model does not know are left out.
    """

    needs_model = True
    takes_help = True
    is_language_model = True

    model: str
    api_base: str | None = field(default=None, metadata=NOT_IDENTITY, repr=False)
    """Address of the model's server (`--api-base`)."""
    temperature: float = 1.0
    """Sampling temperature (`--temperature`)."""
    top_p: float | None = None
    """Nucleus sampling: draw tokens from this share of the probability."""
    top_k: int | None = None
    """Draw tokens from this number of most likely tokens."""
    max_tokens: int | None = None
    """Maximum number of tokens in an answer. none: no limit."""
    reasoning_effort: str | None = None
    """Reasoning effort, for models with this setting: `low`, `medium`, `high`, or another value
    that the provider accepts."""
    context: int | None = field(default=None, metadata=NOT_IDENTITY)
    """Context length in tokens (prompt and answer) that Ollama is asked for. none: at least 16384,
    more if a prompt needs it. Ollama cuts longer prompts without a warning."""
    timeout: float = field(default=600.0, metadata=NOT_IDENTITY)
    """Timeout of an attempt in seconds, also if the answer has begun."""
    stream: bool = field(default=False, metadata=NOT_IDENTITY)
    """Stream the answer. This is slower, but some servers close idle connections."""
    retries: int = field(default=6, metadata=NOT_IDENTITY)
    """Number of further attempts after a failure that may be temporary."""
    backoff: float = field(default=1.0, metadata=NOT_IDENTITY)
    """Seconds before the second attempt; doubled for each further attempt."""
    longest_wait: float = field(default=60.0, metadata=NOT_IDENTITY)
    """Maximum time between two attempts in seconds."""
    requests_per_minute: float | None = field(default=None, metadata=NOT_IDENTITY)
    """Maximum number of requests per minute, for all searches and jobs together."""
    tokens_per_minute: float | None = field(default=None, metadata=NOT_IDENTITY)
    """Maximum number of tokens per minute, sent and requested, for all searches and jobs
    together."""
    spans: str | None = field(default=None, metadata=NOT_IDENTITY)
    """Address of an OpenTelemetry collector, such as http://localhost:4318. It gets a span for each
    request, without prompts and answers."""
    template: str = ""
    """Chat template for scoring texts, if a server returns the log-probabilities of the prompt: a
    Jinja file, a tokenizer's JSON, or `plain`. Default: the server's template, else a plain one."""
    batch: int = field(default=16, metadata=NOT_IDENTITY)
    """Maximum number of texts to score in one request."""
    in_flight: int = field(default=4, metadata=NOT_IDENTITY)
    """Maximum number of scoring requests at the same time."""
    votes: int = 3
    """Number of times that the model chooses among the possible outcomes if the server does not
    return the log-probabilities of the prompt."""
    _fit: ModelLimits = field(default_factory=ModelLimits, init=False, repr=False, compare=False)
    _weighing: ScoringState = field(
        default_factory=ScoringState, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check(missing_key(self.model.partition("/")[0], self.api_base))
        if self.spans:
            spans.check()

    def ready(self, max_cost: float | None = None) -> None:
        """Reject an unknown model, a missing key and, with `max_cost`, an unknown price."""
        check_model(self.model, self.api_base)
        if max_cost is not None:
            check_price(self.model)

    def complete(self, request: Request) -> Completion:
        """Request an answer from the model, with retries after temporary failures."""
        if request.weighed and (self.temperature, self.top_p or 1.0, self.top_k) != (
            1.0,
            1.0,
            None,
        ):
            raise CwmError(
                "proposals are weighed by log-probabilities, which servers return for "
                "temperature 1: "
                "leave out --temperature, top_p and top_k"
            )
        litellm = load()
        if self.spans:
            spans.send(litellm, self.spans)
        from cwm_litellm.asking import Question
        from cwm_litellm.retrying import Patience

        return Question(
            self.model,
            request,
            settings=self._settings(),
            patience=Patience(self.retries, self.backoff, self.longest_wait),
            fit=self._fit,
            timeout=self.timeout,
            most_tokens=self.max_tokens,
            stream=self.stream,
            context=self.context,
            rate=self._rate(),
        ).answer()

    def _rate(self) -> RateLimit:
        """Return the rate limit of the provider."""
        for name in ("requests_per_minute", "tokens_per_minute"):
            if (most := getattr(self, name)) is not None and not 0 < most < inf:
                raise CwmError(f"{name} is {most}: it must be above 0")
        provider = provider_of(self.model) or self.model
        if self.api_base:
            provider = f"{provider} at {without_credentials(self.api_base)}"
        return RateLimit(provider, self.requests_per_minute, self.tokens_per_minute)

    def _address(self) -> str | None:
        """Return the address of the server without credentials, which the transport adds.

        None leaves the address to LiteLLM.
        """
        from cwm_litellm.transport import without_credentials_of

        if self.api_base is not None:
            return without_credentials_of(self.api_base)
        chosen = address_in_environment(self.model)
        bare = without_credentials_of(chosen) if chosen else None
        return None if bare == chosen else bare

    def worst_cost(self, request: Request) -> float | None:
        """Return the price of the prompt and of the longest usual answer, in US dollars."""
        load()
        from cwm_litellm.asking import most_output, prices, usual_tokens

        if (cost := prices(self.model, request.messages)) is None:
            return None
        usual = usual_tokens(self.model)
        usual = min(most_output(self.model) or usual, usual)
        return cost.prompt + cost.token * (self.max_tokens or usual)

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the list price of a number of tokens, without importing LiteLLM."""
        return price(self.model, prompt_tokens, completion_tokens)

    def answer_length(self) -> AnswerLength:
        """Return the number of tokens of the model's answers, reasoning included."""
        return answer_length(self.model, self.max_tokens)

    @property
    def can_score(self) -> bool:  # type: ignore[override]  # the server has to be queried
        """Whether the server returns log-probabilities of any text, tested once."""
        with _probing:
            if self._weighing.can is None:
                self._weighing.can = self._text_scorer().probe(self.template)
            return self._weighing.can

    @property
    def weighed(self) -> Usage:
        """The usage of scoring texts so far."""
        return self._weighing.usage

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Score texts by their log-probabilities, several per request."""
        if not self.can_score:
            raise CwmError(
                f"{self.model} returns no log-probabilities of prompts: give the --api-base of a "
                "server that returns them, such as vLLM"
            )
        return self._text_scorer().score(requests)

    def _text_scorer(self) -> "TextScorer":
        """Return a scorer of texts that uses the server."""
        load()
        from cwm_litellm.retrying import Patience
        from cwm_litellm.scoring import TextScorer

        return TextScorer(
            self.model,
            settings={"api_base": self._address(), "max_retries": 0, "num_retries": 0},
            patience=Patience(self.retries, self.backoff, self.longest_wait),
            rate=self._rate(),
            known=self._weighing,
            timeout=self.timeout,
            batch=self.batch,
            in_flight=self.in_flight,
        )

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of LiteLLM's `completion` that all requests share."""
        sampling = {
            "top_p": self.top_p,
            "top_k": self.top_k,
            "api_base": self._address(),
            "reasoning_effort": self.reasoning_effort,
        }
        return {
            "temperature": self.temperature,
            "drop_params": True,
            "max_retries": 0,  # this package retries itself
            "num_retries": 0,
        } | {name: value for name, value in sampling.items() if value is not None}
