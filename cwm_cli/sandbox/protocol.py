"""What the trusted side and a worker say to each other: about the worker, and about a job.

The worker never sees a program, its inputs or its answers: these pass between
the trusted side and the program's process in files whose descriptors go along
with the request.
"""

import json
import socket
import sys
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, Self

from cwm_cli.sandbox.confinement import LAYERS
from cwm_cli.sandbox.job import DrawsJob, EpisodesJob, Limits, OutcomesJob, PredictionJob

FLAGS = ("-s", "-P", *(["-B"] if sys.dont_write_bytecode else []), "-c")
"""How Python is started: without what the user or the folder would add to it.

Bytecode is kept where this process keeps it: some modules are imported nowhere but in a worker.
"""

BEGINNING = "import gc, os; gc.disable(); os.register_at_fork = lambda **_: None"
"""Keeps modules from doing work in each forked process: there are no threads, and seeds are set.

Garbage is not looked for until the interpreter is prepared: importing leaves next to none.
"""

BEGUN, MADE = b"B", b"M"
"""Marks: a question is asked, a question is answered."""

RESUMED, PAUSED = b"R", b"P"
"""The same where the limits hold for all questions together."""

ROWS_HANDLERS = (
    PredictionJob.handler,
    OutcomesJob.handler,
    DrawsJob.handler,
    EpisodesJob.handler,
)
"""What every worker can do: ask programs of all contracts for rows."""

_MAGIC = b"cwm1"
_GREETING = Struct("<4sI")
_LONGEST_GREETING = 1 << 16
_REQUEST = Struct("<4s2Q4d2Q")
_REPORT = Struct("<4sBBi2d")


class Setup(NamedTuple):
    """What a worker is to be like.

    `tools` are modules that programs may import beside the usual ones, and
    `layers` the guards to put up where the machine has them. A `cold` worker
    starts an interpreter for every program instead of forking itself, which is
    not safe on macOS once numpy is loaded. `handlers` are the addresses of what does
    the jobs that it may be given.
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
        """Read what `encode` returned."""
        parts = json.loads(text)
        lists = {name: tuple(parts[name]) for name in ("tools", "layers", "handlers")}
        return cls(**parts | lists)


class Hello(NamedTuple):
    """What a worker says once it is ready: its guards, or why it will not work.

    `layers` says of each guard whether it is on, or why not; `landlock` is the
    version that the kernel has; `complaint` is what is wrong with a tool; `twin` is
    the process of the worker that was forked from this one, or 0.
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
        """Wait for a greeting; EOFError when the worker is gone, ValueError when it is none."""
        magic, size = _GREETING.unpack(receive_exactly(control, _GREETING.size))
        if magic != _MAGIC or size > _LONGEST_GREETING:
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
    """Why a program's process is no more."""

    EXITED = 0
    STALLED = 1
    OUT_OF_CPU = 2
    OUT_OF_TIME = 3
    FORKED = 4
    DISMISSED = 5
    ASLEEP = 6


class Channel(NamedTuple):
    """The ends of a conversation's pipes: questions, replies, and marks for the worker.

    A mark says that a question is asked or that it is answered; when the pipe is
    closed the conversation is over.
    """

    questions: int
    replies: int
    marks: int


class Console(NamedTuple):
    """Standard input and standard output of a program that reads one and writes the other."""

    stdin: int
    stdout: int


class Descriptors(NamedTuple):
    """The files that go along with a request: the job, its answers, what it prints."""

    job: int
    slots: int
    log: int
    extra: Channel | Console | None = None

    @property
    def all(self) -> tuple[int, ...]:
        """Every descriptor, in the order in which they are sent."""
        return (self.job, self.slots, self.log, *(self.extra or ()))

    @property
    def channel(self) -> Channel | None:
        """The pipes of a conversation."""
        return self.extra if isinstance(self.extra, Channel) else None

    @property
    def console(self) -> Console | None:
        """Where a program reads and writes."""
        return self.extra if isinstance(self.extra, Console) else None


_EXTRAS: dict[int, type[Channel] | type[Console]] = {3: Channel, 2: Console}
_MOST_DESCRIPTORS = 6


class JobRequest(NamedTuple):
    """Asks a worker to run one job."""

    job_bytes: int
    slot_bytes: int
    limits: Limits

    def send(self, control: socket.socket, descriptors: Descriptors) -> None:
        """Send the request and its files."""
        message = _REQUEST.pack(_MAGIC, *self[:2], *vars(self.limits).values())
        socket.send_fds(control, [message], descriptors.all)

    @classmethod
    def receive(cls, control: socket.socket) -> tuple[Self, Descriptors] | None:
        """Wait for a request; None when the other side is gone."""
        message, descriptors, _, _ = socket.recv_fds(
            control, _REQUEST.size, _MOST_DESCRIPTORS, socket.MSG_WAITALL
        )
        if len(message) < _REQUEST.size:
            return None
        _, job_bytes, slot_bytes, *limits = _REQUEST.unpack(message)
        job, slots, log, *extra = descriptors
        kind = _EXTRAS.get(len(extra))
        files = Descriptors(job, slots, log, kind(*extra) if kind else None)
        return cls(job_bytes, slot_bytes, Limits(*limits)), files


class JobReport(NamedTuple):
    """Says how a job ended.

    `ready` is whether every guard was in place before the program began, and
    `code` is the exit code, negative for a signal. `used` are seconds of CPU time and
    `slept` those of sleeping or waiting.
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
        """Wait for a report; EOFError when the worker is gone, ValueError when it is none."""
        magic, ready, reason, code, *time = _REPORT.unpack(receive_exactly(control, _REPORT.size))
        if magic != _MAGIC:
            raise ValueError(f"a report of the worker begins with {magic!r}")
        return cls(bool(ready), EndReason(reason), code, *time)


def receive_exactly(control: socket.socket, size: int) -> bytes:
    """Read `size` bytes; EOFError when the other side hangs up before."""
    message = b""
    while len(message) < size:
        part = control.recv(size - len(message))
        if not part:
            raise EOFError("the other side hung up")
        message += part
    return message
