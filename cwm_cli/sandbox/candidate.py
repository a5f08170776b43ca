"""What happens in the process of one program: guards first, then its job."""

import mmap
import os
import signal
import socket
import traceback
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.answers import Complaint
from cwm_cli.sandbox.confinement import Guards, Room, address_space
from cwm_cli.sandbox.descriptors import READY_DESCRIPTOR, settle
from cwm_cli.sandbox.gate import check
from cwm_cli.sandbox.handlers import ConfinedProgram, Handler, handler_class
from cwm_cli.sandbox.job import KINDS, Job, Order, Phase, PredictionJob
from cwm_cli.sandbox.linux import die_with_parent
from cwm_cli.sandbox.protocol import Request

PROGRAM = "<program>"
"""The file name of the program in tracebacks."""

READY = b"R"
"""Said once every guard is up, before the program is so much as compiled."""

_SPACE = Space("box", "float64", (2,), (-1.0, -1.0), (1.0, 1.0))
_REHEARSAL = PredictionJob(
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
    rows=np.arange(2),
)

_CONVERSATION_CPU_SECONDS = 86400.0
_RESERVE_BYTES = 1 << 20


def run(requests: socket.socket, ready: int, worker: int, guards: Guards) -> NoReturn:
    """Wait for a job, become the process of its program and end with it.

    `worker` is the process that this one must not outlive.
    """
    code = 1
    try:
        os.setsid()
        _rehearse()
        before = address_space()
        guards.early()
        die_with_parent()
        if os.getppid() != worker:
            os._exit(code)
        received = Request.receive(requests)
        if received is None:  # the worker is gone
            os._exit(code)
        request, files = received
        order, arena = settle(request, files, ready)
        handler = _handler(order)
        handler.prepare()
        limits = request.limits
        if files.channel:  # the worker counts the CPU time of each question, the kernel that of all
            limits = replace(limits, cpu_seconds=_CONVERSATION_CPU_SECONDS)
        guards.last(limits, Room(before, request.job_bytes + request.arena_bytes))
        os.write(READY_DESCRIPTOR, READY)
        os.close(READY_DESCRIPTOR)
        perform(order, handler, arena)
        code = 0
        signal.raise_signal(signal.SIGSTOP)  # upon which the worker has what it waits for
    except BaseException:  # noqa: BLE001  # nothing may escape into the code of the worker
        traceback.print_exc()
    finally:
        os._exit(code)


def _rehearse() -> None:
    """Do a small job to the end, so that the memory which that writes to is already our own."""
    order = Order.decode(_REHEARSAL.encode())
    perform(order, _handler(order), mmap.mmap(-1, _REHEARSAL.layout.size))


def _handler(order: Order) -> Handler[Any]:
    """Return what does a job; its module is imported already, or else it cannot be."""
    found = handler_class(order.handler)
    return found(found.job_class(**order.parts))


def perform(order: Order, handler: Handler[Any], arena: mmap.mmap) -> None:
    """Have the program do its job; what it raises is reported."""
    job: Job = handler.job
    views = job.layout.views(arena)
    reserve = mmap.mmap(-1, _RESERVE_BYTES)
    try:
        if order.gated:
            check(job.program, PROGRAM)
        code = compile(job.program, PROGRAM, "exec", dont_inherit=True)
        handler.run(ConfinedProgram(code, job, views))
        views["phase"][...] = Phase.DONE
    except BaseException as error:  # noqa: BLE001  # also SystemExit is the program's failure
        reserve.close()  # so that there is some memory to report with when the program took all
        _report(error, views)


def _report(error: BaseException, views: Columns) -> None:
    """Write down what went wrong, the kind first in case memory is too short for more."""
    views["kind"][...] = 1 + KINDS.index(_kind(error, int(views["phase"])))
    views["line"][...] = _line(error)
    views["message"][...] = _text(error).encode("utf-8", "replace")


def _kind(error: BaseException, phase: int) -> str:
    """Name the kind of failure."""
    if isinstance(error, MemoryError):
        return "memory"
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
    return f"{name}: {text[:4000]}" if text else name
