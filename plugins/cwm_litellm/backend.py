"""The `litellm` backend; LiteLLM is imported when first asked, and neither speaks nor fetches."""

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Backend, Completion, Request, Usage
from cwm_litellm.models import check_model, check_price

OFFLINE = ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS")
LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")

_lock = threading.Lock()


def check() -> None:
    """Say how to install LiteLLM if it is missing, without the time that importing it takes."""
    if not all(map(find_spec, ("litellm", "tenacity"))):
        raise CwmError("language models need an extra: pip install 'cwm-cli[llm]'")


def load() -> Any:
    """Return LiteLLM, imported and quiet.

    It takes three seconds, so it is only loaded when a model is called.
    """
    with _lock:
        return _load()


@cache
def _load() -> Any:
    """Import LiteLLM."""
    for variable in OFFLINE:
        os.environ.setdefault(variable, "True")
    import litellm

    _silence(litellm)
    return litellm


def _silence(litellm: Any) -> None:
    """Keep it from printing over the live view and from fetching tokenizers."""
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_hf_tokenizer_download = True
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
    warnings.filterwarnings("ignore", category=UserWarning, module="pydantic")


NOT_IDENTITY = {"identity": False}
"""A run may be continued with another value of such a field."""


@dataclass(frozen=True)
class LiteLLM(Backend):
    """Any model LiteLLM can name, such as `openai/gpt-4o-mini` or `ollama/llama3`.

    Parameters that a model does not know are left out.
    """

    needs_model = True

    model: str
    api_base: str | None = field(default=None, metadata=NOT_IDENTITY)
    """Address of the model's server (`--api-base`)."""
    temperature: float = 1.0
    """Sampling temperature (`--temperature`)."""
    top_p: float | None = None
    """Share of the probability that tokens are drawn from."""
    top_k: int | None = None
    """How many of the likeliest tokens are drawn from."""
    max_tokens: int = 4096
    """Most tokens of an answer."""
    timeout: float = field(default=300.0, metadata=NOT_IDENTITY)
    """Seconds after which an attempt is given up."""
    retries: int = field(default=6, metadata=NOT_IDENTITY)
    """Attempts after the first, where a failure may pass."""
    backoff: float = field(default=1.0, metadata=NOT_IDENTITY)
    """Seconds before the second attempt, doubled before each further one."""
    longest_wait: float = field(default=60.0, metadata=NOT_IDENTITY)
    """Most seconds between two attempts."""

    def __post_init__(self) -> None:
        check()

    def ready(self, max_cost: float | None = None) -> None:
        """Refuse a model that there is not, that has no key, or under a limit no known price."""
        check_model(self.model, self.api_base)
        if max_cost is not None:
            check_price(self.model)

    def complete(self, request: Request) -> Completion:
        """Ask the model, again after failures that may pass."""
        litellm = load()
        start = time.perf_counter()
        response = self._ask(litellm, request)
        seconds = time.perf_counter() - start
        text = response.choices[0].message.content if response.choices else None
        return Completion(text or "", self._usage(litellm, response, seconds))

    def worst_cost(self, request: Request) -> float | None:
        """Return the price of the prompt and of as many tokens as the model may write."""
        litellm = load()
        counts = {
            "prompt_tokens": litellm.token_counter(self.model, messages=_messages(request)),
            "completion_tokens": self.max_tokens,
        }
        return _dollars(lambda: sum(litellm.cost_per_token(self.model, **counts)))

    def _usage(self, litellm: Any, response: Any, seconds: float) -> Usage:
        """Return what the answer took; a server that counts no tokens leaves the cost unknown."""
        counts = response.usage
        cost = _dollars(lambda: litellm.completion_cost(response, model=self.model))
        return Usage(
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            cost=cost if counts.prompt_tokens else None,
            seconds=seconds,
        )

    def _ask(self, litellm: Any, request: Request) -> Any:
        """Return LiteLLM's response, or raise what the user can do about there being none."""
        from openai import OpenAIError  # what all of LiteLLM's errors derive from

        from cwm_litellm.failures import Patience, explain

        attempts = Patience(self.retries, self.backoff, self.longest_wait).attempts()
        try:
            return attempts(litellm.completion, **self._arguments(request))
        except OpenAIError as error:
            raise explain(error, self.model, attempts.statistics["attempt_number"]) from None

    def _arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments of LiteLLM's `completion`; its own retries are off."""
        sampling = {"top_p": self.top_p, "top_k": self.top_k, "api_base": self.api_base}
        return {
            "model": self.model,
            "messages": _messages(request),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": request.seed,
            "timeout": self.timeout,
            "drop_params": True,
            "max_retries": 0,
            "num_retries": 0,
        } | {name: value for name, value in sampling.items() if value is not None}


def _messages(request: Request) -> list[dict[str, str]]:
    """Return the messages as LiteLLM takes them."""
    return [message.model_dump() for message in request.messages]


def _dollars(price: Callable[[], float]) -> float | None:
    """Return a price, or None where LiteLLM does not know it."""
    try:
        return float(price())
    except Exception:  # noqa: BLE001  # LiteLLM raises bare exceptions for unknown prices
        return None
