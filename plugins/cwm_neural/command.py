"""`cwm train`: train a world model by gradient descent, and an agent in it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, TypedDict

from cwm_cli.cli.shared import (
    AllowGapOption,
    EnvironmentOptions,
    EnvOption,
    JsonOption,
    OptionsOption,
    RunOptions,
    SeedOption,
    TrackingOptions,
    advanced_option,
    basic_option,
    complete_dataset,
    complete_run,
    data_option,
    emit_json,
    model_option,
    names_of,
    one_of,
    print_parts,
    run_folder,
    shown,
)

DeviceOption = Annotated[
    str,
    advanced_option(
        "--device",
        metavar="NAME",
        help="Compute device: auto, cpu, cuda or mps.",
        autocompletion=one_of("auto", "cpu", "cuda", "mps"),
    ),
]


class TrainingOptions(TypedDict):
    """The model and the agent that are trained, and the data."""

    model: Annotated[
        str | None,
        basic_option(
            "--model",
            metavar="NAME",
            help="Kind of model: ensemble (the default), transformer, ncp, ncp-multi, dreamer, "
            "dummy, or a plugin's.",
            autocompletion=names_of("trainer"),
        ),
    ]
    steps: Annotated[
        int | None,
        basic_option(
            "--steps",
            min=1,
            help="Number of environment steps, or of training steps if no data are collected.",
            show_default="5000",
        ),
    ]
    dataset: Annotated[
        Path | None,
        data_option(
            "--dataset",
            help="Train only on these rows. Default: rows that the agent collects.",
            autocompletion=complete_dataset,
        ),
    ]
    agent: Annotated[
        str | None,
        model_option(
            "--agent",
            metavar="NAME",
            help="Agent: planner, actor-critic, cql, random, or a plugin's. Default: the model's.",
            autocompletion=names_of("agent"),
        ),
    ]
    world: Annotated[
        Path | None,
        model_option(
            "--world",
            metavar="RUN|FILE",
            help="Train only an agent, in this world model, e.g. a program.",
            parser=run_folder,
            autocompletion=complete_run,
        ),
    ]
    tokenizer: Annotated[
        str | None,
        model_option(
            "--tokenizer",
            metavar="NAME",
            help="Tokenizer: grid, vq or none. Short for -o model.tokenizer=NAME.",
        ),
    ]
    profile: Annotated[
        str | None,
        model_option(
            "--profile",
            metavar="NAME",
            help="Size of the model: tiny, small or iris. Short for -o model.preset=NAME.",
        ),
    ]
    init: Annotated[
        list[str],
        model_option(
            "--init",
            metavar="PART=RUN",
            help="Initialise a part, or the model, from another run; repeatable.",
        ),
    ]
    freeze: Annotated[
        list[str],
        model_option(
            "--freeze",
            metavar="PART",
            help="Do not train this part, e.g. tokenizer; repeatable.",
        ),
    ]
    executor: Annotated[
        str | None,
        advanced_option(
            "--executor",
            metavar="NAME",
            help="Train in a job of an executor: local, ray, slurm or a plugin's. Default: in this "
            "process.",
            autocompletion=names_of("executor"),
        ),
    ]


def train(
    *,
    env: EnvOption,
    training: TrainingOptions,
    seed: SeedOption = 0,
    folder: RunOptions,
    environment: EnvironmentOptions,
    device: DeviceOption = "auto",
    options: OptionsOption,
    allow_gap: AllowGapOption,
    tracking: TrackingOptions,
    json: JsonOption = False,
) -> None:
    """Train a neural world model, and an agent in it.

    The agent acts and collects data, the model is trained on the data, and the agent plans or
    learns in the model; it is tested in the environment at intervals. Most models need torch,
    from the extra `neural`. A command that was stopped continues.

    Example: cwm train --env CartPole-v1 --model ensemble --steps 2000
    """
    from cwm_cli.views.lines import progress_console
    from cwm_neural.training.train import train as train_model
    from cwm_neural.view import save_training_curves, training_report, training_view

    view = training_view(progress_console())
    with redirect_stdout(sys.stderr):  # environments may print
        result = train_model(
            env,
            env_args=environment.arguments,
            device=device,
            options=options,
            seed=seed,
            observer=tracking.beside(view),
            **training,
            **folder,
        )
    curve = save_training_curves(env, result)
    if json:
        emit_json(result.as_json() | {"curve": [shown(file) for file in curve]})
    print_parts(training_report(result, curve), json=json)
