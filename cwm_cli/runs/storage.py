"""Where runs are kept: folders of this machine, or URLs that plugins serve.

A plugin serves URL schemes through the hook `cwm_storages`, with a `Storage` for each run. A
process works on a copy of the files at a URL, in its own temporary folder. The path of a copy
spells its URL, so that a run at a URL is a folder like any other. The copies are removed when the
process ends.
"""

import atexit
import os
import re
import shutil
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.locks import find_abandoned_folders, make_locked_folder
from cwm_cli.registry import find

HEADER, LOCK = "run.json", "lock"


class BusyError(CwmError):
    """Another process is writing to the run."""


class StorageError(CwmError):
    """A store cannot be reached, or refused an operation."""


@dataclass(eq=False)
class Storage(ABC):
    """A run at a URL, with a copy of its files in a folder of this machine.

    A writer calls `claim`, then `send` after each change, then `finish` and `release`; a reader
    calls `bring`. Runs inside the folder of another run have storages of their own
    (`cwm_cli.runs.places.storage_of`). A store that fails raises `StorageError`.
    """

    folder: Path
    """The copy."""
    url: str

    @abstractmethod
    def bring(self, *, light: bool = False) -> None:
        """Update the copy from the store, unless this process has claimed the run.

        Runs inside the folder are updated lightly.

        Args:
            light: Leave out transitions, prompts, logs and pages.
        """

    @abstractmethod
    def fetch(self, file: Path) -> None:
        """Update one file of the copy, unless the store lacks it."""

    @abstractmethod
    def put(self, file: Path) -> None:
        """Write one file of the copy to the store, also without a claim."""

    @abstractmethod
    def claim(self, patience: float = 0.0, *, fresh: bool = False) -> None:
        """Reserve the run for this process, then update the copy.

        Args:
            patience: Seconds to wait for another writer.
            fresh: Whether this process has just created the run. The store must have none.

        Raises:
            BusyError: Another process writes to the run, or has created it first.
        """

    @abstractmethod
    def send(self, *last: str) -> None:
        """Write changed files to the store, those named `last` at the end, in this order.

        Files that were deleted from the copy are removed from the store. When the method returns,
        everything but logs is on the store.
        """

    def finish(self, *last: str) -> None:
        """Write all changed files to the store, before the run is released.

        Default: `send`. Override it if `send` delays logs.
        """
        self.send(*last)

    @abstractmethod
    def release(self) -> None:
        """Release the claim, so that other processes can claim the run."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the run and all runs inside it from the store, and the copy.

        Raises:
            BusyError: Another process writes to one of the runs.
        """


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://(.*)", re.DOTALL)
_FLAT_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/+(.*)", re.DOTALL)

_ROOT: Path | None = None
"""The folder of all copies of this process, once it has one."""
_GUARD = threading.RLock()
_STORAGES: dict[Path, Storage] = {}


def located(place: Path | str) -> Path:
    """Return the folder of a path or URL on this machine, without updating a copy."""
    form = _FLAT_URL if isinstance(place, Path) else _URL  # `Path` merges the slashes of a URL
    found = form.fullmatch(str(place))
    if found is None:
        return Path(place)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return Path("/", rest)
    words = [word for word in rest.split("/") if word not in ("", ".")]
    if not words or ".." in words:
        raise CwmError(f"{place} has no folder: write it as s3://bucket/folder")
    return _copies().joinpath(scheme, *words)


def placed(place: Path | str) -> Path:
    """Return the folder of a path or URL, and update a copy from its store.

    Runs inside it are updated without transitions, prompts and logs.
    """
    folder = located(place)
    if storage := storage_of(folder):
        storage.bring()
    return folder


def named(path: Path | str) -> str:
    """Return the name that users know: the URL of a copy, or the path itself."""
    if _ROOT is None or not Path(path).is_relative_to(_ROOT):
        return str(path)
    scheme, *words = Path(path).relative_to(_ROOT).parts
    return f"{scheme}://{'/'.join(words)}"


def with_urls(text: str) -> str:
    """Replace paths of copies by their URLs in a text."""
    if _ROOT is None:
        return text
    return re.sub(rf"{re.escape(str(_ROOT))}/([^/\s]+)/", r"\1://", text)


def storage_of(folder: Path) -> Storage | None:
    """Return the storage of a copy, None for a plain folder."""
    if not _is_copy(folder):
        return None
    with _GUARD:
        if folder not in _STORAGES:
            url = named(folder)
            scheme = url.partition(":")[0]
            try:
                storage: Storage = find("storage", scheme)(folder, url)
            except UnknownNameError as error:
                words = f"{url} cannot be used (no installed plugin serves {scheme}://)"
                raise CwmError(f"{words}: see `cwm plugins`, or choose a local folder") from error
            _STORAGES[folder] = storage
        return _STORAGES[folder]


def bring(*files: Path) -> None:
    """Update files of copies from their stores; do nothing for files of plain folders."""
    for file in files:
        if storage := _storage_of_file(file):
            storage.fetch(file)


def send(*files: Path) -> None:
    """Write files of copies to their stores; do nothing for files of plain folders."""
    for file in files:
        if storage := _storage_of_file(file):
            storage.put(file)


def send_all(folder: Path) -> None:
    """Write all files of a folder, such as a page or a package, to their store."""
    if storage_of(folder):
        send(*(path for path in sorted(folder.rglob("*")) if path.is_file()))


def _is_copy(path: Path) -> bool:
    return _ROOT is not None and path.is_relative_to(_ROOT) and path != _ROOT


def _storage_of_file(file: Path) -> Storage | None:
    """Return the storage of the innermost run that contains a file."""
    if not _is_copy(file):
        return None
    run = next((folder for folder in file.parents if (folder / HEADER).exists()), file.parent)
    return storage_of(run) or storage_of(file.parent)


def _copies() -> Path:
    """Return the folder of all copies of this process, and make it first if needed."""
    global _ROOT
    with _GUARD:
        if _ROOT is None:
            prefix = f"cwm-copies-{os.getuid()}-"
            for left in find_abandoned_folders(prefix):
                shutil.rmtree(left, ignore_errors=True)
            _ROOT, _ = make_locked_folder(prefix)
            atexit.register(_remove_own, _ROOT, os.getpid())
        return _ROOT


def _remove_own(root: Path, process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        shutil.rmtree(root, ignore_errors=True)
