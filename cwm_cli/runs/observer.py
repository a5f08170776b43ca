"""How long work tells of its progress: the library says it to an observer and prints nothing."""

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
    """Is told what a job does; every method does nothing until it is overridden.

    In the order of a job: `note` for each line worth saying, `begins` with the
    object that does the work (a search, a benchmark), whose public attributes a
    live view may draw at any time, `advanced` for everything that happened,
    `ends` once, however it ended. The command line's live views are observers;
    in a notebook a subclass with `advanced` alone will do::

        class Dots(Observer):
            def advanced(self, event):
                print(".", end="")
    """

    def note(self, words: str, kind: str = "Note") -> None:
        """Say one line: a Note, a Warning, or where the Data or the Run is."""

    def begins(self, work: object) -> None:
        """Hear that work begins, and what does it."""

    def advanced(self, event: object) -> None:
        """Hear what happened, in the thread that runs the job."""

    def ends(self) -> None:
        """Hear that the work is over, or was broken off."""


SILENT = Observer()
"""Who does not listen."""
