"""`cwm learn`: learn an environment by acting in it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated, TypedDict

from cwm_cli.cli.shared import (
    EnvironmentOptions,
    EnvOption,
    JsonOption,
    ModelOptions,
    ProgramOptions,
    RunOptions,
    SeedOption,
    TrackingOptions,
    basic_option,
    complete_run,
    data_option,
    emit_json,
    limit_option,
    model_option,
    names_of,
    print_parts,
    shown,
)

CurriculumOption = Annotated[
    str | None,
    data_option(
        "--curriculum", metavar="ID,ID", help="Environments to learn first, before this one."
    ),
]
StopOption = Annotated[
    str,
    limit_option(
        "--stop",
        metavar="WHEN",
        help="Stop when the program is certified, at a mean return of X (return=X), or never.",
    ),
]


class LearningOptions(TypedDict):
    """The start, the goal and the limits of learning."""

    start: Annotated[
        str | None,
        basic_option(
            "--from",
            metavar="RUN|DATASET",
            help="Start with these rows, and with the program of a run. Default: nothing.",
            autocompletion=complete_run,
        ),
    ]
    goal: Annotated[
        str | None,
        basic_option(
            "--goal",
            help="Reward instead of the environment's: a condition on observations, e.g. "
            "'position >= 0.6'; some strategies accept words.",
        ),
    ]
    strategy: Annotated[
        str | None,
        model_option(
            "--strategy",
            metavar="NAME",
            help="Learning strategy, e.g. worldcoder-agent. Default: the strategy of cwm.",
            autocompletion=names_of("learning strategy"),
        ),
    ]
    seconds: Annotated[
        float | None, limit_option("--seconds", min=0.0, help="Stop after this time.")
    ]
    completions: Annotated[
        int | None,
        limit_option("--completions", min=0, help="Maximum number of completions."),
    ]


StepsOption = Annotated[
    int, basic_option("--steps", min=1, help="Maximum number of environment steps.")
]


def learn(
    *,
    env: EnvOption,
    steps: StepsOption = 5000,
    learning: LearningOptions,
    language: ModelOptions,
    seed: SeedOption = 0,
    folder: RunOptions,
    curriculum: CurriculumOption = None,
    environment: EnvironmentOptions,
    stop: StopOption = "certified",
    programs: ProgramOptions,
    tracking: TrackingOptions,
    json: JsonOption = False,
) -> None:
    """Learn a program of an environment while acting in it.

    The program is rewritten when an observation contradicts it, until its predictions during
    play were right for long enough to be certified. No language model is needed; --model names
    one for rows that induction does not explain. A stopped command continues.

    Example: cwm learn --env CartPole-v1
    """
    from cwm_cli.views.lines import progress_console
    from cwm_learn.curve import save_curve
    from cwm_learn.learn import learn as learn_online
    from cwm_learn.view import learning_report, learning_view

    view = learning_view(progress_console(), steps=steps)
    with redirect_stdout(sys.stderr):  # environments may print
        result = learn_online(
            env,
            env_args=environment.arguments,
            steps=steps,
            curriculum=[each for each in (curriculum or "").split(",") if each],
            stop=stop,
            seed=seed,
            observer=tracking.beside(view),
            **learning,
            **language,
            **folder,
            **programs,
        )
    curve = save_curve(f"{env}: return while learning", result.returns, result.run)
    if json:
        emit_json(result.as_json() | {"curve": [shown(file) for file in curve]})
    print_parts(learning_report(result, curve[0]), json=json)
