"""`cwm calibrate`: fit the numbers of a program to recorded transitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.shared import (
    DatasetOption,
    EnvironmentOptions,
    JsonOption,
    ProgramOptions,
    RunEnvOption,
    SeedOption,
    basic_option,
    emit_json,
    print_parts,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cwm_induction.calibrate import CalibrationResult

OutputOption = Annotated[
    Path | None, basic_option("--output", help="Write the fitted program to this file.")
]


def calibrate(
    *,
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A .py file.")],
    env: RunEnvOption = None,
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
    print_parts(_report(result, output), json=json)
    if json:
        emit_json(result.as_json())


def _report(result: CalibrationResult, output: Path | None) -> Iterator[RenderableType]:
    """Yield the scores after fitting, the accuracy before it, and the fitted constants."""
    from rich.text import Text

    from cwm_cli.evaluation.verdicts import exact_words
    from cwm_cli.text import clean, share
    from cwm_cli.views.tables import part_table

    train, test = result.scores.train, result.scores.test
    yield part_table({"train": train, "held-out": test})
    yield Text(f"Exact on {exact_words(train, test)}.")
    found = result.calibration
    if found is None:
        yield Text("Nothing to fit: the program is exact, or has no constants.")
        return
    before = {"train": result.before.train, "held-out": result.before.test}
    accuracies = [f"{share(score.accuracy)} ({part})" for part, score in before.items() if score]
    yield Text(f"Accuracy before fitting: {', '.join(accuracies)}.")
    yield Text(clean(found.findings, newlines=True))
    if found.stopped:
        yield Text("Limit reached: -o calibrate_seconds=N and -o calibrate_steps=N raise it.")
    if output is None and found.corrections:
        yield Text("Not saved: add --output FILE.")
