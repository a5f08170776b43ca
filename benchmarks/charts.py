"""Chart of the curves of searches with their bands."""

from collections.abc import Sequence

import numpy as np

from benchmarks.curves import Curve
from cwm_cli.views.curves import Chart, Series


def chart(curves: Sequence[Curve], title: str) -> str:
    """Return an SVG chart of the scores of strategies over the number of completions."""
    numbers = np.arange(1, len(curves[0].scores.mean) + 1).tolist()
    series = [
        Series(
            curve.name,
            numbers,
            curve.scores.mean.tolist(),
            (curve.scores.low.tolist(), curve.scores.high.tolist()),
        )
        for curve in curves
    ]
    label = "score of the best program so far, mean and 95 % band"
    return Chart.of(title, "completions", label, series).svg()
