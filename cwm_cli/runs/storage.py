"""The interface between a run and a store that keeps it at a URL, such as an object store."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from cwm_cli.errors import CwmError

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
