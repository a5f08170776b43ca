"""Locks of files and folders.

All are locks of the operating system (`flock`), which also ends them if a process is killed. A lock
belongs to an open file: closing the file releases the lock.
"""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_in_process = threading.Lock()


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait for the exclusive lock of a file, and hold it; the file is created if needed.

    Threads of a process hold one such lock at a time, since network file systems lock for
    processes only.
    """
    with _in_process:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file or folder.

    Raises:
        BlockingIOError: If another open file has the lock.
    """
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def make_locked_folder(prefix: str) -> tuple[Path, int]:
    """Create a temporary folder that is locked until the returned descriptor is closed."""
    while True:
        folder = tempfile.mkdtemp(prefix=prefix)
        # Until it is locked, another process may remove it as abandoned: then try again.
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if Path(folder).is_dir():
                return Path(folder), descriptor
            os.close(descriptor)


def find_abandoned_folders(prefix: str) -> Iterator[Path]:
    """Yield the temporary folders of killed processes; each is locked until the next one."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # Skip locked folders, folders of other users, and files.
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                try_lock(descriptor)
                yield folder
            finally:
                os.close(descriptor)
