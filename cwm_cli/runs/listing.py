"""Load, list, report and compare runs of every kind."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.runs.foreign import read_foreign
from cwm_cli.runs.places import located, named, placed
from cwm_cli.runs.report import RunReport, RunSummary
from cwm_cli.runs.storage import StorageError
from cwm_cli.runs.store import HEADER, Difference, Run, entry_differences, kind_of


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
