"""What runs came to: a line of a list, or tables, notes and an object that scripts read."""

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


class Section(NamedTuple):
    """A part of the page that a run is shown on: how it is drawn, its title, what it says.

    `about` is a sentence or two below the title. `data` is what JSON holds, by kind:

    - `facts`: `rows`, each a name and a value.
    - `notes`: `lines`.
    - `table`: `heads`, `rows` (cells are texts, numbers or None), `words` (how many columns in
      front are texts) and `filters` (the numbers of the columns to choose rows by).
    - `chart`: the labels `x` and `y`, `log_x`, and `series`, each with `name`, `x`, `y`, maybe
      `low` and `high`, and `loose` where points are not joined.
    - `program`: `text`, `name` and maybe `gaps`.
    - `tree`: `nodes` (`cwm_cli.runs.nodes`).
    - `panels`: `sections`, each a title, a kind and its data, side by side.

    What a page cannot draw it shows as it is.
    """

    kind: str
    title: str
    data: Mapping[str, Any]
    about: str = ""


@dataclass(frozen=True)
class RunSummary:
    """What a run is, and how far it is: a line of a list.

    `answers` is the model or backend that answers, `done` says how much was done, and
    `result` what came of it; `best` is a score between 0 and 1, if there is one. Of the
    `completions` so many were `reused`, where that is known. `damage` says what of it cannot be
    read.
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
    """All that runs came to: tables and notes for people, facts and rows for scripts.

    `facts` is what `--json` prints; `rows` are the lines of `table.csv`, which may be nested.
    """

    title: str
    grids: Sequence[Grid] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return dict(self.facts)

    def markdown(self) -> str:
        """Write tables and notes as Markdown."""
        parts = [f"# {self.title}"]
        for grid in self.grids:
            parts += [*([f"## {grid.title}"] if grid.title else []), grid.markdown()]
        parts += ["## Notes", "\n\n".join(self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"

    def sections(self) -> list[Section]:
        """Return tables and notes as parts of a page; the facts where there are neither."""
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
