"""What happens in the process of one program: guards first, then its job."""

import ast
import fcntl
import io
import mmap
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn, TextIO

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.answers import Complaint
from cwm_cli.sandbox.confinement import Guards, Room, address_space
from cwm_cli.sandbox.handlers import ConfinedProgram, Handler, handler_class
from cwm_cli.sandbox.job import KINDS, Job, Phase, PredictionJob, ReceivedJob
from cwm_cli.sandbox.linux import die_with_parent, self_stopper
from cwm_cli.sandbox.protocol import Console, Descriptors, JobRequest

PROGRAM = "<program>"
"""The file name of the program in tracebacks."""

READY = b"R"
"""Said once every guard is up, before the program is so much as compiled."""

MOST_DESCRIPTORS = 256
"""More than a worker ever has open."""

READY_DESCRIPTOR = 3
"""Where READY is said; the descriptors of a conversation follow it."""

_RESERVE_BYTES = 1 << 20
"""Memory that is given back so that a failure can be reported when a program took all."""

_ERROR_BYTES = 1 << 16
"""How much a program that prints elsewhere may say on standard error."""

_MESSAGE_CHARACTERS = 4000
"""What has room in the slot of the message."""

MODULES = """
_thread asyncio builtins codeop concurrent ctypes fcntl gc glob gzip http importlib inspect
linecache mmap multiprocessing os pathlib pickle platform posix pty resource runpy select shelve
shutil signal site socket sqlite3 ssl subprocess tempfile urllib webbrowser zipfile
"""
"""Those that reach beyond computing, as do the functions and attributes that follow."""

FUNCTIONS = "open eval exec compile __import__ breakpoint globals vars"
ATTRIBUTES = """
modules meta_path load save savez savez_compressed loadtxt savetxt genfromtxt fromfile tofile memmap
ctypeslib f2py
"""
HARMLESS = "__init__ __name__ __class__ __post_init__ __doc__ __stdin__ __stdout__"

_MODULES, _FUNCTIONS = frozenset(MODULES.split()), frozenset(FUNCTIONS.split())
_ATTRIBUTES, _HARMLESS = frozenset(ATTRIBUTES.split()), frozenset(HARMLESS.split())

_SPACE = Space("box", "float64", (2,), (-1.0, -1.0), (1.0, 1.0))
_SMALL_JOB = PredictionJob(
    program="""
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        return self.state + action, 0.0, False
""",
    observation_space=_SPACE,
    action_space=_SPACE,
    columns=dict.fromkeys(("observations", "actions"), np.zeros((2, 2))),
)
_REHEARSAL, _REHEARSAL_BYTES = _SMALL_JOB.encode(), _SMALL_JOB.layout.size
"""Encoded here, as every process writes to the memory of what it does itself."""


def run(
    requests: socket.socket, ready: int, worker: int, guards: Guards, *, rehearses: bool
) -> NoReturn:
    """Wait for a job, become the process of its program and end with it.

    `worker` is the process that this one must not outlive.
    """
    code = 1
    try:
        os.setsid()
        if rehearses:
            _rehearse()
        before = address_space()
        guards.early()
        die_with_parent()
        if os.getppid() != worker:
            os._exit(code)
        received = JobRequest.receive(requests)
        if received is None:  # the worker is gone
            os._exit(code)
        request, files = received
        job, memory = _settle(request, files, ready)
        handler = _handler(job)
        handler.prepare()
        stop = self_stopper()
        guards.last(request.limits, Room(before, request.job_bytes + request.slot_bytes))
        os.write(READY_DESCRIPTOR, READY)
        os.close(READY_DESCRIPTOR)
        _perform(handler, memory, checks_source=job.checks_source)
        code = 0
        stop()  # the worker waits for this
    except BaseException:  # noqa: BLE001  # nothing may escape into the code of the worker
        traceback.print_exc()
    finally:
        os._exit(code)


def _rehearse() -> None:
    """Do a small job to the end, so that the memory which that writes to is already our own."""
    handler = _handler(ReceivedJob.decode(_REHEARSAL))
    _perform(handler, mmap.mmap(-1, _REHEARSAL_BYTES), checks_source=False)


def _handler(job: ReceivedJob) -> Handler[Any]:
    """Return what does a job; its module is imported already, or else it cannot be."""
    found = handler_class(job.handler)
    return found(found.job_class(**job.parts))


def _perform(handler: Handler[Any], memory: mmap.mmap, *, checks_source: bool) -> None:
    """Have the program do its job; what it raises is reported."""
    job: Job = handler.job
    slots = job.layout.views(memory)
    reserve = mmap.mmap(-1, _RESERVE_BYTES)
    try:
        if checks_source:
            check_source(job.program, PROGRAM)
        code = compile(job.program, PROGRAM, "exec", dont_inherit=True)
        handler.run(ConfinedProgram(code, job, slots))
        slots["phase"][...] = Phase.DONE
    except BaseException as error:  # noqa: BLE001  # also SystemExit is the program's failure
        reserve.close()  # so that there is some memory to report with when the program took all
        _report(error, slots)


def _report(error: BaseException, slots: Columns) -> None:
    """Write down what went wrong, the kind first in case memory is too short for more."""
    slots["kind"][...] = 1 + KINDS.index(_kind(error, int(slots["phase"])))
    slots["line"][...] = _line(error)
    slots["message"][...] = _text(error).encode("utf-8", "replace")


def _kind(error: BaseException, phase: int) -> str:
    """Name the kind of failure."""
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, Complaint) and error.kind:
        return error.kind
    if phase == Phase.LOADING:
        return "load_error"
    return "wrong_output" if isinstance(error, Complaint) else "step_error"


def _line(error: BaseException) -> int:
    """Return the innermost line of the program that had a part in an error, or 0."""
    if isinstance(error, SyntaxError) and error.filename == PROGRAM:
        return error.lineno or 0
    line, entry = 0, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == PROGRAM:
            line = entry.tb_lineno
        entry = entry.tb_next
    if isinstance(error, Complaint):
        line = line or error.line
    return line


def _text(error: BaseException) -> str:
    """Return the type and the text of an error, as far as the program lets us."""
    if isinstance(error, Complaint):
        return str(error)
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == PROGRAM:
        return f"{name}: {error.msg}"
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # the text of an error is a program, too
        return name
    return f"{name}: {text[:_MESSAGE_CHARACTERS]}" if text else name


def _settle(request: JobRequest, files: Descriptors, ready: int) -> tuple[ReceivedJob, mmap.mmap]:
    """Map what the program works on; keep what it prints to, where READY is said, and pipes.

    Nothing else stays open.
    """
    os.dup2(files.log, 1)
    os.dup2(files.log, 2)
    if files.console:
        _connect(files.console)
    else:
        sys.stdout = sys.stderr = _log(request.limits.output_bytes)
    memory = mmap.mmap(files.slots, request.slot_bytes)
    job = ReceivedJob.decode(mmap.mmap(files.job, request.job_bytes, access=mmap.ACCESS_READ))
    kept = [ready, *(files.channel or ())[:2]]
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, READY_DESCRIPTOR + 3) for descriptor in kept]
    for number, descriptor in enumerate(kept, start=READY_DESCRIPTOR):
        os.dup2(descriptor, number)
    os.closerange(READY_DESCRIPTOR + len(kept), MOST_DESCRIPTORS)
    return job, memory


def _connect(console: Console) -> None:
    """Have the program read and write real files, also where it does so past `sys`."""
    os.dup2(console.stdin, 0)
    os.dup2(console.stdout, 1)
    reader = io.BufferedReader(io.FileIO(0, closefd=False))
    sink = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    stdin = io.TextIOWrapper(reader, "utf-8", "replace")
    stdout = io.TextIOWrapper(sink, "utf-8", "backslashreplace")
    for stream, mode in ((stdin, "r"), (stdout, "w")):
        vars(stream)["mode"] = mode  # which programs that make streams of their own ask for
    vars(sys).update(stdin=stdin, __stdin__=stdin, stdout=stdout, __stdout__=stdout)
    sys.stderr = _log(_ERROR_BYTES)


def _log(limit: int) -> TextIO:
    """Return a stream to the log, which keeps what is printed up to a limit."""
    kept: Any = _Log(limit)
    return io.TextIOWrapper(kept, "utf-8", "backslashreplace", write_through=True)


class _Log(io.RawIOBase):
    """Keeps what is printed up to a limit and takes the rest without a word."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def writable(self) -> bool:
        """Say that one can print."""
        return True

    def write(self, data: Any) -> int:
        """Keep what there is room for."""
        kept = bytes(data[: self._left])
        self._left -= len(kept)
        with suppress(OSError):  # a program may close its descriptors
            os.write(2, kept)
        return len(data)


class ForbiddenName(SyntaxError):
    """A program uses what it may not use on this machine, at a line."""


def check_source(program: str, file: str) -> None:
    """Refuse a program that reaches beyond computing; SyntaxError if it is none.

    This is done where the kernel cannot hold a program back (macOS, old kernels). It stops
    accidents, such as a program that reads files because a language model thinks that
    it helps. It is no boundary: whoever wants to get around it can.
    """
    for node in ast.walk(ast.parse(program, file)):
        for name in _names(node):
            line = getattr(node, "lineno", 1)
            raise ForbiddenName(
                f"{name!r} may not be used: on this machine programs are held back by their text "
                "alone, so they may do nothing but compute",
                (file, line, None, None),
            )


def _names(node: ast.AST) -> Iterator[str]:
    """Yield what a part of a program uses that it may not."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.partition(".")[0] in _MODULES)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        yield from (module,) if module.partition(".")[0] in _MODULES else ()
    elif isinstance(node, ast.Name):
        yield from (node.id,) if node.id in _FUNCTIONS else ()
    elif isinstance(node, ast.Attribute):
        hidden = node.attr.startswith("__") and node.attr not in _HARMLESS
        yield from (node.attr,) if hidden or node.attr in _MODULES | _ATTRIBUTES else ()
