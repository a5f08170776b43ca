"""`cwm score`: rank what followed among all that might have, under rules in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    ApiBaseOption,
    DataSeedOption,
    EnvArgOption,
    EnvOption,
    HideOption,
    JsonOption,
    ModelOption,
    NoiseOption,
    OptionsOption,
    ShiftOption,
    console,
    emit_json,
    parse_env_args,
)
from cwm_cli.errors import CwmError


def score(
    env: EnvOption,
    rules: Annotated[
        Path,
        typer.Option(
            "--rules", metavar="FILE", help="Rules, one on each line.", show_default=False
        ),
    ],
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="Recorded transitions (.npz), of which the held-out ones count. "
            "Default: those of `cwm theorize`.",
            show_default=False,
        ),
    ] = None,
    topk: Annotated[
        str, typer.Option("--topk", metavar="K,K", help="Ranks that accuracy is told of.")
    ] = "1,3,5,10",
    statistician: Annotated[
        str | None,
        typer.Option(
            "--statistician",
            metavar="NAME",
            help="Who says how likely a change is: a backend, or PROVIDER/NAME.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    api_base: ApiBaseOption = None,
    data_seed: DataSeedOption = 0,
    option: OptionsOption = None,
    json: JsonOption = False,
) -> None:
    """Say how well rules in words predict recorded transitions.

    Every candidate of what may follow is weighed under the rules, and what did follow is ranked
    among them. Chance orders what is tied; as published, ties count in favour of what followed.
    No rules and guessing stand beside.

    Example: cwm score --env Door-v0 --env-arg rule='"not blue"' --rules rules.txt
    """
    from rich.text import Text

    from cwm_cli.views.lines import Lines
    from cwm_cli.views.tables import GridTable
    from cwm_theorize.scoring import score as rank

    result = rank(
        env,
        rules=rules,
        env_args=parse_env_args(env_arg, shift, hide, noise),
        dataset=dataset,
        top=ranks(topk),
        statistician=statistician,
        model=model,
        api_base=api_base,
        options=option or (),
        data_seed=data_seed,
        observer=Lines(),
    )
    out = console(json=json)
    out.print(Text(f"{result.env} · {result.statistician} · {result.source}", "bold"))
    for grid in result.grids():
        out.print(GridTable(grid))
    for line in (result.likelihoods(), *result.notes):
        out.print(Text(line), soft_wrap=True)
    if json:
        emit_json(result.as_json())


def ranks(text: str) -> list[int]:
    """Read whole numbers with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in parts):
        raise CwmError(f"invalid --topk {text}: write ranks of at least 1, such as --topk 1,3,5,10")
    return sorted({int(part) for part in parts})
