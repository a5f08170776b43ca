"""`cwm train`: train a world model by gradient descent, and an agent in it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    EnvArgOption,
    EnvOption,
    HideOption,
    JsonOption,
    NewOption,
    NoiseOption,
    OptionsOption,
    RunFolderOption,
    SeedOption,
    ShiftOption,
    TrackerOption,
    TrackOption,
    emit_json,
    parse_env_args,
    print_parts,
    run_folder,
    shown,
    tracked,
)


def train(
    env: EnvOption,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="ensemble (the default), transformer, ncp, ncp-multi, dreamer, dummy; or a "
            "plugin's.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="Who acts: planner, actor-critic, cql, random; or a plugin's. Default: the "
            "model's.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="grid, vq or none. Short for -o model.tokenizer=NAME.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="How large all is: tiny, small or iris. Short for -o model.preset=NAME.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="Learn from these rows only. Default: what the agent collects.",
            show_default=False,
        ),
    ] = None,
    world: Annotated[
        Path | None,
        typer.Option(
            "--world",
            metavar="RUN|FILE",
            help="Train an agent in this world model, such as a program; no model is trained.",
            show_default=False,
            parser=run_folder,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            help="Steps of the environment; of learning, where nothing is collected. [default: "
            "5000]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="auto, cpu, cuda or mps: where is computed.")
    ] = "auto",
    init: Annotated[
        list[str] | None,
        typer.Option(
            "--init",
            metavar="PART=RUN",
            help="Begin with a part, or the model, of another run; repeatable.",
            show_default=False,
        ),
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            "--freeze",
            metavar="PART",
            help="Fit this part no more, such as tokenizer; repeatable.",
            show_default=False,
        ),
    ] = None,
    option: OptionsOption = None,
    run: RunFolderOption = None,
    new: NewOption = False,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    track: TrackOption = None,
    tracker: TrackerOption = None,
    json: JsonOption = False,
) -> None:
    """Train a neural world model of an environment, and an agent that acts by it.

    Steps are collected as the agent acts, the model is fitted to them, the agent plans or learns in
    it, and is tested in the environment now and then. What needs torch is in the
    extra `neural`. A command that was stopped continues where it was.

    Example: cwm train --env CartPole-v1 --model ensemble --steps 2000
    """
    from cwm_cli.views.lines import progress_console
    from cwm_neural.training.train import train as train_model
    from cwm_neural.view import save_training_curves, training_report, training_view

    view = training_view(progress_console())
    with redirect_stdout(sys.stderr):  # what environments print is no result
        result = train_model(
            env,
            env_args=parse_env_args(env_arg, shift, hide, noise),
            model=model,
            agent=agent,
            tokenizer=tokenizer,
            profile=profile,
            dataset=dataset,
            world=world,
            steps=steps,
            device=device,
            init=init or (),
            freeze=freeze or (),
            options=option or (),
            seed=seed,
            run=run,
            new=new,
            observer=tracked(view, track, tracker),
        )
    curve = save_training_curves(env, result)
    if json:
        emit_json(result.as_json() | {"curve": [shown(file) for file in curve]})
    print_parts(training_report(result, curve[0]), json=json)
