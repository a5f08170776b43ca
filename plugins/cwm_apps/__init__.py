"""The coding benchmark APPS: programs for coding problems, judged by tests that nobody saw."""

from collections.abc import Mapping

import typer

from cwm_cli import hookimpl


@hookimpl
def cwm_problems() -> Mapping[str, str]:
    """Offer the problem of a single coding task."""
    return {"coding": "cwm_apps.problem:CodingProblem"}


@hookimpl
def cwm_run_kinds() -> Mapping[str, str]:
    """Tell what a run over many coding problems is."""
    return {"coding": "cwm_apps.runs:CodingRun"}


@hookimpl
def cwm_commands(app: typer.Typer) -> None:
    """Add `cwm apps`."""
    from cwm_apps.command import apps
    from cwm_cli.cli.shared import guarded

    app.command("apps")(guarded(apps))
