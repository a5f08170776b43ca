"""`cwm bench-speed`: how long a transition takes, predicted or for real."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

from cwm_cli.cli.shared import (
    ApiBaseOption,
    DatasetOption,
    EnvironmentOptions,
    JsonOption,
    MaxCostOption,
    ModelOption,
    ProgramOptions,
    RunEnvOption,
    SeedOption,
    TemperatureOption,
    WorldModelOptions,
    basic_option,
    console,
    emit_json,
    model_option,
    names_of,
    print_parts,
)
from cwm_cli.errors import CwmError

RowsOption = Annotated[
    int, basic_option("-n", min=1, help="Number of held-out transitions to predict.")
]
BackendOption = Annotated[
    str | None,
    model_option(
        "--backend",
        metavar="NAME",
        help="Backend that calls the language model.",
        autocompletion=names_of("backend"),
    ),
]
BatchOption = Annotated[
    str | None,
    basic_option(
        "--batch",
        metavar="N,...",
        help="Only compare the steps per second of all forms of an export and of the environment, "
        "with these numbers of environments, e.g. 1,64,1024.",
    ),
]
ExamplesOption = Annotated[
    int, model_option("--examples", min=0, help="Number of solved transitions in each prompt.")
]


def bench_speed(
    *,
    world: WorldModelOptions,
    env: RunEnvOption = None,
    model: ModelOption = None,
    rows: RowsOption = 10,
    batch: BatchOption = None,
    seed: SeedOption = 0,
    dataset: DatasetOption = None,
    environment: EnvironmentOptions,
    backend: BackendOption = None,
    api_base: ApiBaseOption = None,
    temperature: TemperatureOption = None,
    examples: ExamplesOption = 3,
    max_cost: MaxCostOption = None,
    programs: ProgramOptions,
    json: JsonOption = False,
) -> None:
    """Compare the speed of model, environment and LLM.

    All three predict the same transitions, to compare their accuracy. The world model and the
    environment are timed in rounds on up to 1,000 transitions after a warm-up; a trained model
    is timed on imagined steps, in one episode and in 64. A language model gets one request per
    transition, at temperature 0 by default. A failure of one does not stop the measurement.
    With --batch, the forms of `cwm runs export` step many environments with random actions.

    Example: cwm bench-speed runs/CartPole-v1-induction-0-20260101-120000
    """
    from cwm_cli.bench.asking import INTERRUPTED
    from cwm_cli.bench.speed import bench_speed as measure
    from cwm_cli.views.speed import SpeedView, speed_parts

    if batch is not None:
        if world.program or model:
            raise CwmError("--batch measures the export of a run: leave out --program and --model")
        _compare_batches(world.folder, batch, programs["allow_gap"], seed, json=json)
        return
    with redirect_stdout(sys.stderr):  # environments may print
        found = measure(
            world.folder,
            env=env,
            env_args=environment.arguments,
            program=world.program,
            model=model,
            rows=rows,
            examples=examples,
            dataset=dataset,
            backend=backend,
            api_base=api_base,
            temperature=temperature,
            max_cost=max_cost,
            seed=seed,
            observer=SpeedView(),
            **programs,
        )
    print_parts(speed_parts(found, console(json=json).width), json=json)
    if json:
        emit_json(found.as_json())
    if found.language_model and found.language_model.stopped == INTERRUPTED:
        raise KeyboardInterrupt("interrupted: answers received so far are reported above")


def _compare_batches(
    run: Path | None, batch: str, allow_gap: list[str], seed: int, *, json: bool
) -> None:
    """Print the steps per second of all forms of a run's program."""
    from cwm_cli.bench.batches import bench_batches
    from cwm_cli.views.speed import SpeedView, batch_parts

    if run is None:
        raise CwmError("--batch measures the export of a run: name a run")
    numbers = [part.strip() for part in batch.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise CwmError(f"--batch {batch!r} is no list of numbers: write --batch 1,64,1024")
    with redirect_stdout(sys.stderr):  # environments may print
        found = bench_batches(
            run,
            batches=[int(number) for number in numbers],
            allow_gap=allow_gap,
            seed=seed,
            observer=SpeedView(),
        )
    print_parts(batch_parts(found), json=json)
    if json:
        emit_json(found.as_json())
