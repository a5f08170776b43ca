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
    """Let plugins offer loops for `cwm learn --strategy`."""
    return {
        "learning strategy": ExtensionPoint(
            "cwm_learning_strategies", "cwm_cli.agents.learning.strategy:LearningStrategy", True
        ),
    }


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Offer `cwm.learn`."""
    return {
        "learn": "cwm_cli.agents.learning.learn:learn",
    }


@hookimpl
def cwm_run_kinds() -> Mapping[str, str]:
    """Offer the runs of `cwm learn`."""
    return {
        "learn": "cwm_cli.agents.learning.runs:LearnRun",
    }


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add `cwm learn`."""
    from cwm_cli.cli.learn import learn

    app.command("learn")(api.guarded(learn))
