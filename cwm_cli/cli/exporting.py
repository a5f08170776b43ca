"""`cwm runs export`: write what a search found so that it can be used without `cwm`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.shared import JsonOption
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.export import Export


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where to write. Default: DIR/export."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write the program of a run as a Python package: a Gymnasium environment that needs no cwm.

    A run of another kind than a search writes what its own kind has to export.

    Example: cwm runs export runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    import sys
    from contextlib import redirect_stdout

    from cwm_cli.agents.collecting import writing
    from cwm_cli.export import export_of, publish

    with redirect_stdout(sys.stderr):  # environments may print
        made = export_of(folder)
    target = out or folder / "export"
    with writing(target):
        publish(made, target)
    for note in made.notes:
        complain(note, kind="Note")
    _report(made, target, json=json)


def _report(made: Export, target: Path, *, json: bool) -> None:
    """Print where it is, and how it is used."""
    import json as jsonlib
    import shlex
    from string import Template

    from cwm_cli.text import clean

    paths = {name: str(target / path) for name, path in made.paths.items()}
    if json:
        typer.echo(jsonlib.dumps({"folder": str(target), **paths, **made.facts}))
        return
    typer.echo(f"exported  {clean(str(target))}")
    for line in made.use:
        typer.echo(f"use       {Template(line).safe_substitute(folder=shlex.quote(str(target)))}")
