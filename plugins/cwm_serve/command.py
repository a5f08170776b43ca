"""`cwm serve`: offer a world model over HTTP."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.shared import (
    DatasetOption,
    EnvironmentOptions,
    JsonOption,
    ProgramOptions,
    RunEnvOption,
    advanced_option,
    basic_option,
    complete_run,
    emit_json,
    run_folder,
)

if TYPE_CHECKING:
    from cwm_serve.serve import ServeResult

TOKEN = "CWM_SERVE_TOKEN"  # noqa: S105  # the name of a variable
"""The environment variable with the token."""

SubjectArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|PROGRAM",
        help="A run, or a program file together with --env.",
        parser=run_folder,
        autocompletion=complete_run,
    ),
]
HostOption = Annotated[
    str,
    basic_option("--host", metavar="ADDRESS", help="Address to listen on; others need a token."),
]
PortOption = Annotated[
    int, basic_option("--port", min=0, max=65535, help="Port to listen on; 0: any free one.")
]
TokenOption = Annotated[
    str | None,
    advanced_option(
        "--token",
        metavar="TEXT|generated",
        envvar=TOKEN,
        show_envvar=False,
        help=f"Token that requests need. Other users may see the command line, so set ${TOKEN} "
        "instead. Default: none on loopback, otherwise generated and printed.",
    ),
]


def serve(
    *,
    subject: SubjectArgument,
    env: RunEnvOption = None,
    environment: EnvironmentOptions,
    dataset: DatasetOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    token: TokenOption = None,
    programs: ProgramOptions,
    json: JsonOption = False,
) -> None:
    """Serve a world model over HTTP, with a page to play in it.

    Clients send observations and actions as JSON and receive predictions: single steps of
    sessions, or many rows per request. The program runs in the sandbox. /openapi.json describes all
    operations. `cwm options serve` lists the limits. Ctrl-C stops the server.

    Example: cwm serve runs/CartPole-v1-induction-0-20260101-120000
    """
    from cwm_cli.views.lines import Lines, complain
    from cwm_serve.serve import serve as run_server

    out = sys.stdout

    def announce(result: ServeResult) -> None:
        with redirect_stdout(out):
            if json:
                emit_json(result.as_json())
            else:
                typer.echo(f"Serving {result.env} ({result.model}): {result.page}")
                typer.echo("Ctrl-C stops the server.")
        out.flush()

    with redirect_stdout(sys.stderr):  # environments may print
        result = run_server(
            subject,
            env=env,
            env_args=environment.arguments,
            dataset=dataset,
            host=host,
            port=port,
            token=token,
            on_start=announce,
            observer=Lines(),
            **programs,
        )
    plural = "" if result.requests == 1 else "s"
    complain(f"answered {result.requests:,} request{plural}", kind="Stopped")
