"""Which folder a run over problems is kept in: the named one, an unfinished one, or a new one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cwm_apps.folder import Folder, Header, folders_in
from cwm_cli.errors import CwmError
from cwm_cli.runs.store import RUNS


def choose_folder(
    header: Header, *, named: Path | None, new: bool, is_left: Callable[[Folder], bool]
) -> Folder:
    """Return where a run goes on or begins; `is_left` says whether something is left to do."""
    if named is not None:
        return Folder(named)
    going_on = None if new else next(_unfinished(header, is_left), None)
    return going_on or Folder(_fresh(header))


def is_left(folder: Folder, budget: int) -> bool:
    """Whether a problem of a run is not searched to the end."""
    header = folder.header()
    numbers = (number for number in header.problems if number not in header.skipped)
    every = (folder.found(folder.problem(number)) for number in numbers)
    return not all(found is not None and found.enough(budget) for found in every)


def _unfinished(header: Header, is_left: Callable[[Folder], bool]) -> Iterator[Folder]:
    """Yield the runs of equal choices and problems in which something is left to do."""
    for folder in folders_in(RUNS):
        try:
            before = folder.header()
        except CwmError:
            continue
        same = (before.config, before.problems) == (header.config, header.problems)
        if same and is_left(folder):
            yield folder


def _fresh(header: Header) -> Path:
    """Name a folder that is not there yet."""
    config = header.config
    words = ("apps", config.strategy or config.backend, str(config.seed))
    name = f"{'-'.join(words)}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())
