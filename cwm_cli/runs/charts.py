"""Charts and tables as plain data, as the page of a run draws them.

What is drawn is kept small: of many points some are left out, evenly, and the chart says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from cwm_cli.runs.report import Grid

MOST_POINTS = 500
"""Points of a line, or of a cloud, that are kept: more cannot be told apart on a screen."""

DIGITS = 6
"""Significant digits of a number that is drawn."""

Number = float | int | None


class ChartLine(NamedTuple):
    """Points (x, y) in one colour, joined by a line unless they are `loose`.

    A y that is None breaks the line. `low` and `high` are the ends of a band around it, `tips`
    say more of each point. The `tone` is a number from 0 to 5, or "quiet", "good" or "bad"; where
    it is None the colour goes by the order of the lines.
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

    A `staircase` keeps its height up to the next point. `rules` are values to compare with, by
    name; None is left out. Without a `legend` lines are named by what stands around the chart.
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

        Of a line with more than `MOST_POINTS` points some are left out, and a note says so.
        """
        drawn, left = list[dict[str, Any]](), list[str]()
        for line in self.lines:
            kept = thinned(len(line.x), MOST_POINTS)
            if len(kept) < len(line.x):
                name = f" of {line.name}" if line.name and len(self.lines) > 1 else ""
                left.append(f"{len(kept):,} of {len(line.x):,} points{name}")
            drawn.append(_line(line, kept))
        told = f"The chart shows {', '.join(left)}, evenly spaced." if left else ""
        known: dict[float, list[str]] = {}
        for name, value in self.rules.items():
            if value is not None:
                known.setdefault(value, []).append(name)  # of equal ones the names would overlap
        more = {
            "staircase": self.staircase,
            "y_range": list(self.y_range) if self.y_range else None,
            "rules": [{"name": " and ".join(names), "y": rounded(y)} for y, names in known.items()],
            "note": " ".join(filter(None, [self.note, told])),
        }
        return (
            {"x": self.x, "y": self.y, "log_x": self.log_x, "series": drawn}
            | {name: value for name, value in more.items() if value}
            | ({} if self.legend else {"legend": False})
        )


def _line(line: ChartLine, kept: Sequence[int]) -> dict[str, Any]:
    """Return a line as plain data, without what it does not have."""
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


def thinned(count: int, most: int) -> list[int]:
    """Return at most so many of the places up to `count`, evenly spread, both ends among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def rounded(value: Number) -> Number:
    """Return a number with as many digits as are drawn; None for what is no finite one."""
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

    One that is `folded` is shown by a click on these words.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    data = {"heads": [*heads], "rows": cells, "words": words, "filters": [*filters]}
    return data | ({"folded": folded} if folded else {})


def table_of(grid: Grid, filters: Sequence[int] = (), folded: str = "") -> dict[str, Any]:
    """Return a table of a report as the data of a section."""
    return table(grid.heads, grid.cells, words=grid.words, filters=filters, folded=folded)


def _cell(cell: Any) -> str | Number:
    """Return a cell as JSON holds it."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return rounded(cell) if isinstance(cell, int | float) else None if cell is None else str(cell)
