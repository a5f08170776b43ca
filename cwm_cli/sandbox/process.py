"""A worker process, seen from the trusted side."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cwm_cli.sandbox.greeting import BEGINNING, FLAGS, Hello, Setup
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.protocol import Channel, Console, Descriptors, Report, Request

LOG_TAIL_BYTES = 1 << 16

GRACE_SECONDS = 10.0
"""How much later than a program a worker that does not end it is given up."""

_START_SECONDS = 60.0
_COMMAND = f"{BEGINNING}; from cwm_cli.sandbox.worker import main; main()"
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


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

    It starts in the background; `greet` waits until it is warm.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._folder = tempfile.mkdtemp(prefix="cwm-sandbox-")
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *FLAGS, _COMMAND, str(theirs.fileno()), setup.encode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=_environment(),
                cwd=self._folder,
                start_new_session=True,
            )

    def greet(self) -> Hello:
        """Wait until the worker is warm and return what it says; to be called once."""
        self._control.settimeout(_START_SECONDS)
        try:
            return Hello.receive(self._control)
        except ValueError as error:
            raise SandboxError(f"a worker did not start: {error}") from error
        except (EOFError, OSError) as error:
            self.process.kill()
            message = self.process.stderr.read() if self.process.stderr else b""
            raise SandboxError(f"a worker did not start: {_text(message)}") from error

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
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._control.close()
        if self.process.stderr:
            self.process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Return variables that say nothing of ours but where modules and libraries are."""
    modules = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    libraries = {
        name: os.environ[name]
        for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
        if name in os.environ
    }
    return _ENVIRONMENT | libraries | {"PYTHONPATH": modules}


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
