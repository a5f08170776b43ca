"""Load, list, report and compare runs of every kind.

Of runs of other versions of cwm, the readable parts are shown and the unreadable ones named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from cwm_cli._version import __version__
from cwm_cli.data.reading import UnreadableError, read_json, read_text
from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.runs.files import flat
from cwm_cli.runs.report import RunReport, RunSummary, Section
from cwm_cli.runs.storage import StorageError, located, named, placed
from cwm_cli.runs.store import (
    BEST,
    HEADER,
    WRITER,
    Difference,
    Run,
    RunHeader,
    entry_differences,
    kind_of,
)
from cwm_cli.text import clean


@dataclass(frozen=True)
class UnreadableRun:
    """A run folder that cannot be read, with the reason."""

    run: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class RunDifferences:
    """The differences between two runs: settings and results."""

    runs: tuple[str, str]
    settings: Sequence[Difference]
    results: Sequence[Difference]

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`: both values of each difference, by name."""
        parts = {"settings": self.settings, "results": self.results}
        named = {
            part: {name: [before, now] for name, before, now in differences}
            for part, differences in parts.items()
        }
        return {"runs": list(self.runs), **named}


def load(folder: Path | str) -> Run[Any, Any]:
    """Return the run of a folder or URL, of any kind.

    Raises:
        CwmError: The folder is not a run folder, or this version cannot read its header.
    """
    folder = placed(folder)
    kind = kind_of(folder)
    of_kind: type[Run[Any, Any]] = find("run kind", kind)
    return of_kind.load(folder)


def load_readable(folder: Path | str) -> Run[Any, Any]:
    """Return the run of a folder; also a run of another version, without its unreadable parts.

    `Run.damage` names the unreadable parts. Use `load` to continue a run or to use its results.
    """
    try:
        return load(folder)
    except StorageError:
        raise
    except CwmError as error:
        return read_foreign(located(folder), error)


def run_folders(*places: Path | str) -> Iterator[Path]:
    """Yield the run folders below some folders or URLs, newest first.

    Runs inside a run, such as the jobs of a benchmark, are found only below that run itself.
    """
    found: dict[Path, float] = {}
    for place in map(placed, places):
        for root, folders, files in os.walk(place):
            if HEADER not in files:
                continue
            folder = Path(root)
            with suppress(OSError):  # removed in the meantime, or a broken link
                found[folder] = (folder / HEADER).stat().st_mtime
            if folder != place:
                folders.clear()
    return iter(sorted(found, key=lambda folder: (found[folder], folder), reverse=True))


def list_runs(*places: Path | str) -> Iterator[RunSummary | UnreadableRun]:
    """Yield a summary of every run below some folders or URLs, newest first."""
    for folder in run_folders(*places):
        try:
            yield summary_of(load_readable(folder))
        except CwmError as error:
            yield UnreadableRun(named(folder), str(error))


def summary_of(run: Run[Any, Any]) -> RunSummary:
    """Return the summary of a run, with its unreadable parts."""
    return replace(run.summary(), damage=run.damage)


def report_on(folders: Sequence[Path | str]) -> RunReport:
    """Return the report on one run, or on several runs of one kind."""
    return report_of(load_alike(folders))


def load_alike(folders: Sequence[Path | str]) -> list[Run[Any, Any]]:
    """Return the runs of some folders.

    Raises:
        CwmError: The runs are of different kinds.
    """
    runs = [load_readable(folder) for folder in dict.fromkeys(folders)]
    if kinds := {run.kind for run in runs} - {runs[0].kind}:
        other = f"{runs[0].kind} and {sorted(kinds)[0]}"
        raise CwmError(f"the runs are of different kinds ({other}): report them one by one")
    return runs


def report_of(runs: Sequence[Run[Any, Any]]) -> RunReport:
    """Return the report on runs of one kind, with their unreadable parts."""
    report = type(runs[0]).report(runs)
    damage = list(filter(None, (run.damage for run in runs)))
    if not damage:
        return report
    return replace(report, notes=[*report.notes, *damage], facts={**report.facts, "damage": damage})


def compare(first: Path | str, second: Path | str) -> RunDifferences:
    """Return the differences between the settings, versions and results of two runs."""
    runs = [load(folder) for folder in (first, second)]
    settings = [
        run.config.model_dump(mode="json") | {"versions": run.header.versions} for run in runs
    ]
    results = [
        {  # `run` and `program` are paths
            name: value
            for name, value in (run.result() or {}).items()
            if name not in ("run", "program")
        }
        for run in runs
    ]
    # The weighed parts of an accuracy repeat its difference.
    changed = [one for one in entry_differences(*results) if ".weighed." not in one.name]
    runs_named = (named(located(first)), named(located(second)))
    return RunDifferences(runs_named, entry_differences(*settings), changed)


class ForeignConfig(BaseModel, frozen=True, extra="allow"):
    """A configuration with any JSON values."""


class ForeignHeader(RunHeader[ForeignConfig]):
    """A header of an unknown form: only the kind and the circumstances are known."""

    kind: str = "search"


class ForeignLine(BaseModel, frozen=True, extra="allow"):
    """A journal line with any JSON object."""


class ForeignRun(Run[ForeignHeader, ForeignLine]):
    """A run with a header that this version cannot read, or of an unknown kind.

    Its configuration, result and program are shown unchanged; only the number of journal lines is
    known.
    """

    kind: ClassVar[str] = "foreign"
    header_type = ForeignHeader
    record_type = ForeignLine

    def lines(self) -> int:
        """Return the number of journal lines; the journal may have any name."""
        count = 0
        for file in self.folder.glob("*.jsonl"):
            with suppress(UnreadableError):
                count += read_text(file).count("\n")
        return count

    def summary(self) -> RunSummary:
        """Return the kind, the known settings and the number of journal lines."""
        config = self.config.model_dump()
        words = {
            name: config[name] if isinstance(config.get(name), str) else ""
            for name in ("env", "strategy", "model")
        }
        seed, lines = config.get("seed"), self.lines()
        return RunSummary(
            self.place,
            self.header.kind,
            environment=words["env"],
            strategy=words["strategy"],
            answers=words["model"],
            seed=seed if isinstance(seed, int) else None,
            done=f"{lines} line{'' if lines == 1 else 's'}",
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence[ForeignRun]) -> RunReport:
        """Return the facts of the configuration and the result."""
        base = super().report(runs)
        return RunReport(f"{runs[0].header.kind} run, {runs[0].place}", facts=base.facts)

    @classmethod
    def sections(cls, runs: Sequence[ForeignRun]) -> list[Section]:
        """Return the configuration, the result and the program."""
        run = runs[0]
        objects = {"Choices": run.config.model_dump(), "Result": run.result() or {}}
        sections = [
            Section("facts", title, {"rows": [list(item) for item in flat(content).items()]})
            for title, content in objects.items()
            if content
        ]
        try:
            program = {"text": read_text(run.folder / BEST), "name": BEST, "gaps": []}
        except UnreadableError:
            return sections
        return [*sections, Section("program", "Program", program)]


def read_foreign(folder: Path, complaint: CwmError) -> Run[Any, Any]:
    """Return the readable parts of a run of another version, with a `version_note`.

    Args:
        folder: The run folder.
        complaint: The error that this version raised for the run.

    Raises:
        CwmError: The complaint, if this version wrote the run or nothing can be read.
    """
    raw = _header(folder)
    versions = raw.get("versions")
    writer = str(versions.get(WRITER, "")) if isinstance(versions, dict) else ""
    if not raw or writer == __version__:
        raise complaint
    run, lacking = _without_unknown(folder, raw)
    if run is None:
        try:
            run = ForeignRun(folder, ForeignHeader.model_validate(raw))
        except ValidationError:
            raise complaint from None
        reason = complaint.reason if isinstance(complaint, UnreadableError) else complaint
        lacking = f"its kind or settings cannot be read by this version ({reason})"
    by = f"cwm {clean(writer, limit=40)}" if writer else "another version"
    run.version_note = f"{run.place} was written by {by}, read by cwm {__version__}: {lacking}"
    return run


def _without_unknown(folder: Path, raw: Mapping[str, Any]) -> tuple[Run[Any, Any] | None, str]:
    """Return a run without unknown settings, and a message; None if anything else is wrong."""
    try:
        of_kind: type[Run[Any, Any]] = find("run kind", str(raw.get("kind", "search")))
        of_kind.header_type.model_validate(raw)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
    except CwmError:
        return None, ""
    else:
        return None, ""
    if any(entry["type"] != "extra_forbidden" for entry in wrong):
        return None, ""
    known: Any = deepcopy(dict(raw))
    for entry in wrong:
        *path, last = entry["loc"]
        parent = known
        for key in path:
            parent = parent[key]
        del parent[last]
    names = ", ".join(clean(".".join(map(str, entry["loc"])), limit=60) for entry in wrong)
    run = of_kind(folder, of_kind.header_type.model_validate(known))
    return run, f"unknown settings are ignored ({names})"


def _header(folder: Path) -> dict[str, Any]:
    """Return the header as JSON, {} if it cannot be read."""
    try:
        raw = read_json(folder / HEADER)
    except UnreadableError:
        return {}
    return raw if isinstance(raw, dict) else {}
