"""Learning a world model while acting in the environment: `cwm learn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl
from cwm_cli.hookspecs import ExtensionPoint

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_extension_points() -> Mapping[str, ExtensionPoint]:
    """Add the extension point of `cwm learn --strategy`."""
    return {
        "learning strategy": ExtensionPoint(
            "cwm_learning_strategies", "cwm_learn.strategy:LearningStrategy", True
        ),
    }


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Add the Python function `cwm.learn`."""
    return {"learn": "cwm_learn.learn:learn"}


@hookimpl
def cwm_run_kinds() -> Mapping[str, str]:
    """Add the run kind of `cwm learn`."""
    return {"learn": "cwm_learn.runs:LearnRun"}


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add the command `cwm learn`."""
    from cwm_learn.command import learn

    app.command("learn")(api.guarded(learn))
