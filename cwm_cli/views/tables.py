"""Tables of scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from cwm_cli.views.words import printable

if TYPE_CHECKING:
    from cwm_cli.evaluation import Score

PARTS = ("accuracy", "observation", "reward", "terminated", "exact", "floor", "normalised")
OPTIONAL = ("valid_actions", "paper")
UNKNOWN = "\N{EN DASH}"


def score_table(rows: Mapping[str, Score | None]) -> Table:
    """Compare scores part by part, a column each; what is not known is a dash."""
    scores = list(rows.values())
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows:
        table.add_column(Text(printable(name)), justify="right")
    for part in (*PARTS, *OPTIONAL):
        shares = [getattr(score, part, None) for score in scores]
        if part in PARTS or any(share is not None for share in shares):
            table.add_row(part.replace("_", " "), *map(_share, shares))
    counts = (UNKNOWN if score is None else f"{score.transitions:,}" for score in scores)
    table.add_row("transitions", *counts)
    return table


def _share(value: float | None) -> str:
    """Write a share of one."""
    return UNKNOWN if value is None else f"{value:.3f}"
