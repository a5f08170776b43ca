"""`cwm calibrate`: fit the numbers of a program to recorded transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    DatasetOption,
    EnvironmentOptions,
    EnvOption,
    JsonOption,
    ProgramOptions,
    SeedOption,
    basic_option,
    emit_json,
    print_parts,
)

OutputOption = Annotated[
    Path | None, basic_option("--output", help="Write the fitted program to this file.")
]


def calibrate(
    *,
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A .py file.")],
    env: EnvOption,
    output: OutputOption = None,
    seed: SeedOption = 0,
    dataset: DatasetOption = None,
    environment: EnvironmentOptions,
    programs: ProgramOptions,
    json: JsonOption = False,
) -> None:
    """Fit the constants of a program to transitions.

    Reports the constants that the data do not determine.

    Example: cwm calibrate pole.py --env CartPole-v1 --output fitted.py
    """
    from cwm_cli.views.datasets import RecordingBar
    from cwm_induction.calibrate import calibrate as fit
    from cwm_induction.view import calibration_report

    result = fit(
        program,
        env=env,
        env_args=environment.arguments,
        dataset=dataset,
        seed=seed,
        output=output,
        observer=RecordingBar(),
        **programs,
    )
    print_parts(calibration_report(result, output), json=json)
    if json:
        emit_json(result.as_json())
