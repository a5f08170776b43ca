"""Comparisons over the number of train rows (`--rows`): a table, and curves with errors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cwm_benchmark.results import TrialGroup
from cwm_cli.runs.report import ChartLine, Grid, LineChart, Section
from cwm_cli.text import UNKNOWN, share

ERROR = "\N{PLUS-MINUS SIGN}"

MEASURES: Mapping[str, str] = {
    "test_accuracy": "held-out accuracy",
    "test_exact": "exact rows",
    "R": "R",
}
"""Measures of the table; all but the exact rows have curves."""


def size_grids(groups: Sequence[TrialGroup]) -> Iterator[Grid]:
    """Yield the table of means over seeds by number of train rows, if there are several sizes.

    Args:
        groups: A group for each environment, strategy, model and number of train rows.
    """
    if not groups:
        return
    measures = [name for name in MEASURES if any(group.means[name] for group in groups)]
    names = [n for n in ("strategy", "model") if len({getattr(g, n) for g in groups}) > 1]
    heads = ["environment", *names, "train rows", "seeds", *(MEASURES[n] for n in measures)]
    cells = [
        [
            group.group,
            *(str(getattr(group, name)) for name in names),
            f"{group.train_rows:,}",
            group.seeds,
            *(
                UNKNOWN
                if (mean := group.means[name]) is None
                else with_error(mean.mean, mean.stderr)
                for name in measures
            ),
        ]
        for group in groups
    ]
    yield Grid("by number of train rows", heads, cells, 1 + len(names))


def size_charts(groups: Sequence[TrialGroup]) -> Iterator[Section]:
    """Yield the curves of each environment over the number of train rows, side by side."""
    panels = []
    for environment in dict.fromkeys(group.group for group in groups):
        own = [group for group in groups if group.group == environment]
        for measure in ("test_accuracy", "R"):
            if any(group.means[measure] for group in own):
                panels.append([environment, "chart", _chart(own, measure)])
    if panels:
        about = (
            "Means over seeds; the band is one standard error. Smaller sizes are the first rows."
        )
        yield Section("panels", "By number of train rows", {"sections": panels}, about)


def _chart(groups: Sequence[TrialGroup], measure: str) -> dict[str, Any]:
    """Return the chart of a measure, with a line for each strategy and model."""
    lines = []
    for name in dict.fromkeys((group.strategy, group.model) for group in groups):
        own = [(g.train_rows, g.means[measure]) for g in groups if (g.strategy, g.model) == name]
        known = [(size, mean) for size, mean in own if mean]
        errors = [mean.stderr or 0.0 for _, mean in known]
        lines.append(
            ChartLine(
                " ".join(filter(None, name)),
                [size for size, _ in known],
                [mean.mean for _, mean in known],
                [mean.mean - error for (_, mean), error in zip(known, errors, strict=True)],
                [mean.mean + error for (_, mean), error in zip(known, errors, strict=True)],
            )
        )
    return LineChart("train rows", MEASURES[measure], lines, log_x=True).data()


def with_error(value: float, stderr: float | None) -> str:
    """Return a share with its error as text."""
    return share(value) + ("" if stderr is None else f" {ERROR} {share(stderr)}")
