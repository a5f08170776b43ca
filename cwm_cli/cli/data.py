"""`cwm data`: import, export and show transitions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

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
    console,
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


class TableOptions(TypedDict):
    """The roles of the columns of a table without an environment."""

    action: Annotated[
        list[str] | None,
        basic_option(
            "--action",
            metavar="COLUMNS",
            help="Columns of the action, with commas between, of a table without an environment; "
            "its spaces are inferred.",
        ),
    ]
    observation: Annotated[
        list[str] | None,
        basic_option(
            "--observation",
            metavar="COLUMNS",
            help="Columns of the observation. Default: all that have no other role.",
        ),
    ]
    reward: Annotated[
        str | None, basic_option("--reward", metavar="COLUMN", help="Column of the reward.")
    ]
    episode: Annotated[
        str | None,
        data_option(
            "--episode", metavar="COLUMN", help="Column of the episode. Default: recognised."
        ),
    ]
    time: Annotated[
        str | None,
        data_option(
            "--time",
            metavar="COLUMN",
            help="Column of the time, or none. Default: recognised by name and values.",
        ),
    ]
    terminated: Annotated[
        str | None,
        data_option(
            "--terminated",
            metavar="COLUMN",
            help="Column that marks the last row of an episode. Default: recognised.",
        ),
    ]
    drop_missing: Annotated[
        bool,
        data_option("--drop-missing", help="Leave out rows with missing or bad cells."),
    ]
    resample: Annotated[
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
    table: TableOptions,
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

    action, observed = (tuple(table[name] or ()) for name in ("action", "observation"))
    given: dict[str, Any] = {**table, "action": action, "observation": observed}
    columns = TableColumns(**given)
    if not action and columns != TableColumns(()):
        if env is not None:
            raise CwmError(
                "options for columns and missing cells are for tables without an environment: "
                "leave out --env, and name the columns of the action with --action"
            )
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
    if not json:
        facts = _without_long_arguments(facts)
        if action:
            facts["next"] = f"cwm synthesize --dataset {facts['file']}"
    emit(facts, json=json)


def _without_long_arguments(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts for people, without arguments that describe all columns of a table."""
    is_long = len(str(facts.get("env_args", ""))) > 300
    return {key: value for key, value in facts.items() if key != "env_args" or not is_long}


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
    from cwm_cli.commands.collect import load_dataset
    from cwm_cli.commands.data import summarise
    from cwm_cli.views.datasets import DatasetPicture

    summary = summarise(file, load_dataset(file))
    if json:
        emit_json(summary.as_json())
        return
    emit(_without_long_arguments(summary.facts), json=False)
    console(json=False).print(DatasetPicture(summary))
