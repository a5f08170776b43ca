"""Which folder a benchmark is kept in: the named one, an unfinished one, or a new one."""

import time
from collections.abc import Iterator
from pathlib import Path

from cwm_cli.bench.configuration import Header
from cwm_cli.bench.folder import HEADER, Folder
from cwm_cli.bench.tasks import left
from cwm_cli.errors import CwmError
from cwm_cli.runs.store import RUNS


def choose_folder(header: Header, *, named: Path | None, new: bool) -> Folder:
    """Return where a benchmark goes on or begins."""
    if named is not None:
        return Folder(named.absolute())
    going_on = None if new else next(_unfinished(header), None)
    return going_on or Folder(_fresh().absolute())


def _unfinished(header: Header) -> Iterator[Folder]:
    """Yield the benchmarks of equal choices in which something is left to do, the newest first."""
    files = sorted(RUNS.glob(f"*/{HEADER}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        folder = Folder(file.parent.absolute())
        try:
            same = folder.header().configuration == header.configuration
        except CwmError:
            continue
        if same and left(folder, header, ()):
            yield folder


def _fresh() -> Path:
    """Name a folder that is not there yet."""
    name = f"benchmark-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())
