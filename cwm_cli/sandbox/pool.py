"""Worker processes, seen from the trusted side: started, vetted, lent, and ended."""

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
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Semaphore
from typing import NamedTuple, Self, TypeVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import probe
from cwm_cli.sandbox.job import Limits, PredictionJob
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
    Setup,
)
from cwm_cli.text import clean

log = logging.getLogger("cwm.sandbox")

T = TypeVar("T")

SIDES = 2
"""Rows of a dataset go to workers of two sides, so that neither sees what follows on its rows."""

GRACE_SECONDS = 10.0
"""How much later than a program a worker that does not end it is given up."""

_START_SECONDS = 60.0
"""How long a worker may take to start: a busy machine that reads numpy off a slow disk."""

_LOG_TAIL_BYTES = 1 << 16
"""The end of what a program printed, with any stack in it: more than is ever shown."""

_COMPLAINT_CHARACTERS = 300
_LAST_WORDS = 1 << 12

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


class JobResult(NamedTuple):
    """What is left of a job: how it ended, its answers, and the end of what it printed."""

    report: JobReport
    slots: bytes
    log: bytes


class WorkerPool:
    """Workers of two sides, started when they are first needed, for use by several threads.

    At most `places` workers run at a time. Each new worker runs the probe and is
    refused if a gap is open that is not in `accepted`. `ALL_GAPS` accepts the
    gaps of the first worker only, so that the record of a run holds for every
    worker.
    """

    def __init__(self, places: int, setup: Setup, accepted: tuple[str, ...]) -> None:
        self._places, self._several = Semaphore(places), places > 1
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
        """What the probe found, on a worker that is started for that if there is none yet."""
        while (found := self._protection) is None:  # again if other workers are wanted meanwhile
            with self.lend_any():
                pass
        return found

    def prepare(self, handlers: Iterable[str]) -> None:
        """Have all workers know these handlers from now on."""
        with self._lock:
            known = dict.fromkeys([*self._setup.handlers, *handlers])
            wanted = self._setup._replace(handlers=tuple(known))
            if wanted != self._setup:
                self._setup, self._protection = wanted, None

    @contextmanager
    def lend_any(self, side: int = 0) -> Iterator[WorkerHandle]:
        """Wait for a place and lend a worker for it."""
        with self.place(), self.lend(side) as worker:
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
    def lend(self, side: int) -> Iterator[WorkerHandle]:
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
            self.is_closed = True
            alive = list(self._alive)
        for worker in alive:
            self._retire(worker)

    def _take(self, side: int) -> WorkerHandle:
        """Return a free worker, or a new one."""
        with self._lock:
            if self.is_closed:
                raise SandboxError("the sandbox is closed")
            free = self._free[side]
            others = [worker for worker in free if worker.setup != self._setup]
            free[:] = [worker for worker in free if worker.setup == self._setup]
            taken = free.pop() if free else self._start()
        for worker in others:
            self._retire(worker)
        return taken

    def _vet(self, worker: WorkerHandle, side: int) -> None:
        """Admit a new worker if every open gap is accepted; keep its twin for the other side."""
        hello = worker.greet()
        if worker.twin:
            self._keep(worker.twin, 1 - side)
        if hello.complaint:
            complaint = clean(hello.complaint, limit=_COMPLAINT_CHARACTERS)
            raise CwmError(f"the tool {complaint}: fix it, or leave out --tool")
        protection = examine(worker, hello)
        with self._lock:
            protection = protection.accepting(self._accepted)
            self._accepted = protection.accepted  # "all" are the gaps of the first worker
        protection.require()
        with self._lock:
            if worker.setup == self._setup and self._protection is None:
                self._protection = protection
                layers = ", ".join(f"{name} {state}" for name, state in protection.layers.items())
                log.info("a worker is confined: %s", layers)

    def _start(self) -> WorkerHandle:
        """Start a worker; with places for two the first has a twin."""
        first = all(worker.setup != self._setup for worker in self._alive)
        worker = WorkerHandle.start(self._setup, doubled=first and self._several)
        self._alive.add(worker)
        return worker

    def _keep(self, twin: WorkerHandle, side: int) -> None:
        """Have a worker that another one has forked, unless all have to end."""
        with self._lock:
            if not self.is_closed:
                self._alive.add(twin)
                self._free[side].append(twin)
                return
        twin.close()

    def _give_back(self, worker: WorkerHandle, side: int) -> None:
        """Keep a worker for later."""
        with self._lock:
            if worker in self._alive:
                self._free[side].append(worker)

    def _retire(self, worker: WorkerHandle) -> None:
        """End a worker."""
        with self._lock:
            self._alive.discard(worker)
            self._vetted.discard(worker)
        worker.close()


def examine(worker: WorkerHandle, hello: Hello) -> Protection:
    """Run the probe in a worker, like any program, and return its result."""
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
    """Return the text of the probe, with what it has to know."""
    text = Path(probe.__file__).read_text(encoding="utf-8")
    found = find_spec("gymnasium")
    folder = str(Path(found.origin).parent.parent) if found and found.origin else ""
    return f"{text}\nSIMULATORS = {folder!r}\nASKER = {os.getpid()}\n"


class WorkerHandle:
    """A worker process, seen from here, with a connection to it and an empty folder.

    It starts in the background; `greet` waits until it is ready, and from then on a
    `doubled` one has a `twin`, which takes next to nothing, where a twin can be made.
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
    def start(cls, setup: Setup, *, doubled: bool) -> Self:
        """Start a process."""
        connections = [Connection.make() for _ in range(1 + doubled)]
        return cls(setup, start(setup, *connections), *connections)

    def greet(self) -> Hello:
        """Wait until the worker is ready and return what it says; to be called once."""
        self._control.settimeout(_START_SECONDS)
        try:
            hello = Hello.receive(self._control)
        except ValueError as error:
            raise SandboxError(f"a worker did not start: {error}") from error
        except (EOFError, OSError) as error:
            self.process.kill()
            message = self.process.stderr.read() if self.process.stderr else b""
            raise SandboxError(f"a worker did not start: {_last_line(message)}") from error
        if hello.twin and self._second:
            self.twin = WorkerHandle(self.setup, ForkedWorker(hello.twin), self._second)
            self._second = None
        return hello

    def run(self, job: bytes, slot_bytes: int, limits: Limits) -> JobResult:
        """Run a job to its end; a worker that raises is to be closed."""
        with self.running(job, slot_bytes, limits) as finish:
            return finish()

    @contextmanager
    def running(
        self, job: bytes, slot_bytes: int, limits: Limits, extra: Channel | Console | None = None
    ) -> Iterator[Callable[[], JobResult]]:
        """Begin a job; what is given waits for its end."""
        with (
            memory_file(job) as inputs,
            memory_file(size=slot_bytes) as slots,
            memory_file() as log,
        ):
            files = Descriptors(inputs, slots, log, extra)
            with _telling_the_lost():
                self._control.settimeout(limits.wall_seconds + GRACE_SECONDS)
                JobRequest(len(job), slot_bytes, limits).send(self._control, files)
            yield partial(self._finish, slots, slot_bytes, log)

    def _finish(self, slots: int, size: int, log: int) -> JobResult:
        """Wait for the end of a job and gather what is left of it."""
        with _telling_the_lost():
            report = JobReport.receive(self._control)
        printed = os.pread(log, _LOG_TAIL_BYTES, max(0, os.fstat(log).st_size - _LOG_TAIL_BYTES))
        if not report.ready:
            raise SandboxError(f"the sandbox could not be set up: {_last_line(printed)}")
        return JobResult(report, read_all(slots, size), printed)

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
        for each in filter(None, (self._connection, self._second)):
            each.close()


@contextmanager
def _telling_the_lost() -> Iterator[None]:
    """Tell a worker that is gone from one that talks nonsense."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise WorkerLost(f"a sandbox worker was lost: {error}") from error
    except ValueError as error:
        raise SandboxError(f"invalid reply of a sandbox worker: {error}") from error


class Connection(NamedTuple):
    """Both ends of the connection to a worker, and the empty folder that it lives in."""

    control: socket.socket
    theirs: socket.socket
    folder: str
    locks: list[int]

    @classmethod
    def make(cls) -> Self:
        """Return a new one."""
        _sweep()
        return cls(*socket.socketpair(), *_locked_folder())

    def close(self) -> None:
        """Leave nothing of it."""
        self.control.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        while self.locks:  # of those who close it at the same time one gets it
            os.close(self.locks.pop())


_PREFIX = "cwm-sandbox-"


def _locked_folder() -> tuple[str, list[int]]:
    """Make an empty folder, and lock it as long as this process lives or until that is closed."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with suppress(FileNotFoundError):  # another process may take it for one that is left over
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if Path(folder).is_dir():
                return folder, [descriptor]
            os.close(descriptor)


@cache
def _sweep() -> None:
    """Remove the empty folders that processes left which were killed: nobody has them locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, one with something in it, or no folder
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder.rmdir()
            finally:
                os.close(descriptor)


class ForkedWorker:
    """The process of a worker that another one forked, which is a child of this one as well."""

    stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._is_over = False
        self._lock = Lock()

    def kill(self) -> None:
        """End it, if nobody has waited for its end: its number may be that of another one, then."""
        with self._lock, suppress(ProcessLookupError):
            if not self._is_over:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        with self._lock, suppress(ChildProcessError):
            if not self._is_over:
                self._is_over = True
                os.waitpid(self.pid, 0)


Process = subprocess.Popen[bytes] | ForkedWorker


def start(
    setup: Setup, connection: Connection, second: Connection | None = None
) -> subprocess.Popen[bytes]:
    """Start an interpreter as a worker at one connection, with a twin at a second."""
    ends = [each.theirs for each in (connection, second) if each]
    words = [str(ends[0].fileno()), setup.encode()]
    words += [str(second.theirs.fileno()), second.folder] if second else []
    with ExitStack() as stack:
        for end in ends:
            stack.enter_context(end)
        return subprocess.Popen(
            [sys.executable, *FLAGS, _COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[end.fileno() for end in ends],
            env=_environment(),
            cwd=connection.folder,
            start_new_session=True,
        )


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
def memory_file(content: bytes = b"", size: int = 0) -> Iterator[int]:
    """Make a file without a name; on Linux its size is fixed, and any content too."""
    with _new_file() as descriptor:
        if content:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
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


def read_all(descriptor: int, most: int) -> bytes:
    """Return what a file has from its beginning on, up to a number of bytes."""
    content = b""
    while len(content) < most and (part := os.pread(descriptor, most - len(content), len(content))):
        content += part
    return content


def _last_line(output: bytes) -> str:
    """Return the last line that was printed."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"
