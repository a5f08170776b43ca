"""Serve a world model over HTTP (`cwm.serve`)."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from cwm_cli.commands.evaluate import run_of
from cwm_cli.commands.subjects import ProgramSource, RunSource, find_subject
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError, install_command
from cwm_cli.registry import Owner, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.sandbox import Limits
from cwm_cli.sandbox.protection import check_access
from cwm_serve.limits import ServerLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GENERATED = "generated"
"""The value of `token` for a new random token."""

MIN_TOKEN_CHARACTERS = 16
"""Minimum length of a token, so that it cannot be guessed."""


@dataclass(frozen=True)
class ServeResult(Result):
    """A server: its address, its token, and the number of answered requests.

    Attributes:
        url: The address of the page; the operations are below it.
        model: The name of the model.
        env: The environment.
        token: The token that requests need, or None.
        requests: The number of requests, once the server has stopped.
    """

    url: str
    model: str
    env: str
    token: str | None = None
    requests: int = 0

    @property
    def page(self) -> str:
        """The address to open in a browser; the token is in the part that is never sent."""
        return self.url if self.token is None else f"{self.url}#token={self.token}"

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm serve --json` prints."""
        return {
            "url": self.url,
            "page": self.page,
            "openapi": f"{self.url}openapi.json",
            "model": self.model,
            "env": self.env,
            "token": self.token,
        }


def serve(
    subject: ProgramSource | RunSource,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    on_start: Callable[[ServeResult], None] = lambda _: None,
    observer: Observer = SILENT,
) -> ServeResult:
    """Serve a world model until SIGINT (Ctrl-C) or SIGTERM.

    Args:
        subject: A run, or a program of `env`.
        env: Id of the environment of a program.
        env_args: Arguments of the environment.
        dataset: Transitions whose initial observations begin episodes. The default is the dataset
            of the run; a program has the dataset that `cwm collect` records by default.
        host: The address to listen on.
        port: The port; 0 selects a free one.
        token: The token that requests need; "generated" creates one. The default is none on
            loopback, and a generated one on all other hosts.
        options: Options of the server, the model and the sandbox, as for `-o`.
        tools: Modules that the program may import.
        allow_gap: Missing protections of the sandbox that are accepted.
        on_start: Receives the address when the server accepts requests.
        observer: Receives notes.

    Returns:
        The address, and the number of answered requests.

    Raises:
        CwmError: The request is invalid, or the port is in use.
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise CwmError(f"cwm serve needs an extra: {install_command('cwm-cli[serve]')}")
    from cwm_serve.api import WorldServer
    from cwm_serve.guard import is_loopback
    from cwm_serve.world import open_world

    run = run_of(subject, env)
    found = find_subject(
        run,
        program=None if run is not None else subject,  # type: ignore[arg-type]  # no run is left
        env=env,
        env_args=env_args,
        dataset=dataset,
        options=options,
        observer=observer,
    )
    rows = found.transitions(dataset, observer)
    owners = [Owner("serve", ServerLimits), Owner("sandbox", Limits)]
    chosen = read_options(found.options, owners)
    limits: ServerLimits = owners[0].make(chosen["serve"])
    bounds = Limits.chosen({**found.limits, **chosen["sandbox"]})
    check_access(tools, allow_gap)
    token = _choose_token(token, required=not is_loopback(host))
    with (
        _bound(host, port) as listener,
        open_world(
            found, rows, limits, bounds, tools=tools, allow_gap=allow_gap, observer=observer
        ) as world,
    ):
        server = WorldServer(world, limits, token=token, only_loopback=is_loopback(host))
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
        result = ServeResult(address, found.name, found.env, token or None)
        _run(server.app(), listener, lambda: on_start(result))
        return replace(result, requests=server.requests)


def _choose_token(token: str | None, *, required: bool) -> str:
    """Return the token of the server, "" for none."""
    if token == GENERATED or (required and not token):
        return secrets.token_urlsafe(24)
    if token and (len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or " " in token):
        raise CwmError(
            f"the token needs {MIN_TOKEN_CHARACTERS} or more ASCII characters without spaces: "
            "choose another one, or --token generated"
        )
    return token or ""


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """Bind a socket; a port in use is an error in one line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError, OverflowError) as error:
        raise CwmError(f"--host {host!r} has no address: choose another --host") from error
    # Without the protocol, asyncio does not set TCP_NODELAY, and each reply takes 40 ms longer.
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CwmError(
                    f"port {port} of {host} is in use: choose another --port, or 0 for a free one"
                ) from error
            reason = os.strerror(error.errno or 0).lower()
            raise CwmError(
                f"cannot listen on {host}, port {port} ({reason}): choose another --host or --port"
            ) from error
        yield listener


def _run(app: ASGIApp, listener: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until a signal stops the server."""
    import uvicorn

    class Server(uvicorn.Server):
        """A server that reports its start, and ends on a signal without raising it again."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            if threading.current_thread() is not threading.main_thread():
                yield  # only the main thread receives signals
                return

            def stop(number: int, frame: FrameType | None) -> None:
                self.handle_exit(number, frame)

            before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)

    grace_seconds = 2  # time that running requests have to finish when the server stops
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",  # errors are replies, and the stop is one line
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http="h11",
        loop="asyncio",
        lifespan="off",
        timeout_graceful_shutdown=grace_seconds,
    )
    asyncio.run(Server(config).serve(sockets=[listener]))
