"""`cwm collect`: record transitions of an environment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    EnvironmentOptions,
    EnvOption,
    EpisodeStepsOption,
    ForceOption,
    JsonOption,
    OptionsOption,
    SeedOption,
    basic_option,
    data_option,
    emit_json,
    limit_option,
    names_of,
)

EpisodesOption = Annotated[
    int | None,
    basic_option(
        "--episodes",
        min=1,
        help="Number of train episodes. Default: 10, and more until --min-rows is reached.",
    ),
]
PolicyOption = Annotated[
    str,
    basic_option(
        "--policy",
        metavar="NAME",
        help="Policy that chooses actions: curated, planner or random; oracle or enumerate for "
        "environments in words.",
        autocompletion=names_of("policy"),
    ),
]
OutOption = Annotated[
    Path | None, basic_option("--out", help="Output file. Default: ID.npz in this folder.")
]
TestEpisodesOption = Annotated[
    int | None,
    data_option(
        "--test-episodes", min=0, help="Number of held-out episodes. Default: as for train."
    ),
]
MinRowsOption = Annotated[
    int | None,
    data_option(
        "--min-rows",
        min=0,
        help="Minimum number of rows of each split; more episodes are played until then. "
        "Default: 200, or 0 for a split whose number of episodes is given.",
    ),
]
MaxSecondsOption = Annotated[
    float | None,
    limit_option(
        "--max-seconds", min=0, help="Stop after this time, and keep the finished episodes."
    ),
]
WorkersOption = Annotated[
    int, limit_option("--workers", min=1, help="Processes that play; the data are the same.")
]


def collect(
    *,
    env: EnvOption,
    episodes: EpisodesOption = None,
    policy: PolicyOption = "curated",
    seed: SeedOption = 0,
    out: OutOption = None,
    test_episodes: TestEpisodesOption = None,
    min_rows: MinRowsOption = None,
    environment: EnvironmentOptions,
    max_steps: EpisodeStepsOption = 100,
    max_seconds: MaxSecondsOption = None,
    workers: WorkersOption = 1,
    options: OptionsOption,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Record transitions of an environment.

    Of ten episodes of the curated policy one is random, three are planned for reward with rising
    effort, and six explore: they drive each observed value up and down, or try every action in
    every state. If planning is impossible or slow, the best of five random episodes replaces a
    planned one. After Ctrl-C or --max-seconds the same command continues.

    Example: cwm collect --env CartPole-v1 --episodes 20
    """
    from cwm_cli.commands.collect import collect as record
    from cwm_cli.envs.spec import name_in_commands
    from cwm_cli.views.datasets import RecordingBar

    result = record(
        env,
        env_args=environment.arguments,
        episodes=episodes,
        test_episodes=test_episodes,
        min_rows=min_rows,
        max_steps=max_steps,
        policy=policy,
        seed=seed,
        out=out,
        force=force,
        workers=workers,
        max_seconds=max_seconds,
        options=options,
        observer=RecordingBar(),
    )
    if json:
        emit_json(result.as_json())
        return
    returns = result.returns
    low, mean, high = min(returns), sum(returns) / len(returns), max(returns)
    typer.echo(
        f"Recorded {len(result.dataset):,} transitions in {len(returns):,} episodes "
        f"(mean return {mean:.4g}, {low:.4g} to {high:.4g})."
    )
    typer.echo(f"File: {result.file}")
    command = ["cwm", "synthesize", "--env", name_in_commands(env), "--dataset", str(result.file)]
    typer.echo(f"Next: {shlex.join(command)}")
