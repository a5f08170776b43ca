"""`cwm evaluate`: score a program, or rules, on recorded transitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cwm_cli.cli.shared import (
    DatasetOption,
    EnvironmentOptions,
    JsonOption,
    MetricOption,
    ProgramOptions,
    RunEnvOption,
    SeedOption,
    basic_option,
    complete_run,
    console,
    data_option,
    emit_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from cwm_cli.commands.evaluate import EvaluationResult

PART_WORDS = {"train": "train", "test": "held-out"}
"""What the parts of a dataset are called."""

WORST = 3
"""How many mismatches are shown."""


ProgramArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PROGRAM|RUN", help="A .py file or a run folder.", autocompletion=complete_run
    ),
]
DiagnoseOption = Annotated[
    bool, basic_option("--diagnose", help="Report what the mistakes have in common.")
]
RolloutsOption = Annotated[
    int, basic_option("--rollouts", min=0, help="Number of open-loop rollouts to score too.")
]
SplitOption = Annotated[
    Literal["train", "test"] | None,
    data_option("--split", help="Score only one split.", show_default="both"),
]
PlotOption = Annotated[
    Path | None,
    data_option("--plot", help="Draw a calibration plot (.svg or .png); needs --metric skill."),
]


def evaluate(
    *,
    program: ProgramArgument,
    env: RunEnvOption = None,
    diagnose: DiagnoseOption = False,
    rollouts: RolloutsOption = 0,
    seed: SeedOption = 0,
    dataset: DatasetOption = None,
    split: SplitOption = None,
    environment: EnvironmentOptions,
    metric: MetricOption = None,
    plot: PlotOption = None,
    programs: ProgramOptions,
    json: JsonOption = False,
) -> None:
    """Score a program on train and held-out transitions.

    Prints the worst mismatches as well. The program may also be rules in words.

    Example: cwm evaluate runs/CartPole-v1-gif-mcts-0-20260101-120000
    """
    from cwm_cli.commands.evaluate import evaluate as score
    from cwm_cli.views.curves import check_picture
    from cwm_cli.views.diagnosis import diagnosis_parts
    from cwm_cli.views.recording import RecordingBar

    if plot is not None:
        check_picture(plot)
    result = score(
        program,
        env=env,
        env_args=environment.arguments,
        dataset=dataset,
        split=split,
        metric=metric,
        rollout_count=rollouts,
        seed=seed,
        observer=RecordingBar(),
        **programs,
    )
    from rich.panel import Panel

    found = result.diagnosis() if diagnose else None
    out = console(json=json)
    for part in _parts(result):
        out.print(part, soft_wrap=not isinstance(part, Panel))  # it cuts what it does not wrap
    if found is not None:
        out.print("", *diagnosis_parts(found, PART_WORDS[result.wrong or "train"]), sep="\n")
    if plot is not None:
        _draw(result, plot)
        out.print(f"Drawn: {plot}", soft_wrap=True, highlight=False, markup=False)
    if json:
        diagnosis = {"diagnosis": found and found.as_json()} if diagnose else {}
        emit_json(result.as_json() | diagnosis)
    if result.failure:
        raise typer.Exit(1)


def _parts(result: EvaluationResult) -> Iterator[RenderableType]:
    """Yield the scores, then what is behind them."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from cwm_cli.problems.feedback import worst
    from cwm_cli.text import clean
    from cwm_cli.views.calibration import skill_words
    from cwm_cli.views.tables import GridTable, score_table
    from cwm_cli.views.terminal import place_words

    yield score_table({"train": result.scores.train, "held-out": result.scores.test})
    if extra := {PART_WORDS[part]: each for part, each in result.ranks.items()}:
        first = next(iter(extra.values()))
        yield GridTable(type(first).grid(extra))
        for name, each in extra.items():
            yield Text(each.line(name))
    if failure := result.failure:
        message = Text(clean(failure.message, newlines=True))
        yield Panel(
            message,
            title=f"the program failed: {place_words(failure)}",
            expand=False,
        )
        return
    yield from map(Text, skill_words(result.scores.train or result.scores.test))
    if part := result.wrong:
        yield Text(f"\nThe costliest mismatches ({PART_WORDS[part]}):", style="bold")
        for block in worst(*result.mistakes(part), result.metric, WORST):
            yield Text(f"\n{block}")
    if result.rollouts:
        table = Table("steps", "error", title="Open-loop error", title_justify="left")
        for steps, error in result.rollouts:
            table.add_row(str(steps), "broke down" if error is None else f"{error:.3g}")
        yield ""
        yield table
        yield "0 is perfect; about 1 is as wrong as guessing the mean of each component."


def _draw(result: EvaluationResult, file: Path) -> None:
    """Draw how what was predicted came true, of the held-out rows where there are some."""
    from cwm_cli.errors import CwmError
    from cwm_cli.views.calibration import calibration_charts
    from cwm_cli.views.curves import save_charts

    part: Literal["train", "test"] = "test" if "test" in result.found else "train"
    found = result.calibration(part) if result.found[part].score.skill is not None else None
    if found is None:
        raise CwmError("there is nothing to draw: name --metric skill, and a program that runs")
    save_charts(calibration_charts(found, PART_WORDS[part]), file)
