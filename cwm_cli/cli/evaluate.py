"""`cwm evaluate`: score a program, or rules, on recorded transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cwm_cli.cli.shared import (
    DatasetOption,
    JsonOption,
    MetricOption,
    ProgramOptions,
    RunEnvOption,
    SeedOption,
    ShiftableOptions,
    ToleranceOption,
    basic_option,
    complete_run,
    console,
    data_option,
    emit_json,
    print_parts,
)

ProgramArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PROGRAM|RUN", help="A .py file or a run folder.", autocompletion=complete_run
    ),
]
DiagnoseOption = Annotated[
    bool, basic_option("--diagnose", help="Report what the mistakes have in common.")
]
RolloutsOption = Annotated[
    int, basic_option("--rollouts", min=0, help="Number of open-loop rollouts to score too.")
]
TransferOption = Annotated[
    Literal["ppo"] | None,
    basic_option(
        "--transfer",
        help="Train agents in the program and in the environment, and compare their returns in "
        "the environment. Needs cwm-cli[rl]; -o transfer.steps=50000 sets the effort.",
    ),
]
SplitOption = Annotated[
    Literal["train", "test"] | None,
    data_option("--split", help="Score only one split.", show_default="both"),
]
PlotOption = Annotated[
    Path | None,
    data_option("--plot", help="Draw a calibration plot (.svg or .png); needs --metric skill."),
]


def evaluate(
    *,
    program: ProgramArgument,
    env: RunEnvOption = None,
    diagnose: DiagnoseOption = False,
    rollouts: RolloutsOption = 0,
    transfer: TransferOption = None,
    seed: SeedOption = 0,
    dataset: DatasetOption = None,
    split: SplitOption = None,
    environment: ShiftableOptions,
    metric: MetricOption = None,
    tolerance: ToleranceOption = None,
    plot: PlotOption = None,
    programs: ProgramOptions,
    json: JsonOption = False,
) -> None:
    """Score a program on train and held-out transitions.

    Prints the worst mismatches as well. The program may also be rules in words. With --shift, the
    same program also predicts shifted environments, and the parts that break are listed.

    Example: cwm evaluate runs/CartPole-v1-induction-0-20260101-120000
    """
    from cwm_cli.commands.evaluate import evaluate as score
    from cwm_cli.commands.evaluate import run_of
    from cwm_cli.views.curves import check_picture
    from cwm_cli.views.datasets import RecordingBar
    from cwm_cli.views.evaluation import evaluation_report, save_calibration

    if plot is not None:
        check_picture(plot)
    env_args, shifts = environment.read(of_run=run_of(program, env) is not None)
    result = score(
        program,
        env=env,
        env_args=env_args,
        shifts=shifts,
        transfer=transfer,
        dataset=dataset,
        split=split,
        metric=metric,
        tolerance=tolerance or (),
        rollout_count=rollouts,
        seed=seed,
        observer=RecordingBar(),
        **programs,
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
