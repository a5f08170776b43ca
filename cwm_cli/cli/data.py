"""`cwm data`: import, export and show transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    EnvArgOption,
    ForceOption,
    HideOption,
    JsonOption,
    OptionsOption,
    advanced_option,
    basic_option,
    complete_dataset,
    data_option,
    emit,
    emit_json,
    guarded,
    names_of,
    parse_env_args,
)
from cwm_cli.errors import CwmError

data = typer.Typer(no_args_is_help=True, help="Import, export and show recorded transitions.")

DatasetArgument = Annotated[
    Path, typer.Argument(help="A dataset (.npz).", autocompletion=complete_dataset)
]


FileArgument = Annotated[
    Path,
    typer.Argument(
        help="A Minari dataset (minari:ID or its folder), a table (.csv, .csv.gz, .parquet), "
        "or a replay buffer (.pkl) of Stable-Baselines3 or of the paper."
    ),
]
EnvOption = Annotated[
    str | None,
    basic_option(
        "--env",
        metavar="ID",
        help="Environment ID, or FILE.py with the spaces of a log. Default: the environment that "
        "the file names. Tables without one: --action.",
        autocompletion=names_of("environment"),
    ),
]
OutOption = Annotated[
    Path | None, basic_option("--out", help="Output file. Default: NAME.npz in this folder.")
]
SourceOption = Annotated[
    str | None,
    data_option(
        "--from",
        metavar="FORMAT",
        help="Format of the file; `cwm plugins` lists importers. Default: detected.",
    ),
]
AllTrainOption = Annotated[
    bool, data_option("--all-train", help="Use all rows for training, none as held-out rows.")
]
ActionOption = Annotated[
    list[str] | None,
    basic_option(
        "--action",
        metavar="COLUMNS",
        help="Columns of the action, with commas between, of a table without an environment; its "
        "spaces are inferred.",
    ),
]
ObservationOption = Annotated[
    list[str] | None,
    basic_option(
        "--observation",
        metavar="COLUMNS",
        help="Columns of the observation. Default: all that have no other role.",
    ),
]
RewardOption = Annotated[
    str | None, basic_option("--reward", metavar="COLUMN", help="Column of the reward.")
]
EpisodeOption = Annotated[
    str | None,
    data_option("--episode", metavar="COLUMN", help="Column of the episode. Default: recognised."),
]
TimeOption = Annotated[
    str | None,
    data_option(
        "--time",
        metavar="COLUMN",
        help="Column of the time, or none. Default: recognised by name and values.",
    ),
]
TerminatedOption = Annotated[
    str | None,
    data_option(
        "--terminated",
        metavar="COLUMN",
        help="Column that marks the last row of an episode. Default: recognised.",
    ),
]
DropMissingOption = Annotated[
    bool,
    data_option("--drop-missing", help="Leave out rows with missing or bad cells."),
]
ResampleOption = Annotated[
    float | None,
    data_option("--resample", metavar="SECONDS", help="Resample to steps of this length."),
]


@data.command("import")
@guarded
def import_(
    *,
    file: FileArgument,
    env: EnvOption = None,
    out: OutOption = None,
    source: SourceOption = None,
    all_train: AllTrainOption = False,
    env_arg: EnvArgOption,
    hide: HideOption,
    action: ActionOption = None,
    observation: ObservationOption = None,
    reward: RewardOption = None,
    episode: EpisodeOption = None,
    time: TimeOption = None,
    terminated: TerminatedOption = None,
    drop_missing: DropMissingOption = False,
    resample: ResampleOption = None,
    options: OptionsOption,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Import transitions that were recorded elsewhere.

    Files are read as data: no code in them is run.

    Example: cwm data import minari:cartpole/expert-v0
    """
    from cwm_cli.commands.data import TableColumns, import_transitions
    from cwm_cli.views.lines import Lines

    columns = TableColumns(
        tuple(action or ()),
        tuple(observation or ()),
        reward,
        episode,
        time,
        terminated,
        drop_missing,
        resample,
    )
    if not action and columns != TableColumns(()):
        raise CwmError("name the columns of the action with --action")
    result = import_transitions(
        file,
        env,
        env_args=parse_env_args(env_arg, hide=hide),
        source=source,
        columns=columns if action else None,
        out=out,
        all_train=all_train,
        force=force,
        options=options,
        observer=Lines(),
    )
    facts = result.as_json()
    if action and not json:
        del facts["env_args"]  # the notes describe the columns
    emit(facts, json=json)


ToOption = Annotated[
    str,
    basic_option(
        "--to",
        metavar="FORMAT",
        help="Format to write; `cwm plugins` lists exporters.",
        autocompletion=names_of("exporter"),
    ),
]
ExportOutOption = Annotated[
    str | None, basic_option("--out", help="Output place. Default: the name of the dataset.")
]
ExportForceOption = Annotated[
    bool, advanced_option("--force", help="Replace existing data of the same format.")
]


@data.command("export")
@guarded
def export(
    *,
    file: DatasetArgument,
    to: ToOption,
    out: ExportOutOption = None,
    options: OptionsOption,
    force: ExportForceOption = False,
    json: JsonOption = False,
) -> None:
    """Export a dataset to another format.

    Example: cwm data export CartPole-v1.npz --to minari
    """
    from cwm_cli.commands.data import export_transitions
    from cwm_cli.views.lines import Lines

    result = export_transitions(file, to, out=out, options=options, force=force, observer=Lines())
    emit(result.as_json(), json=json)


@data.command("show")
@guarded
def show(file: DatasetArgument, json: JsonOption = False) -> None:
    """Show ranges, counts, rewards and episodes of a dataset.

    Example: cwm data show CartPole-v1.npz
    """
    from cwm_cli.cli.shared import console
    from cwm_cli.commands.collect import load_dataset
    from cwm_cli.commands.data import summarise
    from cwm_cli.views.datasets import DatasetPicture

    summary = summarise(file, load_dataset(file))
    if json:
        emit_json(summary.as_json())
        return
    emit(summary.facts, json=False)
    console(json=False).print(DatasetPicture(summary))
