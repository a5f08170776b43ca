"""Results of the kinds: their CSV file, tables and figures."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.kinds.measures import (
    ENVIRONMENTS,
    HORIZON,
    INDUCTION,
    LIMIT_SECONDS,
    ORACLE,
    RECALLED,
    SIZES,
    TRAINED,
)
from benchmarks.parts import Figures, Job
from cwm_cli.runs.files import replace
from cwm_cli.text import UNKNOWN
from cwm_cli.views.curves import Chart, Series

SHIPPED = Path(__file__).parent / "results.csv"
"""The results so far: another machine measures only the missing cases."""

REFERENCES = "references"
"""The part with the oracles and the recalled programs, which do not depend on rows."""

KINDS = (INDUCTION, *TRAINED)

SEEDS = 3
"""Seeds of each case, but one of the references."""

MEASURES = ("exact", "observation", "error", "return", "random", "seconds", "size", "limit")
COLUMNS = ("environment", "kind", "rows", "seed", *MEASURES, "machine")

LOWEST_DRAWN = -0.5
"""Lower returns are drawn at this height, since one bad model would hide all others."""


class Cell(NamedTuple):
    """An environment, a kind, and the number of rows ("" for a reference)."""

    environment: str
    kind: str
    rows: str

    @classmethod
    def of(cls, job: Job) -> Cell:
        """Return the cell of a job."""
        first, _, second = job.case.partition(" ")
        if job.part == REFERENCES:
            return cls(first, second, "")
        return cls(job.part, first, second)

    def job(self, seed: int) -> Job:
        """Return the job of a seed."""
        if not self.rows:
            return Job(REFERENCES, f"{self.environment} {self.kind}", seed)
        return Job(self.environment, f"{self.kind} {self.rows}", seed)


Results = Mapping[Job, Figures]


def load(file: Path) -> dict[Job, Figures]:
    """Return the results in a CSV file, none if it is missing."""
    if not file.exists():
        return {}
    found = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            cell = Cell(row["environment"], row["kind"], row["rows"])
            figures: Figures = {name: float(row[name]) for name in MEASURES if row[name]}
            found[cell.job(int(row["seed"]))] = figures | {"machine": row["machine"]}
    return found


def save(found: Results, file: Path) -> None:
    """Write results to a CSV file, sorted; all but sizes are rounded to four significant digits."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for job, figures in sorted(found.items(), key=lambda item: _order(item[0])):
        numbers = {name: figures.get(name) for name in MEASURES}
        words = [
            "" if number is None else f"{number:.0f}" if name == "size" else f"{number:.4g}"
            for name, number in numbers.items()
        ]
        lines.writerow([*Cell.of(job), job.seed, *words, figures.get("machine", "")])
    replace(file, text.getvalue())


def _order(job: Job) -> tuple[int, int, int, int]:
    cell, kinds = Cell.of(job), (ORACLE, RECALLED, *KINDS)
    place = list(ENVIRONMENTS).index(cell.environment)
    return place, kinds.index(cell.kind), int(cell.rows or 0), job.seed


def by_cell(found: Results) -> dict[Cell, list[Figures]]:
    """Return the figures of each cell by seed, with their `normalised` return if it is known.

    The normalised return is 0 for random actions. It is 1 for the better one of plans in the
    environment itself and plans in the recalled program.
    """
    references: dict[str, list[Figures]] = defaultdict(list)
    for job, figures in found.items():
        if job.part == REFERENCES and "return" in figures:
            references[Cell.of(job).environment].append(figures)
    cells: dict[Cell, list[Figures]] = defaultdict(list)
    for job, figures in sorted(found.items(), key=lambda item: _order(item[0])):
        cell = Cell.of(job)
        value = _normalised(figures.get("return"), references[cell.environment])
        cells[cell].append(figures | {"normalised": value})
    return cells


def _normalised(returned: float | None, references: Sequence[Figures]) -> float | None:
    if returned is None or not references:
        return None
    low = references[0]["random"]
    high = max(each["return"] for each in references)
    return (returned - low) / (high - low) if high > low else None


def lines_of(runs: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line for each case of an environment: means over seeds."""
    heads = {
        "exact": "exact rows",
        "observation": "observations",
        "error": f"error after {HORIZON}",
        "return": "return",
        "seconds": "seconds",
        "size": "lines or parameters",
    }
    yield f"{'case':24s}{'seeds':>6s}" + "".join(f"{head:>20s}" for head in heads.values())
    for case, figures in runs.items():
        cells = "".join(f"{_mean_words(figures, name):>20s}" for name in heads)
        yield f"{case:24s}{len(figures):>6d}{cells}"


def markdown(found: Results) -> Iterator[str]:
    """Yield the tables for the documentation: normalised returns, exact rows, and costs.

    Lines without a result are left out, except in the table of costs, which counts the results.
    """
    cells = by_cell(found)
    for measure, title in {"normalised": "normalised return", "exact": "exact rows"}.items():
        yield f"\n| {title} | rows | {' | '.join(ENVIRONMENTS)} |"
        yield "|---" * (2 + len(ENVIRONMENTS)) + "|"
        for kind, rows in [(RECALLED, ""), *((k, str(n)) for k in KINDS for n in SIZES)]:
            of_kind = (cells.get(Cell(env, kind, rows), []) for env in ENVIRONMENTS)
            words = [_range_words(figures, measure) for figures in of_kind]
            if set(words) != {UNKNOWN}:
                yield f"| {kind} | {rows and f'{int(rows):,}'} | {' | '.join(words)} |"
    yield "\n| kind | rows | cases measured | over limit | seconds: median (longest) | size |"
    yield "|---" * 6 + "|"
    for kind in KINDS:
        for size in SIZES:
            same = [some for cell, some in cells.items() if cell[1:] == (kind, str(size))]
            runs = [figures for some in same for figures in some]
            yield f"| {kind} | {size:,} | {' | '.join(_cost_words(kind, runs))} |"


def _cost_words(kind: str, runs: Sequence[Figures]) -> list[str]:
    """Return the cells of a kind and a number of rows over all environments."""
    seconds, sizes = _values(runs, "seconds"), sorted(_values(runs, "size"))
    ends = list(dict.fromkeys(f"{size:,.0f}" for size in (*sizes[:1], *sizes[-1:])))
    unit = "lines" if kind == INDUCTION else "parameters"
    return [
        f"{len(runs)} of {len(ENVIRONMENTS) * SEEDS}",
        f"{sum('limit' in each for each in runs)}",
        f"{median(seconds):,.0f} ({max(seconds):,.0f})" if seconds else UNKNOWN,
        f"{' to '.join(ends)} {unit}" if ends else UNKNOWN,
    ]


def _values(runs: Iterable[Figures], name: str) -> list[float]:
    return [each[name] for each in runs if each.get(name) is not None]


def _mean_words(runs: Sequence[Figures], name: str) -> str:
    values = _values(runs, name)
    return f"{mean(values):,.4g}" if values else UNKNOWN


def _range_words(runs: Sequence[Figures], name: str) -> str:
    """Return the mean over seeds, and the lowest and highest value if they differ."""
    values = _values(runs, name)
    if not values:
        return f"over {LIMIT_SECONDS} s" if any("limit" in each for each in runs) else UNKNOWN
    words = [f"{value + 0.0:.2f}" for value in (mean(values), min(values), max(values))]
    return words[0] if words[1] == words[2] else f"{words[0]} ({words[1]} to {words[2]})"


def figure(env: str, found: Results) -> str:
    """Draw normalised returns over rows as SVG, with a band over seeds; "" without results."""
    cells, series = by_cell(found), []
    for kind in KINDS:
        points = {
            rows: [max(LOWEST_DRAWN, value) for value in values]
            for rows in SIZES
            if (values := _values(cells.get(Cell(env, kind, str(rows)), []), "normalised"))
        }
        if points:
            x, every = [float(rows) for rows in points], list(points.values())
            band = [min(own) for own in every], [max(own) for own in every]
            series.append(Series(kind, x, [mean(own) for own in every], band))
    if not series:
        return ""
    label = "normalised return (0 random actions, 1 best reference); the band contains all seeds"
    return Chart.of(env, "train rows", label, series, logarithmic=True).svg()
