"""`cwm data`: read, write and look into transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    EnvArgOption,
    HideOption,
    JsonOption,
    OptionsOption,
    emit,
    emit_json,
    guarded,
    parse_env_args,
)

data = typer.Typer(no_args_is_help=True, help="Read, write and look into recorded transitions.")


@data.command("import")
@guarded
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A dataset of Minari (minari:ID, or its folder), a table (.csv, .csv.gz, "
            ".parquet), a replay buffer of Stable-Baselines3 or as the paper published it (.pkl).",
            show_default=False,
        ),
    ],
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Environment id, such as CartPole-v1. Default: the one that the file names.",
            show_default=False,
        ),
    ] = None,
    env_arg: EnvArgOption = None,
    hide: HideOption = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="The format; `cwm plugins` lists importers. Default: what the file looks like.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write. Default: the name, as .npz."),
    ] = None,
    option: OptionsOption = None,
    all_train: Annotated[
        bool,
        typer.Option("--all-train", help="Hold nothing back: all rows are train rows."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that holds something else.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read transitions that were recorded elsewhere; nothing that a file holds is run.

    Example: cwm data import minari:cartpole/expert-v0
    """
    from cwm_cli.commands.data_import import import_transitions
    from cwm_cli.views.lines import Lines

    result = import_transitions(
        file,
        env,
        env_args=parse_env_args(env_arg, hide=hide),
        source=source,
        options=option or (),
        out=out,
        all_train=all_train,
        force=force,
        observer=Lines(),
    )
    emit(result.as_json(), json=json)


@data.command("export")
@guarded
def export(
    file: Annotated[Path, typer.Argument(help="A dataset (.npz).", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="FORMAT", help="The format; `cwm plugins` lists the exporters."
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="PLACE", help="Where to write. Default: the name of the dataset."
        ),
    ] = None,
    option: OptionsOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is there, if it is of the format.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write a dataset in a format that others read.

    Example: cwm data export CartPole-v1.npz --to minari
    """
    from cwm_cli.commands.data_export import export_transitions
    from cwm_cli.views.lines import Lines

    result = export_transitions(
        file, to, out=out, options=option or (), force=force, observer=Lines()
    )
    emit(result.as_json(), json=json)


@data.command("show")
@guarded
def show(
    file: Annotated[Path, typer.Argument(help="A dataset (.npz).", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Say what is in a dataset: ranges and counts of every component, rewards, episodes.

    Example: cwm data show CartPole-v1.npz
    """
    from cwm_cli.cli.shared import console
    from cwm_cli.commands.collect import load_dataset
    from cwm_cli.commands.describing import summarise
    from cwm_cli.views.datasets import DatasetPicture

    summary = summarise(file, load_dataset(file))
    if json:
        emit_json(summary.as_json())
        return
    emit(summary.facts, json=False)
    console(json=False).print(DatasetPicture(summary))
