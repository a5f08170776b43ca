"""The process of a job: it ends when the one that started it does, and tells what it took."""

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
"""The environment variable with a descriptor that is closed when whoever started a process ends."""

TICK_SECONDS = 0.05
"""How often it is looked whether a process has ended; tasks take seconds at least."""

FIRST_TICK_SECONDS = 0.001
"""And how soon after its start: what is short is not waited for longer than it takes."""

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


class ProcessEnd(NamedTuple):
    """How a process ended: `code` is its exit code, or a signal's number less than 0.

    `peak_memory` is the most that it had in memory at a time, in bytes, without its children. It is
    looked at while the process runs: what it took in its last moments may be missing, and one that
    was over too soon has None. `cpu_seconds` are its own, in user and system mode, and those of
    whatever descends from it as far as each was waited for by its parent. Workers of a sandbox and
    the programs in them are, when the sandbox is closed; those of a process that was killed, or
    ended with its starter, are not.
    """

    code: int
    peak_memory: int | None
    cpu_seconds: float


class JobProcess:
    """A command as a process, which ends when this one does, however this one ends.

    For that it calls `end_with_starter`: `STARTER` in its environment names a pipe that the system
    closes once this process is gone. Otherwise it finds there what `environment` says. It runs once
    it is made, reads nothing, and prints to `output`. `held` are further descriptors that it keeps
    open. Left as a context, it is over.
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
        """Start the process in `folder`, outside of the session of this one unless `in_session`.

        Ctrl-C of a terminal reaches all of a session.
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
        """The number of the process."""
        return self._process.pid

    def ended(self) -> ProcessEnd | None:
        """Return how it ended, None while it runs; to be asked often, as its memory is seen then.

        What the system tells in the end (`ru_maxrss`) would count the memory of this process, too:
        before a process becomes another program it is a copy of the one that started it.
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
        """Wait until it has ended.

        It is looked ever less often, so that this takes at most a tenth longer than the process.
        """
        while (end := self.ended()) is None:
            tenth = (time.monotonic() - self._began) / 10
            time.sleep(min(max(tenth, FIRST_TICK_SECONDS), TICK_SECONDS))
        return end

    def kill(self) -> None:
        """End it and whatever descends from it, whatever they do, without waiting for that."""
        if self._end is None:
            for pid in (self.pid, *_family(self.pid)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _family(pid: int) -> list[int]:
    """Return what descends from a process, as far as the system tells: sandboxes have sessions."""
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return [each for child in children for each in (child, *_family(child))]


def fresh_log(place: Path) -> IO[bytes]:
    """Open the file that a job prints to, a new one.

    Whatever was there is removed: what is no file, such as a pipe, would be waited for.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    return place.open("wb")


def end_with_starter() -> None:
    """Have this process end at once when the one that started it has ended, if that is asked."""
    if descriptor := os.environ.pop(STARTER, ""):
        threading.Thread(target=_watch, args=(int(descriptor),), daemon=True).start()


def _watch(descriptor: int) -> None:
    """End at once when a descriptor is closed at its other end."""
    while os.read(descriptor, 4096):
        pass
    os._exit(1)
