"""Classify failed requests and describe them for users.

LiteLLM wraps the errors of a hundred providers, drops some of their fields and changes its own
messages from release to release. The error response itself does not change: it is found in the
chain of exceptions, read, and classified by error type, by the codes in its body and by its HTTP
status. Message texts only decide between cases that share a generic code, and may be wrong.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import openai

from cwm_cli.credentials import MASK, without_credentials
from cwm_cli.search.contracts import UnansweredError
from cwm_cli.text import clean
from cwm_litellm.library import load
from cwm_litellm.models import hint
from cwm_litellm.transport import LateError, TooManyBytesError

litellm = load()

ErrorTypes = tuple[type[BaseException], ...]


def _http_errors(*names: str) -> ErrorTypes:
    """Return error classes of httpx, and of its successor httpx2 if it is installed, by name."""
    libraries = [import_module(name) for name in ("httpx", "httpx2") if find_spec(name)]
    return tuple(getattr(library, name) for library in libraries for name in names)


NOT_CONNECTED = _http_errors("ConnectError", "UnsupportedProtocol")
TIMED_OUT = (*_http_errors("TimeoutException"), openai.APITimeoutError)
TRANSPORT = _http_errors("TransportError")
REQUEST = _http_errors("RequestError")
STATUS = _http_errors("HTTPStatusError")


class Kind(StrEnum):
    """Kinds of failure, each with the message for the user."""

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
    TIMEOUT = "{model} timed out {attempts} times: raise -o timeout=SECONDS or try again later"
    RATE_LIMIT = (
        "{provider}: rate limit still exceeded after {attempts} attempts:"
        " lower --parallel or try again later"
    )
    FILTERED = "the content filter of {provider} refused the prompt ({reason})"
    UNPAYABLE = "another attempt might exceed --max-cost"
    OVERSIZED = "the answer is longer than 1 MB and was rejected"
    BROKEN = "{provider} still fails after {attempts} attempts ({reason}): try again later"


TRANSIENT = frozenset({Kind.UNREACHABLE, Kind.TIMEOUT, Kind.RATE_LIMIT, Kind.BROKEN})

ANSWERS = frozenset({Kind.FILTERED, Kind.OVERSIZED, Kind.UNPAYABLE})
"""Failures that are recorded as the answer, because the next request may succeed."""

CODES: Mapping[Kind, frozenset[str]] = {
    Kind.NO_CREDIT: frozenset(
        {
            "insufficient_quota",  # OpenAI, Azure
            "billing_hard_limit_reached",
            "billing_not_active",
            "billing_error",  # Anthropic
            "insufficient_balance",  # DeepSeek
            "exceeded_current_quota_error",  # Moonshot
            "daily_quota",  # Gemini, see `_google_reasons`
        }
    ),
    Kind.WRONG_KEY: frozenset(
        {
            "invalid_api_key",
            "authentication_error",  # Anthropic, llama.cpp
            "unauthenticated",  # Google
            "api_key_invalid",  # Gemini, with status 400
        }
    ),
    Kind.NO_MODEL: frozenset(
        {
            "model_not_found",
            "not_found_error",  # Anthropic
            "notfounderror",  # vLLM
            "deploymentnotfound",  # Azure
            "invalid_model",  # Mistral, with status 400
        }
    ),
    Kind.TOO_LONG: frozenset(
        {
            "context_length_exceeded",
            "string_above_max_length",
            "exceed_context_size_error",  # llama.cpp
            "request_too_large",  # Anthropic
        }
    ),
    Kind.FILTERED: frozenset(
        {
            "content_filter",
            "content_policy_violation",
            "responsibleaipolicyviolation",  # Azure
            "invalid_prompt",  # OpenAI, for prompts flagged by its usage policy
        }
    ),
    Kind.RATE_LIMIT: frozenset(
        {
            "rate_limit_exceeded",
            "rate_limit_error",  # Anthropic
            "rate_limited",  # Mistral
            "service_tier_capacity_exceeded",  # Mistral
            "resource_exhausted",  # Google
        }
    ),
    Kind.TIMEOUT: frozenset({"timeout_error", "deadline_exceeded"}),
    Kind.BROKEN: frozenset(
        {"overloaded_error", "api_error", "server_error", "unavailable", "unavailable_error"}
    ),
}
"""Error codes and types of providers, in lower case, the most specific kinds first."""

BY_STATUS = {
    401: Kind.WRONG_KEY,
    402: Kind.NO_CREDIT,
    404: Kind.NO_MODEL,
    408: Kind.TIMEOUT,
    413: Kind.TOO_LONG,
    429: Kind.RATE_LIMIT,
}

HINTS = (
    (
        Kind.TOO_LONG,
        re.compile(
            r"context[ _](?:length|window|size|limit)|prompt is too long|input token count"
            r"|request too large",
            re.IGNORECASE,
        ),
    ),
    (
        Kind.FILTERED,
        re.compile(
            r"content[_ ](?:filter|policy|management)|response was filtered|safety system",
            re.IGNORECASE,
        ),
    ),
    (Kind.NO_CREDIT, re.compile(r"credit balance is too low|insufficient credits", re.IGNORECASE)),
)
"""Words that distinguish refusals with a generic code, such as `invalid_request_error`."""


class UnpayableError(Exception):
    """The next attempt might cost more than the question may."""


class ErrorResponse(NamedTuple):
    """An error response of a server."""

    status: int
    """The HTTP status."""
    codes: frozenset[str] = frozenset()
    """Every `code`, `type`, `status` and `reason` in the body, in lower case."""
    param: str = ""
    """The parameter at fault, if the body names it."""
    message: str = ""
    """The message in the body."""
    pause: float | None = None
    """Seconds that the server requests before the next attempt."""


def classify(error: BaseException) -> Kind:
    """Return the kind of a failed request."""
    return _unsent(error) or _unanswered(error) or _refused(error)


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt may succeed."""
    return classify(error) in TRANSIENT


def may_be_charged(error: BaseException) -> bool:
    """Return whether the provider may charge for a request whose answer did not arrive.

    A server that returns an error has not answered. A server that falls silent after the request
    reached it may have, and so has one whose answer LiteLLM cannot read.
    """
    kind = classify(error)
    if kind is Kind.BROKEN:
        return error_response_of(error) is None
    return kind in (Kind.TIMEOUT, Kind.OVERSIZED)


def retry_after(error: BaseException) -> float | None:
    """Return the pause in seconds that the server requests, None if it requests none."""
    refusal = error_response_of(error)
    return refusal.pause if refusal else None


def refusal_text(error: BaseException) -> str:
    """Return the message of the error response, or of the error if there was no response."""
    refusal = error_response_of(error)
    return refusal.message if refusal and refusal.message else str(error)


def explain(
    error: BaseException, model: str, attempts: int, cost: float | None = None
) -> UnansweredError:
    """Return the error for the user.

    Args:
        error: The last failure.
        model: The model's name.
        attempts: Number of requests that were sent.
        cost: US dollars that these may have cost.
    """
    return UnansweredError(words_of(error, model, attempts), cost)


def words_of(error: BaseException, model: str, attempts: int) -> str:
    """Return one line with the cause and the remedy, without keys."""
    kind = classify(error)
    provider = _provider(model)
    missing, key = _missing_keys(model), f"{provider.upper()}_API_KEY"
    if kind is Kind.WRONG_KEY and missing:
        kind = Kind.NO_KEY
    return kind.value.format(
        model=model,
        name=model.removeprefix(f"{provider}/"),
        provider=provider,
        hint=hint(model),
        keys=missing or (key if key in os.environ else "its key in the environment"),
        attempts=attempts,
        address=_address(error),
        reason=_reason(error),
    )


def brief(error: BaseException) -> str:
    """Return a failure in a few words for the log; the subject is the model or its server."""
    kind = classify(error)
    match kind:
        case Kind.RATE_LIMIT:
            return "limits the rate"
        case Kind.TIMEOUT:
            return "timed out"
        case Kind.UNREACHABLE:
            return f"cannot be reached ({_reason(error)})"
        case Kind.REFUSED:
            return f"refused the request ({_reason(error)})"
    refusal = error_response_of(error)
    return f"failed ({f'{refusal.status}: ' if refusal else ''}{_reason(error)})"


def error_response_of(error: BaseException) -> ErrorResponse | None:
    """Return the error response that led to an error, None if no server sent one.

    The first response with a body in the chain of exceptions counts: LiteLLM replaces the response
    of some providers by an empty one, and the status 529 by 500.
    """
    if _cause(error, TRANSPORT):
        return None
    empty = None
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        status = getattr(response, "status_code", None)
        if not isinstance(status, int):
            continue
        content = b""
        with suppress(Exception):  # the body of a stream that was never read
            content = response.content  # type: ignore[union-attr]
        found = _read(status, content, getattr(response, "headers", {}))
        if found.message or found.codes:
            return found
        if isinstance(cause, STATUS):  # others hold a response that LiteLLM made up
            empty = found
    return empty


def _read(status: int, content: bytes, headers: Mapping[str, str]) -> ErrorResponse:
    """Read an error response."""
    text = content.decode(errors="replace").strip()
    try:
        refusal = _read_json(status, json.loads(text))
    except ValueError:
        refusal = ErrorResponse(status, message=text)
    pause = _pause(headers)
    return refusal if pause is None else refusal._replace(pause=pause)


def _read_json(status: int, body: Any) -> ErrorResponse:
    """Read the JSON of an error response.

    OpenAI and most others send `{"error": {"message", "type", "param", "code"}}`; older vLLM and
    Mistral the same without the outer object; Anthropic `{"type": "error", "error": {"type",
    "message"}}`; Google `{"error": {"status", "message", "details"}}`, in a list if it streams;
    Ollama and LM Studio `{"error": "text"}`; FastAPI `{"detail": ...}`. OpenRouter sends the body
    of the provider behind it as text in `metadata.raw`, and some errors with HTTP status 200.
    """
    if isinstance(body, list):
        body = body[0] if body else {}
    if not isinstance(body, dict):
        return ErrorResponse(status, message=str(body))
    error = body.get("error", body)
    if not isinstance(error, dict):
        return ErrorResponse(status, message=str(error))
    message, param = _message(error.get("message", error.get("detail")))
    inner = error.get("innererror")
    details = error["details"] if isinstance(error.get("details"), list) else []
    codes = {
        *_texts(error, "code", "type", "status"),
        *_texts(inner if isinstance(inner, dict) else {}, "code"),
        *_google_reasons(details),
    }
    code = error.get("code")
    refusal = ErrorResponse(
        code if status < 400 and isinstance(code, int) else status,
        frozenset(each.lower() for each in codes),
        str(error.get("param") or param),
        message,
        _google_pause(details),
    )
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str) and raw:
        behind = _read(refusal.status, raw.encode(), {})
        message = behind.message or message
        refusal = refusal._replace(codes=refusal.codes | behind.codes, message=message)
    return refusal


def _message(detail: Any) -> tuple[str, str]:
    """Return the message and the parameter at fault; FastAPI lists the faults of a body."""
    if isinstance(detail, dict):
        detail = detail.get("detail", detail)
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        place = [str(part) for part in detail[0].get("loc") or ()]
        words = ": ".join(filter(None, (".".join(place), str(detail[0].get("msg") or ""))))
        return words, place[-1] if place else ""
    return "" if detail is None else str(detail), ""


def _texts(fields: Mapping[str, Any], *names: str) -> Iterator[str]:
    """Yield the text values among the named fields."""
    return (fields[name] for name in names if isinstance(fields.get(name), str))


def _google_reasons(details: Iterable[Any]) -> Iterator[str]:
    """Yield the reasons in Google's error details, and `daily_quota` for a limit per day.

    A limit per minute passes, a limit per day does not, and both have the status
    RESOURCE_EXHAUSTED.
    """
    for each in details:
        if not isinstance(each, dict):
            continue
        yield from _texts(each, "reason")
        violations = each.get("violations")
        for violation in violations if isinstance(violations, list) else ():
            if isinstance(violation, dict) and "PerDay" in str(violation.get("quotaId")):
                yield "daily_quota"


def _google_pause(details: Iterable[Any]) -> float | None:
    """Return the seconds of Google's `RetryInfo`, such as "23.5s"."""
    delays = (str(each.get("retryDelay")) for each in details if isinstance(each, dict))
    found = next(filter(None, (re.fullmatch(r"([\d.]+)s", delay) for delay in delays)), None)
    return float(found[1]) if found else None


def _pause(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`, which holds a number or a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _unsent(error: BaseException) -> Kind | None:
    """Return the kind of a failure that came before anything was sent, None for another."""
    if isinstance(error, TimeoutError):
        return Kind.TIMEOUT
    if isinstance(error, UnpayableError):
        return Kind.UNPAYABLE
    if _cause(error, REQUEST) or _is_garbled(error) or error_response_of(error):
        return None
    if isinstance(error, litellm.BadRequestError) and not getattr(error, "llm_provider", ""):
        return Kind.NO_PROVIDER
    is_key = re.search(r"credential|api.?key", str(error), re.IGNORECASE)
    if isinstance(error, litellm.AuthenticationError) or is_key:
        return Kind.NO_KEY  # LiteLLM reports some as internal errors, so the text decides
    return Kind.REFUSED if any(type(cause) is ValueError for cause in _causes(error)) else None


def _unanswered(error: BaseException) -> Kind | None:
    """Return the kind of a failure without a whole response, None for another."""
    if _cause(error, (TooManyBytesError,)):
        return Kind.OVERSIZED
    if _cause(error, (LateError, *TIMED_OUT)):
        return Kind.TIMEOUT
    if _cause(error, NOT_CONNECTED):
        return Kind.UNREACHABLE
    return Kind.BROKEN if _is_garbled(error) else None


def _refused(error: BaseException) -> Kind:
    """Return the kind of an error response."""
    status = int(getattr(error, "status_code", None) or 500)
    refusal = error_response_of(error) or ErrorResponse(status)
    if refusal.status < 400:
        refusal = refusal._replace(status=status)
    for kind, codes in CODES.items():
        if refusal.codes & codes:
            return kind
    # statuses of refusals that `HINTS` may refine
    hinted_statuses = frozenset({400, 403, 413, 422, 429})
    if refusal.status in hinted_statuses:
        for kind, words in HINTS:
            if words.search(refusal.message or str(error)):
                return kind
    if isinstance(error, litellm.ContextWindowExceededError):
        return Kind.TOO_LONG
    if isinstance(error, litellm.ContentPolicyViolationError):
        return Kind.FILTERED
    return BY_STATUS.get(refusal.status) or (Kind.BROKEN if refusal.status >= 500 else Kind.REFUSED)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _cause(error: BaseException, kinds: ErrorTypes) -> BaseException | None:
    """Return the first cause of one of the given types."""
    return next((cause for cause in _causes(error) if isinstance(cause, kinds)), None)


def _is_garbled(error: BaseException) -> bool:
    """Return whether an answer, not an error response, could not be decoded."""
    return bool(_cause(error, (json.JSONDecodeError,))) and not _cause(error, STATUS)


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


def _address(error: BaseException) -> str:
    """Return the address of the server, without the path and query, which may hold keys."""
    try:
        url = _cause(error, TRANSPORT).request.url  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # httpx raises this if it knows no request
        return "the server"
    return f"{url.scheme}://{url.netloc.decode()}" if url.host else "the server"


def _reason(error: BaseException) -> str:
    """Return the cause of a failure in one short line."""
    if _is_garbled(error):
        return "its answer is not JSON"
    transport = _cause(error, REQUEST)
    text = str(transport) if transport else refusal_text(error)
    text = text.partition("Original exception: ")[0].split("Exception - ", 1)[-1]
    text = text.partition("Traceback (most recent call last)")[0]
    text = re.sub(r"^(?:litellm\.\w+: |LiteLLM: )+", "", text)
    # mask credentials, and text that looks like a key
    text = re.sub(r"\bsk-[\w*-]+|(?<=key=)[^&\s]+", MASK, without_credentials(text))
    return clean(text, limit=160) or type(error).__name__
