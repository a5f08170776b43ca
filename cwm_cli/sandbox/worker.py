"""The warm worker: makes one process per program, watches it and says how it ended.

It never compiles, reads or relays anything of a program, so that nothing of
one program is left for the next.
"""

import mmap
import os
import select
import shutil
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

from cwm_cli.sandbox.candidate import READY
from cwm_cli.sandbox.job import CONTROL_BYTES
from cwm_cli.sandbox.linux import adopt_orphans, fork_sibling
from cwm_cli.sandbox.protocol import Descriptors, Ending, Hello, Report, Request, Setup
from cwm_cli.sandbox.spares import ColdSpare, Spare
from cwm_cli.sandbox.warmth import warm_up
from cwm_cli.sandbox.watching import Bell, Child, HungUp, sweep, watch

_SPARES = 2
"""How many processes are kept ready; to fork both at once causes fewer page faults here."""

_PATIENCE_SECONDS = 0.002
"""How long a further request may be waited for before the last program is cleaned up after."""

_LEISURE_SECONDS = 0.05
"""How long there has to be no request before spare processes are made, unless there are none."""


class Home(NamedTuple):
    """Where a worker hears of its jobs, and the empty folder that it lives in."""

    control: socket.socket
    folder: Path

    @classmethod
    def of(cls, end: str, folder: str | Path) -> Self:
        """Return the home with a descriptor as text."""
        return cls(socket.socket(fileno=int(end)), Path(folder))


def main() -> None:
    """Serve requests until the other side hangs up."""
    end, setup, *second = sys.argv[1:]
    homes = [Home.of(end, Path.cwd()), *([Home.of(*second)] if second else [])]
    worker = _ready(Setup.decode(setup), *homes)
    with suppress(HungUp, ConnectionError):
        while received := worker.next_request():
            worker.serve(*received)
    worker.end()


def _ready(setup: Setup, home: Home, second: Home | None = None) -> "Worker":
    """Warm up, have a twin if there is a second home, and greet."""
    adopt_orphans()
    environment = dict(os.environ)
    guards, hello = warm_up(setup)
    if second is not None:
        home, hello = _doubled(home, second, hello)
    hello.send(home.control)
    make = partial(ColdSpare, setup, environment) if setup.cold else partial(Spare, guards)
    return Worker(*home, make, leave_nothing=guards.leave_nothing)


def _doubled(first: Home, second: Home, hello: Hello) -> tuple[Home, Hello]:
    """Become two workers where that is possible; return the home of this one and how it greets."""
    twin = None
    with suppress(OSError):  # upon which the other side starts another worker
        twin = fork_sibling()
    if twin != 0:
        second.control.close()
        return first, hello._replace(twin=twin or 0)
    first.control.close()
    os.setsid()
    os.chdir(second.folder)
    os.dup2(sys.stdout.fileno(), 2)  # who waits for last words of the first is to hear its end
    adopt_orphans()
    return second, hello


class Worker:
    """Serves one request after the other; what can wait is done while there is none.

    Cleaning up after a program can wait if its guards have it `leave_nothing`.
    """

    def __init__(
        self,
        control: socket.socket,
        folder: Path,
        make_spare: Callable[[], Spare],
        *,
        leave_nothing: bool,
    ) -> None:
        self._control, self._folder, self._make_spare = control, folder, make_spare
        self._leave_nothing = leave_nothing
        self._bell = Bell()
        self._spares: deque[Spare] = deque()
        self._leaving: Child | None = None
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)

    def next_request(self) -> tuple[Request, Descriptors] | None:
        """Wait for a request, and meanwhile clean up and make spare processes."""
        if not self._poller.poll(_PATIENCE_SECONDS * 1000):
            self._clean_up()
        if not self._spares or not self._poller.poll(_LEISURE_SECONDS * 1000):
            while len(self._spares) < _SPARES:
                self._spares.append(self._make_spare())
        return Request.receive(self._control)

    def serve(self, request: Request, files: Descriptors) -> None:
        """Run one job and report."""
        if not self._leave_nothing:
            self._clean_up()
        spare = self._spares.popleft()
        marks = files.channel.marks if files.channel else None
        child = Child(spare.pid, self._control, self._bell, marks)
        try:
            spare.give(request, files)
            self._clean_up(spare.pid)
            with mmap.mmap(files.arena, CONTROL_BYTES, prot=mmap.PROT_READ) as page:
                ending = watch(child, request, page)
        except BaseException:
            child.end()
            raise
        done = ending is Ending.EXITED and not child.is_reaped
        child.kill()
        code = 0 if done else child.end()
        self._leaving = child
        guarded = os.read(spare.ready, 1) == READY  # does not wait: nobody can write
        Report(guarded, ending, code).send(self._control)
        for descriptor in (spare.ready, *files.all):
            os.close(descriptor)

    def _clean_up(self, *at_work: int) -> None:
        """See to it that nothing is left of the last program, if it is not the one at work."""
        if self._leaving is not None:
            self._leaving.end()
            self._leaving = None
            sweep({*at_work, *(spare.pid for spare in self._spares)})
            _empty(self._folder)

    def end(self) -> NoReturn:
        """End, with every process that this one has started, and its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        sweep(())
        os._exit(0)  # nothing is left to clean up, and tearing numpy down takes longer than a job


def _empty(folder: Path) -> None:
    """Remove the files that a program has left."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
