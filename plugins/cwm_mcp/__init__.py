"""A server of the Model Context Protocol for coding agents that write programs: `cwm mcp`.

`command` reads the command line, and `serving` opens the run and serves it. `server` defines the
tools that an agent calls, `session` does their work, and `answers` has the types of their results.
`submissions` makes a submitted program the next completion of an ordinary search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Add the strategy of `cwm mcp`."""
    return {"submissions": "cwm_mcp.submissions:SubmittedMoves"}


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Add the backend of `cwm mcp`."""
    return {"submissions": "cwm_mcp.submissions:SubmittedPrograms"}


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add the command `cwm mcp`."""
    from cwm_mcp.command import mcp

    app.command("mcp")(api.guarded(mcp))
