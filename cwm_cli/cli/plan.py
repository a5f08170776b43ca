"""`cwm plan`: play an environment by planning in a world model."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    EnvArgOption,
    HideOption,
    JsonOption,
    NoiseOption,
    OptionsOption,
    ProgramOption,
    RunOption,
    SeedOption,
    ShiftOption,
    ToolOption,
    emit_json,
    parse_env_args,
    print_parts,
    run_folder,
)


def plan(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]", help="A run; its best program.", show_default=False, parser=run_folder
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option("--env", help="Environment id; a run knows its own.", show_default=False),
    ] = None,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    program: ProgramOption = None,
    run_option: RunOption = None,
    real_env: Annotated[
        bool,
        typer.Option("--real-env", help="No model: the oracle plans, in the environment itself."),
    ] = False,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="The rows a program was found from: what they do not support is doubted.",
            show_default=False,
        ),
    ] = None,
    planner: Annotated[
        str,
        typer.Option(
            "--planner",
            help="mcts or tabular for discrete actions, icem or cem for continuous ones, or auto.",
        ),
    ] = "auto",
    option: OptionsOption = None,
    oracle: Annotated[
        bool,
        typer.Option("--oracle", help="Compare with plans in the environment itself: R."),
    ] = False,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes to play.")] = 10,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps",
            min=1,
            help="Steps after which an episode is cut. Default: the environment's limit, or 1000.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that plan.")] = 1,
    render: Annotated[
        Path | None,
        typer.Option(
            "--render",
            metavar="FILE",
            help="Film the first episode, as .gif or .mp4.",
            show_default=False,
        ),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Forget what was played before.")] = False,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Play an environment, planning every action in a world model.

    From the same starts random draws its actions; with --oracle plans are also made in
    the environment itself, which takes longer. R = (model - random) / (oracle - random),
    where the oracle is clearly better than chance; with --real-env there is no R.
    Where the program fails the action is random, and counted. An episode is
    written down when it ends, so that a command that was stopped continues.

    Example: cwm plan runs/CartPole-v1-gif-mcts-0-20260101-120000 --oracle
    """
    from cwm_cli.commands.plan import plan as play
    from cwm_cli.errors import CwmError
    from cwm_cli.views.lines import complain, progress_console
    from cwm_cli.views.planning import plan_report, plan_view
    from cwm_cli.views.terminal import place_words

    if run and run_option and run != run_option:
        raise CwmError(f"{run} and {run_option} are two runs: name one")
    view = plan_view(progress_console(), erase=json or sys.stdout.isatty())
    with redirect_stdout(sys.stderr):  # what environments print is no result
        result = play(
            run or run_option,
            env=env,
            env_args=parse_env_args(env_arg, shift, hide, noise),
            program=program,
            real_env=real_env,
            dataset=dataset,
            planner=planner,
            options=option or (),
            oracle=oracle,
            episodes=episodes,
            workers=workers,
            seed=seed,
            max_steps=max_steps,
            render=render,
            new=new,
            tools=tool or (),
            allow_gap=allow_gap or (),
            observer=view,
        )
    if json:
        emit_json(result.as_json())
    print_parts(plan_report(result), json=json)
    if failure := result.side.failure:
        cost = result.side.cost
        complain(
            f"the program failed in {cost.failures} of {cost.decisions} decisions, so their "
            f"actions were random; first failure: {place_words(failure)}: {failure.message}",
            kind="Warning",
        )
        if cost.failures == cost.decisions and not result.stopped:
            raise typer.Exit(1)
    if result.stopped:
        raise CwmError(result.stopped)
