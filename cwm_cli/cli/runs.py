"""`cwm runs`: look at run folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.exporting import export
from cwm_cli.cli.shared import JsonOption, guarded

if TYPE_CHECKING:
    from typing import Any

    from cwm_apps.folder import Folder
    from cwm_cli.runs.searches import SearchRun

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

    from cwm_apps.folder import folders_in
    from cwm_cli.cli.shared import console
    from cwm_cli.runs.listing import UnreadableRun, list_runs

    table = Table("run", "environment", "strategy", "answers", "nodes", "best")
    table.columns[0].overflow = "fold"  # so that the folder can be copied
    for run in list_runs(folder):
        if isinstance(run, UnreadableRun):
            table.add_row(Text(run.run), "", "", "", "", Text(run.reason, "red"))
            continue
        cells = (run.run, run.environment, run.strategy, run.answers)
        table.add_row(*map(Text, cells), str(run.completions), f"{run.best or 0.0:.4f}")
    for apps in folders_in(folder):
        table.add_row(*map(Text, _apps_cells(apps)))
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

    from cwm_apps.folder import Folder
    from cwm_cli.cli.shared import console, emit
    from cwm_cli.runs.searches import SearchRun
    from cwm_cli.views.pictures import finished_tree

    if (apps := Folder(folder)).is_apps:
        _show_apps(apps)
        return
    run = SearchRun.load(folder)
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


@runs.command("report")
@guarded
def report(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a benchmark, or of a run.", show_default=False)
    ],
    others: Annotated[
        list[Path] | None,
        typer.Argument(help="Further folders of cwm apps, to be merged.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draw the tables of a benchmark from what is in its folder, or the scores of a run.

    A benchmark may still be running, or have been stopped. Folders of `cwm
    apps` that shared the problems are merged.

    Example: cwm runs report runs/benchmark-20260101-120000
    """
    from cwm_cli.bench.folder import Folder
    from cwm_cli.bench.report import Report
    from cwm_cli.cli.benchmark import print_report
    from cwm_cli.runs.searches import SearchRun

    if others or _is_apps(folder):
        _report_apps([folder, *(others or [])], json=json)
        return
    found = Folder(folder.absolute())
    if found.is_benchmark:
        print_report(Report.of(found), json=json)
    else:
        _report_run(SearchRun.load(folder), json=json)


runs.command("export")(guarded(export))


def _is_apps(folder: Path) -> bool:
    """Whether a folder is that of a run over coding problems."""
    from cwm_apps.folder import Folder

    return Folder(folder).is_apps


def _report_apps(folders: list[Path], *, json: bool) -> None:
    """Print the tables of runs over coding problems, merged."""
    from cwm_apps.folder import Folder
    from cwm_apps.gathering import gather
    from cwm_apps.solving import print_report

    merged = [Folder(path) for path in dict.fromkeys(folders)]
    print_report(gather(merged), merged, json=json)


def _show_apps(folder: Folder) -> None:
    """Print what a run over coding problems is, and a line per problem."""
    from cwm_apps.gathering import gather
    from cwm_apps.report import problem_grid
    from cwm_cli.cli.shared import console, emit
    from cwm_cli.views.grids import GridTable

    gathered = gather([folder])
    config = gathered.header.config
    about = config.model_dump(include={"dataset", "strategy", "backend", "model", "seed"})
    emit({"run": str(folder.path), **about, "problems": len(gathered.problems)}, json=False)
    console(json=False).print(GridTable(problem_grid(list(gathered.outcomes.values()))))


def _apps_cells(folder: Folder) -> list[str]:
    """Say what a run over coding problems is, and how far it is."""
    from cwm_apps.gathering import gather

    gathered = gather([folder])
    config, summary = gathered.header.config, gathered.report().summary
    answers = config.model or config.backend
    solved = f"{summary.solved}/{len(gathered.problems)} solved"
    return [
        str(folder.path),
        config.env,
        config.strategy,
        answers,
        str(summary.completions),
        solved,
    ]


def _report_run(run: SearchRun, *, json: bool) -> None:
    """Print what came of a run, as far as it went."""
    import json as jsonlib

    from cwm_cli.bench.folder import Folder
    from cwm_cli.cli.shared import console, emit
    from cwm_cli.evaluation import Score
    from cwm_cli.views.tables import PARTS, score_table, titled

    result = Folder(run.folder).result(run.folder)
    facts = _summary(run) | (result or {})
    if json:
        typer.echo(jsonlib.dumps(facts))
        return
    emit({name: value for name, value in facts.items() if name not in PARTS}, json=json)
    if result and result.get("train"):
        parts = {name: result.get(name) for name in PARTS}
        scores = {name: part and Score.model_validate(part) for name, part in parts.items()}
        console(json=json).print(score_table(titled(scores)))


def _summary(run: SearchRun) -> dict[str, Any]:
    """Say what a run is, and how far it is."""
    config, nodes = run.config, list(run.nodes())
    best = max((node.verdict.score for node in nodes), default=None)
    return {
        "run": str(run.folder),
        "environment": config.env,
        "strategy": config.strategy,
        "answers": config.model or config.backend,
        "seed": config.seed,
        "completions": len(nodes),
        "best": best,
    }
