"""`cwm bench-speed`: how long a transition takes, predicted or for real."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    ApiBaseOption,
    DatasetOption,
    EnvArgOption,
    HideOption,
    JsonOption,
    MaxCostOption,
    ModelBackendOption,
    ModelOption,
    NoiseOption,
    OptionsOption,
    ProgramOption,
    RunOption,
    SeedOption,
    ShiftOption,
    ToolOption,
    console,
    emit_json,
    parse_env_args,
    print_parts,
    run_folder,
)
from cwm_cli.errors import CwmError


def bench_speed(
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
    model: ModelOption = None,
    rows: Annotated[
        int, typer.Option("-n", min=1, metavar="N", help="Transitions to predict, held out ones.")
    ] = 10,
    examples: Annotated[
        int, typer.Option("--examples", min=0, help="Solved transitions in each prompt.")
    ] = 3,
    dataset: DatasetOption = None,
    backend: ModelBackendOption = None,
    api_base: ApiBaseOption = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Sampling temperature.", show_default="0"),
    ] = None,
    max_cost: MaxCostOption = None,
    option: OptionsOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Time a transition: in a world model, in the true environment, by a language model.

    All three predict the same N transitions, which says how right they are. The
    world model and the environment are timed on up to 1,000 transitions of the
    dataset, warm, in rounds, a model that was trained on the steps that it
    imagines in one episode and in 64; a language model is asked once per transition.
    What fails is reported, and the rest is measured.

    Example: cwm bench-speed runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.bench.asking import INTERRUPTED
    from cwm_cli.bench.speed import bench_speed as measure
    from cwm_cli.views.speed import SpeedView, speed_parts

    if run and run_option and run != run_option:
        raise CwmError(f"{run} and {run_option} are two runs: name one")
    with redirect_stdout(sys.stderr):  # what environments print is no result
        found = measure(
            run or run_option,
            env=env,
            env_args=parse_env_args(env_arg, shift, hide, noise),
            program=program,
            model=model,
            rows=rows,
            examples=examples,
            dataset=dataset,
            backend=backend,
            api_base=api_base,
            temperature=temperature,
            max_cost=max_cost,
            options=option or (),
            tools=tool or (),
            allow_gap=allow_gap or (),
            seed=seed,
            observer=SpeedView(),
        )
    print_parts(speed_parts(found, console(json=json).width), json=json)
    if json:
        emit_json(found.as_json())
    if found.language_model and found.language_model.stopped == INTERRUPTED:
        raise KeyboardInterrupt("interrupted: what was answered before is reported above")
