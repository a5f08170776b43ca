"""`cwm learn`: learn an environment by acting in it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    BackendOption,
    CacheOption,
    EnvArgOption,
    EnvOption,
    HideOption,
    JsonOption,
    MaxCostOption,
    NewOption,
    NoiseOption,
    OptionsOption,
    RunFolderOption,
    SeedOption,
    ShiftOption,
    TemperatureOption,
    ToolOption,
    TrackerOption,
    TrackOption,
    emit_json,
    parse_env_args,
    print_parts,
    shown,
    tracked,
)


def learn(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Steps of the environment to take at most.")
    ] = 5000,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|DATASET",
            help="Rows to begin with, and the program of a run. Default: nothing.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="PROVIDER/NAME",
            help="LiteLLM model to ask where data alone do not explain every row; repeatable.",
            show_default=False,
        ),
    ] = None,
    backend: BackendOption = None,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    goal: Annotated[
        str | None,
        typer.Option(
            "--goal",
            metavar="TEXT",
            help="What pays instead: a condition on what is observed, 'position >= 0.6'; a "
            "strategy may take words.",
        ),
    ] = None,
    curriculum: Annotated[
        str | None,
        typer.Option(
            "--curriculum", metavar="ID,ID", help="Environments to learn before this one."
        ),
    ] = None,
    stop: Annotated[
        str,
        typer.Option(
            "--stop",
            metavar="WHEN",
            help="certified; return=X once its play returns X on the mean; or never.",
        ),
    ] = "certified",
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="Stop after so long.")
    ] = None,
    completions: Annotated[
        int | None, typer.Option("--completions", min=0, help="Completions to spend at most.")
    ] = None,
    max_cost: MaxCostOption = None,
    cache: CacheOption = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            help="Another way to learn, such as worldcoder-agent. Default: the one of cwm.",
            show_default=False,
        ),
    ] = None,
    option: OptionsOption = None,
    run: RunFolderOption = None,
    new: NewOption = False,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    track: TrackOption = None,
    tracker: TrackerOption = None,
    json: JsonOption = False,
) -> None:
    """Learn an environment by acting in it: write a program of it, and play by that.

    The program is written anew whenever something comes about otherwise than it says, until
    its own play has agreed with the world for long enough to be certified. No language model is
    needed; --model adds one. A command that was stopped continues where it was.

    Example: cwm learn --env CartPole-v1
    """
    from cwm_cli.views.lines import progress_console
    from cwm_learn.curve import save_curve
    from cwm_learn.learn import learn as learn_online
    from cwm_learn.view import learning_report, learning_view

    view = learning_view(progress_console(), steps=steps)
    with redirect_stdout(sys.stderr):  # what environments print is no result
        result = learn_online(
            env,
            env_args=parse_env_args(env_arg, shift, hide, noise),
            steps=steps,
            start=start,
            model=model or (),
            backend=backend,
            api_base=api_base,
            temperature=temperature,
            strategy=strategy,
            goal=goal,
            curriculum=[each for each in (curriculum or "").split(",") if each],
            stop=stop,
            seconds=seconds,
            completions=completions,
            max_cost=max_cost,
            cache=cache,
            options=option or (),
            seed=seed,
            run=run,
            new=new,
            tools=tool or (),
            allow_gap=allow_gap or (),
            observer=tracked(view, track, tracker),
        )
    curve = save_curve(f"{env}: return while learning", result.returns, result.run)
    if json:
        emit_json(result.as_json() | {"curve": [shown(file) for file in curve]})
    print_parts(learning_report(result, curve[0]), json=json)
