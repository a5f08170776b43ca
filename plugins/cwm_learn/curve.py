"""The learning curve of `cwm learn`: the return of each episode over the steps."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from cwm_cli.runs.files import replace
from cwm_cli.runs.storage import send
from cwm_cli.views.curves import Chart, Series
from cwm_learn.actors.base import PLAY_AIMS


def learning_chart(title: str, returns: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the chart of the returns over the environment steps at the ends of episodes.

    Rare low returns are drawn at the lower edge, so that they do not flatten the curve.
    """
    values = [each["return"] for each in returns]
    low = lowest_shown(values)
    label = "return of each episode"
    if min(values, default=low) < low:
        label += f" ({low:.3g} or less at the lower edge)"
    play = [each for each in returns if each["aim"] in PLAY_AIMS]
    other = [each for each in returns if each["aim"] not in PLAY_AIMS]
    series = [
        Series(
            name,
            [each["steps"] for each in some],
            [max(low, each["return"]) for each in some],
            None,
            loose,
        )
        for name, some, loose in (("for the return", play, False), ("to learn", other, True))
        if some
    ]
    return Chart.of(title, "steps", label, series)


def lowest_shown(returns: Sequence[float]) -> float:
    """Return the lower edge of a chart: the lowest return, or one above rare low returns.

    At least the upper half of the chart then shows the distance from the 10th percentile to the
    highest return.
    """
    if not returns:
        return 0.0
    percentile, highest = float(np.percentile(returns, 10)), max(returns)
    return max(min(returns), percentile - (highest - percentile))


def save_curve(title: str, returns: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write `curve.csv` and `curve.svg`, and `curve.png` if matplotlib is installed."""
    text = StringIO()
    writer = csv.DictWriter(text, ["steps", "return", "aim"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(returns)
    replace(folder / "curve.csv", text.getvalue())
    chart = learning_chart(title, returns)
    replace(folder / "curve.svg", chart.svg())
    files = [folder / "curve.svg", folder / "curve.csv"]
    files += [folder / "curve.png"] if chart.png(folder / "curve.png") else []
    send(*files)
    return files
