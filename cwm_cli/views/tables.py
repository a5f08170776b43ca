"""Tables on the terminal, split by columns if they are too wide."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from cwm_cli.evaluation import Score
from cwm_cli.runs.progress import score_grid
from cwm_cli.runs.report import Grid
from cwm_cli.runs.searches import PARTS
from cwm_cli.views.terminal import printable


class _Report(Protocol):
    """A title, tables and notes."""

    @property
    def title(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def grids(self) -> Sequence[Grid]: ...
    @property
    def notes(self) -> Sequence[str]: ...


def report_parts(report: _Report) -> Iterator[RenderableType]:
    """Yield the title, tables and notes of a report."""
    yield Text(printable(report.title), "bold")
    outcome, _, effort = report.verdict.partition(" \N{MIDDLE DOT} ")
    yield from (Text(printable(line, 1000)) for line in (outcome, effort) if line)
    for grid in report.grids:
        yield GridTable(grid)
    for note in report.notes:
        yield Text(printable(note, 1000))


@dataclass(frozen=True)
class GridTable:
    """A table; one that is too wide is drawn as several, each with the columns of words.

    A `compact` table has no empty or ruled lines.
    """

    grid: Grid
    compact: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table."""
        for places in chunks(self.grid, options.max_width):
            yield self._table(places)

    def _table(self, places: list[int]) -> Table:
        """Draw some of the columns."""
        grid = self.grid
        title = Text(printable(grid.title), "bold") if grid.title else None
        style = None if self.compact else box.SIMPLE_HEAD
        padding = (0, 2, 0, 0) if self.compact else (0, 1)
        table = Table(title=title, title_justify="left", box=style, padding=padding, pad_edge=False)
        for place in places:
            head = Text(printable(grid.heads[place]))
            table.add_column(
                head, justify="left" if place < grid.words else "right", overflow="fold"
            )
        for line in grid.cells:
            table.add_row(*(Text(printable(line[place])) for place in places))
        return table


def chunks(grid: Grid, width: int) -> list[list[int]]:
    """Share the columns out, so that each share fits into a width with the columns of words."""
    widths = _widths(grid)
    words = list(range(grid.words))
    room = width - sum(widths[: grid.words])
    shares: list[list[int]] = [[]]
    left = room
    for place in range(grid.words, len(widths)):
        if shares[-1] and widths[place] > left:
            shares.append([])
            left = room
        shares[-1].append(place)
        left -= widths[place]
    return [words + share for share in shares]


def fits(grid: Grid, width: int) -> bool:
    """Return whether all columns of a table fit into a width."""
    return sum(_widths(grid)) <= width


def _widths(grid: Grid) -> list[int]:
    """Return the width of each column, including the gap to the next column."""
    lines = [grid.heads, *grid.cells]
    # Columns of the terminal between two of a table, and around it.
    between = 3
    return [max(map(cell_len, column)) + between for column in zip(*lines, strict=True)]


def titled(scores: Mapping[str, Score | None]) -> dict[str, Score | None]:
    """Return scores by the title of their part; without a score of unseen situations if unknown."""
    return {
        title: scores.get(part)
        for part, title in PARTS.items()
        if scores.get(part) is not None or part != "unseen"
    }


def score_table(rows: Mapping[str, Score | None]) -> "GridTable":
    """Compare scores part by part, with a column for each; unknown values are dashes."""
    return GridTable(score_grid(rows))
