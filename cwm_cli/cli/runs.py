"""`cwm runs`: look at run folders of every kind, and take what they found elsewhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from cwm_cli.cli.shared import (
    AllowGapOption,
    JsonOption,
    OptionsOption,
    ToolOption,
    emit,
    emit_json,
    guarded,
    print_report,
    run_folder,
)
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.export import Export
    from cwm_cli.runs.report import RunSummary
    from cwm_cli.runs.store import Run


def export(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A run.",
            show_default=False,
            parser=run_folder,
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="PLACE", help="Where to write. Default: DIR/export."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Imagined episodes in a format of datasets, such as minari, csv or parquet.",
            show_default="a package",
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", min=1, help="Imagined episodes.", show_default="10"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Seed of imagined episodes.", show_default="0"),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Who acts in imagined episodes: planner, random, or the agent of a training.",
            show_default="planner",
        ),
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option("--planner", metavar="NAME", help="By which planner.", show_default="auto"),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", min=1, help="Steps of an imagined episode.", show_default=False
        ),
    ] = None,
    option: OptionsOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a dataset that is there already.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write the program of a run as a Python package: a Gymnasium environment that needs no cwm.

    A run of another kind than a search writes what its own kind has to export. With `--to` what is
    written is a dataset of episodes that are played inside the world model, by planning in it.

    Example: cwm runs export runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    import sys
    from contextlib import redirect_stdout

    from cwm_cli.commands.collect import writing
    from cwm_cli.errors import CwmError
    from cwm_cli.export import export_of, publish
    from cwm_cli.runs.places import send_all

    asked = {
        "episodes": episodes,
        "seed": seed,
        "policy": policy,
        "planner": planner,
        "max_steps": max_steps,
        "options": option,
        "tools": tool,
        "allow_gap": allow_gap,
    }
    given = {name: value for name, value in asked.items() if value not in (None, [])}
    if to is not None:
        return _export_imagined(folder, to, out, given, force=force, json=json)
    if given:
        name = {"options": "-o", "tools": "--tool"}.get(next(iter(given)))
        name = name or f"--{next(iter(given)).replace('_', '-')}"
        raise CwmError(f"{name} is for imagined episodes: add --to minari, or leave it out")
    with redirect_stdout(sys.stderr):  # environments may print
        made = export_of(folder)
    target = Path(out) if out else folder / "export"
    with writing(target):
        publish(made, target)
    send_all(target)
    for note in made.notes:
        complain(note, kind="Note")
    _report(made, target, json=json)
    return None


def _export_imagined(
    folder: Path, to: str, out: str | None, asked: dict[str, Any], *, force: bool, json: bool
) -> None:
    """Imagine episodes, and write them in a format of datasets."""
    import sys
    from contextlib import redirect_stdout

    from cwm_cli.cli.shared import emit
    from cwm_cli.commands.data_export import export_transitions, exporter_of
    from cwm_cli.commands.imagine import imagine
    from cwm_cli.commands.subjects import apart
    from cwm_cli.views.lines import Lines

    theirs, rest = apart(asked.pop("options", ()), "exporter")
    suffix = exporter_of(to, theirs).suffix  # what is wrong with it is said before anything else
    with redirect_stdout(sys.stderr):  # environments may print
        rows = imagine(folder, **asked, options=rest, observer=Lines())
        place = out or f"{folder.name}-imagined{suffix}"
        result = export_transitions(
            rows, to, out=place, options=theirs, force=force, observer=Lines()
        )
    told = result.as_json() | {"imagined": rows.metadata["imagined"]}
    emit(told if json else {k: v for k, v in told.items() if k != "imagined"}, json=json)


def _report(made: Export, target: Path, *, json: bool) -> None:
    """Print where it is, and how it is used."""
    import json as jsonlib
    import shlex
    from string import Template

    from cwm_cli.runs.places import named
    from cwm_cli.text import clean

    paths = {name: named(target / path) for name, path in made.paths.items()}
    if json:
        typer.echo(jsonlib.dumps({"folder": named(target), **paths, **made.facts}))
        return
    typer.echo(f"exported  {clean(named(target))}")
    for line in made.use:
        typer.echo(f"use       {Template(line).safe_substitute(folder=shlex.quote(named(target)))}")


FolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="A run folder.",
        show_default=False,
        parser=run_folder,
    ),
]
FoldersArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FOLDER...",
        help="Run folders.",
        show_default=False,
        parser=run_folder,
    ),
]

runs = typer.Typer(no_args_is_help=True, help="Look at run folders.")


@runs.command("list")
@guarded
def list_(
    folder: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help="Where the runs are.",
            show_default="runs",
            parser=run_folder,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the runs below some folders, the newest first.

    The jobs of a benchmark are listed where its own folder is named.

    Example: cwm runs list
    """
    from rich.text import Text

    from cwm_cli.cli.shared import console
    from cwm_cli.runs.listing import UnreadableRun, list_runs
    from cwm_cli.runs.places import named
    from cwm_cli.runs.report import Grid
    from cwm_cli.runs.store import RUNS
    from cwm_cli.views.tables import GridTable, fits
    from cwm_cli.views.terminal import printable

    places = folder or [RUNS]
    found = list(list_runs(*places))
    if json:
        emit_json({"runs": [run.as_json() for run in found]})
        return
    if not found:
        where = " and ".join(map(named, places))
        typer.echo(f"there are no runs in {where}: start one with `cwm synthesize`")
        return
    about = [
        (run.run, run.kind, _about(run), run.done, run.result)
        for run in found
        if not isinstance(run, UnreadableRun)
    ]
    out = console(json=False)
    grid = Grid("", ("run", "kind", "about", "done", "result"), about, words=5)
    if about and fits(grid, out.width):
        out.print(GridTable(grid))
    else:  # the folder whole, so that it can be copied, and the rest below it
        for name, *rest in about:
            out.print(Text(printable(name), "bold"), soft_wrap=True)
            out.print(Text("  " + "  ".join(printable(words) for words in rest if words)))
    complaints = (run.reason if isinstance(run, UnreadableRun) else run.damage for run in found)
    for complaint in filter(None, complaints):
        out.print(Text(printable(complaint), "red"), soft_wrap=True)


def _about(run: RunSummary) -> str:
    """Name what a run is about in a few words."""
    return " ".join(filter(None, (run.environment, run.strategy, run.answers)))


@runs.command("show")
@guarded
def show(
    folder: FolderArgument,
    node: Annotated[
        int | None,
        typer.Option(
            "--node",
            metavar="N",
            min=0,
            help="Show a node of a search: prompt, completion, program, verdict, difference.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what a run is and what came of it; of a search, draw the tree.

    Example: cwm runs show runs/CartPole-v1-gif-mcts-0-20260101-120000 --node 3
    """
    from cwm_cli.cli.shared import console
    from cwm_cli.runs.listing import load_readable, summary_of
    from cwm_cli.runs.progress import models_grid
    from cwm_cli.runs.searches import SearchRun
    from cwm_cli.runs.store import WRITER
    from cwm_cli.views.search import finished_tree
    from cwm_cli.views.tables import GridTable

    run = load_readable(folder)
    if node is not None:
        _show_node(run, node, json=json)
        return
    summary = summary_of(run)
    if summary.damage:
        complain(summary.damage, kind="Warning")
    if json:
        header = run.header.model_dump(mode="json")
        facts = summary.as_json() | {"header": header, "result": run.result()}
        if isinstance(run, SearchRun):
            facts["models"] = [use.as_json() for use in run.models()]
        emit_json(facts)
        return
    about = {"run": summary.run, "kind": summary.kind} | run.config.model_dump(exclude={"options"})
    about |= {"done": summary.done, "result": summary.result, "created": summary.created}
    if isinstance(run, SearchRun) and run.header.finding:
        about["finding"] = run.header.finding.words()
    if isinstance(run, SearchRun):
        about["contract changed to"] = "; ".join(run.contract_changes())
    written_by = run.header.versions.get(WRITER, "")
    if run.header.code:
        written_by += f" ({run.header.code})"
    about |= {"protection": run.header.openings, WRITER: written_by}
    empty: tuple[Any, ...] = ("", {}, [], (), None)
    told = {name: value for name, value in about.items() if value not in empty}
    lists = {k: ", ".join(map(str, v)) for k, v in told.items() if isinstance(v, list | tuple)}
    emit(told | lists, json=False)
    out = console(json=False)
    if isinstance(run, SearchRun):
        out.print(finished_tree(list(run.nodes())))
        if len(uses := run.models()) > 1:
            out.print(GridTable(models_grid(uses)))
        for gap in run.gaps():
            out.print(f"unseen  {gap}", highlight=False, markup=False, soft_wrap=True)
    for grid in run.grids():
        out.print(GridTable(grid))


def _show_node(run: Run[Any, Any], number: int, *, json: bool) -> None:
    """Print a node of a search."""
    from cwm_cli.cli.shared import console
    from cwm_cli.errors import CwmError
    from cwm_cli.runs.searches import SearchRun
    from cwm_cli.views.nodes import node_parts

    if not isinstance(run, SearchRun):
        words = f"{run.place} is a run of kind {run.kind!r}, which has no nodes"
        raise CwmError(f"{words}: name one of `cwm synthesize`")
    found = run.node_detail(number)
    if json:
        emit_json(found.as_json())
        return
    out = console(json=False)
    for part in node_parts(found):
        out.print(part, soft_wrap=True)


class ReportCommand(TyperCommand):
    """A command whose `--html` need not name a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; `--html` takes no folder for its file, and no other option."""
        spread = []
        for arg, follower in pairwise([*args, "-"]):
            spread.append(arg)
            if arg == "--html" and (follower.startswith("-") or Path(follower).is_dir()):
                spread.append("")
        return super().parse_args(ctx, spread)


@runs.command("report", cls=ReportCommand)
@guarded
def report(
    folder: FoldersArgument,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="[FILE]",
            help="Write a page, to look at in a browser and to send. Default: DIR/report.html.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draw the tables of a run from what is in its folder, whatever state it is in.

    Several runs that shared the work are merged, where their kind knows how.

    Example: cwm runs report runs/benchmark-20260101-120000 --html
    """
    from cwm_cli.runs.listing import report_on

    if html is None:
        print_report(report_on(folder), json=json)
        return
    from cwm_cli.runs.places import named
    from cwm_cli.views.page import PAGE, write_page

    file = Path(html) if html else folder[0] / PAGE
    write_page(folder, file)
    emit({"page": named(file)}, json=json)


@runs.command("diff")
@guarded
def diff(first: FolderArgument, second: FolderArgument, json: JsonOption = False) -> None:
    """Say in which settings and results two runs differ.

    Example: cwm runs diff runs/one runs/other
    """
    from cwm_cli.cli.shared import console
    from cwm_cli.runs.listing import compare
    from cwm_cli.runs.report import Grid
    from cwm_cli.views.tables import GridTable

    found = compare(first, second)
    if json:
        emit_json(found.as_json())
        return
    parts = {"settings": found.settings, "results": found.results}

    def plain(value: object) -> str:
        return f"{value:.9g}" if isinstance(value, float) else str(value)

    for title, some in parts.items():
        cells = [[change.name, plain(change.before), plain(change.now)] for change in some]
        if cells:
            grid = Grid(title, ["", *found.runs], cells, words=3)
            console(json=False).print(GridTable(grid))
    if not any(parts.values()):
        typer.echo("they differ in nothing")


@runs.command("rm")
@guarded
def rm(
    folder: FoldersArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without a question.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove runs with all files in their folders, except runs that a process is working on.

    Example: cwm runs rm runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.cli.shared import can_ask, confirm
    from cwm_cli.errors import CwmError
    from cwm_cli.runs.places import named, placed
    from cwm_cli.runs.store import remove

    listed = ", ".join(map(named, folder))
    if not yes and not can_ask():
        raise CwmError(f"runs rm would remove {listed}: add --yes to remove without a question")
    if not yes and not confirm(f"Remove {listed} with all files?"):
        raise CwmError("nothing was removed")
    for one in folder:
        remove(placed(one))
        if not json:
            typer.echo(f"removed {named(one)}")
    if json:
        emit_json({"removed": [named(one) for one in folder]})


runs.command("export")(guarded(export))
