"""Where output goes: one JSON object on stdout, or text for people."""

import json as jsonlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from cwm_cli.text import clean

if TYPE_CHECKING:
    from rich.console import Console


def emit(facts: Mapping[str, Any], *, json: bool) -> None:
    """Print facts as JSON, or as a line each."""
    if json:
        typer.echo(jsonlib.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {clean(str(value))}")


def console(*, json: bool) -> "Console":
    """Return the console for people: stdout, or stderr when stdout is for JSON."""
    from rich.console import Console

    return Console(stderr=json)
