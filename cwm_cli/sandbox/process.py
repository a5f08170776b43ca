"""A worker process, seen from the trusted side."""

import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Self

from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.protocol import Channel, Console, Descriptors, Hello, Report, Request, Setup
from cwm_cli.sandbox.starting import Home, Process, Twin, start

LOG_TAIL_BYTES = 1 << 16

GRACE_SECONDS = 10.0
"""How much later than a program a worker that does not end it is given up."""

_START_SECONDS = 60.0
_LAST_WORDS = 1 << 12


class SandboxError(RuntimeError):
    """The sandbox itself failed; says nothing about the program that it was running."""


class WorkerLost(SandboxError):
    """A worker ended or fell silent in the middle of a job."""


class Outcome(NamedTuple):
    """What is left of a job: how it ended, its arena, and the end of what it printed."""

    report: Report
    arena: bytes
    log: bytes


class Worker:
    """A warm worker process with a connection to it and an empty folder that it lives in.

    It starts in the background; `greet` waits until it is warm, and from then on a
    `doubled` one has a `twin`, which takes next to nothing, where a twin can be made.
    """

    def __init__(
        self, setup: Setup, process: Process, home: Home, second: Home | None = None
    ) -> None:
        self.setup, self.process = setup, process
        self.twin: Worker | None = None
        self._home, self._second = home, second
        self._control = home.control

    @classmethod
    def start(cls, setup: Setup, *, doubled: bool) -> Self:
        """Start a process."""
        homes = [Home.make() for _ in range(1 + doubled)]
        return cls(setup, start(setup, *homes), *homes)

    def greet(self) -> Hello:
        """Wait until the worker is warm and return what it says; to be called once."""
        self._control.settimeout(_START_SECONDS)
        try:
            hello = Hello.receive(self._control)
        except ValueError as error:
            raise SandboxError(f"a worker did not start: {error}") from error
        except (EOFError, OSError) as error:
            self.process.kill()
            message = self.process.stderr.read() if self.process.stderr else b""
            raise SandboxError(f"a worker did not start: {_text(message)}") from error
        if hello.twin and self._second:
            self.twin, self._second = Worker(self.setup, Twin(hello.twin), self._second), None
        return hello

    def run(self, job: bytes, arena_bytes: int, limits: Limits) -> Outcome:
        """Run a job to its end; a worker that raises is to be closed."""
        with self.running(job, arena_bytes, limits) as finish:
            return finish()

    @contextmanager
    def running(
        self, job: bytes, arena_bytes: int, limits: Limits, extra: Channel | Console | None = None
    ) -> Iterator[Callable[[], Outcome]]:
        """Begin a job; what is given waits for its end."""
        with (
            memory_file(job) as inputs,
            memory_file(size=arena_bytes) as arena,
            memory_file() as log,
        ):
            files = Descriptors(inputs, arena, log, extra)
            with _watching_the_worker():
                self._control.settimeout(limits.wall_seconds + GRACE_SECONDS)
                Request(len(job), arena_bytes, limits).send(self._control, files)
            yield partial(self._finish, arena, arena_bytes, log)

    def _finish(self, arena: int, arena_bytes: int, log: int) -> Outcome:
        """Wait for the end of a job and gather what is left of it."""
        with _watching_the_worker():
            report = Report.receive(self._control)
        outcome = Outcome(report, read_all(arena, arena_bytes), _tail(log))
        if not report.ready:
            raise SandboxError(f"the sandbox could not be set up: {_text(outcome.log)}")
        return outcome

    def close(self) -> None:
        """Hang up, upon which the worker ends with all that it has started."""
        try:
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(GRACE_SECONDS)
            while self._control.recv(_LAST_WORDS):
                pass
        except OSError:
            self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
        for home in filter(None, (self._home, self._second)):
            home.close()


@contextmanager
def _watching_the_worker() -> Iterator[None]:
    """Tell a worker that is gone from one that talks nonsense."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise WorkerLost(f"a worker of the sandbox was lost: {error}") from error
    except ValueError as error:
        raise SandboxError(f"a worker of the sandbox made no sense: {error}") from error


@contextmanager
def memory_file(content: bytes = b"", size: int = 0) -> Iterator[int]:
    """Make a file without a name; on Linux its size is fixed, and any content too."""
    with _new_file() as descriptor:
        if content:
            _write(descriptor, content)
            os.lseek(descriptor, 0, os.SEEK_SET)
        if size:
            os.ftruncate(descriptor, size)
        if sys.platform == "linux" and (content or size):
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            seals |= fcntl.F_SEAL_WRITE if content else 0
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor


@contextmanager
def _new_file() -> Iterator[int]:
    """Open an empty file that nothing else can find."""
    if sys.platform != "linux":
        with tempfile.TemporaryFile() as file:
            yield file.fileno()
        return
    descriptor = os.memfd_create("cwm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    """Write all of it."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_all(descriptor: int, most: int) -> bytes:
    """Return what a file has from its beginning on, up to a number of bytes."""
    content = b""
    while len(content) < most and (part := os.pread(descriptor, most - len(content), len(content))):
        content += part
    return content


def _tail(log: int) -> bytes:
    """Return the end of a file."""
    start = max(0, os.fstat(log).st_size - LOG_TAIL_BYTES)
    return os.pread(log, LOG_TAIL_BYTES, start)


def _text(output: bytes) -> str:
    """Return the last line that was printed."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
