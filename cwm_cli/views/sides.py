"""What the sides of a contest came to, in words and as a table."""

from collections.abc import Mapping

from rich import box
from rich.table import Table

from cwm_cli.agents.contests import Mean, Side, SideName
from cwm_cli.agents.episodes import Cost
from cwm_cli.sandbox import Report
from cwm_cli.views.words import printable

NAMES: Mapping[SideName, str] = {"model": "world model", "oracle": "oracle", "random": "random"}
"""What people call the sides."""


def side_table(sides: Mapping[SideName, Side]) -> Table:
    """Compare the sides, a row each."""
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("return", "length", "decisions/s", "model steps/s"):
        table.add_column(name, justify="right")
    for name, side in sides.items():
        length = sum(side.lengths) / len(side.lengths)
        row = (NAMES[name], mean_words(side.mean), f"{length:.4g}")
        table.add_row(*row, *speed_words(side.cost))
    return table


def mean_words(mean: Mean) -> str:
    """Write a mean with its standard error."""
    error = "" if mean.stderr is None else f" \N{PLUS-MINUS SIGN} {mean.stderr:.3g}"
    return f"{mean.mean:.5g}{error}"


def speed_words(cost: Cost) -> tuple[str, str]:
    """Write the decisions and the steps of the model per second of planning, if any."""
    if not cost.seconds:
        return "", ""
    return f"{cost.decisions / cost.seconds:,.4g}", f"{cost.model_steps / cost.seconds:,.0f}"


def report_words(report: Report) -> str:
    """Say by which planner and with which forms of the model plans are made, and why no others."""
    words = f"{report.planner}, {' and '.join(report.forms)}"
    return f"{words} ({printable(report.note)})" if report.note else words
