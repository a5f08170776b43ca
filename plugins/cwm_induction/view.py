"""The output of `cwm calibrate`: scores, and constants with and without evidence in the data."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from cwm_cli.evaluation.verdicts import exact_words
from cwm_cli.text import clean, share
from cwm_cli.views.tables import part_table
from cwm_induction.calibrate import CalibrationResult


def calibration_report(result: CalibrationResult, output: Path | None) -> Iterator[RenderableType]:
    """Yield the scores after fitting, the accuracy before it, and the fitted constants."""
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
