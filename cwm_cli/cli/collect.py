"""`cwm collect`: record transitions of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    EnvArgOption,
    EnvOption,
    HideOption,
    JsonOption,
    NoiseOption,
    OptionsOption,
    SeedOption,
    ShiftOption,
    emit_json,
    parse_env_args,
)


def collect(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes",
            min=1,
            help="Train episodes. Default: 10, and more until there are --min-rows.",
            show_default=False,
        ),
    ] = None,
    test_episodes: Annotated[
        int | None,
        typer.Option(
            "--test-episodes",
            min=0,
            help="Test episodes, held out. Default: as for train.",
            show_default=False,
        ),
    ] = None,
    min_rows: Annotated[
        int | None,
        typer.Option(
            "--min-rows",
            min=0,
            help="Rows that each split has at least, by more episodes. "
            "Default: 200, or 0 where its number of episodes is given.",
            show_default=False,
        ),
    ] = None,
    max_steps: Annotated[
        int, typer.Option("--max-steps", min=1, help="Steps after which an episode is cut.")
    ] = 100,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="How actions are chosen: curated, planner, random; "
            "oracle or enumerate where there are words for them.",
        ),
    ] = "curated",
    option: OptionsOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write. Default: ID.npz, here."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that holds something else.")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that play; the file is the same.")
    ] = 1,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds", min=0, help="Stop after so long, with the episodes that are over."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Record transitions of an environment in a file.

    Of ten episodes of --policy curated one is random. Three are planned for reward in a copy
    of the environment, with rising effort, and six to drive all that is observed as far up and
    down as it goes, or, where there are few states, to try every action everywhere. With
    --policy planner all are planned for reward, with --policy random all are drawn. Where
    planning is not possible or takes long, the best of five random episodes stands in, and a
    note says so. After Ctrl-C or --max-seconds the same command goes on.

    Example: cwm collect --env CartPole-v1 --episodes 20
    """
    from cwm_cli.commands.collect import collect as record
    from cwm_cli.views.recording import RecordingBar

    result = record(
        env,
        env_args=parse_env_args(env_arg, shift, hide, noise),
        episodes=episodes,
        test_episodes=test_episodes,
        min_rows=min_rows,
        max_steps=max_steps,
        policy=policy,
        options=option or (),
        seed=seed,
        out=out,
        force=force,
        workers=workers,
        max_seconds=max_seconds,
        observer=RecordingBar(),
    )
    if json:
        emit_json(result.as_json())
        return
    returns = result.returns
    low, mean, high = min(returns), sum(returns) / len(returns), max(returns)
    spread = f"returns from {low:.4g} to {high:.4g}, {mean:.4g} in the mean"
    count = len(result.dataset)
    typer.echo(f"{count} transitions in {len(returns)} episodes, {spread}: {result.file}")
