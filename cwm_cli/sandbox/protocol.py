"""Messages between the trusted side and a worker, about the worker and about jobs.

The worker never sees a program, its inputs or its answers. These pass between the trusted side and
the process of the program in files, whose descriptors accompany the request.
"""

import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Any, Literal, NamedTuple, Self, get_args

from cwm_cli.errors import CwmError
from cwm_cli.sandbox.job import DrawsJob, EpisodesJob, OutcomesJob, PredictionJob

FLAGS = ("-s", "-P", *(["-B"] if sys.dont_write_bytecode else []), "-c")
"""Arguments of Python for workers: without the user's site packages and the working folder.

Bytecode is written if this process writes it, since some modules are imported only by workers.
"""

BEGINNING = "import gc, os; gc.disable(); os.register_at_fork = lambda **_: None"
"""First statements of a worker.

Without fork hooks, modules do no work in each forked process: there are no threads, and the random
numbers are seeded anyway. Garbage collection is off until the interpreter is prepared, since
imports leave almost no garbage.
"""

QUESTION_SENT, QUESTION_ANSWERED = b"B", b"M"
"""Marks of a conversation whose limits hold for each question."""

RESUMED, PAUSED = b"R", b"P"
"""The same marks if the limits hold for all questions together."""

ROWS_HANDLERS = (
    PredictionJob.handler,
    OutcomesJob.handler,
    DrawsJob.handler,
    EpisodesJob.handler,
)
"""Handlers that every worker has: they ask for rows of a dataset, for programs of all contracts."""

_MAGIC = b"cwm1"
_GREETING = Struct("<4sI")
# Sizes of the job and the slots, then the limits in the order of their fields.
_REQUEST = Struct("<4s2Q4d2Q")
_REPORT = Struct("<4sBBi2d")


Layer = Literal["user", "capabilities", "landlock", "limits", "seccomp"]
"""Guards: a separate user for each program if cwm runs as root; no capabilities; no files; limits
on resources; a filter of system calls."""

LAYERS: tuple[Layer, ...] = get_args(Layer)


class Setup(NamedTuple):
    """The configuration of a worker.

    Attributes:
        tools: Modules that programs may import in addition to the usual ones.
        layers: Guards to activate if the machine has them.
        cold: Whether to start an interpreter for every program instead of a fork. A fork is not
            safe on macOS after numpy is loaded.
        handlers: Addresses of the handlers of its jobs.
    """

    tools: tuple[str, ...] = ()
    layers: tuple[str, ...] = LAYERS
    cold: bool = sys.platform != "linux"
    handlers: tuple[str, ...] = ROWS_HANDLERS

    def encode(self) -> str:
        """Return the setup as text."""
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the result of `encode`."""
        parts = json.loads(text)
        lists = {name: tuple(parts[name]) for name in ("tools", "layers", "handlers")}
        return cls(**parts | lists)


_MIN_SECONDS, _MAX_SECONDS = 0.01, 1e6


@dataclass(frozen=True)
class Limits:
    """Bounds for a program in one job, or for one question of a conversation.

    CPU time is the main limit, because it does not depend on the load of the machine. Wall-clock
    time is a backstop for programs that sleep. On systems where the CPU time of another process
    cannot be read (macOS), stalls are measured by the wall clock.

    A program can forge its progress, so a step that takes too long is detected immediately only in
    an honest program. The total holds for all programs: the processes that answer the rows of a
    dataset share the time in proportion to their rows. The processes of an audit have the whole
    time once more for each worker, because each process loads the program. After a program has run
    out of time, no further dataset is asked. All rollouts of a program together may take as long as
    one process by the wall clock.
    """

    wall_seconds: float = 60.0
    """Maximum wall-clock time of a program in seconds."""

    cpu_seconds: float = 10.0
    """Maximum CPU time of a program in seconds, for all rows of a dataset."""

    stall_seconds: float = 1.0
    """Maximum CPU time in seconds for loading a program or for a single step."""
    # One second is about 100,000 times the duration of a typical step. It leaves time for tables
    # that are built at import, and ends a hang ten times sooner than `cpu_seconds`.

    sleep_seconds: float = 2.0
    """Maximum time in seconds that a program may sleep or wait; no model needs this."""

    memory_mb: int = 512
    """Maximum memory of a program in megabytes, beyond the memory of an idle process."""

    output_bytes: int = 1 << 20
    """Maximum number of bytes that a program may print."""

    def part(self, share: float) -> Self:
        """Return the limits of a process that has a share of the CPU and sleep time."""
        return self.less(
            used=(1 - share) * self.cpu_seconds, slept=(1 - share) * self.sleep_seconds
        )

    def without_time(self) -> Self:
        """Return limits that do not reveal the remaining time, which depends on earlier processes.

        The CPU time is one day: too long to matter.
        """
        return type(self)(
            memory_mb=self.memory_mb, output_bytes=self.output_bytes, cpu_seconds=86400.0
        )

    def longer(self, draws: int) -> Self:
        """Return the limits for several draws of each row.

        Every 16 draws add the time limit once more. A program that answers a row in 30 microseconds
        then has time for 64 draws of each of 20,000 rows.
        """
        return self.scaled(1 + draws // 16)

    def scaled(self, factor: int) -> Self:
        """Return limits with a multiple of the CPU and wall-clock time of a whole program."""
        return replace(
            self,
            cpu_seconds=min(_MAX_SECONDS, factor * self.cpu_seconds),
            wall_seconds=min(_MAX_SECONDS, factor * self.wall_seconds),
        )

    def less(self, *, used: float, slept: float, passed: float = 0.0) -> Self:
        """Return the limits that remain after a process.

        Args:
            used: CPU time of the process in seconds.
            slept: Sleep and wait time of the process in seconds.
            passed: Wall-clock time of the process in seconds.
        """
        return replace(
            self,
            cpu_seconds=max(_MIN_SECONDS, self.cpu_seconds - used),
            sleep_seconds=max(_MIN_SECONDS, self.sleep_seconds - slept),
            wall_seconds=max(_MIN_SECONDS, self.wall_seconds - passed),
        )

    def __post_init__(self) -> None:
        bounds = {"memory_mb": (1, 1 << 20), "output_bytes": (0, 1 << 30)}
        for name, value in vars(self).items():
            least, most = bounds.get(name, (_MIN_SECONDS, _MAX_SECONDS))
            if not least <= value <= most:
                raise ValueError(f"{name} is {value:g}; it must be from {least:g} to {most:.0f}")

    @classmethod
    def chosen(cls, options: Mapping[str, Any]) -> Self:
        """Return limits with the options of a user, and defaults for all others.

        Raises:
            CwmError: An option is unknown or out of range.
        """
        try:
            return cls(**options)
        except (TypeError, ValueError) as error:
            raise CwmError(f"invalid limit of the sandbox: {error}") from error


class Hello(NamedTuple):
    """The greeting of a worker that is ready or has failed to start.

    Attributes:
        layers: The state of each guard: "on", or why it is not on.
        landlock: Version of Landlock in the kernel, or 0.
        complaint: The problem with a tool, or "".
        twin: Process number of the worker that was forked from this one, or 0.
    """

    layers: dict[str, str]
    landlock: int = 0
    complaint: str = ""
    twin: int = 0

    def send(self, control: socket.socket) -> None:
        """Send the greeting."""
        text = json.dumps(self._asdict()).encode()
        control.sendall(_GREETING.pack(_MAGIC, len(text)) + text)

    @classmethod
    def receive(cls, control: socket.socket) -> Self:
        """Wait for a greeting.

        Raises:
            EOFError: The worker has ended.
            ValueError: The message is not a greeting.
        """
        magic, size = _GREETING.unpack(receive_exactly(control, _GREETING.size))
        if magic != _MAGIC or size > 1 << 16:
            raise ValueError(f"a greeting of the worker begins with {magic!r}")
        try:
            parts = json.loads(receive_exactly(control, size))
        except RecursionError as error:
            raise ValueError("a greeting of the worker is nested too deeply") from error
        match parts:
            case {
                "layers": dict(layers),
                "landlock": int(landlock),
                "complaint": str(complaint),
                "twin": int(twin),
            }:
                if twin >= 0 and all(isinstance(state, str) for state in layers.values()):
                    return cls(layers, landlock, complaint, twin)
        raise ValueError("a greeting of the worker lacks a part")


class EndReason(IntEnum):
    """The reason why the process of a program ended."""

    EXITED = 0
    STALLED = 1
    OUT_OF_CPU = 2
    OUT_OF_TIME = 3
    FORKED = 4
    DISMISSED = 5
    ASLEEP = 6


class Channel(NamedTuple):
    """Pipes of a conversation: questions, replies, and marks for the worker.

    A mark means that a question has been sent or answered. A closed pipe of marks ends the
    conversation.
    """

    questions: int
    replies: int
    marks: int


class Console(NamedTuple):
    """Files for standard input and standard output of a program."""

    stdin: int
    stdout: int


class Descriptors(NamedTuple):
    """Files that accompany a request: the job, its slots, the log, and optional further ones."""

    job: int
    slots: int
    log: int
    extra: Channel | Console | None = None

    @property
    def all(self) -> tuple[int, ...]:
        """All descriptors, in the order of the message."""
        return (self.job, self.slots, self.log, *(self.extra or ()))

    @property
    def channel(self) -> Channel | None:
        """The pipes of a conversation."""
        return self.extra if isinstance(self.extra, Channel) else None

    @property
    def console(self) -> Console | None:
        """The standard streams of the program."""
        return self.extra if isinstance(self.extra, Console) else None


_EXTRAS: dict[int, type[Channel] | type[Console]] = {3: Channel, 2: Console}


class JobRequest(NamedTuple):
    """A request to a worker to run one job."""

    job_bytes: int
    slot_bytes: int
    limits: Limits

    def send(self, control: socket.socket, descriptors: Descriptors) -> None:
        """Send the request and its files."""
        message = _REQUEST.pack(_MAGIC, *self[:2], *vars(self.limits).values())
        socket.send_fds(control, [message], descriptors.all)

    @classmethod
    def receive(cls, control: socket.socket) -> tuple[Self, Descriptors] | None:
        """Wait for a request; return None if the other side has closed the connection."""
        message, descriptors, _, _ = socket.recv_fds(
            control, _REQUEST.size, 3 + max(_EXTRAS), socket.MSG_WAITALL
        )
        if len(message) < _REQUEST.size:
            return None
        _, job_bytes, slot_bytes, *limits = _REQUEST.unpack(message)
        job, slots, log, *extra = descriptors
        kind = _EXTRAS.get(len(extra))  # the number of further files identifies their kind
        files = Descriptors(job, slots, log, kind(*extra) if kind else None)
        return cls(job_bytes, slot_bytes, Limits(*limits)), files


class JobReport(NamedTuple):
    """The report of a worker about a finished job.

    Attributes:
        ready: Whether all guards were active before the program began.
        reason: Why the process ended.
        code: The exit code, negative for a signal.
        used: CPU time in seconds.
        slept: Time of sleeping or waiting in seconds.
    """

    ready: bool
    reason: EndReason
    code: int
    used: float = 0.0
    slept: float = 0.0

    def send(self, control: socket.socket) -> None:
        """Send the report."""
        control.sendall(_REPORT.pack(_MAGIC, *self))

    @classmethod
    def receive(cls, control: socket.socket) -> Self:
        """Wait for a report.

        Raises:
            EOFError: The worker has ended.
            ValueError: The message is not a report.
        """
        magic, ready, reason, code, *time = _REPORT.unpack(receive_exactly(control, _REPORT.size))
        if magic != _MAGIC:
            raise ValueError(f"a report of the worker begins with {magic!r}")
        return cls(bool(ready), EndReason(reason), code, *time)


def receive_exactly(control: socket.socket, size: int) -> bytes:
    """Read `size` bytes; raise `EOFError` if the connection is closed first."""
    message = b""
    while len(message) < size:
        part = control.recv(size - len(message))
        if not part:
            raise EOFError("the other side hung up")
        message += part
    return message
