"""Record the numbers of a run in an experiment tracker: Weights & Biases, trackio, or a plugin.

`Tracking` is an observer that forwards all events to another observer, such as a live view, and
sends their numbers to a `Tracker`. `cwm synthesize --track PROJECT` is::

    cwm.synthesize("CartPole-v1", observer=Tracking("my-project"))

If a tracker fails, the run continues without it after one warning.
"""

import io
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from cwm_cli.commands.synthesize import SearchJob
from cwm_cli.errors import CwmError, install_command
from cwm_cli.registry import find, names
from cwm_cli.runs.observer import SILENT, Measured, Measures, Observer
from cwm_cli.runs.store import Run
from cwm_cli.search.contracts import Node, total

log = logging.getLogger("cwm.tracking")


class Tracker(ABC):
    """Base class of experiment trackers, which the hook `cwm_trackers` provides.

    A tracker is created without arguments. The order of calls is: `ready` before the run starts,
    `begin` once, `log` for each event, `finish` once. Exceptions of `begin`, `log` and `finish`
    become a warning.
    """

    def ready(self) -> None:  # noqa: B027  # optional: most trackers need no preparation
        """Raise `CwmError` with a remedy if the tracker cannot be used here."""

    @abstractmethod
    def begin(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        """Begin a run of a project; `config` has its configuration as plain JSON data."""

    @abstractmethod
    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Record finite numbers by name; steps never decrease."""

    def finish(self) -> None:  # noqa: B027  # optional
        """End the run."""


class ModuleTracker(Tracker):
    """A Python module with the functions that Weights & Biases and trackio share."""

    module: ClassVar[str]
    package: ClassVar[str]
    quiet: ClassVar[Mapping[str, str]] = {}
    """Defaults of environment variables that prevent output over a live view."""

    def ready(self) -> None:
        """Raise an error with the command that installs the module if it is missing."""
        if find_spec(self.module) is None:
            raise CwmError(
                f"the tracker {self.module!r} is not installed: {install_command(self.package)}"
            )

    def begin(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        """Call `init`."""
        for variable, value in self.quiet.items():
            os.environ.setdefault(variable, value)
        import_module(self.module).init(project=project, name=name, config=dict(config))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Call `log`."""
        import_module(self.module).log(dict(numbers), step=step)

    def finish(self) -> None:
        """Call `finish`."""
        import_module(self.module).finish()


class TrackioTracker(ModuleTracker):
    """trackio: a database on this machine, in `$TRACKIO_DIR`; `trackio show` displays it."""

    module, package = "trackio", "cwm-cli[track]"


class WandbTracker(ModuleTracker):
    """Weights & Biases; with `WANDB_MODE=offline` all data stay on this machine."""

    module, package = "wandb", "wandb"
    quiet: ClassVar[Mapping[str, str]] = {"WANDB_SILENT": "true"}


def choose_tracker(name: str | None = None) -> Tracker:
    """Return the named tracker, or else the first that can be used here."""
    if name is not None:
        tracker: Tracker = find("tracker", name)()
        tracker.ready()
        return tracker
    for each in names("tracker"):
        try:
            return choose_tracker(each)
        except CwmError:
            continue
    command = install_command(TrackioTracker.package)
    raise CwmError(f"no tracker is installed: {command}, or pip install wandb")


class Tracking(Observer):
    """Sends the numbers of a run to a tracker, and all events to another observer.

    Nodes of a search have numbers, and so have events and jobs with a method `measures`. Only jobs
    with a `run` are tracked.
    """

    def __init__(
        self, project: str, tracker: Tracker | str | None = None, *, beside: Observer = SILENT
    ) -> None:
        chosen = tracker if isinstance(tracker, Tracker) else choose_tracker(tracker)
        self._tracker: Tracker | None = chosen
        self._project, self._beside = project, beside
        self._works: list[object] = []
        self._tracked: object = None
        self._last = 0

    def note(self, words: str, kind: str = "Note") -> None:
        """Forward a note."""
        self._beside.note(words, kind)

    def begins(self, work: object) -> None:
        """Begin to track the first job that has a run."""
        self._works.append(work)
        run = getattr(work, "run", None)
        if self._tracked is None and isinstance(run, Run):
            self._tracked = work
            config = {"kind": run.kind, **run.config.model_dump(mode="json")}
            name = run.folder.name
            self._try(lambda tracker: tracker.begin(self._project, name, config))
        self._beside.begins(work)

    def advanced(self, event: object) -> None:
        """Send the numbers of an event, if it has any."""
        self._beside.advanced(event)
        measures = measured(self._tracked, event) if self._tracked is not None else None
        if measures is None:
            return
        numbers = {
            name: float(value)
            for name, value in measures.numbers.items()
            if value is not None and math.isfinite(value)
        }
        self._last = step = max(self._last, measures.step)
        self._try(lambda tracker: tracker.log(numbers, step))

    def ends(self) -> None:
        """Finish the tracked run when its job ends."""
        self._beside.ends()
        # jobs may contain other jobs, which end first
        if self._works and self._works.pop() is self._tracked and self._tracked is not None:
            self._tracked = None
            self._try(lambda tracker: tracker.finish())

    def _try(self, call: Callable[[Tracker], None]) -> None:
        """Call the tracker; after its first failure, warn and do not use it again."""
        if self._tracker is None:
            return
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):  # keep results and JSON on standard output intact
                call(self._tracker)
        except Exception as error:  # noqa: BLE001  # third-party services raise anything
            self._tracker = None
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            words = f"the tracker failed ({reason}): the run continues without it"
            self._beside.note(words, "Warning")
        for line in filter(str.strip, printed.getvalue().splitlines()):
            log.info("%s", line)


def measured(work: object, event: object) -> Measures | None:
    """Return the numbers of an event, or of the job itself, None if neither has numbers."""
    if isinstance(event, Node) and isinstance(work, SearchJob):
        search = work.search
        spent = total([each.usage for each in search.nodes])
        return Measures(
            len(search.nodes),
            {
                "score": event.verdict.score,
                "validation": event.verdict.validation,
                "best": search.best.verdict.score if search.best else None,
                "completions": search.completions,
                "tokens": spent.tokens,
                "cost": spent.cost,
                "seconds": work.run.elapsed,
            },
        )
    return next((each.measures() for each in (event, work) if isinstance(each, Measured)), None)
