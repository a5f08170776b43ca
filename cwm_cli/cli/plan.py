"""`cwm plan`: play an environment by planning in a world model."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import typer

from cwm_cli.cli.shared import (
    JsonOption,
    MaxStepsOption,
    PlannerOption,
    ProgramOptions,
    RewardExpressionOption,
    RunEnvOption,
    SeedOption,
    ShiftableOptions,
    WorldModelOptions,
    advanced_option,
    basic_option,
    complete_dataset,
    data_option,
    emit_json,
    limit_option,
    print_parts,
)
from cwm_cli.errors import CwmError

EpisodesOption = Annotated[
    int, basic_option("--episodes", min=1, help="Number of episodes to play.")
]


class PlanOptions(TypedDict):
    """The environment, the data of the model, and the comparisons and film of episodes."""

    env: RunEnvOption
    opponent: Annotated[
        Literal["random", "self", "oracle"] | None,
        basic_option(
            "--opponent",
            help="Opponent in a game of two players: random (the default there), self (the same "
            "planner in the same model), or oracle (it plans in the game itself).",
        ),
    ]
    oracle: Annotated[
        bool,
        basic_option("--oracle", help="Also plan in the environment itself, to report R."),
    ]
    real_env: Annotated[
        bool,
        basic_option("--real-env", help="Plan only in the environment itself, without a model."),
    ]
    render: Annotated[
        Path | None, basic_option("--render", help="Film the first episode (.gif or .mp4).")
    ]
    dataset: Annotated[
        Path | None,
        data_option(
            "--dataset",
            help="Rows that the program was found from; predictions without their support are not "
            "trusted.",
            autocompletion=complete_dataset,
        ),
    ]
    reward_expression: RewardExpressionOption
    max_steps: MaxStepsOption
    new: Annotated[
        bool, advanced_option("--new", help="Play again, and ignore episodes from before.")
    ]


def plan(
    *,
    model: WorldModelOptions,
    options: PlanOptions,
    episodes: EpisodesOption = 10,
    seed: SeedOption = 0,
    environment: ShiftableOptions,
    planner: PlannerOption = "auto",
    workers: Annotated[int, limit_option("--workers", min=1, help="Processes that plan.")] = 1,
    programs: ProgramOptions,
    json: JsonOption = False,
) -> None:
    """Play an environment by planning in a world model.

    Compares with random actions and with doing nothing from the same initial states, and with
    --oracle also with plans in the environment itself. R = (model - baseline) / (oracle -
    baseline), where the baseline is the better one of random and doing nothing. R needs an
    oracle that is clearly better. If the program fails, the action is random, and the failure
    is counted. A command that was stopped continues after its last finished episode. With --shift,
    the same model also plays in shifted environments.

    Example: cwm plan runs/CartPole-v1-induction-0-20260101-120000 --oracle
    """
    from cwm_cli.commands.plan import plan as play
    from cwm_cli.views.lines import complain, progress_console
    from cwm_cli.views.planning import plan_report, plan_view
    from cwm_cli.views.terminal import place_words

    view = plan_view(progress_console(), erase=json or sys.stdout.isatty())
    env_args, shifts = environment.read(of_run=model.folder is not None)
    with redirect_stdout(sys.stderr):  # environments may print
        result = play(
            model.folder,
            env_args=env_args,
            shifts=shifts,
            program=model.program,
            planner=planner,
            episodes=episodes,
            workers=workers,
            seed=seed,
            observer=view,
            **options,
            **programs,
        )
    if json:
        emit_json(result.as_json())
    print_parts(plan_report(result), json=json)
    if failure := result.side.failure:
        cost = result.side.cost
        complain(
            f"{cost.failures} of {cost.decisions} decisions failed, so their actions were random; "
            f"first failure: {place_words(failure)}: {failure.message}",
            kind="Warning",
        )
        if cost.failures == cost.decisions and not result.stopped:
            raise typer.Exit(1)
    if result.stopped:
        raise CwmError(result.stopped)
