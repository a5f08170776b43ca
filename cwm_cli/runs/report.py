"""Reports of runs: a line of a list, facts for scripts, and charts and tables as plain data.

Pages stay small: a line with many points is thinned evenly, and a note reports it.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.result import Result
from cwm_cli.runs.files import flat, replace
from cwm_cli.text import Grid as Grid
from cwm_cli.text import money


class Section(NamedTuple):
    """A section of the HTML page of a run: the kind of drawing, a title and the data.

    `about` is a sentence or two below the title. `data` holds JSON values, by kind:

    - `facts`: `rows`, each a name and a value.
    - `notes`: `lines`.
    - `table`: `heads`, `rows` (cells are texts, numbers or None), `words` (the number of text
      columns, which come first) and `filters` (the numbers of the columns with a filter).
    - `chart`: the labels `x` and `y`, `log_x`, and `series`, each with `name`, `x`, `y`, maybe
      `low` and `high`, and `loose` if no line joins the points; `cloud` if the coordinates have
      no meaning of their own.
    - `program`: `text`, `name` and maybe `gaps`.
    - `tree`: `nodes` (`cwm_cli.runs.nodes`).
    - `panels`: `sections`, each a title, a kind and its data, side by side.

    The page shows data of any other kind as JSON.
    """

    kind: str
    title: str
    data: Mapping[str, Any]
    about: str = ""


@dataclass(frozen=True)
class RunSummary:
    """A run and its progress, as a line of `cwm runs list`.

    `answers` is the model or backend, `done` the amount of work, `result` the outcome in words,
    and `best` a score between 0 and 1 if there is one. `reused` counts the completions that came
    from a cache. `damage` names the parts that cannot be read.
    """

    run: str
    kind: str
    environment: str = ""
    strategy: str = ""
    answers: str = ""
    seed: int | None = None
    completions: int | None = None
    done: str = ""
    result: str = ""
    best: float | None = None
    created: str = ""
    damage: str = ""
    reused: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class RunReport(Result):
    """The results of runs: a verdict, tables and notes for people, facts and rows for scripts.

    `verdict` is the outcome in a sentence, with the effort. `facts` is the output of `--json`;
    `rows` are the lines of `table.csv`, which may be nested.
    """

    title: str
    grids: Sequence[Grid] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    verdict: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return dict(self.facts)

    def markdown(self) -> str:
        """Write tables and notes as Markdown."""
        parts = [f"# {self.title}", *([self.verdict] if self.verdict else [])]
        for grid in self.grids:
            parts += [*([f"## {grid.title}"] if grid.title else []), grid.markdown()]
        parts += ["## Notes", "\n\n".join(self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"

    def sections(self) -> list[Section]:
        """Return tables and notes as sections of a page; the facts if there are neither."""
        found = [Section("table", grid.title, table_of(grid)) for grid in self.grids]
        if self.notes:
            found.append(Section("notes", "Notes", {"lines": [*self.notes]}))
        if not found:
            rows = [[name, value] for name, value in flat(self.facts).items()]
            found.append(Section("facts", "Facts", {"rows": rows}))
        return found

    def save(self, folder: Path) -> None:
        """Write table.md, table.csv and result.json into a folder."""
        lines = [flat(row) for row in self.rows]
        text = StringIO()
        names = list(dict.fromkeys(name for line in lines for name in line))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        replace(folder / "table.md", self.markdown())
        replace(folder / "table.csv", text.getvalue())
        replace(folder / "result.json", json.dumps(self.facts, indent=2) + "\n")


def with_effort(
    outcome: str,
    *,
    steps: int | None = None,
    completions: int | None = None,
    tokens: int | None = None,
    cost: float | None = 0.0,
    seconds: float | None = None,
) -> str:
    """Return a verdict: the outcome, then the steps, completions, tokens, cost and time.

    Zero and missing numbers are left out. A cost of None is unknown: "cost unknown".
    """
    parts = [
        f"{steps:,} steps" if steps else "",
        f"{completions:,} completion{'' if completions == 1 else 's'}" if completions else "",
        f"{tokens:,} tokens" if tokens else "",
        f"cost {money(cost)}" if cost is None or cost else "",
        f"{seconds:,.{0 if seconds >= 10 else 1}f} s" if seconds else "",
    ]
    return " \N{MIDDLE DOT} ".join([outcome, *filter(None, parts)])


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
    None is left out. Without a `legend`, text outside the chart names the lines. In a `cloud`, the
    pointer selects the nearest point instead of the nearest x, and its label has no coordinates.
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
    cloud: bool = False

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
            "cloud": self.cloud,
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
