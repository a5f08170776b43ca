"""Worker processes on the trusted side: start, check, lend and end them."""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Semaphore
from typing import NamedTuple, Self

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.locks import find_abandoned_folders, make_locked_folder
from cwm_cli.sandbox import probe
from cwm_cli.sandbox.job import PredictionJob
from cwm_cli.sandbox.protection import GAPS, Protection
from cwm_cli.sandbox.protocol import (
    BEGINNING,
    FLAGS,
    Channel,
    Console,
    Descriptors,
    Hello,
    JobReport,
    JobRequest,
    Limits,
    Setup,
)
from cwm_cli.text import clean

log = logging.getLogger("cwm.sandbox")

SIDES = 2
"""Rows of a dataset go to workers of two sides, so that no worker sees the outcomes of its rows."""

GRACE_SECONDS = 10.0
"""Delay after the wall-clock limit of a program until its worker is considered lost."""


class SandboxError(RuntimeError):
    """A failure of the sandbox itself, not of the program."""


class WorkerLost(SandboxError):
    """A worker ended or stopped responding during a job."""


class JobResult(NamedTuple):
    """The report of the worker, the slots with the answers, and the end of the printed output."""

    report: JobReport
    slots: bytes
    log: bytes


class WorkerPool:
    """Workers of two sides, started when they are first needed. Instances are thread-safe.

    Each new worker runs the probe and is refused if a gap is open that is not accepted.

    Args:
        places: Maximum number of workers that run a program at the same time.
        setup: Tools, guards and handlers of the workers.
        accepted: Names of accepted gaps. `ALL_GAPS` accepts only the gaps of the first worker, so
            that the recorded gaps of a run hold for every worker.
    """

    def __init__(self, places: int, setup: Setup, accepted: tuple[str, ...]) -> None:
        # A caller holds a place while it uses a worker.
        self.places, self._is_parallel = Semaphore(places), places > 1
        self._setup = setup
        self._accepted = accepted
        self._protection: Protection | None = None
        self._lock = Lock()
        self.is_closed = False
        self._alive: set[WorkerHandle] = set()
        self._vetted: set[WorkerHandle] = set()
        self._free: tuple[list[WorkerHandle], ...] = tuple([] for _ in range(SIDES))

    @property
    def protection(self) -> Protection:
        """The result of the probe; starts a worker if there is none."""
        while (found := self._protection) is None:  # again if `prepare` has reset it meanwhile
            with self.lend_any():
                pass
        return found

    def prepare(self, handlers: Iterable[str]) -> None:
        """Add handlers to the setup of all workers; replace older workers before their next job.

        Args:
            handlers: Addresses, `module:name`.
        """
        with self._lock:
            known = dict.fromkeys([*self._setup.handlers, *handlers])
            setup = self._setup._replace(handlers=tuple(known))
            if setup != self._setup:
                self._setup, self._protection = setup, None

    @contextmanager
    def lend_any(self, side: int = 0) -> Iterator[WorkerHandle]:
        """Wait for a place and lend a worker of a side."""
        with self.places, self.lend(side) as worker:
            yield worker

    @contextmanager
    def try_reserve_place(self) -> Iterator[bool]:
        """Hold one more place if one is free; yield whether it was."""
        is_reserved = self.places.acquire(blocking=False)
        try:
            yield is_reserved
        finally:
            if is_reserved:
                self.places.release()

    @contextmanager
    def lend(self, side: int) -> Iterator[WorkerHandle]:
        """Lend a worker of a side to a caller that holds a place; end the worker after an error."""
        worker = self._take(side)
        try:
            if worker not in self._vetted:
                self._vet(worker, side)
                self._vetted.add(worker)
            yield worker
        except BaseException:
            self._retire(worker)
            raise
        with self._lock:
            if worker in self._alive:
                self._free[side].append(worker)

    def close(self) -> None:
        """End all workers, including workers that run a program."""
        with self._lock:
            self.is_closed = True
            alive = list(self._alive)
        for worker in alive:
            self._retire(worker)

    def _take(self, side: int) -> WorkerHandle:
        """Return a free worker with the current setup, or a new one; end outdated workers."""
        with self._lock:
            if self.is_closed:
                raise SandboxError("the sandbox is closed")
            free = self._free[side]
            outdated = [worker for worker in free if worker.setup != self._setup]
            free[:] = [worker for worker in free if worker.setup == self._setup]
            if free:
                worker = free.pop()
            else:
                # If the other side has no free worker, the new one forks a twin for it.
                lacks_twin = all(worker.setup != self._setup for worker in self._free[1 - side])
                worker = WorkerHandle.start(self._setup, with_twin=lacks_twin and self._is_parallel)
                self._alive.add(worker)
        for old in outdated:  # `_retire` takes the lock itself, and waits for the worker
            self._retire(old)
        return worker

    def _vet(self, worker: WorkerHandle, side: int) -> None:
        """Wait for a new worker, run the probe in it, and keep its twin for the other side."""
        hello = worker.greet()
        if worker.twin:
            with self._lock:
                is_closed = self.is_closed
                if not is_closed:
                    self._alive.add(worker.twin)
                    self._free[1 - side].append(worker.twin)
            if is_closed:
                worker.twin.close()
        if hello.complaint:
            raise CwmError(
                f"the tool {clean(hello.complaint, limit=300)}: fix it, or leave out --tool"
            )
        protection = examine(worker, hello)
        with self._lock:
            protection = protection.accepting(self._accepted)
            self._accepted = protection.accepted  # "all" becomes the gaps of the first worker
        protection.require()
        with self._lock:
            # `prepare` may have changed the setup meanwhile.
            if worker.setup == self._setup and self._protection is None:
                self._protection = protection
                layers = ", ".join(f"{name} {state}" for name, state in protection.layers.items())
                log.info("a worker is confined: %s", layers)

    def _retire(self, worker: WorkerHandle) -> None:
        with self._lock:
            self._alive.discard(worker)
            self._vetted.discard(worker)
        worker.close()


def examine(worker: WorkerHandle, hello: Hello) -> Protection:
    """Run the probe in a worker, like any program, and return which checks were blocked."""
    space = Space("discrete", "int64", (), (0.0,), (len(GAPS) - 1.0,))
    rows = np.arange(len(GAPS))
    columns = {"observations": rows, "actions": np.zeros_like(rows)}
    job = PredictionJob(
        program=_probe(), observation_space=space, action_space=space, columns=columns
    )
    layout = job.layout
    result = worker.run(job.encode(trusted=True), layout.size, Limits(memory_mb=64))
    slots = layout.views(result.slots)
    if slots["kind"]:
        message = bytes(slots["message"][()]).decode("utf-8", "replace")
        raise SandboxError(f"the self-test of the sandbox failed: {message}")
    blocked = (slots["status"] == 1) & (slots["rewards"] == 1)
    return Protection(
        blocked=dict(zip(GAPS, blocked.tolist(), strict=True)),
        layers=hello.layers,
        landlock=hello.landlock,
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        python=platform.python_version(),
        user="root" if os.geteuid() == 0 else "ordinary",
    )


@cache
def _probe() -> str:
    """Return the text of the probe, with the values of its constants."""
    text = Path(probe.__file__).read_text(encoding="utf-8")
    found = find_spec("gymnasium")
    folder = str(Path(found.origin).parent.parent) if found and found.origin else ""
    return f"{text}\nSIMULATORS = {folder!r}\nASKER = {os.getpid()}\n"


class WorkerHandle:
    """A worker process, with a connection to it and an empty folder.

    The worker starts in the background; `greet` waits until it is ready. If a second connection is
    given and the system allows it, the worker then has forked a `twin`, which starts much faster
    than a new worker.
    """

    def __init__(
        self,
        setup: Setup,
        process: Process,
        connection: Connection,
        second: Connection | None = None,
    ) -> None:
        self.setup, self.process = setup, process
        self.twin: WorkerHandle | None = None
        self._connection, self._second = connection, second
        self._control = connection.control

    @classmethod
    def start(cls, setup: Setup, *, with_twin: bool) -> Self:
        """Start a worker process."""
        connections = [Connection.make() for _ in range(1 + with_twin)]
        return cls(setup, start(setup, *connections), *connections)

    def greet(self) -> Hello:
        """Wait until the worker is ready and return its greeting. Call it once.

        Raises:
            SandboxError: The worker did not start within a minute.
        """
        start_seconds = 60.0  # for a busy machine that reads numpy from a slow disk
        self._control.settimeout(start_seconds)
        try:
            hello = Hello.receive(self._control)
        except ValueError as error:
            raise SandboxError(f"a worker did not start: {error}") from error
        except (EOFError, OSError) as error:
            self.process.kill()  # otherwise `read` could wait forever
            message = self.process.stderr.read() if self.process.stderr else b""
            raise SandboxError(f"a worker did not start: {_last_line(message)}") from error
        if hello.twin and self._second:
            self.twin = WorkerHandle(self.setup, ForkedWorker(hello.twin), self._second)
            self._second = None
        return hello

    def run(self, job: bytes, slot_bytes: int, limits: Limits) -> JobResult:
        """Run a job to its end. If this raises, close the worker."""
        with self.start_job(job, slot_bytes, limits) as finish:
            return finish()

    @contextmanager
    def start_job(
        self, job: bytes, slot_bytes: int, limits: Limits, extra: Channel | Console | None = None
    ) -> Iterator[Callable[[], JobResult]]:
        """Start a job; yield a function that waits for its end.

        Args:
            job: The encoded job.
            slot_bytes: Size of the slots.
            limits: The limits of the program.
            extra: The pipes of a conversation, or the standard streams of the program.

        Raises:
            WorkerLost: The worker has ended or does not respond.
            SandboxError: The worker sent an invalid report, or could not confine the program.
        """
        with (
            memory_file(job) as inputs,
            memory_file(size=slot_bytes) as slots,
            memory_file() as log_file,
        ):
            files = Descriptors(inputs, slots, log_file, extra)
            with _convert_errors():
                self._control.settimeout(limits.wall_seconds + GRACE_SECONDS)
                JobRequest(len(job), slot_bytes, limits).send(self._control, files)

            def finish() -> JobResult:
                with _convert_errors():
                    report = JobReport.receive(self._control)
                log_tail_bytes = 1 << 16  # more than any message shows
                start = max(0, os.fstat(log_file).st_size - log_tail_bytes)
                printed = os.pread(log_file, log_tail_bytes, start)
                if not report.ready:
                    raise SandboxError(f"the sandbox could not be set up: {_last_line(printed)}")
                return JobResult(report, read_all(slots, slot_bytes), printed)

            yield finish

    def close(self) -> None:
        """End the worker and all processes that it has started."""
        try:
            self._control.shutdown(socket.SHUT_WR)  # the worker then ends itself
            self._control.settimeout(GRACE_SECONDS)
            while self._control.recv(1 << 12):
                pass
        except OSError:
            self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
        for connection in filter(None, (self._connection, self._second)):
            connection.close()


@contextmanager
def _convert_errors() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise WorkerLost(f"a sandbox worker was lost: {error}") from error
    except ValueError as error:
        raise SandboxError(f"invalid reply of a sandbox worker: {error}") from error


_PREFIX = "cwm-sandbox-"
"""Prefix of the working folders of workers."""


class Connection(NamedTuple):
    """Both ends of the connection to a worker, and its empty working folder with a lock."""

    control: socket.socket
    theirs: socket.socket
    folder: str
    locks: list[int]

    @classmethod
    def make(cls) -> Self:
        """Return a new connection."""
        _remove_abandoned_folders()
        folder, lock = make_locked_folder(_PREFIX)
        return cls(*socket.socketpair(), str(folder), [lock])

    def close(self) -> None:
        """Close our end and remove the folder."""
        self.control.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        while self.locks:  # `pop` is atomic: if two threads close, each lock is closed once
            os.close(self.locks.pop())


@cache
def _remove_abandoned_folders() -> None:
    """Remove the empty working folders of killed processes; once per process."""
    for folder in find_abandoned_folders(_PREFIX):
        with suppress(OSError):  # folders with content stay
            folder.rmdir()


class ForkedWorker:
    """A worker that was forked by another worker, but is a child of this process."""

    stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._is_over = False
        self._lock = Lock()

    def kill(self) -> None:
        """Kill the process unless it was reaped: then its number may belong to another process."""
        with self._lock, suppress(ProcessLookupError):
            if not self._is_over:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for the end of the process."""
        with self._lock, suppress(ChildProcessError):
            if not self._is_over:
                self._is_over = True
                os.waitpid(self.pid, 0)


Process = subprocess.Popen[bytes] | ForkedWorker


def start(
    setup: Setup, connection: Connection, second: Connection | None = None
) -> subprocess.Popen[bytes]:
    """Start an interpreter as a worker, which forks a twin if there is a second connection."""
    ends = [connection.theirs, *([second.theirs] if second else [])]
    words = [str(ends[0].fileno()), setup.encode()]
    words += [str(second.theirs.fileno()), second.folder] if second else []
    # No variable with a key of the user: only the paths of modules and libraries.
    paths = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in paths if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "VECLIB_MAXIMUM_THREADS": "1",
    }
    command = f"{BEGINNING}; from cwm_cli.sandbox.worker import main; main()"
    with ExitStack() as stack:
        # Only the worker keeps its ends, so that a connection closes when the worker ends.
        for end in ends:
            stack.enter_context(end)
        return subprocess.Popen(
            [sys.executable, *FLAGS, command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[end.fileno() for end in ends],
            env=environment,
            cwd=connection.folder,
            start_new_session=True,  # Ctrl+C in a terminal does not reach it
        )


@contextmanager
def memory_file(content: bytes = b"", size: int = 0) -> Iterator[int]:
    """Yield the descriptor of a file without a name.

    On Linux the file is sealed: a given content is read-only, and a given size is fixed.

    Args:
        content: Content of the file.
        size: Size in bytes of a file without content.
    """
    with ExitStack() as stack:
        if sys.platform == "linux":
            descriptor = os.memfd_create("cwm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            stack.callback(os.close, descriptor)
        else:
            descriptor = stack.enter_context(tempfile.TemporaryFile()).fileno()
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if content:
            os.lseek(descriptor, 0, os.SEEK_SET)
        if size:
            os.ftruncate(descriptor, size)
        if sys.platform == "linux" and (content or size):
            # If a program shortened the slots, a SIGBUS would end the worker, which maps them.
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            seals |= fcntl.F_SEAL_WRITE if content else 0
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor


def read_all(descriptor: int, size: int) -> bytes:
    """Return the first `size` bytes of a file, or fewer if the file is shorter."""
    content = b""
    while len(content) < size and (part := os.pread(descriptor, size - len(content), len(content))):
        content += part
    return content


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"
