"""`cwm runs export`: a run as a package, or as a dataset of imagined episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cwm_cli.cli.shared import (
    ForceOption,
    JsonOption,
    MaxStepsOption,
    OneRunArgument,
    ProgramOptions,
    basic_option,
    data_option,
    emit,
    model_option,
    names_of,
)
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.export import Export

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
    seed: SeedOption = None,
    episodes: EpisodesOption = None,
    policy: PolicyOption = None,
    planner: PlannerOption = None,
    max_steps: MaxStepsOption = None,
    programs: ProgramOptions,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Export the program of a run as a Gymnasium package.

    The package does not need cwm. A run of `cwm apps` exports solutions. With --to the output is a
    dataset of episodes that a policy plays inside the model.

    Example: cwm runs export runs/CartPole-v1-induction-0-20260101-120000
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
        **programs,
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
    _print(made, target, json=json)
    return None


def _export_imagined(
    folder: Path, to: str, out: str | None, asked: dict[str, Any], *, force: bool, json: bool
) -> None:
    """Imagine episodes, and write them in a format of datasets."""
    import sys
    from contextlib import redirect_stdout

    from cwm_cli.commands.data_export import export_transitions, exporter_of
    from cwm_cli.commands.imagine import imagine
    from cwm_cli.commands.subjects import split_options
    from cwm_cli.views.lines import Lines

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
