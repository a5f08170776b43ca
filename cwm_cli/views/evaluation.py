"""The end of `cwm evaluate`: scores by part, a verdict in words, and the worst mismatches."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from cwm_cli.commands.evaluate import EvaluationResult, Part
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.verdicts import score_words
from cwm_cli.problems.feedback import worst
from cwm_cli.runs.report import Grid
from cwm_cli.text import clean
from cwm_cli.views.calibration import calibration_charts, skill_words
from cwm_cli.views.curves import save_charts
from cwm_cli.views.diagnosis import diagnosis_parts
from cwm_cli.views.lines import is_verbose
from cwm_cli.views.scores import part_table
from cwm_cli.views.tables import GridTable, score_table
from cwm_cli.views.terminal import place_words

TITLES: dict[Part, str] = {"train": "train", "test": "held-out"}

MAX_MISMATCHES = 3


def evaluation_report(result: EvaluationResult, *, diagnose: bool) -> Iterator[RenderableType]:
    """Yield scores, verdict, worst mismatches and rollouts, with a diagnosis on request."""
    scores = {"train": result.scores.train, "held-out": result.scores.test}
    if is_verbose():
        yield score_table(scores)
    else:
        yield part_table(scores, result.baseline)
    if extra := {TITLES[part]: each for part, each in result.ranks.items()}:
        first = next(iter(extra.values()))
        yield GridTable(type(first).grid(extra))
        for name, each in extra.items():
            yield Text(each.line(name))
    if failure := result.failure:
        message = Text(clean(failure.message, newlines=True))
        title = f"the program failed: {place_words(failure)}"
        yield Panel(message, title=title, expand=False)
    else:
        words = score_words(result.scores.train, result.scores.test)
        yield Text(
            f"{words[:1].upper()}{words[1:]}.",
            "bold green" if result.wrong is None else "bold yellow",
        )
        yield from map(Text, skill_words(result.scores.test or result.scores.train))
        if part := result.wrong:
            yield Text(f"\nWorst mismatches ({TITLES[part]}):", style="bold")
            for block in worst(*result.mistakes(part), result.metric, MAX_MISMATCHES):
                yield Text(f"\n{block}")
        yield from _rollouts(result)
    if diagnose and (found := result.diagnosis()) is not None:
        yield ""
        yield from diagnosis_parts(found, TITLES[result.wrong or "train"])


def save_calibration(result: EvaluationResult, file: Path) -> None:
    """Draw the calibration of probabilities, on held-out rows if there are any.

    Raises:
        CwmError: The result has no probabilities.
    """
    part: Part = "test" if "test" in result.found else "train"
    found = result.calibration(part) if result.found[part].score.skill is not None else None
    if found is None:
        raise CwmError("--plot needs probabilities: add --metric skill, and a program that runs")
    save_charts(calibration_charts(found, TITLES[part]), file)


def _rollouts(result: EvaluationResult) -> Iterator[RenderableType]:
    """Yield the error of rollouts by their length."""
    if not result.rollouts:
        return
    cells = [
        [f"{steps:,}", "program failed" if error is None else f"{error:.3g}"]
        for steps, error in result.rollouts
    ]
    yield Text("\nOpen-loop error (0: exact, 1: as wrong as the mean of each component):")
    yield GridTable(Grid("", ["steps", "error"], cells, words=0), compact=True)
