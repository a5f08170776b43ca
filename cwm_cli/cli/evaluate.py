"""`cwm evaluate`: score a program, or rules, on recorded transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    DatasetOption,
    EnvArgOption,
    HideOption,
    JsonOption,
    NoiseOption,
    OptionsOption,
    SeedOption,
    ShiftOption,
    ToolOption,
    console,
    emit_json,
    parse_env_args,
    print_parts,
)


def evaluate(
    program: Annotated[
        Path,
        typer.Argument(metavar="PROGRAM|RUN", help="A .py file or a run folder."),
    ],
    env: Annotated[
        str | None,
        typer.Option("--env", help="Environment id; a run knows its own.", show_default=False),
    ] = None,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    dataset: DatasetOption = None,
    split: Annotated[
        Literal["train", "test"] | None,
        typer.Option("--split", help="Score one part only.", show_default="both"),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="accuracy; skill: proper scores; paper: the published score; or a plugin's.",
            show_default="skill for a program with chance or memory, else accuracy",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw how probabilities came true, with --metric skill; .svg or .png.",
            show_default=False,
        ),
    ] = None,
    rollouts: Annotated[
        int, typer.Option("--rollouts", min=0, help="Also roll the program out, N times.")
    ] = 0,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Say what its mistakes have in common.")
    ] = False,
    option: OptionsOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Score a program, or rules, on train and held-out transitions; show the worst mismatches.

    Example: cwm evaluate runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.commands.evaluate import evaluate as score
    from cwm_cli.views.curves import check_picture
    from cwm_cli.views.evaluation import evaluation_report, save_calibration
    from cwm_cli.views.recording import RecordingBar

    if plot is not None:
        check_picture(plot)
    result = score(
        program,
        env=env,
        env_args=parse_env_args(env_arg, shift, hide, noise),
        dataset=dataset,
        split=split,
        metric=metric,
        rollout_count=rollouts,
        options=option or (),
        tools=tool or (),
        allow_gap=allow_gap or (),
        seed=seed,
        observer=RecordingBar(),
    )
    print_parts(evaluation_report(result, diagnose=diagnose), json=json)
    if plot is not None:
        save_calibration(result, plot)
        console(json=json).print(f"Plot: {plot}", soft_wrap=True, highlight=False, markup=False)
    if json:
        found = result.diagnosis() if diagnose else None
        emit_json(result.as_json() | ({"diagnosis": found and found.as_json()} if diagnose else {}))
    if result.failure:
        raise typer.Exit(1)
