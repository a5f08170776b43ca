"""Job processes: they end with their parent process, and report their memory and CPU time."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

STARTER = "CWM_STARTER"
"""Environment variable with the number of a pipe that is closed when the parent process ends."""

TICK_SECONDS = 0.05
"""Interval between checks whether a process has ended; jobs take at least seconds."""

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


class ProcessEnd(NamedTuple):
    """The exit status and the resource usage of a process.

    Attributes:
        code: The exit code, or the negated number of the signal that ended the process.
        peak_memory: Peak memory in bytes, without child processes. It is sampled while the process
            runs: a peak in the last moments may be missing, and a very short process has None.
        cpu_seconds: CPU time in user and system mode, including the descendants whose parent
            waited for them. The workers of a closed sandbox and the programs in them are
            included. Workers of a process that was killed, or that ended with its parent, are not.
    """

    code: int
    peak_memory: int | None
    cpu_seconds: float


class JobProcess:
    """A running command that ends when this process ends, even if this process is killed.

    For that, the command must call `end_with_starter`. The environment variable `STARTER` contains
    the number of a pipe that the system closes when this process ends. As a context manager, the
    command is killed on exit.
    """

    def __init__(
        self,
        words: Sequence[str],
        output: IO[bytes],
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        held: Sequence[int] = (),
        in_session: bool = False,
    ) -> None:
        """Start the command, without input.

        Args:
            words: The program and its arguments.
            output: The file for stdout and stderr.
            environment: All environment variables of the command, except `STARTER`.
            folder: The working directory; default: the folder of this process.
            held: Further file descriptors that the command keeps open.
            in_session: Whether the command shares the session of this process. If it does, a
                Ctrl-C in the terminal also reaches the command.
        """
        watched, self._open_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**environment, STARTER: str(watched)},
                pass_fds=(watched, *held),
                start_new_session=not in_session,
            )
        except BaseException:
            os.close(self._open_end)
            raise
        finally:
            os.close(watched)
        self._began, self._peak = time.monotonic(), 0
        self._end: ProcessEnd | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is None:
            self.kill()
            self.wait()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def ended(self) -> ProcessEnd | None:
        """Return the exit status, or None while the process runs.

        Call this method often, because each call samples the memory. The `ru_maxrss` that the
        system reports after the end would include the memory of this process: before `exec`, the
        child process is a copy of this process.
        """
        if self._end is not None:
            return self._end
        with suppress(OSError):
            found = _PEAK.search(Path(f"/proc/{self.pid}/status").read_text())
            self._peak = max(self._peak, 1024 * int(found[1]) if found else 0)
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        os.close(self._open_end)
        peak = self._peak
        if not Path("/proc/self/status").exists():
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._end = ProcessEnd(code, peak or None, usage.ru_utime + usage.ru_stime)
        return self._end

    def wait(self) -> ProcessEnd:
        """Wait until the process has ended, and return its exit status."""
        while (end := self.ended()) is None:
            # The interval grows, so that waiting takes at most a tenth longer than the process.
            tenth = (time.monotonic() - self._began) / 10
            time.sleep(min(max(tenth, 0.001), TICK_SECONDS))
        return end

    def kill(self) -> None:
        """Kill the process and its descendants, without waiting for their end."""
        if self._end is None:
            for pid in (self.pid, *_descendants(self.pid)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Return the IDs of all descendants that /proc lists.

    Killing the process group is not enough because sandboxes have their own sessions.
    """
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return [found for child in children for found in (child, *_descendants(child))]


def fresh_log(place: Path) -> IO[bytes]:
    """Create an empty log file for a job.

    An existing file is removed first: if it were a pipe, opening it would block.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    return place.open("wb")


def end_with_starter() -> None:
    """End this process as soon as its parent has ended, if `STARTER` is set in the environment."""
    if descriptor := os.environ.pop(STARTER, ""):
        threading.Thread(target=_watch, args=(int(descriptor),), daemon=True).start()


def _watch(descriptor: int) -> None:
    """Exit when the other end of a pipe is closed."""
    while os.read(descriptor, 4096):
        pass
    os._exit(1)
