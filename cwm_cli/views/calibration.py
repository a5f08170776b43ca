"""Calibration in words and as a picture: whether what was said so likely came so often."""

from collections.abc import Iterator

from cwm_cli.evaluation import Score
from cwm_cli.evaluation.calibration import BINS, ForecastCalibration, Ranks
from cwm_cli.views.curves import COLOURS, Axis, Chart, Series

UNEVEN = 0.01
"""Below this chance draws are said to spread otherwise than what came about."""

SURE = -0.01
"""A ceiling below this many nats a row is one that chance sets."""


def skill_words(score: Score | None) -> Iterator[str]:
    """Say what a skill is measured by, and what is wrong with the probabilities."""
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
            "best reachable value is unknown; a skill of 1 means certain and right in all rows."
        )
    if score.open_gap:
        yield f"Not at the ceiling: {score.open_gap}."
    if score.uncertain:
        yield (
            f"The data are not certain: {score.uncertain:,} of {score.transitions:,} rows have the "
            "observation and action of another row, of which something else came."
        )
    elif score.proper_ceiling is not None and score.proper_ceiling < SURE:
        yield "The data are not certain: the true environment itself answers now this, now that."
    if score.impossible:
        yield f"The program called impossible what came about in {score.impossible:,} rows."
    if score.uniformity is not None and score.uniformity < UNEVEN:
        yield (
            "Its draws of real numbers spread otherwise than what came about "
            f"(p = {score.uniformity:.1g})."
        )


def calibration_charts(found: ForecastCalibration, part: str) -> list[Chart]:
    """Draw how often rewards and ends came about as said, and where real numbers ranked."""
    even = Series("as often as said", [0.0, 1.0], [0.0, 1.0])
    curves = [
        Series(f"{one.what} (Brier {one.brier:.3g})", one.said, one.came)
        for one in found.reliability
    ]
    unit = Axis(0.0, 1.0)
    title = f"Probabilities of rewards and ends, {part}"
    charts = [Chart(title, "said", "came about", [even, *curves], unit, unit)]
    most = len(COLOURS) - 1
    if ranks := sorted(found.ranks, key=_deviation)[:most]:
        steps = [_histogram(one) for one in ranks]
        more = len(found.ranks) - len(ranks)
        title = f"Where real numbers came about among the draws, {part}"
        title += f" (the {most} least even of {len(found.ranks)})" if more else ""
        height = Axis.of([0.0, 2.0, *(y for one in steps for y in one.y)])
        level = Series("even", [0.0, 1.0], [1.0, 1.0])
        charts.append(
            Chart(title, "share of the draws below", "density", [level, *steps], unit, height)
        )
    return charts


def _deviation(ranks: Ranks) -> float:
    """Return what orders numbers, the least even first."""
    return 1.0 if ranks.uniformity is None else ranks.uniformity


def _histogram(ranks: Ranks) -> Series:
    """Draw the tenths as steps, so that even ones lie at 1."""
    chance = "" if ranks.uniformity is None else f" (p = {ranks.uniformity:.2g})"
    x = [(place + side) / BINS for place in range(BINS) for side in (0, 1)]
    y = [share * BINS for share in ranks.shares for _ in range(2)]
    return Series(f"{ranks.what}{chance}", x, y)
