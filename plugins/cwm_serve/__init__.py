"""A world model over HTTP, and a page to play in it: `cwm serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Add the Python function `cwm.serve`."""
    return {"serve": "cwm_serve.serve:serve"}


@hookimpl
def cwm_option_groups() -> Mapping[str, str]:
    """Add the limits of the server to `cwm options`."""
    return {"serve": "cwm_serve.limits:ServerLimits"}


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add the command `cwm serve`."""
    from cwm_serve.command import serve

    app.command("serve")(api.guarded(serve))
