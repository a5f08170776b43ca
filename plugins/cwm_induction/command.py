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
    console,
    emit_json,
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
    from rich.text import Text

    from cwm_cli.text import clean, share
    from cwm_cli.views.recording import RecordingBar
    from cwm_cli.views.tables import score_table
    from cwm_induction.calibrate import calibrate as fit

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
    out = console(json=json)
    found = result.calibration
    out.print(score_table({"train": result.scores.train, "held-out": result.scores.test}))
    if found is None:
        out.print("Nothing to fit: it is right on all fitted rows, or has no numbers.")
    else:
        before = {"train": result.before.train, "held-out": result.before.test}
        was = [f"{share(score.accuracy)} ({part})" for part, score in before.items() if score]
        out.print(f"Its accuracy was {', '.join(was)} before.", highlight=False)
        out.print(Text(clean(found.findings, newlines=True)))
        if found.stopped:
            out.print("-o calibrate_seconds=N and -o calibrate_steps=N allow more.")
        if output is None and found.corrections:
            out.print("Not written: name a file with --output.")
    if json:
        emit_json(result.as_json())
