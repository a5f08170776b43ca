"""Limits of the server, and the requests and rates of its clients."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

MAX_CLIENTS = 10_000
"""Number of addresses whose rate is remembered; the longest idle ones are forgotten first."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits of `cwm serve`; a client is an IP address."""

    workers: int = 2
    """Number of processes that run the program at the same time."""
    rows: int = 4096
    """Maximum number of rows in one prediction."""
    body_bytes: int = 1 << 21
    """Maximum size of the body of a request, in bytes."""
    body_seconds: float = 10.0
    """Maximum time to send the body of a request, in seconds."""
    sessions: int = 100
    """Maximum number of sessions of a client."""
    all_sessions: int = 1000
    """Maximum number of sessions of all clients."""
    idle_seconds: float = 600.0
    """A session expires if it is not used for this time, in seconds."""
    in_flight: int = 64
    """Maximum number of simultaneous requests of a client."""
    all_in_flight: int = 128
    """Maximum number of simultaneous requests of all clients."""
    rate: float = 1000.0
    """Maximum number of requests of a client per second; bursts may be twice as large."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ValueError(f"{each.name} must be positive")


class TooManyRequests(Exception):
    """A client exceeds a limit; `seconds` is the time after which to retry."""

    def __init__(self, cause: str, seconds: float = 1.0) -> None:
        super().__init__(cause)
        self.seconds = seconds


class ServerBusy(Exception):
    """All clients together exceed a limit; the text is the cause."""


@dataclass
class _Client:
    """The number of running requests of a client, and its remaining burst."""

    allowance: float
    seen: float
    running: int = 0


@dataclass
class Clients:
    """Counts the requests of each client, and refuses those beyond the limits.

    Args:
        limits: The limits.
        clock: Returns the time in seconds (for tests).
    """

    limits: ServerLimits
    clock: Callable[[], float] = time.monotonic
    running: int = 0
    _clients: OrderedDict[str, _Client] = field(default_factory=OrderedDict)

    @contextmanager
    def admit(self, address: str) -> Iterator[None]:
        """Count a request while it runs.

        Raises:
            TooManyRequests: The client exceeds its rate, or has too many requests in flight.
            ServerBusy: All clients together have too many requests in flight.
        """
        client = self._find(address)
        self._check(client)
        client.allowance -= 1
        client.running += 1
        self.running += 1
        try:
            yield
        finally:
            client.running -= 1
            self.running -= 1

    def _check(self, client: _Client) -> None:
        limits = self.limits
        if client.allowance < 1:
            seconds = (1 - client.allowance) / limits.rate
            raise TooManyRequests(f"more than {limits.rate:g} requests per second", seconds)
        if client.running >= limits.in_flight:
            raise TooManyRequests(f"more than {limits.in_flight} simultaneous requests")
        if self.running >= limits.all_in_flight:
            raise ServerBusy(f"{limits.all_in_flight} requests are running")

    def _find(self, address: str) -> _Client:
        """Return the client of an address, with the allowance of this moment."""
        now, burst = self.clock(), 2 * self.limits.rate
        client = self._clients.setdefault(address, _Client(burst, now))
        self._clients.move_to_end(address)
        client.allowance = min(burst, client.allowance + (now - client.seen) * self.limits.rate)
        client.seen = now
        if len(self._clients) > MAX_CLIENTS:
            idle = next((name for name, each in self._clients.items() if not each.running), None)
            if idle is not None:
                del self._clients[idle]
        return client
