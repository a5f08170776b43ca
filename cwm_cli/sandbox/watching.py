"""Watching the process of a program: what it uses up, and that nothing of it is left."""

import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from struct import Struct

from cwm_cli.sandbox.job import Phase
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.protocol import BEGUN, Ending, Request

_TICK_SECONDS = 0.05
_DUMP_SECONDS = 0.02
_MOST_TURNS = 25
_SWEEP_SECONDS = 5.0
_MOST_MARKS = 1 << 16
_PROGRESS = Struct("<QB7xB")


class HungUp(Exception):
    """The trusted side is gone, so there is nobody left to work for."""


def watch(child: "Child", request: Request, page: mmap.mmap) -> Ending:
    """Wait for the end of a program, or for a reason to end it.

    A process that has done its job stops itself, because to end takes it longer.
    In a session the limits hold for each decision, and nothing is counted between two of them.
    """
    allowance = _Allowance(request.limits, child.cpu_seconds())
    while True:
        child.wait()
        rows, phase, complaint = _PROGRESS.unpack_from(page)
        if child.is_done(phase == Phase.DONE or complaint > 0):
            return Ending.EXITED
        if child.has_children():
            return Ending.FORKED
        marks, used = child.marks(), child.cpu_seconds()
        if marks == b"":
            return Ending.DISMISSED
        if marks is not None:
            allowance.renew(used, counting=marks.endswith(BEGUN))
        ending = allowance.overdrawn(used, phase, rows, asleep=child.is_asleep())
        if ending is not None:
            return child.dump(ending)


class _Allowance:
    """What a program may use up, all in all or for one decision.

    Only moves forward count as progress, and progress can be feigned for no
    longer than all the CPU time that a program has.
    """

    def __init__(self, limits: Limits, used: float) -> None:
        self._limits = limits
        self._furthest = (-1, -1)
        self.renew(used, counting=True)

    def renew(self, used: float, *, counting: bool) -> None:
        """Count anew from the CPU time used so far, or not at all."""
        self._counting = counting
        self._began = self._moved = used
        self._seen, self._slept = time.monotonic(), 0.0
        self._deadline = self._seen + self._limits.wall_seconds

    def overdrawn(self, used: float, phase: int, rows: int, *, asleep: bool) -> Ending | None:
        """Return the limit that is exceeded, if one is."""
        now = time.monotonic()
        self._slept += now - self._seen if asleep else 0.0
        self._seen = now
        if (phase, rows) > self._furthest and phase <= Phase.DONE:
            self._furthest, self._moved = (phase, rows), used
        if not self._counting:
            return None
        if used - self._moved > self._limits.stall_seconds:
            return Ending.STALLED
        if used - self._began > self._limits.cpu_seconds:
            return Ending.OUT_OF_CPU
        if self._slept > self._limits.sleep_seconds:
            return Ending.ASLEEP
        return Ending.OUT_OF_TIME if now > self._deadline else None


class Bell:
    """Rings, in a poll, when a child of this process ends or stops."""

    def __init__(self) -> None:
        self.descriptor, rope = os.pipe()
        for end in (self.descriptor, rope):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(rope, warn_on_full_buffer=False)

    @staticmethod
    def mute() -> None:
        """Have no bell in a process that was forked from one with a bell."""
        signal.set_wakeup_fd(-1)

    def silence(self) -> None:
        """Forget how often it rang."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 1 << 12)


class Child:
    """The process of a program, seen from the worker; a session also has a pipe of marks."""

    def __init__(self, pid: int, control: socket.socket, bell: Bell, marks: int | None) -> None:
        self.pid = pid
        self._is_stopped = False
        self._started = time.monotonic()
        self._status: int | None = None
        self._control = control.fileno()
        self._bell = bell
        self._poller = select.poll()
        self._marks = marks
        for descriptor in (self._control, bell.descriptor):
            self._poller.register(descriptor, select.POLLIN)
        if marks is not None:  # which are read now and then, but a session's end is noticed
            os.set_blocking(marks, False)
            self._poller.register(marks, select.POLLHUP)

    def wait(self) -> None:
        """Wait a moment for the process to end or to stop."""
        if self._has_changed():
            return
        events = [descriptor for descriptor, _ in self._poller.poll(_TICK_SECONDS * 1000)]
        if self._control in events:
            raise HungUp
        if self._bell.descriptor in events:
            self._bell.silence()
            self._has_changed()

    def is_done(self, says_so: bool) -> bool:
        """Return whether the process has ended, or has stopped when it said that it is done."""
        return self._status is not None or (self._is_stopped and says_so)

    def _has_changed(self) -> bool:
        """Learn whether the process has ended or stopped."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            self._is_stopped = os.WIFSTOPPED(status)
            self._status = None if self._is_stopped else status
        return bool(pid)

    def marks(self) -> bytes | None:
        """Return the marks that have come, empty when there will be no more, or None."""
        with suppress(BlockingIOError):
            return None if self._marks is None else os.read(self._marks, _MOST_MARKS)
        return None

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, or else the time it has had."""
        if sys.platform == "linux":
            with suppress(OSError):
                return time.clock_gettime((~self.pid << 3) | 2)
        return time.monotonic() - self._started

    def is_asleep(self) -> bool:
        """Return whether the process waits or is stopped, as opposed to having no turn."""
        with suppress(OSError):
            _, _, state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b") ")
            return state[:1] in (b"S", b"T", b"t")
        return False

    def has_children(self) -> bool:
        """Return whether the process has started others, which no limit stops root from."""
        with suppress(OSError):
            return bool(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_bytes())
        return False

    def dump(self, ending: Ending) -> Ending:
        """Have the process write to its log where it is, before it is ended."""
        before = self.cpu_seconds()
        os.kill(self.pid, signal.SIGUSR1)
        for _ in range(_MOST_TURNS):
            time.sleep(_DUMP_SECONDS)
            if self.cpu_seconds() > before:  # on a busy machine its turn may take a while
                break
        return ending

    def kill(self) -> None:
        """Kill the process and its group, without waiting for the end."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill and reap the process; return its exit code."""
        self.kill()
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(self._status)

    @property
    def is_reaped(self) -> bool:
        """Whether the process has ended, as opposed to being stopped."""
        return self._status is not None


def sweep(spared: Collection[int]) -> None:
    """Kill and reap what programs leave behind; orphans are adopted one generation at a time."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while strangers := [pid for pid in _children() if pid not in spared]:
        if time.monotonic() > deadline:
            raise TimeoutError("processes of a program cannot be ended")
        for pid in strangers:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Return the processes whose parent this one is, as far as that is known."""
    with suppress(OSError):
        return [int(pid) for pid in Path("/proc/thread-self/children").read_bytes().split()]
    return []
