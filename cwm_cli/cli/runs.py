"""`cwm runs`: list, show, compare, export and remove runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from cwm_cli.cli.runs_export import export
from cwm_cli.cli.shared import (
    JsonOption,
    OneRunArgument,
    basic_option,
    complete_run,
    console,
    emit,
    emit_json,
    guarded,
    print_report,
    run_folder,
)
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.runs.store import Run

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN", help="Run folders.", parser=run_folder, autocompletion=complete_run
    ),
]
FoldersArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FOLDER",
        help="Folders that contain runs.",
        show_default="runs",
        parser=run_folder,
        autocompletion=complete_run,
    ),
]
NodeOption = Annotated[
    int | None,
    basic_option(
        "--node",
        min=0,
        help="Show a node of a search: prompt, completion, program, verdict and changes.",
    ),
]

runs = typer.Typer(no_args_is_help=True, help="List, show, compare, export and remove runs.")


@runs.command("list")
@guarded
def list_(folder: FoldersArgument = None, json: JsonOption = False) -> None:
    """List runs, newest first.

    To list the jobs of a benchmark, name its folder.

    Example: cwm runs list
    """
    from rich.text import Text

    from cwm_cli.runs.listing import list_runs
    from cwm_cli.runs.places import named
    from cwm_cli.runs.store import RUNS

    places = folder or [RUNS]
    found = list(list_runs(*places))
    if json:
        emit_json({"runs": [run.as_json() for run in found]})
        return
    if not found:
        where = " and ".join(map(named, places))
        typer.echo(f"there are no runs in {where}: start one with `cwm synthesize`")
        return
    from cwm_cli.views.runs import run_list_parts

    out = console(json=False)
    for part in run_list_parts(found, out.width):
        out.print(part, soft_wrap=isinstance(part, Text))


@runs.command("show")
@guarded
def show(folder: OneRunArgument, node: NodeOption = None, json: JsonOption = False) -> None:
    """Show the settings and the result of a run.

    For a search it draws the tree as well.

    Example: cwm runs show runs/CartPole-v1-induction-0-20260101-120000 --node 0
    """
    from rich.text import Text

    from cwm_cli.runs.listing import load_readable, summary_of
    from cwm_cli.runs.searches import SearchRun
    from cwm_cli.views.runs import run_facts, run_parts

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
    emit(run_facts(run, summary), json=False)
    out = console(json=False)
    for part in run_parts(run):
        out.print(part, soft_wrap=isinstance(part, Text))


def _show_node(run: Run[Any, Any], number: int, *, json: bool) -> None:
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


HtmlOption = Annotated[
    str | None,
    basic_option(
        "--html",
        metavar="[FILE]",
        help="Write a page for the browser. Default: RUN/report.html.",
    ),
]


@runs.command("report", cls=ReportCommand)
@guarded
def report(
    folder: RunsArgument,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the tables of a run, or write its HTML report.

    Works for unfinished runs too. Several runs that shared the work are merged, if their kind
    supports it.

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
def diff(first: OneRunArgument, second: OneRunArgument, json: JsonOption = False) -> None:
    """Compare the settings and results of two runs.

    Example: cwm runs diff runs/one runs/other
    """
    from cwm_cli.runs.listing import compare
    from cwm_cli.views.runs import difference_parts

    found = compare(first, second)
    if json:
        emit_json(found.as_json())
        return
    for part in difference_parts(found):
        console(json=False).print(part)


runs.command("export")(guarded(export))


@runs.command("rm")
@guarded
def rm(
    folder: RunsArgument,
    yes: Annotated[bool, basic_option("--yes", "-y", help="Remove without a question.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove runs, except runs that a process is writing.

    Example: cwm runs rm runs/CartPole-v1-induction-0-20260101-120000
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
