"""The learning curve of `cwm learn`: the return of each episode over the steps."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from cwm_cli.runs.files import replace
from cwm_cli.runs.storage import send
from cwm_cli.views.curves import Chart, Series
from cwm_learn.actors.base import PLAY_AIMS


def learning_chart(title: str, returns: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the chart of the returns over the environment steps at the ends of episodes."""
    play = [each for each in returns if each["aim"] in PLAY_AIMS]
    other = [each for each in returns if each["aim"] not in PLAY_AIMS]
    series = [
        Series(
            name, [each["steps"] for each in some], [each["return"] for each in some], None, loose
        )
        for name, some, loose in (("for the return", play, False), ("to learn", other, True))
        if some
    ]
    return Chart.of(title, "steps", "return of each episode", series)


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
