"""`cwm play`: play in a world model by keys, or look on."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    EnvArgOption,
    HideOption,
    JsonOption,
    NoiseOption,
    OptionsOption,
    ProgramOption,
    SeedOption,
    ShiftOption,
    ToolOption,
    console,
    emit_json,
    parse_env_args,
    run_folder,
)

if TYPE_CHECKING:
    from cwm_cli.runs.observer import Observer


def play(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]", help="A run; its world model.", show_default=False, parser=run_folder
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
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="human: you play in the world model; env: in the environment; agent: plans play "
            "in the model; recon: what the model sees; replay: recorded episodes. "
            "Default: human where there is a model, else env.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="Episodes to replay. Default: those of the run, or of the environment.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FILE", help="Film it, as .gif or .mp4.", show_default=False
        ),
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(
            "--fps",
            min=0.1,
            help="Let time go on, so many steps a second. Default: it waits for a key; plans take "
            "15 steps a second.",
            show_default=False,
        ),
    ] = None,
    planner: Annotated[
        str, typer.Option("--planner", help="Who plays with --mode agent.")
    ] = "auto",
    option: OptionsOption = None,
    episodes: Annotated[
        int, typer.Option("--episodes", min=1, help="Episodes that plans play.")
    ] = 1,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", min=1, help="Steps after which an episode is cut.", show_default=False
        ),
    ] = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Play in a world model by keys, with the true environment beside it.

    Arrows, letters and digits take the actions; what they do stands below. The first step that
    comes out otherwise than the model predicts is marked. enter begins again, `.` pauses, `,`
    starts and stops a film, t hides what is true, q quits. Without a terminal --mode agent and
    --mode replay say what came of it.

    Example: cwm play runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from rich.console import Console

    from cwm_cli.errors import UnknownNameError
    from cwm_cli.views.lines import Lines
    from cwm_play.keyboard import Keyboard
    from cwm_play.play import FPS, MODES, PlayMode
    from cwm_play.play import play as run_game
    from cwm_play.view import GameScreen, game_report

    chosen: PlayMode | None = next((each for each in MODES if each == mode), None)
    if mode is not None and chosen is None:
        raise UnknownNameError("mode", mode, MODES)
    screen = Console(stderr=True)
    observer: Observer = Lines()
    with ExitStack() as stack:
        keys: Keyboard | None = None
        if sys.stdin.isatty() and screen.is_terminal and not json:
            tick = fps or (FPS if chosen == "agent" else None)
            keys, observer = stack.enter_context(Keyboard(tick)), GameScreen(screen)
        stack.enter_context(redirect_stdout(sys.stderr))  # what environments print is no result
        result = run_game(
            run,
            env=env,
            env_args=parse_env_args(env_arg, shift, hide, noise),
            program=program,
            mode=chosen,
            dataset=dataset,
            keys=keys,
            record=record,
            fps=fps or FPS,
            planner=planner,
            options=option or (),
            episodes=episodes,
            max_steps=max_steps,
            seed=seed,
            tools=tool or (),
            allow_gap=allow_gap or (),
            observer=observer,
        )
    if json:
        emit_json(result.as_json())
    elif result.facts.get("episodes"):
        console(json=json).print(game_report(result.facts["episodes"]))
