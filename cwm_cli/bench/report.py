"""All that a benchmark came to: read from its folder, as an object, and as files."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from io import StringIO
from typing import Any, NamedTuple

from cwm_cli.bench.configuration import SIMULATED_NOTE, Header
from cwm_cli.bench.folder import Folder
from cwm_cli.bench.groups import Group, groups_of
from cwm_cli.bench.published import LATER, QUOTED, SOURCE
from cwm_cli.bench.rows import Row, rows_of
from cwm_cli.bench.tables import Grid, group_grids, job_grids
from cwm_cli.runs.files import replace


class Report(NamedTuple):
    """The jobs of a benchmark, their means, and what has to be said about them."""

    folder: Folder
    header: Header
    rows: list[Row]
    groups: list[Group]

    @classmethod
    def of(cls, folder: Folder) -> "Report":
        """Read a benchmark, whatever state it is in."""
        header = folder.header()
        rows = rows_of(folder, header)
        return cls(folder, header, rows, groups_of(rows))

    @property
    def title(self) -> str:
        """Name the benchmark and what answered."""
        configuration, terms = self.header.configuration, self.header.terms
        answers = ", ".join(filter(None, configuration.models)) or configuration.backend
        simulated = " (simulated proposals, not a language model's)" * configuration.simulated
        return f"{answers}{simulated}, {terms.budget} completions at most, {self.folder.path}"

    @property
    def notes(self) -> list[str]:
        """Say what has to be known to read the tables."""
        return list(self._notes())

    @property
    def grids(self) -> list[Grid]:
        """The tables: the means of each kind of environments, then every job."""
        return [*group_grids(self.groups), *job_grids(self.rows)]

    def as_object(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        header = self.header.model_dump(mode="json")
        return {
            "run": str(self.folder.path),
            "rows": [row.model_dump(mode="json") for row in self.rows],
            "groups": [group.model_dump(mode="json") for group in self.groups],
            "simulated": self.header.configuration.simulated,
            "notes": self.notes,
            "published": {"source": SOURCE, "figures": [quoted._asdict() for quoted in QUOTED]},
            "configuration": header["configuration"],
            "terms": header["terms"],
        }

    def save(self) -> None:
        """Write table.md, table.csv and result.json into the folder."""
        path = self.folder.path
        replace(path / "table.md", self._markdown())
        replace(path / "table.csv", self._csv())
        replace(path / "result.json", json.dumps(self.as_object(), indent=2) + "\n")

    def _notes(self) -> Iterator[str]:
        if self.header.configuration.simulated:
            yield SIMULATED_NOTE
        yield (
            "\N{PLUS-MINUS SIGN} is a standard error: of a group over its environments, each with "
            "the mean over its seeds (over seeds where there is one environment), of a job over "
            "its episodes. A program that fails scores 0 and counts. Of jobs, `exact` is the share "
            "of held-out rows that are right in every part, `paper` the published score of the "
            "train rows, `ceiling` what the true environment scores on the held-out rows."
        )
        if longest := self.header.configuration.max_steps:
            yield f"Episodes are cut after {longest} steps, those of the oracle as well."
        yield from self._gaps()
        if any(quoted.group == group.group for group in self.groups for quoted in QUOTED):
            yield (
                f"Quoted figures are those of {SOURCE}: with its own data, planners and language "
                f"models, and with the published score as accuracy. {LATER}"
            )

    def _gaps(self) -> Iterator[str]:
        """Say which jobs are not in the means, and why."""
        reasons: dict[str, list[str]] = defaultdict(list)
        for row in self.rows:
            if row.state == "failed":
                reasons[row.reason or "unknown"].append(row.job)
        failed, jobs = sum(map(len, reasons.values())), len(self.rows)
        if failed:
            yield f"{failed} of {jobs} jobs failed and are left out of the means:"
        for reason, names in reasons.items():
            yield f"- {_some(names)}: {reason}"
        unfinished = sum(row.state == "unfinished" for row in self.rows)
        if unfinished:
            yield f"{unfinished} of {jobs} jobs are not finished and are left out of the means."
        for row in self.rows:
            if row.state == "finished" and (why := _not_played(row)):
                yield f"- {row.job} has no R: {why}"

    def _markdown(self) -> str:
        """Write tables and notes as Markdown."""
        parts = [f"# cwm benchmark: {self.title}"]
        for grid in self.grids:
            parts += [f"## {grid.title}", grid.markdown()]
        parts += ["## Notes", "\n\n".join(self.notes)]
        return "\n\n".join(parts) + "\n"

    def _csv(self) -> str:
        """Write a line per job, all that is known of it."""
        flat = [_flat(row.model_dump(mode="json")) for row in self.rows]
        if self.header.configuration.simulated:
            flat = [line | {"note": SIMULATED_NOTE} for line in flat]
        names = list(dict.fromkeys(name for line in flat for name in line))
        text = StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        return text.getvalue()


def _not_played(row: Row) -> str | None:
    """Say why a job that was finished has no R, where something is missing."""
    return row.reason if row.play is None else row.play.reason


def _some(names: list[str]) -> str:
    """Name the first of many."""
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} others" if rest > 0 else "")


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested objects: `train.accuracy`."""
    if not isinstance(value, dict):
        return {name: value}
    parts = ((f"{name}.{key}" if name else key, item) for key, item in value.items())
    return {key: item for part, some in parts for key, item in _flat(some, part).items()}
