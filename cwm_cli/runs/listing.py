"""Find runs of every kind, and say what they are, how they differ, and what came of them."""

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
from cwm_cli.runs.store import HEADER, Difference, Run, changes, kind_of

PLACES = ("run", "program")
"""What of a result says only where it is."""

DERIVED = ".weighed."
"""In the names of parts of a score that only take its accuracy apart."""


@dataclass(frozen=True)
class UnreadableRun:
    """A folder that should be a run and cannot be read, and why."""

    run: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class RunDifferences:
    """In what two runs differ: their settings, and what came of them."""

    runs: tuple[str, str]
    settings: Sequence[Difference]
    results: Sequence[Difference]

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints: both values of all that differs, by name."""
        parts = {"settings": self.settings, "results": self.results}
        named = {
            part: {name: [before, now] for name, before, now in some}
            for part, some in parts.items()
        }
        return {"runs": list(self.runs), **named}


def load(folder: Path | str) -> Run[Any, Any]:
    """Return the run of a folder, of whatever kind."""
    folder = placed(folder)
    kind = kind_of(folder)
    of_kind: type[Run[Any, Any]] = find("run kind", kind)
    return of_kind.load(folder)


def load_readable(folder: Path | str) -> Run[Any, Any]:
    """Return the run of a folder; one that another version wrote as far as it can be read.

    What cannot is said by the run (`foreign`). To continue a run, or to use what it found, it has
    to be read whole: `load`.
    """
    try:
        return load(folder)
    except StorageError:
        raise
    except CwmError as error:
        return read_foreign(located(folder), error)


def run_folders(*places: Path | str) -> Iterator[Path]:
    """Yield the folders of runs below some places, the newest first.

    The parts of a run, such as the jobs of a benchmark, are found where its own folder
    is named as a place.
    """
    found: dict[Path, float] = {}
    for place in map(placed, places):
        for root, folders, files in os.walk(place):
            if HEADER not in files:
                continue
            folder = Path(root)
            with suppress(OSError):  # it was removed meanwhile, or leads nowhere
                found[folder] = (folder / HEADER).stat().st_mtime
            if folder != place:
                folders.clear()
    return iter(sorted(found, key=lambda folder: (found[folder], folder), reverse=True))


def list_runs(*places: Path | str) -> Iterator[RunSummary | UnreadableRun]:
    """Say what every run below some places is, and how far it is, the newest first."""
    for folder in run_folders(*places):
        try:
            yield summary_of(load_readable(folder))
        except CwmError as error:
            yield UnreadableRun(named(folder), str(error))


def summary_of(run: Run[Any, Any]) -> RunSummary:
    """Say what a run is, how far it is, and what of it cannot be read."""
    return replace(run.summary(), damage=run.damage)


def report_on(folders: Sequence[Path | str]) -> RunReport:
    """Return what a run came to, or several of one kind that belong together."""
    return report_of(load_alike(folders))


def load_alike(folders: Sequence[Path | str]) -> list[Run[Any, Any]]:
    """Return the runs of some folders, which have to be of one kind."""
    runs = [load_readable(folder) for folder in dict.fromkeys(folders)]
    if kinds := {run.kind for run in runs} - {runs[0].kind}:
        other = f"{runs[0].kind} and {sorted(kinds)[0]}"
        raise CwmError(f"the runs are of different kinds ({other}): report them one by one")
    return runs


def report_of(runs: Sequence[Run[Any, Any]]) -> RunReport:
    """Return what runs of one kind came to, and what of them cannot be read."""
    report = type(runs[0]).report(runs)
    damage = list(filter(None, (run.damage for run in runs)))
    if not damage:
        return report
    return replace(report, notes=[*report.notes, *damage], facts={**report.facts, "damage": damage})


def compare(first: Path | str, second: Path | str) -> RunDifferences:
    """Say in what two runs differ: their choices and versions, and what came of them."""
    runs = [load(folder) for folder in (first, second)]
    settings = [
        run.config.model_dump(mode="json") | {"versions": run.header.versions} for run in runs
    ]
    results = [
        {name: value for name, value in (run.result() or {}).items() if name not in PLACES}
        for run in runs
    ]
    changed = [one for one in changes(*results) if DERIVED not in one.name]
    return RunDifferences(
        (named(located(first)), named(located(second))), changes(*settings), changed
    )
