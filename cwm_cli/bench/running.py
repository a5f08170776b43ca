"""Do what is left to do in a benchmark, several processes at a time."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, NamedTuple

from cwm_cli.bench.configuration import Access, Header, Trial
from cwm_cli.bench.folder import Folder, Task
from cwm_cli.bench.processes import Child, reason, start
from cwm_cli.bench.tasks import left

TICK_SECONDS = 0.05

LOST = "its process ended without a result"


class Event(NamedTuple):
    """A task that was begun, or one that is over; `reason` says why it failed."""

    task: Task
    over: bool = False
    reason: str | None = None


@dataclass
class Benchmark:
    """A benchmark at work; whatever fails, the other jobs go on.

    `running` and `failed` are by the keys of tasks.
    """

    folder: Folder
    header: Header
    access: Access
    parallel: int
    lock: IO[bytes]
    running: dict[str, Child] = field(default_factory=dict, init=False)
    failed: dict[str, str] = field(default_factory=dict, init=False)
    _tried: set[str] = field(default_factory=set, init=False)

    @property
    def trials(self) -> list[Trial]:
        """The jobs."""
        return self.header.configuration.trials

    def run(self) -> Iterator[Event]:
        """Yield what begins and what is over; what failed before is tried again."""
        self.folder.forgive()
        try:
            while True:
                yield from self._begin()
                if not self.running:
                    return
                yield from self._ended()
        finally:
            for child in self.running.values():
                child.end()
            self.running = {}

    def _begin(self) -> Iterator[Event]:
        """Start processes as long as there is room and something to do."""
        for task in left(self.folder, self.header, {*self.failed, *self.running}):
            if len(self.running) >= self.parallel:
                return
            if task.key in self._tried:
                yield self._fail(task, LOST)
                continue
            self._tried.add(task.key)
            child = start(self.folder, task, self.access, self.lock)
            self.running = self.running | {task.key: child}
            yield Event(task)

    def _ended(self) -> Iterator[Event]:
        """Wait until something has ended, and yield it."""
        while not (over := [c for c in self.running.values() if c.process.poll() is not None]):
            time.sleep(TICK_SECONDS)
        for child in over:
            self.running = {k: c for k, c in self.running.items() if c is not child}
            child.end()
            why = reason(self.folder, child)
            yield self._fail(child.task, why) if why else Event(child.task, over=True)

    def _fail(self, task: Task, why: str) -> Event:
        """Write down that a task failed."""
        self.folder.fail(task, why)
        self.failed = self.failed | {task.key: why}
        return Event(task, over=True, reason=why)
