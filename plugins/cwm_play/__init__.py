"""Playing an environment or a world model with the keyboard: `cwm play`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Add the Python function `cwm.play`."""
    return {"play": "cwm_play.play:play"}


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add the command `cwm play`."""
    from cwm_play.command import play

    app.command("play")(api.guarded(play))
