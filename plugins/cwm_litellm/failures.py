"""What a failed request means: whether and when to ask again, and what to tell the user."""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from json import JSONDecodeError
from typing import Any, TypeVar

import httpx
import litellm
from openai import OpenAIError  # what all of LiteLLM's errors derive from
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    wait_exponential,
    wait_random,
)

from cwm_cli.search.contracts import UnansweredError, unheard
from cwm_cli.search.spending import RateLimit
from cwm_cli.text import clean
from cwm_litellm.models import hint
from cwm_litellm.transport import LateError, TooManyBytesError

E = TypeVar("E", bound=BaseException)

LEAST_LOGGED = 0.1
"""Seconds of waiting for a turn below which nothing is said."""


class Kind(StrEnum):
    """Why a request failed, with what the user is told about it."""

    NO_KEY = "no key for {provider}: set {keys}"
    WRONG_KEY = "{provider} refused the key: check {keys}"
    NO_PROVIDER = "unknown model {model!r}: {hint}"
    NO_MODEL = "{provider} has no model {name!r}: check --model (and --api-base, if given)"
    NO_CREDIT = "the quota of {provider} is exhausted: add credit or choose another model"
    TOO_LONG = (
        "the prompt is too long for {model}, even when it is shortened:"
        " choose a model with a longer context"
    )
    REFUSED = "{provider} refused the request ({reason}): change the model or the option it names"
    UNREACHABLE = "no connection to {address} ({reason}): check the network and --api-base"
    TIMEOUT = (
        "{model} gave no answer in time, {attempts} times:"
        " raise -o timeout=SECONDS or try again later"
    )
    RATE_LIMIT = (
        "{provider} still limits the rate after {attempts} attempts:"
        " lower --parallel or try again later"
    )
    FILTERED = "the content filter of {provider} refused the prompt ({reason})"
    UNPAYABLE = "another attempt might cost more than --max-cost leaves"
    OVERSIZED = "the answer was longer than any program, and not taken as a whole"
    BROKEN = "{provider} still fails after {attempts} attempts ({reason}): try again later"


TRANSIENT = frozenset({Kind.UNREACHABLE, Kind.TIMEOUT, Kind.RATE_LIMIT, Kind.BROKEN})


class UnpayableError(Exception):
    """The next attempt might cost more than the question may."""


ANSWERS = frozenset({Kind.FILTERED, Kind.OVERSIZED, Kind.UNPAYABLE})
"""What is recorded as the answer that it is, for the next question may fare better."""

LESS_OFTEN = {Kind.UNREACHABLE: 2, Kind.TIMEOUT: 2}
"""Retries at most, however many are allowed: where nobody listens asking again rarely helps, and
an answer that comes too late is paid for each time."""

LONG_WORDS = re.compile(
    r"context[ _](?:length|window|size|limit)|prompt is too long|input token count", re.IGNORECASE
)
"""How servers say that a prompt is too long where LiteLLM does not see it."""

FILTER_WORDS = re.compile(
    r"content[_ ](?:filter|policy|management)|response was filtered|safety system", re.IGNORECASE
)

BY_STATUS = {
    401: Kind.WRONG_KEY,
    402: Kind.NO_CREDIT,
    404: Kind.NO_MODEL,
    408: Kind.TIMEOUT,
    429: Kind.RATE_LIMIT,
}


def classify(error: BaseException) -> Kind:
    """Tell why a request failed.

    LiteLLM reports a missing key, a refused connection and a truncated answer
    all as an internal server error, so their causes decide.
    """
    return _unsent(error) or _unanswered(error) or _refused(error)


def is_transient(error: BaseException) -> bool:
    """Tell whether asking again may help."""
    return classify(error) in TRANSIENT


def may_be_charged(error: BaseException) -> bool:
    """Tell whether a request may have been answered, and charged, though no answer came here.

    A server that says what is wrong has not answered; one that falls silent after it was reached
    may have.
    """
    kind = classify(error)
    if kind is Kind.BROKEN:
        broken = _cause(error, httpx.TransportError) or _cause(error, JSONDecodeError)
        return broken is not None
    return kind in (Kind.TIMEOUT, Kind.OVERSIZED)


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that the server asked to wait, given as a number or as a date."""
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    headers = (getattr(response, "headers", {}) for response in responses)
    value = next((h["retry-after"] for h in headers if "retry-after" in h), None)
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        return _seconds_until(value)


def explain(
    error: BaseException, model: str, attempts: int, cost: float | None = None
) -> UnansweredError:
    """Make an error of what happened and what to do; asking may have cost so many US dollars."""
    return UnansweredError(words_of(error, model, attempts), cost)


def words_of(error: BaseException, model: str, attempts: int) -> str:
    """Say in one line what happened and what to do, without a key."""
    kind = classify(error)
    provider = _provider(model)
    missing = _missing_keys(model)
    if kind is Kind.WRONG_KEY and missing:
        kind = Kind.NO_KEY
    return kind.value.format(
        model=model,
        name=model.removeprefix(f"{provider}/"),
        provider=provider,
        hint=hint(model),
        keys=missing or _present_key(provider),
        attempts=attempts,
        address=_address(error),
        reason=_reason(error),
    )


def brief(error: BaseException) -> str:
    """Say in a few words what a failure was, for the log: what a model or its server did."""
    kind, status = classify(error), getattr(error, "status_code", None)
    match kind:
        case Kind.RATE_LIMIT:
            return "limits the rate"
        case Kind.TIMEOUT:
            return "gave no answer in time"
        case Kind.UNREACHABLE:
            return f"is not to be reached ({_reason(error)})"
        case Kind.REFUSED:
            return f"refused the request ({_reason(error)})"
    code = f"{status}: " if status and not _cause(error, httpx.TransportError) else ""
    return f"failed ({code}{_reason(error)})"


def _unsent(error: BaseException) -> Kind | None:
    """Recognise what failed before anything was sent."""
    if isinstance(error, TimeoutError):
        return Kind.TIMEOUT
    if isinstance(error, UnpayableError):
        return Kind.UNPAYABLE
    if "LLM Provider NOT provided" in str(error):
        return Kind.NO_PROVIDER
    if _cause(error, httpx.HTTPError) or _cause(error, JSONDecodeError):
        return None
    if re.search(r"credential|api.?key", str(error), re.IGNORECASE):
        return Kind.NO_KEY
    return Kind.REFUSED if any(type(cause) is ValueError for cause in _causes(error)) else None


def _unanswered(error: BaseException) -> Kind | None:
    """Recognise what failed for want of a whole answer."""
    if _cause(error, TooManyBytesError):
        return Kind.OVERSIZED
    if _cause(error, LateError):
        return Kind.TIMEOUT
    if _cause(error, httpx.ConnectError) or _cause(error, httpx.UnsupportedProtocol):
        return Kind.UNREACHABLE
    return Kind.BROKEN if _cause(error, JSONDecodeError) else None


def _refused(error: BaseException) -> Kind:
    """Recognise what the server said."""
    if any("insufficient_quota" in str(cause) for cause in _causes(error)):
        return Kind.NO_CREDIT
    status = int(getattr(error, "status_code", None) or 500)
    long = status in (400, 413, 422) and LONG_WORDS.search(str(error))
    if long or isinstance(error, litellm.ContextWindowExceededError):
        return Kind.TOO_LONG
    filtered = status in (400, 403) and FILTER_WORDS.search(str(error))
    if filtered or isinstance(error, litellm.ContentPolicyViolationError):
        return Kind.FILTERED
    return BY_STATUS.get(status) or (Kind.BROKEN if status >= 500 else Kind.REFUSED)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _cause(error: BaseException, kind: type[E]) -> E | None:
    """Return the first cause of a kind."""
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)


def _seconds_until(date: str) -> float | None:
    """Return the seconds until an HTTP date."""
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except ValueError:
        return None


def _provider(model: str) -> str:
    """Return the name of the model's provider."""
    if "/" in model:
        return model.partition("/")[0]
    try:
        return str(litellm.get_llm_provider(model)[1])
    except litellm.BadRequestError:
        return model


def _missing_keys(model: str) -> str:
    """Return the names of the environment variables that hold no key yet."""
    missing = litellm.validate_environment(model)["missing_keys"]
    keys = [name for name in missing if "KEY" in name or "TOKEN" in name]
    alternatives = all(name.endswith("_API_KEY") for name in keys)
    return (" or " if alternatives else " and ").join(keys)


def _present_key(provider: str) -> str:
    """Return the name of the environment variable that holds the key."""
    name = f"{provider.upper()}_API_KEY"
    return name if name in os.environ else "its key in the environment"


def _address(error: BaseException) -> str:
    """Return the server that was called; a URL's path and query may hold keys."""
    cause = _cause(error, httpx.TransportError)
    try:
        url = cause.request.url if cause else None
    except RuntimeError:  # the request is not known
        url = None
    return f"{url.scheme}://{url.netloc.decode()}" if url and url.host else "the server"


def _reason(error: BaseException) -> str:
    """Return what went wrong, in one short line."""
    if _cause(error, JSONDecodeError):
        return "its answer is not JSON"
    transport = _cause(error, httpx.RequestError)
    text = str(transport or error).split("Exception - ", 1)[-1].partition("\nTraceback")[0]
    return clean(_without_keys(text), limit=160) or type(error).__name__


def _without_keys(text: str) -> str:
    """Mask what looks like a key and the keys of the environment."""
    text = re.sub(r"\bsk-[\w*-]+|(?<=key=)[^&\s]+|(?<=Bearer )\S+", "***", text)
    for name, value in os.environ.items():
        if re.search(r"KEY|TOKEN|SECRET|PASSWORD", name) and len(value) >= 8:
            text = text.replace(value, "***")
    return text


@dataclass(frozen=True)
class Patience:
    """How often and after what pauses a request is repeated."""

    retries: int
    backoff: float
    longest_wait: float

    def attempts(self, heard: Callable[[RetryCallState], None] | None = None) -> Retrying:
        """Return the loop around one request; each pause is `heard` of before it begins."""
        return Retrying(
            retry=retry_if_exception(is_transient),
            wait=self.pause,
            stop=self.exhausted,
            before_sleep=heard,
            reraise=True,
        )

    def in_turn(
        self,
        rate: RateLimit,
        ask: Callable[[], Any],
        expected: Callable[[], int],
        *,
        tell: Callable[[str], None] = unheard,
        log: Callable[[str], None] = unheard,
    ) -> Any:
        """Ask once when the provider may be asked, by all who ask it together; return the response.

        It counts with the tokens that are `expected`, where those are limited, until it says what
        it took. Where the provider says that too much is asked, or when to ask again, all pause.
        """
        tokens = expected() if rate.tokens_per_minute else 0
        seconds = rate.wait(tokens, tell)
        if seconds >= LEAST_LOGGED:
            log(f"waited {seconds:.1f} s for its turn: {rate.provider} is asked by all")
        try:
            response = ask()
        except (OpenAIError, TimeoutError) as error:
            is_limited, pause = classify(error) is Kind.RATE_LIMIT, retry_after(error)
            if is_limited:
                rate.correct(-tokens)  # nothing was taken: the next attempt counts them anew
            if is_limited or pause is not None:
                rate.pause(min(self.backoff if pause is None else pause, self.longest_wait))
            raise
        took = response.usage.prompt_tokens + response.usage.completion_tokens
        rate.correct(took - tokens if took else 0)
        return response

    def pause(self, state: RetryCallState) -> float:
        """Return the seconds to wait: what the server asked for, else exponentially more.

        A random part spreads parallel requests out.
        """
        asked = retry_after(error_of(state))
        least = wait_exponential(self.backoff)(state) if asked is None else asked
        return min(least + wait_random(0, self.backoff)(state), self.longest_wait)

    def exhausted(self, state: RetryCallState) -> bool:
        """Tell whether this attempt was the last."""
        most = LESS_OFTEN.get(classify(error_of(state)), self.retries)
        return state.attempt_number > min(self.retries, most)


def error_of(state: RetryCallState) -> BaseException:
    """Return what the attempt failed with."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "only failures are retried"
    return error
