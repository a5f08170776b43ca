"""Summaries and reports of runs: a line of a list, tables, notes, and facts for scripts."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
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
      `low` and `high`, and `loose` if no line joins the points.
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
        found = [
            Section(
                "table",
                grid.title,
                {"heads": [*grid.heads], "rows": [[*line] for line in grid.cells]}
                | {"words": grid.words, "filters": []},
            )
            for grid in self.grids
        ]
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
