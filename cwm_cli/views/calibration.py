"""Calibration of probabilities, in sentences and as charts."""

from collections.abc import Iterator

from cwm_cli.evaluation import Score
from cwm_cli.evaluation.calibration import BINS, ForecastCalibration, Ranks
from cwm_cli.views.curves import COLOURS, Axis, Chart, Series

UNEVEN = 0.01
"""Report draws as badly calibrated if the p-value of uniform ranks is below this."""

SURE = -0.01
"""The environment is random if its own log-likelihood per row, in nats, is below this."""


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
    if score.uncertain:
        yield (
            f"The data are random: {score.uncertain:,} of {score.transitions:,} rows share "
            "observation and action with a row that has a different outcome."
        )
    elif score.proper_ceiling is not None and score.proper_ceiling < SURE:
        yield "The data are random: the true environment has several outcomes for the same input."
    if score.impossible:
        yield f"The program gives probability 0 to recorded outcomes of {score.impossible:,} rows."
    if score.uniformity is not None and score.uniformity < UNEVEN:
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
    if ranks := sorted(found.ranks, key=_deviation)[:most]:
        steps = [_histogram(one) for one in ranks]
        more = len(found.ranks) - len(ranks)
        title = f"Ranks of recorded values among the draws, {part}"
        title += f" (the {most} least uniform of {len(found.ranks)})" if more else ""
        height = Axis.of([0.0, 2.0, *(y for one in steps for y in one.y)])
        level = Series("uniform", [0.0, 1.0], [1.0, 1.0])
        charts.append(
            Chart(title, "share of the draws below", "density", [level, *steps], unit, height)
        )
    return charts


def _deviation(ranks: Ranks) -> float:
    """Return a sort key that puts the least uniform ranks first."""
    return 1.0 if ranks.uniformity is None else ranks.uniformity


def _histogram(ranks: Ranks) -> Series:
    """Return the histogram of ranks as steps; uniform ranks have density 1."""
    chance = "" if ranks.uniformity is None else f" (p = {ranks.uniformity:.2g})"
    x = [(place + side) / BINS for place in range(BINS) for side in (0, 1)]
    y = [share * BINS for share in ranks.shares for _ in range(2)]
    return Series(f"{ranks.what}{chance}", x, y)
