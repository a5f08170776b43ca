"""Open a run for a coding agent, and serve it over stdio or HTTP (`cwm mcp`)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.resources import files
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from cwm_cli.commands.choices import Choices
from cwm_cli.commands.synthesize import prepared_job, read_description
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError, install_command
from cwm_cli.evaluation.finding import ContractName
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.storage import placed
from cwm_cli.runs.store import DATASET, HEADER

if TYPE_CHECKING:
    from mcp.server import MCPServer

METHOD = "submissions"
"""Name of the strategy and of the backend."""

PATH = "/mcp"
"""Path of the server in its URL."""


class LoopbackAddress(NamedTuple):
    """A host of this machine and a port; port 0 is any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PORT or HOST:PORT.

        Raises:
            CwmError: The port is no port, or the host is not this machine.
        """
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not port.isdecimal() or int(port) > 65535:
            raise CwmError(f"--http {text} names no port: write --http 8000")
        host = "127.0.0.1" if host == "localhost" else host
        try:
            is_local = ip_address(host).is_loopback
        except ValueError:
            is_local = False
        if not is_local:
            raise CwmError(
                f"--http {text} would let other machines run programs here: leave out the host, "
                "or forward a port of this machine"
            )
        return cls(host, int(port))

    def listen(self) -> socket.socket:
        """Return a listening socket.

        Raises:
            CwmError: The port is in use or not permitted.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(self)
            listener.listen()
        except OSError as error:
            listener.close()
            reason = (error.strerror or str(error)).lower()
            raise CwmError(
                f"port {self.port} cannot be used ({reason}): choose another --http PORT"
            ) from error
        return listener


def skill() -> str:
    """Return the instructions for agents, `SKILL.md`."""
    return files(__package__).joinpath("SKILL.md").read_text(encoding="utf-8")


def serve(
    env: str | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    description: Path | str | None = None,
    budget: int = 20,
    plan_episodes: int = 10,
    seed: int = 0,
    contract: ContractName | Literal["auto"] = "auto",
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    run: Path | str | None = None,
    new: bool = False,
    http: str | None = None,
    observer: Observer = SILENT,
) -> None:
    """Serve a run to a coding agent until the agent disconnects or the user stops the server.

    Args:
        env: Id of the environment; optional if a dataset or an existing run names it.
        env_args: Arguments of the environment.
        dataset: Transitions or their file; by default they are recorded.
        description: Text file that replaces the description of the environment.
        budget: Maximum number of submitted programs.
        plan_episodes: Maximum number of planned episodes in the true environment.
        seed: Random seed.
        contract: Methods that a program must have, "auto" to choose by the data.
        options: Options as `"KEY=VALUE"` or as a mapping, as for `-o`.
        tools: Modules that programs may import.
        allow_gap: Missing protections of the sandbox that are accepted.
        run: Folder of the run. By default the newest run with equal arguments that is not
            finished continues, or a new folder is used.
        new: Start a new run.
        http: `PORT` or `HOST:PORT` of this machine for HTTP; by default stdin and stdout are used.
        observer: Receives notes.

    Raises:
        CwmError: The request is invalid, or the extra `mcp` is missing.
    """
    if find_spec("mcp") is None:
        raise CwmError(f"`cwm mcp` needs an extra: {install_command('cwm-cli[mcp]')}")
    address = None if http is None else LoopbackAddress.parse(http)
    if run is not None and env is None and dataset is None:
        env, env_args, dataset = _of_run(placed(run), env_args)
    choices = submission_choices(
        budget=budget,
        seed=seed,
        contract=contract,
        options=options,
        tools=tuple(sorted(set(tools))),
        accepted=tuple(allow_gap),
        description=read_description(Path(description)) if description else "",
    )
    from cwm_mcp.server import make_server
    from cwm_mcp.session import AgentSession, is_finished

    with prepared_job(
        choices,
        env=env,
        env_args=env_args,
        dataset=dataset,
        run=run,
        new=new,
        is_over=is_finished,
        observer=observer,
    ) as job:
        server = make_server(AgentSession(job, plan_episodes))
        if address is None:
            serve_stdio(server, job.run.place, observer)
        else:
            serve_http(server, address, observer)


def submission_choices(
    *,
    budget: int = 20,
    seed: int = 0,
    contract: ContractName | Literal["auto"] = "auto",
    options: Sequence[str] | Mapping[str, Any] = (),
    tools: tuple[str, ...] = (),
    accepted: tuple[str, ...] = (),
    description: str = "",
) -> Choices:
    """Return the choices of a search whose completions are submitted programs."""
    return Choices(
        strategy=METHOD,
        backend=METHOD,
        model="",
        options=options,
        flags={},
        metric=None,
        seed=seed,
        parallel=1,
        max_cost=None,
        budget=budget,
        tools=tools,
        accepted=accepted,
        contract=contract,
        description=description,
    )


def _of_run(
    folder: Path, env_args: Mapping[str, Any] | None
) -> tuple[str | None, Mapping[str, Any] | None, Dataset | None]:
    """Return the environment and the transitions of an existing run."""
    if not (folder / HEADER).exists():
        return None, env_args, None
    config = SearchRun.load(folder).config
    return config.env, env_args or config.env_args, Dataset.load(folder / DATASET)


def serve_stdio(server: MCPServer[Any], place: str, observer: Observer) -> None:
    """Serve over stdin and stdout until the client closes stdin.

    Ctrl-C ends the process, because the SDK reads stdin in a thread that nothing can interrupt.
    The journal is complete at any time.
    """

    def leave(*_: object) -> None:
        observer.note("interrupted: the same command continues the run", "")
        os._exit(130)  # the exit code after Ctrl-C, as shells define it

    before = signal.signal(signal.SIGINT, leave)
    try:
        observer.note(f"{place}: waiting for an agent on stdin", "Run")
        server.run("stdio")
    finally:
        signal.signal(signal.SIGINT, before)


def serve_http(server: MCPServer[Any], address: LoopbackAddress, observer: Observer) -> None:
    """Serve over streamable HTTP until the user stops the server.

    Requests with another `Host` or `Origin` are refused, so that no web page can send any.
    """
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    with closing(address.listen()) as listener:
        port = listener.getsockname()[1]
        host = f"[{address.host}]" if ":" in address.host else address.host
        hosts = [f"{name}:{port}" for name in {host, "localhost"}]
        app = server.streamable_http_app(
            streamable_http_path=PATH,
            transport_security=TransportSecuritySettings(
                allowed_hosts=hosts, allowed_origins=[f"http://{name}" for name in hosts]
            ),
        )
        observer.note(f"http://{host}:{port}{PATH} serves agents; Ctrl-C stops it", "Run")
        settings = uvicorn.Config(app, log_level="warning", lifespan="on")
        uvicorn.Server(settings).run([listener])
