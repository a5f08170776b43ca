"""`cwm runs`: look at run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.boundary import guarded

runs = typer.Typer(no_args_is_help=True, help="Look at run folders.")


@runs.command("list")
@guarded
def list_(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
) -> None:
    """List the runs of a folder, the newest first.

    Example: cwm runs list
    """
    from rich.table import Table
    from rich.text import Text

    from cwm_cli.cli.output import console
    from cwm_cli.runs import runs_in

    table = Table("run", "environment", "strategy", "answers", "nodes", "best")
    table.columns[0].overflow = "fold"  # so that the folder can be copied
    for run in runs_in(folder):
        nodes = list(run.nodes())
        best = max((node.verdict.score for node in nodes), default=0.0)
        answers = run.config.model or run.config.backend
        cells = (str(run.folder), run.config.env, run.config.strategy, answers)
        table.add_row(*map(Text, cells), str(len(nodes)), f"{best:.4f}")
    if not table.row_count:
        typer.echo(f"there are no runs in {folder}: start one with `cwm synthesize`")
        return
    console(json=False).print(table)


@runs.command("show")
@guarded
def show(
    folder: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
) -> None:
    """Draw the tree of a run and what came of it.

    Example: cwm runs show runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    import json

    from cwm_cli.cli.output import console, emit
    from cwm_cli.runs import Run
    from cwm_cli.views import finished_tree

    run = Run.load(folder)
    about = run.config.model_dump(exclude={"options"})
    about |= {"tools": ", ".join(run.config.tools), "protection": run.header.openings}
    emit({name: value for name, value in about.items() if value not in ("", {})}, json=False)
    console(json=False).print(finished_tree(list(run.nodes())))
    result = folder / "result.json"
    if result.exists():
        facts = json.loads(result.read_text())
        emit(
            {name: facts[name] for name in ("solved", "completions", "cost", "program")}, json=False
        )
