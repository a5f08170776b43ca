"""Watching the process of a program: what it uses up, and that nothing of it is left."""

import mmap
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from struct import Struct

from cwm_cli.sandbox.arena import Phase
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.protocol import BEGUN, Ending, Request

_TICK_SECONDS = 0.05
_POLLING_SECONDS = 0.002
_DUMP_SECONDS = 0.02
_SWEEP_SECONDS = 5.0
_PROGRESS = Struct("<QB")


class HungUp(Exception):
    """The trusted side is gone, so there is nobody left to work for."""


def watch(child: "Child", request: Request, page: mmap.mmap) -> Ending:
    """Wait for the end of a program, or for a reason to end it.

    In a session the limits hold for each decision, and nothing is counted between two of them.
    """
    allowance = _Allowance(request.limits)
    while not child.has_ended():
        if child.has_children():
            return Ending.FORKED
        mark = child.mark()
        if mark == b"":
            return Ending.DISMISSED
        used = child.cpu_seconds()
        if mark is not None:
            allowance.renew(used, counting=mark == BEGUN)
        rows, phase = _PROGRESS.unpack_from(page)
        ending = allowance.overdrawn(used, phase, rows)
        if ending is not None:
            return child.dump(ending)
    return Ending.EXITED


class _Allowance:
    """What a program may use up, all in all or for one decision.

    Only moves forward count as progress, and progress can be feigned for no
    longer than all the CPU time that a program has.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._furthest = (-1, -1)
        self.renew(0.0, counting=True)

    def renew(self, used: float, *, counting: bool) -> None:
        """Count anew from the CPU time used so far, or not at all."""
        self._counting = counting
        self._began = self._moved = used
        self._deadline = time.monotonic() + self._limits.wall_seconds

    def overdrawn(self, used: float, phase: int, rows: int) -> Ending | None:
        """Return the limit that is exceeded, if one is."""
        if (phase, rows) > self._furthest and phase <= Phase.DONE:
            self._furthest, self._moved = (phase, rows), used
        if not self._counting:
            return None
        if used - self._moved > self._limits.stall_seconds:
            return Ending.STALLED
        if used - self._began > self._limits.cpu_seconds:
            return Ending.OUT_OF_CPU
        return Ending.OUT_OF_TIME if time.monotonic() > self._deadline else None


class Child:
    """The process of a program, seen from the worker; a session also has a pipe of marks."""

    def __init__(self, pid: int, control: socket.socket, marks: int | None) -> None:
        self.pid = pid
        self._started = time.monotonic()
        self._status: int | None = None
        self._control = control.fileno()
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._marks, self._is_marked = marks, False
        if marks is not None:
            self._poller.register(marks, select.POLLIN)
        self._pidfd = _open_pidfd(pid)
        if self._pidfd is not None:
            self._poller.register(self._pidfd, select.POLLIN)

    def has_ended(self) -> bool:
        """Wait a moment for the end of the process."""
        seconds = _POLLING_SECONDS if self._pidfd is None else _TICK_SECONDS
        events = [descriptor for descriptor, _ in self._poller.poll(seconds * 1000)]
        if self._control in events:
            raise HungUp
        self._is_marked = self._marks in events
        if self._pidfd is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
            return bool(pid)
        return self._pidfd in events

    def mark(self) -> bytes | None:
        """Return the mark that has come, empty when there will be no more, or None."""
        return os.read(self._marks, 1) if self._is_marked and self._marks is not None else None

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, or else the time it has had."""
        if sys.platform == "linux":
            with suppress(OSError):
                return time.clock_gettime((~self.pid << 3) | 2)
        return time.monotonic() - self._started

    def has_children(self) -> bool:
        """Return whether the process has started others, which no limit stops root from."""
        with suppress(OSError):
            return bool(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_bytes())
        return False

    def dump(self, ending: Ending) -> Ending:
        """Have the process write to its log where it is, before it is ended."""
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(_DUMP_SECONDS)
        return ending

    def end(self) -> int:
        """Kill and reap the process and all that it started; return its exit code."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        if self._pidfd is not None:
            os.close(self._pidfd)
        _sweep()
        return os.waitstatus_to_exitcode(self._status)


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that tells the end of a process, where there are such."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _sweep() -> None:
    """Kill and reap what programs leave behind; orphans are adopted one generation at a time."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                for child in Path("/proc/thread-self/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
                time.sleep(0.001)
        raise TimeoutError("processes of a program cannot be ended")
