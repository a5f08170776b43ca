"""`cwm score`: rank recorded changes among all possible changes, under rules in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cwm_cli.cli.shared import (
    ApiBaseOption,
    DataSeedOption,
    EnvironmentOptions,
    EnvOption,
    JsonOption,
    ModelOption,
    OptionsOption,
    basic_option,
    complete_dataset,
    console,
    data_option,
    emit_json,
    model_option,
    names_of,
)
from cwm_cli.errors import CwmError

TopkOption = Annotated[
    str, basic_option("--topk", metavar="K,K", help="Report top-k accuracy at these ranks.")
]
DatasetOption = Annotated[
    Path | None,
    data_option(
        "--dataset",
        help="Recorded transitions (.npz); the held-out ones count. Default: the data of `cwm "
        "theorize`.",
        autocompletion=complete_dataset,
    ),
]
StatisticianOption = Annotated[
    str | None,
    model_option(
        "--statistician",
        metavar="NAME",
        help="Backend that scores changes: BACKEND, BACKEND/MODEL or PROVIDER/MODEL.",
        autocompletion=names_of("backend"),
    ),
]


def score(
    *,
    env: EnvOption,
    rules: Annotated[Path, basic_option("--rules", help="File of rules, one per line.")],
    model: ModelOption = None,
    topk: TopkOption = "1,3,5,10",
    dataset: DatasetOption = None,
    data_seed: DataSeedOption = 0,
    environment: EnvironmentOptions,
    statistician: StatisticianOption = None,
    api_base: ApiBaseOption = None,
    options: OptionsOption,
    json: JsonOption = False,
) -> None:
    """Score how well rules in words predict transitions.

    The rules rank all candidates for the next observation; the rank of the recorded one counts.
    Ties are ordered at random; the published order favours the recorded one. Having no rules
    and guessing are shown as baselines.

    Example: cwm score --env Door-v0 --env-arg rule='"not blue"' --rules rules.txt
    """
    from rich.text import Text

    from cwm_cli.views.lines import Lines
    from cwm_cli.views.tables import GridTable
    from cwm_theorize.scoring import score as rank

    result = rank(
        env,
        rules=rules,
        env_args=environment.arguments,
        dataset=dataset,
        top=ranks(topk),
        statistician=statistician,
        model=model,
        api_base=api_base,
        options=options,
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
    """Parse ranks from text, such as "1,3,5,10"; return them sorted and without duplicates."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in parts):
        raise CwmError(f"invalid --topk {text}: write ranks of at least 1, such as --topk 1,3,5,10")
    return sorted({int(part) for part in parts})
