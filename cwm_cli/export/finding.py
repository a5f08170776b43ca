"""Find out what a folder holds that can be exported."""

from pathlib import Path

from cwm_apps.exporting import solutions_of
from cwm_apps.folder import TASK
from cwm_apps.folder import Folder as AppsFolder
from cwm_cli.errors import CwmError
from cwm_cli.export.package import package_of
from cwm_cli.export.publishing import Export
from cwm_cli.runs.listing import run_folders
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import HEADER, kind_of


def export_of(folder: Path) -> Export:
    """Make an export of a run, or of a run over coding problems."""
    apps = AppsFolder(folder)
    if apps.is_apps:
        return solutions_of(apps)
    if (folder / HEADER).exists() and kind_of(folder) == "benchmark":
        names = (f", such as {run}" for run in run_folders(folder) if run != folder)
        example = next(names, "")
        raise CwmError(f"{folder} is a benchmark of many runs: export one of them{example}")
    run = SearchRun.load(folder)
    if (folder / TASK).exists():
        raise CwmError(f"{folder} is of one coding problem: export {_above(folder)}")
    return package_of(run)


def _above(folder: Path) -> Path:
    """Return the folder of all problems, which holds that of one in `problems`."""
    return folder.absolute().parent.parent
