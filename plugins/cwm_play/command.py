"""The command `cwm play`: play in a world model with the keyboard, or watch a planner."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from cwm_cli.cli.shared import (
    EnvironmentOptions,
    JsonOption,
    MaxStepsOption,
    PlannerOption,
    ProgramOption,
    ProgramOptions,
    RunArgument,
    RunEnvOption,
    SeedOption,
    basic_option,
    complete_dataset,
    console,
    data_option,
    emit_json,
    limit_option,
    one_of,
)

if TYPE_CHECKING:
    from cwm_cli.runs.observer import Observer


ModeOption = Annotated[
    str | None,
    basic_option(
        "--mode",
        metavar="MODE",
        help="human: you play in the model; env: in the environment; agent: a planner plays in "
        "the model; watch: in the environment; recon: shows what the model receives; replay: "
        "recorded episodes. Default: human if there is a model, else env.",
        autocompletion=one_of("human", "env", "agent", "watch", "recon", "replay"),
    ),
]
EpisodesOption = Annotated[
    int, basic_option("--episodes", min=1, help="Number of episodes that a planner plays.")
]
FpsOption = Annotated[
    float | None,
    limit_option(
        "--fps",
        min=0.1,
        help="Steps per second. Default: one step per key; 15 for a planner.",
    ),
]


class GameOptions(TypedDict):
    """Options that choose the environment, the data and the film of a game."""

    env: RunEnvOption
    program: ProgramOption
    record: Annotated[
        Path | None,
        basic_option(
            "--record",
            metavar="FILE",
            help="Film the game (.gif or .mp4); its transitions go to FILE.npz.",
        ),
    ]
    save: Annotated[
        Path | None,
        basic_option(
            "--save",
            metavar="DIR",
            help="Ask after each episode whether to keep its film and transitions in this folder.",
        ),
    ]
    dataset: Annotated[
        Path | None,
        data_option(
            "--dataset",
            help="Episodes to replay. Default: episodes of the run, or of the environment.",
            autocompletion=complete_dataset,
        ),
    ]
    max_steps: MaxStepsOption


def play(
    *,
    run: RunArgument = None,
    game: GameOptions,
    mode: ModeOption = None,
    episodes: EpisodesOption = 1,
    seed: SeedOption = 0,
    environment: EnvironmentOptions,
    planner: PlannerOption = "auto",
    fps: FpsOption = None,
    programs: ProgramOptions,
    json: JsonOption = False,
) -> None:
    """Play in a world model with the keyboard.

    The real environment is shown beside it, and the first wrong prediction is marked. Arrows,
    letters and digits choose actions, as listed on the screen. Enter restarts, `.` pauses, `,`
    starts and stops a film, `/` hides the header, t hides the environment, q quits. Without a
    terminal, --mode agent, watch and replay print their results.

    Example: cwm play runs/CartPole-v1-induction-0-20260101-120000
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
            tick = fps or (FPS if chosen in ("agent", "watch") else None)
            keys, observer = stack.enter_context(Keyboard(tick)), GameScreen(screen)
        stack.enter_context(redirect_stdout(sys.stderr))  # environments may print
        result = run_game(
            run,
            env_args=environment.arguments,
            mode=chosen,
            keys=keys,
            fps=fps or FPS,
            planner=planner,
            episodes=episodes,
            seed=seed,
            observer=observer,
            **game,
            **programs,
        )
    if json:
        emit_json(result.as_json())
    elif result.facts.get("episodes"):
        console(json=json).print(game_report(result.facts["episodes"]))
