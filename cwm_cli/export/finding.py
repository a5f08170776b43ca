"""Find out what a folder holds that can be exported."""

from pathlib import Path

from cwm_cli.errors import CwmError
from cwm_cli.export.package import package_of
from cwm_cli.export.publishing import Export
from cwm_cli.runs.listing import load, run_folders
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import DATASET, kind_of


def export_of(folder: Path) -> Export:
    """Make an export of a run; one of another kind than a search says what is exported of it."""
    kind = kind_of(folder)
    if kind != SearchRun.kind:
        made: Export | None = load(folder).export()
        if made is not None:
            return made
        parts = (f", such as {part}" for part in run_folders(folder) if part != folder)
        words = f"{folder} is a run of kind {kind!r}: export a search"
        raise CwmError(f"{words}{next(parts, '')}")
    if not (folder / DATASET).exists():
        above = folder.absolute().parent.parent
        raise CwmError(f"{folder} is part of a larger run: export {above}")
    return package_of(SearchRun.load(folder))
