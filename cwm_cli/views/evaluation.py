"""The output of `cwm evaluate`: scores, a verdict, mismatches, a diagnosis and calibration."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cwm_cli.commands.evaluate import EvaluationResult, Part
from cwm_cli.commands.shifting import Robustness
from cwm_cli.commands.transfer import Transfer
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Score
from cwm_cli.evaluation.calibration import BINS, ForecastCalibration
from cwm_cli.evaluation.robustness import PartAccuracy
from cwm_cli.evaluation.verdicts import score_words
from cwm_cli.problems.feedback import Diagnosis
from cwm_cli.runs.report import Grid
from cwm_cli.text import UNKNOWN, clean, percent, share
from cwm_cli.views.curves import COLOURS, Axis, Chart, Series, save_charts
from cwm_cli.views.lines import is_verbose
from cwm_cli.views.tables import GridTable, component_parts, part_table, score_table
from cwm_cli.views.terminal import place_words, printable

TITLES: dict[Part, str] = {"train": "train", "test": "held-out"}


def evaluation_report(result: EvaluationResult, *, diagnose: bool) -> Iterator[RenderableType]:
    """Yield scores, verdict, worst mismatches and rollouts, with a diagnosis on request."""
    scores = {"train": result.scores.train, "held-out": result.scores.test}
    if is_verbose():
        yield score_table(scores)
    else:
        yield part_table(scores, result.baseline)
    yield from component_parts(result.scores.train, result.scores.test, result.text)
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
            "bold green" if result.is_good else "bold yellow",
        )
        yield from map(Text, skill_words(result.scores.test or result.scores.train))
        if part := result.wrong:
            title = "Outliers" if result.is_good else "Worst mismatches"
            yield Text(f"\n{title} ({TITLES[part]}):", style="bold")
            for block in result.worst(part, 3):
                yield Text(f"\n{block}")
        if result.rollouts:
            cells = [
                [f"{steps:,}", "program failed" if error is None else f"{error:.3g}"]
                for steps, error in result.rollouts
            ]
            yield Text("\nOpen-loop error (0: exact, 1: as wrong as the mean of each component):")
            yield GridTable(Grid("", ["steps", "error"], cells, words=0), compact=True)
    if result.robustness is not None:
        yield from robustness_parts(result.robustness)
    if result.transfer is not None:
        yield from transfer_parts(result.transfer)
    if diagnose and (found := result.diagnosis()) is not None:
        yield ""
        yield from diagnosis_parts(found, TITLES[result.wrong or "train"])


def robustness_parts(found: Robustness) -> Iterator[RenderableType]:
    """Yield the accuracy of each part by environment, and the parts that break in each."""
    columns = {"original": found.parts, **{each.name: each.parts for each in found.shifted}}
    broken = {name for each in found.shifted for name in each.broken}
    most = 12  # components on a terminal; --json has all
    shown = sorted(found.parts, key=lambda name: name not in broken)[:most]
    names = [name for name in found.parts if name in shown]
    scores = [found.score, *(each.score for each in found.shifted)]
    cells = [[name, *_cells(name, columns.values(), "right")] for name in names]
    cells.append(["all parts", *(share(score.exact) for score in scores)])
    if any(score.skill is not None for score in scores):
        cells.append(["skill", *(share(score.skill) for score in scores)])
    yield Text(f"\nRight predictions by environment ({TITLES[found.split]}):", style="bold")
    yield GridTable(Grid("", ["", *columns], cells), compact=True)
    real = [name for name in names if found.parts[name].explained is not None]
    if real and broken & set(real):
        yield Text("\nExplained change (1: exact, 0: as wrong as no change):")
        cells = [[name, *_cells(name, columns.values(), "explained")] for name in real]
        yield GridTable(Grid("", ["", *columns], cells), compact=True)
    yield ""
    if any(part.reachable < 1 for part in found.parts.values()):
        yield Text("Outcomes are random: shares are expected ones, below 1 also without errors.")
    for each in found.shifted:
        if each.failure is not None:
            words = f"the program fails: {clean(each.failure.message)}"
        elif each.broken:
            words = f"breaks {', '.join(each.broken)}"
        else:
            words = "breaks nothing"
        yield Text(f"{each.name}: {words}.")


def transfer_parts(found: Transfer) -> Iterator[RenderableType]:
    """Yield the returns of the agents in the environment, and whether a policy transfers."""
    titles = {"model": "world model", "environment": "environment", "random": "random actions"}
    cells = [
        [titles[name], f"{each.mean:.4g}", f"{each.low:.4g} to {each.high:.4g}"]
        for name, each in found.intervals.items()
    ]
    options = found.options
    effort = f"{options.steps:,} steps of {found.algorithm.upper()}, {options.seeds} seed"
    yield Text(
        f"\nReturns in the environment after {effort}{'s' * (options.seeds != 1)}:", style="bold"
    )
    yield GridTable(Grid("", ["trained in", "mean", "95 % interval"], cells), compact=True)
    gap = found.difference
    numbers = f"{gap.mean:.4g} (95 %: {gap.low:.4g} to {gap.high:.4g})"
    yield Text(f"\n{_TRANSFERS[found.verdict]} Difference: {numbers}.")
    if found.failures:
        yield Text(f"The program failed in {found.failures:,} episodes of the training.", "yellow")


_TRANSFERS = {
    "full": "The policy transfers: training in the world model is as good as in the environment.",
    "partial": "The policy transfers in part: it is better than random actions, but worse than "
    "after training in the environment.",
    "none": "The policy does not transfer: it is not better than random actions.",
    "unknown": "Unknown whether the policy transfers: no agent is better than random actions; "
    "train longer with -o transfer.steps=N.",
}


def _cells(name: str, columns: Iterable[Mapping[str, PartAccuracy]], measure: str) -> Iterator[str]:
    """Yield a measure of a part in each environment."""
    for parts in columns:
        yield share(getattr(parts[name], measure)) if name in parts else UNKNOWN


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


def diagnosis_parts(diagnosis: Diagnosis, rows: str) -> Iterator[RenderableType]:
    """Yield the tables of a diagnosis of some `rows`, without empty tables."""
    yield Text(f"What the mistakes have in common ({rows}):", style="bold")
    groups = (
        (
            ", ".join(group.parts),
            group.condition or "everywhere",
            f"{group.wrong} of {group.rows}",
            f"{group.wrong_elsewhere} of {group.elsewhere}",
        )
        for group in diagnosis.groups
    )
    yield from _table(("wrong", "where", "there", "elsewhere"), groups)
    numbers = (
        (
            each.name,
            percent(each.right),
            UNKNOWN if each.median is None else f"{each.median:.2g}",
            UNKNOWN if each.log_error is None else f"{each.log_error:.1f}",
        )
        for each in diagnosis.numbers
    )
    yield from _table(("number", "right", "typical error", "log10"), numbers)
    kinds = (
        (kind.part, f"{kind.recorded:g}", f"{kind.predicted:g}", str(kind.times))
        for kind in diagnosis.kinds
    )
    yield from _table(("wrong", "recorded", "predicted", "times"), kinds)
    told = (
        (each.outcome, each.condition, f"{each.holds} of {each.total}", str(each.exceptions))
        for each in diagnosis.rules
    )
    yield from _table(("recorded", "where", "times", "others there"), told)
    if diagnosis.best_score < 1:
        best = share(diagnosis.best_score)
        yield f"Chance decides: the best score that can be reached is {best}."


def _table(heads: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> Iterator[Table]:
    """Draw a table of text; the cells of the first two columns may wrap."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, head in enumerate(heads):
        is_short = place > 1 or heads[1] != "where"
        table.add_column(head, overflow="fold", no_wrap=place > 1, ratio=None if is_short else 1)
    for line in lines:
        table.add_row(*(Text(printable(cell, 400)) for cell in line))
    if table.row_count:
        yield table


def skill_words(score: Score | None) -> Iterator[str]:
    """Yield the meaning of the skill, and faults of the probabilities."""
    if score is None or score.skill is None:
        return
    yield ""
    if score.proper_ceiling is not None:
        yield (
            "Skill: 0 is the most frequent outcome of the action, 1 is the true environment, "
            "drawn from repeatedly at each observation."
        )
    else:
        unit = "log-likelihood" if score.energy is None else "log-likelihood less energy score"
        yield (
            f"Mean {unit} of a row: {score.proper:.4g}, baseline {score.proper_floor:.4g}. The "
            "best reachable value is unknown; a skill of 1 means exact and certain in all rows."
        )
    if score.open_gap:
        yield f"Not at the ceiling: {score.open_gap}."
    # The environment is random if its own log-likelihood per row, in nats, is below this.
    sure = -0.01
    if score.uncertain:
        yield (
            f"The data are random: {score.uncertain:,} of {score.transitions:,} rows share "
            "observation and action with a row that has a different outcome."
        )
    elif score.proper_ceiling is not None and score.proper_ceiling < sure:
        yield "The data are random: the true environment has several outcomes for the same input."
    if score.impossible:
        yield f"The program gives probability 0 to recorded outcomes of {score.impossible:,} rows."
    # Report draws as badly calibrated if the p-value of uniform ranks is below this.
    uneven = 0.01
    if score.uniformity is not None and score.uniformity < uneven:
        yield (
            "Its draws of real numbers have another distribution than the recorded values "
            f"(p = {score.uniformity:.1g})."
        )


def calibration_charts(found: ForecastCalibration, part: str) -> list[Chart]:
    """Chart the frequency of rewards and ends by probability, and the ranks of real numbers."""
    even = Series("perfect calibration", [0.0, 1.0], [0.0, 1.0])
    curves = [
        Series(f"{one.what} (Brier {one.brier:.3g})", one.said, one.came)
        for one in found.reliability
    ]
    unit = Axis(0.0, 1.0)
    title = f"Probabilities of rewards and ends, {part}"
    charts = [
        Chart(title, "predicted probability", "observed frequency", [even, *curves], unit, unit)
    ]
    most = len(COLOURS) - 1
    unlike = sorted(found.ranks, key=lambda one: 1.0 if one.uniformity is None else one.uniformity)
    if ranks := unlike[:most]:
        x = [(place + side) / BINS for place in range(BINS) for side in (0, 1)]
        steps = []
        for one in ranks:
            chance = "" if one.uniformity is None else f" (p = {one.uniformity:.2g})"
            # Times the number of bins, so that uniform ranks have density 1.
            y = [share * BINS for share in one.shares for _ in range(2)]
            steps.append(Series(f"{one.what}{chance}", x, y))
        more = len(found.ranks) - len(ranks)
        title = f"Ranks of recorded values among the draws, {part}"
        title += f" (the {most} least uniform of {len(found.ranks)})" if more else ""
        height = Axis.of([0.0, 2.0, *(y for one in steps for y in one.y)])
        level = Series("uniform", [0.0, 1.0], [1.0, 1.0])
        charts.append(
            Chart(title, "share of the draws below", "density", [level, *steps], unit, height)
        )
    return charts
