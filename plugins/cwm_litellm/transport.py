"""Limit the size and the duration of answers while they arrive, and make them readable.

LiteLLM has two places to plug in an HTTP client: `litellm.client_session`, for providers that speak
OpenAI's protocol, and `litellm.sync_transport`, for all others. The second is not documented, so
each answer is checked: if it did not pass through here, `limits_apply` returns False.

Credentials in the address of a server are added to requests here. LiteLLM does not get them, so
that they cannot appear in its errors, spans and callbacks.
"""

import base64
import json
import os
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from cwm_cli.credentials import is_secret, without_credentials
from cwm_cli.errors import CwmError
from cwm_litellm.responses import CHAT_PATH, body_as_event, readable_body, readable_events

MAX_BYTES = 4 << 20
"""The longest answers of any model, a million characters plus equally long reasoning, have 3 MB."""

_attempt = threading.local()


class Credentials(NamedTuple):
    """Credentials of a server: the user name and password, encoded, and parameters."""

    login: str
    parameters: dict[str, str]


_credentials: dict[tuple[str, str, int | None], Credentials] = {}
"""The credentials of servers by scheme, host and port."""


@cache
def without_credentials_of(url: str) -> str:
    """Return the address of a server without credentials; its requests get them from now on.

    Raises:
        CwmError: It has credentials and is no valid URL.
    """
    try:
        return _registered(url)
    except (ValueError, httpx.InvalidURL) as error:
        words = f"{without_credentials(url)} is not a server address ({error})"
        raise CwmError(f"{words}: give --api-base as http://HOST:PORT/v1") from None


def _registered(url: str) -> str:
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    pairs = parts.query.split("&")
    secret = [pair for pair in pairs if is_secret(pair.partition("=")[0])]
    if not login and not secret:
        return url
    rest = "&".join(pair for pair in pairs if pair not in secret)
    bare = urlunsplit(parts._replace(netloc=place, query=rest))
    user, _, password = map(unquote, login.partition(":"))
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode() if login else ""
    named = (pair.partition("=") for pair in secret)
    parameters = {unquote(name): unquote(value) for name, _, value in named}
    _credentials[_origin(httpx.URL(bare))] = Credentials(encoded, parameters)
    return bare


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class TooManyBytesError(httpx.ReadError):
    """An answer has more than `MAX_BYTES`."""


class LateError(httpx.ReadTimeout):
    """An answer is still arriving after its deadline."""


def begin_attempt(deadline: float) -> None:
    """Reject all that arrives in this thread after `deadline`, a monotonic time in seconds."""
    _attempt.deadline = deadline
    _attempt.requests = []
    _attempt.counted = False


def limits_apply() -> bool:
    """Return whether the last answer in this thread passed through the limits."""
    return bool(getattr(_attempt, "counted", False))


def sent_names() -> frozenset[str]:
    """Return the names in the bodies of the attempt's requests in this thread, without messages.

    They are in lower case and without underscores. Names in nested objects are included, because
    providers differ in where they expect a parameter. Empty if no request passed through here.
    """
    found: set[str] = set()
    for request in getattr(_attempt, "requests", ()):
        with suppress(ValueError, httpx.RequestNotRead):
            found.update(_names(json.loads(request.content)))
    return frozenset(found)


def _names(body: Any) -> Iterator[str]:
    for name, value in body.items() if isinstance(body, dict) else ():
        if name not in ("messages", "contents", "prompt"):
            yield name.lower().replace("_", "")
            yield from _names(value)


class CountedStream(httpx.SyncByteStream):
    """The body of an answer; it raises an error if it becomes too long or too late."""

    def __init__(self, body: Any, most: int) -> None:
        self._body = body
        self._left = most
        self._deadline: float = getattr(_attempt, "deadline", float("inf"))

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body:
            self._left -= len(piece)
            if self._left < 0:
                raise TooManyBytesError("the answer is too long")
            if time.monotonic() > self._deadline:
                raise LateError("the answer takes too long")
            yield piece

    def close(self) -> None:
        """Close the body."""
        self._body.close()


class ReadableStream(httpx.SyncByteStream):
    """The body of an answer in the form that LiteLLM reads, see `responses`."""

    def __init__(self, body: CountedStream, request: httpx.Request, *, events: bool) -> None:
        self._body = body
        self._path = request.url.path
        self._events = events
        self._as_event = not events and wants_events(request)

    def __iter__(self) -> Iterator[bytes]:
        if self._events:
            yield from readable_events(self._body, self._path)
        elif self._as_event:
            yield body_as_event(b"".join(self._body), self._path)
        else:
            yield readable_body(b"".join(self._body), self._path)

    def close(self) -> None:
        """Close the body."""
        self._body.close()


def wants_events(request: httpx.Request) -> bool:
    """Return whether a chat request asked for a stream, which some servers ignore."""
    if not request.url.path.endswith(CHAT_PATH):
        return False
    with suppress(ValueError, httpx.RequestNotRead):
        return json.loads(request.content).get("stream") is True
    return False


class CountingTransport(httpx.BaseTransport):
    """An HTTP transport with limits. All clients share it, so no client closes it."""

    def __init__(self, **settings: Any) -> None:
        self._inner = httpx.HTTPTransport(**settings)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and limit the answer."""
        prepare(request)
        response = self._inner.handle_request(request)
        count(response, request)
        return response


def prepare(request: httpx.Request) -> None:
    """Request an uncompressed answer, as a short one can unpack to any length; add credentials."""
    request.headers["Accept-Encoding"] = "identity"
    if known := _credentials.get(_origin(request.url)):
        request.url = request.url.copy_merge_params(known.parameters)
        if known.login:
            request.headers["Authorization"] = f"Basic {known.login}"
    if hasattr(_attempt, "requests"):
        _attempt.requests.append(request)


def count(response: httpx.Response, request: httpx.Request | None = None) -> None:
    """Limit the body of a response, and make it readable unless it is an error.

    Raises:
        httpx.DecodingError: It is compressed.
    """
    _attempt.counted = True
    if response.headers.get("Content-Encoding", "identity") != "identity":
        response.close()
        raise httpx.DecodingError("its answer is compressed, although the request ruled that out")
    kind = response.headers.get("Content-Type", "")
    streamed = kind.startswith("text/event-stream")
    max_streamed_bytes = 16 << 20  # a streamed answer has about 200 bytes for each token
    counted = CountedStream(response.stream, max_streamed_bytes if streamed else MAX_BYTES)
    response.stream = counted
    request = request or response.request
    if response.is_success and (streamed or "json" in kind or wants_events(request)):
        response.stream = ReadableStream(counted, request, events=streamed)


def install(litellm: Any) -> None:
    """Make LiteLLM's clients use the limits."""
    verify = _verification()
    hooks: dict[str, list[Any]] = {"request": [prepare], "response": [count]}
    litellm.client_session = httpx.Client(verify=verify, follow_redirects=True, event_hooks=hooks)
    litellm.sync_transport = CountingTransport(verify=verify)


def _verification() -> ssl.SSLContext | bool:
    """Return how certificates are verified.

    `SSL_VERIFY` is LiteLLM's variable: "False", or a file of certificates. httpx reads
    `SSL_CERT_FILE` itself.
    """
    chosen = os.environ.get("SSL_VERIFY", "True")
    if Path(chosen).is_file():
        return ssl.create_default_context(cafile=chosen)
    return chosen.lower() not in ("false", "0", "no", "off")
