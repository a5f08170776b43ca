"""`cwm calibrate`: fit the numbers of a program to recorded transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    DatasetOption,
    EnvArgOption,
    EnvOption,
    HideOption,
    JsonOption,
    NoiseOption,
    OptionsOption,
    SeedOption,
    ShiftOption,
    ToolOption,
    console,
    emit_json,
    parse_env_args,
)


def calibrate(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A .py file.")],
    env: EnvOption,
    env_arg: EnvArgOption = None,
    shift: ShiftOption = None,
    hide: HideOption = None,
    noise: NoiseOption = None,
    dataset: DatasetOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write the fitted program there.", show_default=False
        ),
    ] = None,
    option: OptionsOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Fit the numbers of a program to recorded transitions, and say what they do not determine.

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
        env_args=parse_env_args(env_arg, shift, hide, noise),
        dataset=dataset,
        options=option or (),
        tools=tool or (),
        allow_gap=allow_gap or (),
        seed=seed,
        output=output,
        observer=RecordingBar(),
    )
    out = console(json=json)
    found = result.calibration
    out.print(score_table({"train": result.scores.train, "held-out": result.scores.test}))
    if found is None:
        out.print("Nothing to fit: the program is right on all fitted rows, or has no constants.")
    else:
        before = {"train": result.before.train, "held-out": result.before.test}
        was = [f"{share(score.accuracy)} ({part})" for part, score in before.items() if score]
        out.print(f"Its accuracy was {', '.join(was)} before.", highlight=False)
        out.print(Text(clean(found.findings, newlines=True)))
        if found.stopped:
            out.print("Raise the limits with -o calibrate_seconds=N and -o calibrate_steps=N.")
        if output is None and found.corrections:
            out.print("Not written: give a file with --output.")
    if json:
        emit_json(result.as_json())
