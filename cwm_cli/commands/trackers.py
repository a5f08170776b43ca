"""Keep the numbers of a run in a tracker of experiments: Weights & Biases, trackio, or a plugin's.

`Tracking` is an observer that stands before another one, such as a live view: it passes on all that
it hears, and tells a `Tracker` the numbers. `cwm synthesize --track PROJECT` is::

    cwm.synthesize("CartPole-v1", observer=Tracking("my-project"))

A tracker that fails is left out with one warning: no run ends because a server is gone.
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
from cwm_cli.errors import CwmError
from cwm_cli.registry import find, names
from cwm_cli.runs.observer import SILENT, Measured, Measures, Observer
from cwm_cli.runs.store import Run
from cwm_cli.search.contracts import Node, total

log = logging.getLogger("cwm.tracking")


class Tracker(ABC):
    """Keeps numbers of runs; offered by the hook `cwm_trackers`, and made without arguments.

    The calls come in this order: `ready` before there is a run, `begin` once, `log` for each
    thing that happened, `finish` once. What `begin`, `log` and `finish` raise is a warning.
    """

    def ready(self) -> None:  # noqa: B027  # most can be used at once
        """Raise `CwmError` if it cannot be used here, with what to do."""

    @abstractmethod
    def begin(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        """Begin a run of a project; `config` holds what it was asked for, as JSON can hold it."""

    @abstractmethod
    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Keep finite numbers, by name; steps never decrease."""

    def finish(self) -> None:  # noqa: B027  # some have nothing to end
        """End the run."""


class ModuleTracker(Tracker):
    """A Python module with the calls that Weights & Biases and trackio share."""

    module: ClassVar[str]
    install: ClassVar[str]
    quiet: ClassVar[Mapping[str, str]] = {}
    """Variables that keep it from printing over a live view, where nobody has set them."""

    def ready(self) -> None:
        """Say how it is installed, if it is not."""
        if find_spec(self.module) is None:
            raise CwmError(f"the tracker {self.module!r} is not installed: {self.install}")

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
    """trackio: a database on this machine, in `$TRACKIO_DIR`; `trackio show` draws it."""

    module, install = "trackio", "pip install 'cwm-cli[track]'"


class WandbTracker(ModuleTracker):
    """Weights & Biases; `WANDB_MODE=offline` keeps all on this machine."""

    module, install = "wandb", "pip install wandb"
    quiet: ClassVar[Mapping[str, str]] = {"WANDB_SILENT": "true"}


def choose_tracker(name: str | None = None) -> Tracker:
    """Return the tracker that is named, else the first that can be used here."""
    if name is not None:
        tracker: Tracker = find("tracker", name)()
        tracker.ready()
        return tracker
    for each in names("tracker"):
        try:
            return choose_tracker(each)
        except CwmError:
            continue
    raise CwmError("no tracker is installed: pip install 'cwm-cli[track]', or pip install wandb")


class Tracking(Observer):
    """Tells a tracker the numbers of a run, and another observer everything.

    The numbers are those of nodes of a search, and of events and jobs with a method `measures`.
    Only jobs with a `run` are tracked.
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
        """Pass it on."""
        self._beside.note(words, kind)

    def begins(self, work: object) -> None:
        """Begin to track the first work that is a run."""
        self._works.append(work)
        run = getattr(work, "run", None)
        if self._tracked is None and isinstance(run, Run):
            self._tracked = work
            config = {"kind": run.kind, **run.config.model_dump(mode="json")}
            name = run.folder.name
            self._try(lambda tracker: tracker.begin(self._project, name, config))
        self._beside.begins(work)

    def advanced(self, event: object) -> None:
        """Track what can be counted of it."""
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
        """Finish with the work that is tracked."""
        self._beside.ends()
        if self._works and self._works.pop() is self._tracked and self._tracked is not None:
            self._tracked = None
            self._try(lambda tracker: tracker.finish())

    def _try(self, call: Callable[[Tracker], None]) -> None:
        """Call the tracker; one that fails is told of once, and left alone from then on."""
        if self._tracker is None:
            return
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):  # where results go, and JSON
                call(self._tracker)
        except Exception as error:  # noqa: BLE001  # whatever a stranger's service may raise
            self._tracker = None
            said = " ".join(str(error).split())[:200]
            words = (
                f"the tracker failed ({type(error).__name__}: {said}): the run continues without it"
            )
            self._beside.note(words, "Warning")
        for line in filter(str.strip, printed.getvalue().splitlines()):
            log.info("%s", line)


def measured(work: object, event: object) -> Measures | None:
    """Return the numbers of an event, or of the job itself, None if neither has numbers."""
    if isinstance(event, Node) and isinstance(work, SearchJob):
        return _of_search(work, event)
    return next((each.measures() for each in (event, work) if isinstance(each, Measured)), None)


def _of_search(job: SearchJob, node: Node) -> Measures:
    """Return the score of a node, and what the search came to with it."""
    search = job.search
    spent = total([each.usage for each in search.nodes])
    return Measures(
        len(search.nodes),
        {
            "score": node.verdict.score,
            "validation": node.verdict.validation,
            "best": search.best.verdict.score if search.best else None,
            "completions": search.completions,
            "tokens": spent.tokens,
            "cost": spent.cost,
            "seconds": job.run.elapsed,
        },
    )
