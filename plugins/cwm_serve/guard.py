"""The guard before every request: host, origin, limits of the client, and token."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm_serve.limits import Clients, ServerBusy, TooManyRequests
from cwm_serve.replies import ApiError

SAFETY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
"""Headers of every response."""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class RequestGuard:
    """ASGI middleware that refuses requests before they reach an operation.

    On loopback, the Host header must name this machine, so that a web page whose domain resolves
    to 127.0.0.1 (DNS rebinding) cannot use the server. A request of a page from another origin is
    refused on every host.

    Args:
        app: The application.
        clients: Counts the requests of each client.
        token: The token that requests need, or "".
        only_loopback: Whether the server listens on loopback.
        public: Paths that need no token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        clients: Clients,
        token: str,
        only_loopback: bool,
        public: Collection[str],
    ) -> None:
        self._app, self._clients, self._public = app, clients, public
        self._token, self._only_loopback = token.encode(), only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *SAFETY_HEADERS]
            await send(message)

        address = scope["client"][0] if scope.get("client") else ""
        try:
            with self._clients.admit(address):
                self._check(Headers(scope=scope), scope["path"])
                await self._app(scope, receive, send_safely)
        except TooManyRequests as error:
            refused = ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_requests",
                str(error),
                "wait, and send fewer requests with more rows each",
                retry_seconds=error.seconds,
            )
            await refused.response()(scope, receive, send_safely)
        except ServerBusy as error:
            await busy(error).response()(scope, receive, send_safely)
        except ApiError as error:
            await error.response()(scope, receive, send_safely)
        except asyncio.CancelledError:  # the server stops, and does not wait for the program
            stopping = busy(ServerBusy("the server stops"))
            await stopping.response()(scope, receive, send_safely)

    def _check(self, headers: Headers, path: str) -> None:
        """Raise an error for a request that another web page sent, or without the token."""
        host = headers.get("host", "")
        if self._only_loopback and not is_loopback(_hostname(f"//{host}")):
            raise ApiError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "wrong_host",
                "the Host header does not name this machine",
                "use http://127.0.0.1 or http://localhost",
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "wrong_origin",
                "the request comes from a page of another server",
                "open the page of this server",
            )
        if not self._token or path in self._public:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(
            given.strip().encode(), self._token
        ):
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                "no_token",
                "the token is missing or wrong",
                "send the header Authorization: Bearer TOKEN, with the token of the server",
            )


def _hostname(address: str) -> str:
    """Return the host name of an address, "" if it has none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # brackets without an IPv6 address
        return ""


def busy(error: ServerBusy) -> ApiError:
    """Return the error of a server that is busy."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE, "busy", str(error), "try again later", retry_seconds=1.0
    )
