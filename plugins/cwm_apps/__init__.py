"""The coding benchmark APPS: programs for coding problems, judged by hidden tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_problems() -> Mapping[str, str]:
    """Add the problem of a single coding task."""
    return {"coding": "cwm_apps.problem:CodingProblem"}


@hookimpl
def cwm_run_kinds() -> Mapping[str, str]:
    """Add the run kind of a run over many coding problems."""
    return {"coding": "cwm_apps.runs:CodingRun"}


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add the command `cwm apps`."""
    from cwm_apps.command import apps

    app.command("apps")(api.guarded(apps))


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Return examples for the conformance tests."""
    return {
        "problem coding": "cwm_apps.examples:coding_problem",
    }
