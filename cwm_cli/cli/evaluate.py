"""`cwm evaluate`: score a program on recorded transitions."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cwm_cli.cli.shared import (
    AllowGapOption,
    DatasetOption,
    EnvArgOption,
    EnvOption,
    JsonOption,
    MetricOption,
    OptionsOption,
    SeedOption,
    ToolOption,
)

if TYPE_CHECKING:
    from rich.console import Console

    from cwm_cli.data.dataset import Dataset
    from cwm_cli.evaluation import Evaluation, Metric, Rollout
    from cwm_cli.sandbox import Limits, Sandbox
    from cwm_cli.sandbox.failures import Failure

WORST = 3
"""How many mismatches are shown."""


class Split(StrEnum):
    """A part of the recorded transitions."""

    TRAIN = "train"
    TEST = "test"


class Subject(NamedTuple):
    """A program, the transitions to judge it by, and what it may import and use up."""

    text: str
    data: Dataset
    tools: list[str]
    limits: Limits


class Judged(NamedTuple):
    """Some rows and how a program fared on them."""

    rows: Dataset
    found: Evaluation


def evaluate(
    program: Annotated[
        Path,
        typer.Argument(metavar="PROGRAM|RUN", help="A .py file or a run folder."),
    ],
    env: EnvOption,
    env_arg: EnvArgOption = None,
    dataset: DatasetOption = None,
    split: Annotated[
        Split | None, typer.Option("--split", help="Score one part only.", show_default="both")
    ] = None,
    metric: MetricOption = "accuracy",
    rollouts: Annotated[
        int, typer.Option("--rollouts", min=0, help="Also roll the program out, N times.")
    ] = 0,
    option: OptionsOption = None,
    tool: ToolOption = None,
    allow_gap: AllowGapOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Score a program on train and held-out transitions, and show its worst mismatches.

    Example: cwm evaluate runs/CartPole-v1-gif-mcts-0-20260101-120000 --env CartPole-v1
    """
    import json as jsonlib

    from cwm_cli.cli.protecting import protected
    from cwm_cli.cli.shared import console
    from cwm_cli.registry import find

    text, data, tools, limits = _open(program, env, env_arg, dataset, option or [])
    measure = find("metric", metric).of(data.train)
    parts = {part: data.train if part == Split.TRAIN else data.test for part in Split}
    chosen = {part: parts[part] for part in Split if split in (None, part) and len(parts[part])}
    tools += tool or []
    with protected(limits, tools=tools, accepted=allow_gap or ()) as sandbox:
        judged = _judge(text, chosen, sandbox, measure, seed)
        failure = next((j.found.failure for j in judged.values() if j.found.failure), None)
        rolled = [] if failure else _roll(text, judged, sandbox, rollouts, seed)
    out = console(json=json)
    _draw(out, judged, measure, failure, rolled)
    if json:
        scores = {part.value: j.found.score.model_dump() for part, j in judged.items()}
        result = {
            "train": scores.get("train"),
            "test": scores.get("test"),
            "failure": asdict(failure) if failure else None,
            "rollouts": [rollout._asdict() for rollout in rolled],
        }
        typer.echo(jsonlib.dumps(result, allow_nan=False))


def _open(
    program: Path, env: str, env_arg: list[str] | None, dataset: Path | None, pairs: list[str]
) -> Subject:
    """Gather what is judged, which a run has all of, by its own transitions if it is one."""
    from cwm_cli.cli.data import find_environment
    from cwm_cli.cli.subjects import find_subject, transitions_of
    from cwm_cli.registry import Owner, read_options
    from cwm_cli.sandbox import Limits

    spec = find_environment(env)
    options = read_options(pairs, [Owner("sandbox", Limits)])["sandbox"]
    is_run = program.is_dir()
    found = find_subject(spec, env_arg, None if is_run else program, program if is_run else None)
    assert found.text is not None
    data = transitions_of(spec, found, dataset)
    return Subject(found.text, data, found.tools, Limits.chosen(found.limits | options))


def _judge(
    text: str, parts: dict[Split, Dataset], sandbox: Sandbox, metric: Metric, seed: int
) -> dict[Split, Judged]:
    """Score the program on each part."""
    from cwm_cli.evaluation import evaluate as score
    from cwm_cli.worlds import ProgramModel

    model = ProgramModel(text, sandbox)
    return {
        part: Judged(rows, score(model, rows, metric, seed=seed)) for part, rows in parts.items()
    }


def _roll(
    text: str, judged: dict[Split, Judged], sandbox: Sandbox, count: int, seed: int
) -> list[Rollout]:
    """Roll the program out on held-out rows, or on train rows where no others were scored."""
    from cwm_cli.evaluation import rollouts
    from cwm_cli.worlds import ProgramModel

    if not count or not judged:
        return []
    rows = judged.get(Split.TEST, next(iter(judged.values()))).rows
    return rollouts(ProgramModel(text, sandbox), rows, count, seed=seed)


def _draw(
    out: Console,
    judged: dict[Split, Judged],
    metric: Metric,
    failure: Failure | None,
    rolled: list[Rollout],
) -> None:
    """Print the scores, then what is behind them."""
    from cwm_cli.views.tables import score_table

    scores = {part: judged[part].found.score if part in judged else None for part in Split}
    out.print(score_table({"train": scores[Split.TRAIN], "held-out": scores[Split.TEST]}))
    if failure is not None:
        _draw_failure(out, failure)
        return
    _draw_worst(out, judged, metric)
    _draw_rollouts(out, rolled)


def _draw_failure(out: Console, failure: Failure) -> None:
    """Print why the program could not be judged."""
    from rich.panel import Panel
    from rich.text import Text

    from cwm_cli.text import clean

    where = f", line {failure.line}" if failure.line else ""
    message = Text(clean(failure.message, newlines=True))
    out.print(Panel(message, title=f"the program failed: {failure.kind}{where}", expand=False))


def _draw_worst(out: Console, judged: dict[Split, Judged], metric: Metric) -> None:
    """Print the costliest mismatches of the first part that has some."""
    from rich.text import Text

    from cwm_cli.problems.feedback import worst

    for part, (rows, found) in judged.items():
        if (found.rows < 1).any():
            out.print(Text(f"\nThe costliest mismatches ({part}):", style="bold"))
            for block in worst(rows, found.predictions, metric, WORST):
                out.print(Text(f"\n{block}"), soft_wrap=True)
            return


def _draw_rollouts(out: Console, rolled: list[Rollout]) -> None:
    """Print how far the program drifts on its own predictions."""
    from rich.table import Table

    if not rolled:
        return
    table = Table("steps", "error", title="Open-loop error", title_justify="left")
    for steps, error in rolled:
        table.add_row(str(steps), "broke down" if error is None else f"{error:.3g}")
    out.print("", table)
    out.print("0 is perfect; about 1 is as wrong as guessing the mean of each component.")
