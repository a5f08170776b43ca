"""A diagnosis on the terminal: tables of the conditions, sizes and kinds of the mistakes."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cwm_cli.problems.feedback import Diagnosis
from cwm_cli.text import UNKNOWN, percent, share
from cwm_cli.views.terminal import printable


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
