"""All that a run over coding problems came to: as tables, as an object, and as files."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from cwm_apps.scoring import Interval, Outcome, PassAt, Summary, summary
from cwm_cli.runs.files import replace
from cwm_cli.runs.report import UNKNOWN, Grid, money, share
from cwm_cli.text import clean

ALL = "all"
SOURCE = "Dainese et al. (NeurIPS 2024, arXiv 2405.15383)"


class Quoted(NamedTuple):
    """A published strict accuracy on the competition problems of APPS."""

    strategy: str
    model: str
    completions: int
    strict_accuracy: float


QUOTED = (
    Quoted("GIF-MCTS", "Llama 3 70B", 20, 0.283),
    Quoted("WorldCoder", "Llama 3 70B", 20, 0.251),
    Quoted("zero-shot, chain of thought", "Llama 3 70B", 20, 0.232),
)


@dataclass(frozen=True)
class Report:
    """What was found, and what has to be said about it.

    `passes` are of programs from elsewhere, `skipped` says of problems why
    they were not judged, and `quotes` asks for what was published: only where
    the problems are those of the competition split.
    """

    title: str
    outcomes: Sequence[Outcome]
    passes: Sequence[PassAt] = ()
    skipped: Mapping[int, str] = field(default_factory=dict)
    quotes: bool = False

    @cached_property
    def summary(self) -> Summary:
        """All outcomes summed up."""
        return summary(self.outcomes)

    @property
    def grids(self) -> list[Grid]:
        """The tables: by difficulty, pass@k, and what was published."""
        passes = [_passes(self.passes)] if self.passes else []
        quoted = [_quoted()] if self.quotes else []
        return [_difficulties(self.summary), *passes, *quoted]

    @property
    def notes(self) -> list[str]:
        """Say what has to be known to read the tables."""
        return list(self._notes())

    def as_object(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        quoted = {"source": SOURCE, "figures": [one._asdict() for one in QUOTED]}
        return {
            **self.summary.model_dump(mode="json"),
            "pass_at": [one._asdict() for one in self.passes],
            "rows": self._rows(),
            "skipped": {str(number): reason for number, reason in self.skipped.items()},
            "notes": self.notes,
            "published": quoted if self.quotes else None,
        }

    def save(self, folder: Path) -> None:
        """Write table.md, table.csv and result.json into a folder."""
        replace(folder / "table.md", self._markdown())
        replace(folder / "table.csv", self._csv())
        replace(folder / "result.json", json.dumps(self.as_object(), indent=2) + "\n")

    def _notes(self) -> Iterator[str]:
        yield (
            "A problem is solved if its final program passes all tests, public and hidden: the "
            "share of these is the strict accuracy. `test cases` is the mean share of hidden "
            "tests passed. Intervals are of 95 %, over problems (Wilson); those of `test cases` "
            "are wider than they have to be."
        )
        if count := self.summary.no_hidden:
            yield f"Judged by their only test, which the search saw: {count:,} problems."
        if self.skipped:
            yield f"Skipped and not counted: {len(self.skipped):,} problems:"
        for number, reason in list(self.skipped.items())[:10]:
            yield f"- {number}: {clean(reason, limit=200)}"
        if len(self.skipped) > 10:
            yield f"- and {len(self.skipped) - 10:,} others"
        if self.quotes:
            yield (
                f"Published figures are those of {SOURCE}: for orientation, with its own language "
                "model, choice of problems and tests."
            )

    def _rows(self) -> list[dict[str, Any]]:
        """Return all that is known of each problem, in order."""
        ordered = sorted(self.outcomes, key=lambda one: one.id)
        return [one.model_dump() | {"solved": one.strict, "share": one.share} for one in ordered]

    def _markdown(self) -> str:
        """Write tables and notes as Markdown."""
        parts = [f"# cwm apps: {self.title}"]
        for grid in [*self.grids, problem_grid(self.outcomes)]:
            parts += [f"## {grid.title}", grid.markdown()]
        parts += ["## Notes", "\n\n".join(self.notes)]
        return "\n\n".join(parts) + "\n"

    def _csv(self) -> str:
        """Write a line per problem."""
        text = StringIO()
        names = [*Outcome.model_fields, "solved", "share"]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows())
        return text.getvalue()


def problem_grid(outcomes: Sequence[Outcome]) -> Grid:
    """Return a table with a line per problem."""
    heads = ["id", "difficulty", "result", "public", "hidden", "completions", "cost", "seconds"]
    cells = [
        [
            f"{one.id:04}",
            clean(one.difficulty, limit=14),
            "solved" if one.strict else "unsolved",
            f"{one.public_passed}/{one.public_tests}",
            f"{one.passed}/{one.tests}" if one.has_hidden else UNKNOWN,
            str(one.completions),
            money(one.cost),
            f"{one.seconds:,.1f}",
        ]
        for one in sorted(outcomes, key=lambda one: one.id)
    ]
    return Grid("problems", heads, cells, words=3)


def _difficulties(whole: Summary) -> Grid:
    """Return a table with a line per difficulty, and one for all where there are several."""
    parts = whole.by_difficulty
    lines = {**parts, ALL: whole} if len(parts) != 1 else parts
    heads = ["difficulty", "problems", "solved", "strict accuracy", "test cases"]
    cells = [
        [
            clean(name, limit=14),
            f"{part.problems:,}",
            f"{part.solved:,}",
            _with_interval(part.strict_accuracy, part.strict_accuracy_95),
            _with_interval(part.test_case_average, part.test_case_average_95),
            f"{part.completions:,}",
            money(part.cost),
        ]
        for name, part in lines.items()
    ]
    return Grid("by difficulty", [*heads, "completions", "cost"], cells)


def _passes(passes: Sequence[PassAt]) -> Grid:
    """Return a table of pass@k."""
    cells = [
        [f"pass@{one.k}", _with_interval(one.value, one.interval), f"{one.problems:,}"]
        for one in passes
    ]
    return Grid("pass@k", ["", "chance", "problems"], cells)


def _quoted() -> Grid:
    """Return a table of what was published."""
    heads = ["published", "completions", "strict accuracy"]
    cells = [
        [f"{one.strategy}, {one.model}", str(one.completions), f"{one.strict_accuracy:.3f}"]
        for one in QUOTED
    ]
    return Grid("published for APPS competition, quoted from the paper", heads, cells)


def _with_interval(value: float | None, interval: Interval | None) -> str:
    """Write a share with its interval."""
    return share(value) + (f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else "")
