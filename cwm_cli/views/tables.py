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

PARTS = {"train": "train", "test": "held-out", "unseen": "of it not in train"}
"""The parts of a dataset that a result has scores for, and their titles."""

SHARES = ("accuracy", "observation", "reward", "terminated", "exact", "floor", "normalised")
OPTIONAL = ("valid_actions", "paper")
UNKNOWN = "\N{EN DASH}"


def titled(scores: Mapping[str, Score | None]) -> dict[str, Score | None]:
    """Return scores by the title of their part, without those of unseen situations if unknown."""
    return {
        title: scores.get(part)
        for part, title in PARTS.items()
        if scores.get(part) is not None or part != "unseen"
    }


def score_table(rows: Mapping[str, Score | None]) -> Table:
    """Compare scores part by part, a column each; what is not known is a dash."""
    scores = list(rows.values())
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows:
        table.add_column(Text(printable(name)), justify="right")
    for part in (*SHARES, *OPTIONAL):
        shares = [getattr(score, part, None) for score in scores]
        if part in SHARES or any(share is not None for share in shares):
            table.add_row(part.replace("_", " "), *map(_share, shares))
    counts = (UNKNOWN if score is None else f"{score.transitions:,}" for score in scores)
    table.add_row("transitions", *counts)
    return table


def _share(value: float | None) -> str:
    """Write a share of one."""
    return UNKNOWN if value is None else f"{value:.3f}"
