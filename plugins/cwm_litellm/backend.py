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
    from cwm_litellm.scoring import Weigher

_probing = threading.Lock()


NOT_IDENTITY = {"identity": False}
"""A run may be continued with another value of such a field."""


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
    """Share of the probability that tokens are drawn from."""
    top_k: int | None = None
    """How many of the likeliest tokens are drawn from."""
    max_tokens: int | None = None
    """Most tokens of an answer; without it as many as the model writes."""
    reasoning_effort: str | None = None
    """How much a model thinks before it answers, where it can be told: `low`, `medium`, `high`, or
    what else its provider knows."""
    context: int | None = field(default=None, metadata=NOT_IDENTITY)
    """Tokens of prompt and answer together that Ollama is asked to hold; without it at least 16384,
    and more where a prompt needs them. What is longer it cuts, and says nothing."""
    timeout: float = field(default=600.0, metadata=NOT_IDENTITY)
    """Seconds after which an attempt is given up, though its answer has begun."""
    stream: bool = field(default=False, metadata=NOT_IDENTITY)
    """Take the answer piece by piece: slower, for servers that cut connections which are idle."""
    retries: int = field(default=6, metadata=NOT_IDENTITY)
    """Attempts after the first, where a failure may pass."""
    backoff: float = field(default=1.0, metadata=NOT_IDENTITY)
    """Seconds before the second attempt, doubled before each further one."""
    longest_wait: float = field(default=60.0, metadata=NOT_IDENTITY)
    """Most seconds between two attempts."""
    requests_per_minute: float | None = field(default=None, metadata=NOT_IDENTITY)
    """How often the provider is asked at most, by all searches and jobs together."""
    tokens_per_minute: float | None = field(default=None, metadata=NOT_IDENTITY)
    """How many tokens it is given and asked for at most, by all of them together."""
    spans: str | None = field(default=None, metadata=NOT_IDENTITY)
    """Address of a collector of OpenTelemetry, such as http://localhost:4318, that a span of each
    request is sent to, without what is asked and answered."""
    template: str = ""
    """Chat template that texts are weighed with, where a server echoes log-probabilities: a file in
    Jinja, a tokenizer's JSON, or `plain`; without it the server's own, or a plain one."""
    batch: int = field(default=16, metadata=NOT_IDENTITY)
    """How many texts one request weighs at most."""
    in_flight: int = field(default=4, metadata=NOT_IDENTITY)
    """How many such requests are in flight."""
    votes: int = 3
    """How often it chooses among what may follow, where the server echoes no log-probabilities."""
    _fit: ModelLimits = field(default_factory=ModelLimits, init=False, repr=False, compare=False)
    _weighing: ScoringState = field(
        default_factory=ScoringState, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check(missing_key(self.model.partition("/")[0], self.api_base))
        if self.spans:
            spans.check()

    def ready(self, max_cost: float | None = None) -> None:
        """Refuse a model that there is not, that has no key, or under a limit no known price."""
        check_model(self.model, self.api_base)
        if max_cost is not None:
            check_price(self.model)

    def complete(self, request: Request) -> Completion:
        """Ask the model, again after failures that may pass."""
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
        ).answered()

    def _rate(self) -> RateLimit:
        """Return how often the provider may be asked."""
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
        """Return the price of the prompt and of as many tokens as a usual answer has at most."""
        load()
        from cwm_litellm.asking import most_output, prices, usual_tokens

        if (cost := prices(self.model, request.messages)) is None:
            return None
        usual = usual_tokens(self.model)
        usual = min(most_output(self.model) or usual, usual)
        return cost.prompt + cost.token * (self.max_tokens or usual)

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return what so many tokens cost at list price, without the time of importing LiteLLM."""
        return price(self.model, prompt_tokens, completion_tokens)

    def answer_length(self) -> AnswerLength:
        """Return how many tokens an answer of the model has, thinking included."""
        return answer_length(self.model, self.max_tokens)

    @property
    def can_score(self) -> bool:  # type: ignore[override]  # a server has to be asked
        """Whether the server tells log-probabilities of any text; it is asked once."""
        with _probing:
            if self._weighing.can is None:
                self._weighing.can = self._weigher().find_out(self.template)
            return self._weighing.can

    @property
    def weighed(self) -> Usage:
        """What weighing texts took so far."""
        return self._weighing.usage

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Weigh texts by what the server echoes, many at a time."""
        if not self.can_score:
            raise CwmError(
                f"{self.model} returns no log-probabilities of prompts: give the --api-base of a "
                "server that returns them, such as vLLM"
            )
        return self._weigher().weighed(requests)

    def _weigher(self) -> "Weigher":
        """Return what weighs texts with the server."""
        load()
        from cwm_litellm.retrying import Patience
        from cwm_litellm.scoring import Weigher

        return Weigher(
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
        """Return the arguments of LiteLLM's `completion` that all questions share."""
        sampling = {
            "top_p": self.top_p,
            "top_k": self.top_k,
            "api_base": self._address(),
            "reasoning_effort": self.reasoning_effort,
        }
        return {
            "temperature": self.temperature,
            "drop_params": True,
            "max_retries": 0,  # its own
            "num_retries": 0,
        } | {name: value for name, value in sampling.items() if value is not None}
