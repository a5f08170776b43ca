"""Observers of long work: the library reports progress to an observer and prints nothing."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable


class Measures(NamedTuple):
    """Numbers for a tracker, by name, and the step (completion, environment step or phase)."""

    step: int
    numbers: Mapping[str, float | None]


@runtime_checkable
class Measured(Protocol):
    """An event or a job that has numbers for a tracker."""

    def measures(self) -> Measures:
        """Return the numbers; None and values that are not finite are left out."""


class Observer:
    """Receiver of progress reports; every method does nothing by default.

    A job calls `note` for each message, `begins` with the object that does the work (a search, a
    benchmark), `advanced` for each event, and `ends` once, also after an error. A live view may
    read the public attributes of the working object at any time. The live views of the command line
    are observers. In a notebook, a subclass with `advanced` is sufficient::

        class Dots(Observer):
            def advanced(self, event):
                print(".", end="")
    """

    def note(self, words: str, kind: str = "Note") -> None:
        """Receive a message of one line; its kind is Note, Warning, Data or Run.

        Data and Run name a place: of a dataset, or of a run.
        """

    def begins(self, work: object) -> None:
        """Receive the object that does the work, at the start."""

    def advanced(self, event: object) -> None:
        """Receive an event, in the thread that runs the job."""

    def ends(self) -> None:
        """Receive the end of the work, also after an error or an interruption."""


SILENT = Observer()
"""The observer that ignores all reports."""
