"""`cwm runs`: list, show, compare, export and remove runs."""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from cwm_cli.cli.shared import (
    ForceOption,
    JsonOption,
    MaxStepsOption,
    OneRunArgument,
    ProgramOptions,
    RewardExpressionOption,
    basic_option,
    can_ask,
    complete_run,
    confirm,
    console,
    data_option,
    emit,
    emit_json,
    guarded,
    model_option,
    names_of,
    print_report,
    run_folder,
)
from cwm_cli.errors import CwmError
from cwm_cli.text import clean
from cwm_cli.views.lines import Lines, complain

if TYPE_CHECKING:
    from cwm_cli.export import Export
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
    from cwm_cli.runs.storage import named
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
    from cwm_cli.runs.searches import SearchRun
    from cwm_cli.views.runs import node_parts

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
        # Click options take a value or none, not both: give `--html` an empty file name
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
    from cwm_cli.runs.storage import named
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


ToOption = Annotated[
    str | None,
    basic_option(
        "--to",
        metavar="FORMAT",
        help="Export imagined episodes in this dataset format, e.g. minari, csv or parquet.",
        show_default="a package",
        autocompletion=names_of("exporter"),
    ),
]
OutOption = Annotated[
    str | None, basic_option("--out", metavar="DIR", help="Output folder. Default: RUN/export.")
]
FormOption = Annotated[
    Literal["auto", "numpy", "jax", "python"],
    basic_option(
        "--form",
        help="How the package computes steps: the program itself (python), its translation into "
        "NumPy, or also into JAX. auto: numpy if possible.",
    ),
]
SeedOption = Annotated[
    int | None,
    basic_option("--seed", min=0, help="Random seed.", show_default="0"),
]
EpisodesOption = Annotated[
    int | None,
    data_option("--episodes", min=1, help="Number of imagined episodes.", show_default="10"),
]
PolicyOption = Annotated[
    str | None,
    data_option(
        "--policy",
        metavar="NAME",
        help="Policy of imagined episodes: planner, random, or the agent of a training run.",
        show_default="planner",
    ),
]
PlannerOption = Annotated[
    str | None,
    model_option(
        "--planner",
        metavar="NAME",
        help="Planner of --policy planner.",
        show_default="auto",
        autocompletion=names_of("planner"),
    ),
]


def export(
    *,
    folder: OneRunArgument,
    to: ToOption = None,
    out: OutOption = None,
    form: FormOption = "auto",
    seed: SeedOption = None,
    episodes: EpisodesOption = None,
    policy: PolicyOption = None,
    planner: PlannerOption = None,
    max_steps: MaxStepsOption = None,
    reward_expression: RewardExpressionOption = None,
    programs: ProgramOptions,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Export the program of a run as a Gymnasium package.

    The package does not need cwm. A run of `cwm apps` exports solutions. With --to the output is a
    dataset of episodes that a policy plays inside the model.

    Example: cwm runs export runs/CartPole-v1-induction-0-20260101-120000
    """
    from cwm_cli.commands.collect import writing
    from cwm_cli.export import export_of, publish
    from cwm_cli.runs.storage import send_all

    asked = {
        "episodes": episodes,
        "seed": seed,
        "policy": policy,
        "planner": planner,
        "max_steps": max_steps,
        **programs,
    }
    given = {name: value for name, value in asked.items() if value not in (None, [])}
    if to is not None:
        if reward_expression is not None or form != "auto":
            option = "--form" if reward_expression is None else "--reward-expression"
            raise CwmError(f"{option} is for a package: leave out --to")
        return _export_imagined(folder, to, out, given, force=force, json=json)
    given.pop("allow_gap", None)
    if given:
        name = {"options": "-o", "tools": "--tool"}.get(next(iter(given)))
        name = name or f"--{next(iter(given)).replace('_', '-')}"
        raise CwmError(f"{name} is for imagined episodes: add --to minari, or leave it out")
    with redirect_stdout(sys.stderr):  # environments may print
        made = export_of(folder, reward_expression, form, accepted=programs["allow_gap"])
    target = Path(out) if out else folder / "export"
    with writing(target):
        publish(made, target)
    send_all(target)
    for note in made.notes:
        complain(note, kind="Note")
    _print(made, target, json=json)
    return None


def _export_imagined(
    folder: Path, to: str, out: str | None, asked: dict[str, Any], *, force: bool, json: bool
) -> None:
    """Imagine episodes, and write them in a format of datasets."""
    from cwm_cli.commands.data import export_transitions, exporter_of
    from cwm_cli.commands.imagine import imagine
    from cwm_cli.commands.subjects import split_options

    theirs, rest = split_options(asked.pop("options", ()), "exporter")
    suffix = exporter_of(to, theirs).suffix  # refuses a wrong format before it imagines
    with redirect_stdout(sys.stderr):  # environments may print
        rows = imagine(folder, **asked, options=rest, observer=Lines())
        place = out or f"{folder.name}-imagined{suffix}"
        result = export_transitions(
            rows, to, out=place, options=theirs, force=force, observer=Lines()
        )
    imagined = {"imagined": rows.metadata["imagined"]} if json else {}
    emit(result.as_json() | imagined, json=json)


def _print(made: Export, target: Path, *, json: bool) -> None:
    """Print the output folder, and how to use the package."""
    from cwm_cli.runs.storage import named

    paths = {name: named(target / path) for name, path in made.paths.items()}
    if json:
        emit_json({"folder": named(target), **paths, **made.facts})
        return
    typer.echo(f"exported  {clean(named(target))}")
    for line in made.use:
        typer.echo(f"use       {Template(line).safe_substitute(folder=shlex.quote(named(target)))}")


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
    from cwm_cli.runs.storage import named, placed
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
