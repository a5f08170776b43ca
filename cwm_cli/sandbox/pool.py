"""Warm workers and the places at which they work."""

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Semaphore
from typing import TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import probe
from cwm_cli.sandbox.job import PredictionJob
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.process import SandboxError, Worker, WorkerLost
from cwm_cli.sandbox.protection import GAPS, Protection
from cwm_cli.sandbox.protocol import Hello, Setup
from cwm_cli.text import clean

T = TypeVar("T")

_COMPLAINT_CHARACTERS = 300

SIDES = 2
"""Rows of a dataset go to workers of two sides, so that neither sees what follows on its rows."""


class Pool:
    """Workers of two sides, started when they are first needed, for use by several threads.

    At most `places` of them work at a time. Each new worker has to run the
    probe, and only gaps that are `accepted` may show.
    """

    def __init__(self, places: int, setup: Setup, accepted: tuple[str, ...]) -> None:
        self._places, self._several = Semaphore(places), places > 1
        self._setup = setup
        self._accepted = accepted
        self._protection: Protection | None = None
        self._lock = Lock()
        self._closed = False
        self._alive: set[Worker] = set()
        self._vetted: set[Worker] = set()
        self._free: tuple[list[Worker], ...] = tuple([] for _ in range(SIDES))

    @property
    def protection(self) -> Protection:
        """What the probe found, on a worker that is started for that if there is none yet."""
        while (found := self._protection) is None:  # again if other workers are wanted meanwhile
            with self.lend_any():
                pass
        return found

    def prepare(self, handlers: Iterable[str], *, compiling: bool = False) -> None:
        """Have all workers know these handlers from now on."""
        with self._lock:
            known = dict.fromkeys([*self._setup.handlers, *handlers])
            compiling |= self._setup.compiling
            wanted = self._setup._replace(handlers=tuple(known), compiling=compiling)
            if wanted != self._setup:
                self._setup, self._protection = wanted, None

    def insist(self, attempt: Callable[[], T]) -> T | None:
        """Attempt something, again if the sandbox fails; None when two workers died of it."""
        try:
            return attempt()
        except SandboxError as first:
            try:
                return attempt()
            except WorkerLost:
                if isinstance(first, WorkerLost) and not self._closed:
                    return None
                raise

    @contextmanager
    def lend_any(self) -> Iterator[Worker]:
        """Wait for a place and lend a worker for it."""
        with self.place(), self.lend(0) as worker:
            yield worker

    @contextmanager
    def place(self) -> Iterator[None]:
        """Wait for a place to work at."""
        with self._places:
            yield

    @contextmanager
    def another_place(self) -> Iterator[bool]:
        """Take one more place if one is free, and say whether it was."""
        taken = self._places.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                self._places.release()

    @contextmanager
    def lend(self, side: int) -> Iterator[Worker]:
        """Lend a worker, for which there has to be a place; one with which something fails ends."""
        worker = self._take(side)
        try:
            if worker not in self._vetted:
                self._vet(worker, side)
                self._vetted.add(worker)
            yield worker
        except BaseException:
            self._retire(worker)
            raise
        self._give_back(worker, side)

    def close(self) -> None:
        """End every worker, also those at work."""
        with self._lock:
            self._closed = True
            alive = list(self._alive)
        for worker in alive:
            self._retire(worker)

    def _take(self, side: int) -> Worker:
        """Return a free worker, or a new one."""
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            free = self._free[side]
            others = [worker for worker in free if worker.setup != self._setup]
            free[:] = [worker for worker in free if worker.setup == self._setup]
            taken = free.pop() if free else self._start()
        for worker in others:
            self._retire(worker)
        return taken

    def _vet(self, worker: Worker, side: int) -> None:
        """Let a new worker in if it is protected as it has to be; a twin is for the other side."""
        hello = worker.greet()
        if worker.twin:
            self._keep(worker.twin, 1 - side)
        if hello.complaint:
            complaint = clean(hello.complaint, limit=_COMPLAINT_CHARACTERS)
            raise CwmError(f"the tool {complaint}: mend that, or leave --tool out")
        protection = examine(worker, hello, self._accepted)
        protection.require()
        with self._lock:
            if worker.setup == self._setup and self._protection is None:
                self._protection = protection

    def _start(self) -> Worker:
        """Start a worker; with places for two the first has a twin."""
        first = all(worker.setup != self._setup for worker in self._alive)
        worker = Worker.start(self._setup, doubled=first and self._several)
        self._alive.add(worker)
        return worker

    def _keep(self, twin: Worker, side: int) -> None:
        """Have a worker that another one has forked, unless all have to end."""
        with self._lock:
            if not self._closed:
                self._alive.add(twin)
                self._free[side].append(twin)
                return
        twin.close()

    def _give_back(self, worker: Worker, side: int) -> None:
        """Keep a worker for later."""
        with self._lock:
            if worker in self._alive:
                self._free[side].append(worker)

    def _retire(self, worker: Worker) -> None:
        """End a worker."""
        with self._lock:
            self._alive.discard(worker)
            self._vetted.discard(worker)
        worker.close()


def examine(worker: Worker, hello: Hello, accepted: tuple[str, ...]) -> Protection:
    """Have a worker run the probe, as it runs any program, and return what it could not do."""
    space = Space("discrete", "int64", (), (0.0,), (len(GAPS) - 1.0,))
    rows = np.arange(len(GAPS))
    columns = {"observations": rows, "actions": np.zeros_like(rows)}
    job = PredictionJob(
        program=_probe(), observation_space=space, action_space=space, columns=columns, rows=rows
    )
    layout = job.layout
    outcome = worker.run(job.encode(), layout.size, Limits(memory_mb=64))
    views = layout.views(outcome.arena)
    if views["kind"]:
        message = bytes(views["message"][()]).decode("utf-8", "replace")
        raise SandboxError(f"the probe of the sandbox failed: {message}")
    blocked = (views["status"] == 1) & (views["rewards"] == 1)
    return Protection(
        blocked=dict(zip(GAPS, blocked.tolist(), strict=True)),
        accepted=accepted,
        layers=hello.layers,
        landlock=hello.landlock,
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        python=platform.python_version(),
        user="root" if os.geteuid() == 0 else "ordinary",
    )


@cache
def _probe() -> str:
    """Return the text of the probe, with what it has to know."""
    text = Path(probe.__file__).read_text(encoding="utf-8")
    found = find_spec("gymnasium")
    folder = str(Path(found.origin).parent.parent) if found and found.origin else ""
    return f"{text}\nSIMULATORS = {folder!r}\nASKER = {os.getpid()}\n"
