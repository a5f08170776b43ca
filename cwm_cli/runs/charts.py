"""Charts and tables as plain data, as the page of a run draws them.

Pages stay small: a line with many points is thinned evenly, and a note reports it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any, NamedTuple

from cwm_cli.runs.report import Grid

MOST_POINTS = 500
"""Maximum number of points of a line or cloud; a screen cannot resolve more."""

DIGITS = 6
"""Significant digits of numbers in charts and tables."""

Number = float | int | None


class ChartLine(NamedTuple):
    """Points (x, y) in one colour, joined by a line unless they are `loose`.

    A y of None breaks the line. `low` and `high` are the ends of a band; `tips` are texts for
    each point. `tone` selects colour, dashes and mark: a number from 0 to 5, "quiet", "good" or
    "bad"; the position of the line by default.
    """

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    loose: bool = False
    tone: int | str | None = None
    dash: bool = False
    wide: bool = False
    tips: Sequence[str] = ()

    @classmethod
    def of(cls, name: str, points: Iterable[tuple[Number, Number]], **more: Any) -> "ChartLine":
        """Return a line through pairs of numbers."""
        pairs = list(points)
        return cls(name, [x for x, _ in pairs], [y for _, y in pairs], **more)


class LineChart(NamedTuple):
    """Lines over common axes; `x` and `y` name these, with their units.

    A `staircase` keeps its height up to the next point. `rules` are horizontal lines by name;
    None is left out. Without a `legend`, text outside the chart names the lines.
    """

    x: str
    y: str
    lines: Sequence[ChartLine]
    log_x: bool = False
    staircase: bool = False
    y_range: tuple[float, float] | None = None
    rules: Mapping[str, float | None] = {}
    note: str = ""
    legend: bool = True

    def data(self) -> dict[str, Any]:
        """Return the data of a section of kind `chart`.

        Lines with more than `MOST_POINTS` points are thinned, and a note reports it.
        """
        drawn, left = list[dict[str, Any]](), list[str]()
        for line in self.lines:
            kept = thinned(len(line.x), MOST_POINTS)
            if len(kept) < len(line.x):
                name = f" of {line.name}" if line.name and len(self.lines) > 1 else ""
                left.append(f"{len(kept):,} of {len(line.x):,} points{name}")
            drawn.append(_line(line, kept))
        thinning = f"Shown: {', '.join(left)}, evenly spaced." if left else ""
        known: dict[float, list[str]] = {}
        for name, value in self.rules.items():
            if value is not None:
                known.setdefault(value, []).append(name)  # rules at one height share a label
        more = {
            "staircase": self.staircase,
            "y_range": list(self.y_range) if self.y_range else None,
            "rules": [{"name": " and ".join(names), "y": rounded(y)} for y, names in known.items()],
            "note": " ".join(filter(None, [self.note, thinning])),
        }
        return (
            {"x": self.x, "y": self.y, "log_x": self.log_x, "series": drawn}
            | {name: value for name, value in more.items() if value}
            | ({} if self.legend else {"legend": False})
        )


def _line(line: ChartLine, kept: Sequence[int]) -> dict[str, Any]:
    numbers = {"x": line.x, "y": line.y, "low": line.low, "high": line.high}
    data: dict[str, Any] = {"name": line.name}
    for name, values in numbers.items():
        if values is not None:
            data[name] = [rounded(values[place]) for place in kept]
    if line.tips:
        data["tips"] = [line.tips[place] for place in kept]
    if line.tone is not None:
        data["tone"] = line.tone
    return data | {name: True for name in ("loose", "dash", "wide") if getattr(line, name)}


def cumulative(values: Iterable[float]) -> list[float]:
    """Return cumulative sums, beginning with 0."""
    return list(accumulate(values, initial=0))


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced integers below `count`, including both ends."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def rounded(value: Number) -> Number:
    """Round a number to `DIGITS` significant digits; return None for NaN and infinity."""
    if value is None or not isfinite(value):
        return None
    whole = int(value)
    return whole if whole == value else float(f"{value:.{DIGITS}g}")


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    words: int = 1,
    filters: Sequence[int] = (),
    folded: str = "",
) -> dict[str, Any]:
    """Return the data of a section of kind `table`: cells are texts, numbers or None.

    A click on the text `folded` opens a folded table.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    data = {"heads": [*heads], "rows": cells, "words": words, "filters": [*filters]}
    return data | ({"folded": folded} if folded else {})


def table_of(grid: Grid, filters: Sequence[int] = (), folded: str = "") -> dict[str, Any]:
    """Return a table of a report as the data of a section."""
    return table(grid.heads, grid.cells, words=grid.words, filters=filters, folded=folded)


def _cell(cell: Any) -> str | Number:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return rounded(cell) if isinstance(cell, int | float) else None if cell is None else str(cell)
