"""What comes over the network is counted while it arrives, and refused when it is too much."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

MOST_BYTES = 4 << 20
"""A million characters, the longest answers of any model, with as many of reasoning take 3 MB."""

MOST_STREAMED_BYTES = 16 << 20
"""Every token of an answer that is streamed comes in some 200 bytes of its own."""

STREAMED = "text/event-stream"

_attempt = threading.local()


class TooManyBytesError(httpx.ReadError):
    """An answer is longer than any that can be of use."""


class LateError(httpx.ReadTimeout):
    """An answer goes on for longer than all of it may take."""


def until(deadline: float) -> None:
    """Refuse what arrives in this thread after a monotonic time."""
    _attempt.deadline = deadline


class CountedStream(httpx.SyncByteStream):
    """The body of an answer, which ends with an error where it is too long or too late."""

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
        """Take nothing more."""
        self._body.close()


class CountingTransport(httpx.BaseTransport):
    """HTTP whose answers are counted; all clients share it, so none of them closes it."""

    def __init__(self, **settings: Any) -> None:
        self._inner = httpx.HTTPTransport(**settings)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Ask, and count what comes."""
        prepare(request)
        response = self._inner.handle_request(request)
        count(response)
        return response


def prepare(request: httpx.Request) -> None:
    """Ask for an answer that is as long as it looks: a short one can unpack to any length."""
    request.headers["Accept-Encoding"] = "identity"


def count(response: httpx.Response) -> None:
    """Count the body of a response as it is read."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        response.close()
        raise httpx.DecodingError("its answer is compressed, which was not asked for")
    streamed = response.headers.get("Content-Type", "").startswith(STREAMED)
    response.stream = CountedStream(
        response.stream, MOST_STREAMED_BYTES if streamed else MOST_BYTES
    )


def install(litellm: Any) -> None:
    """Have LiteLLM's clients count: that of the OpenAI kind, and the one of all others."""
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

    secure = get_ssl_configuration()
    hooks: dict[str, list[Any]] = {"request": [prepare], "response": [count]}
    litellm.client_session = httpx.Client(verify=secure, follow_redirects=True, event_hooks=hooks)
    litellm.sync_transport = CountingTransport(verify=secure)
