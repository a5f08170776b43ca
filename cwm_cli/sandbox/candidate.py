"""What happens in the process of one program: guards first, then the program, row by row."""

import mmap
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from types import CodeType, ModuleType
from typing import Any, NoReturn

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.answers import (
    Complaint,
    mask_writer,
    parts,
    reward_of,
    terminated_of,
    values,
    writer,
)
from cwm_cli.sandbox.arena import KINDS, Phase
from cwm_cli.sandbox.confinement import Guards, Room, address_space
from cwm_cli.sandbox.descriptors import CHANNEL_DESCRIPTOR, READY_DESCRIPTOR, settle
from cwm_cli.sandbox.gate import check
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.linux import die_with_parent
from cwm_cli.sandbox.protocol import Request
from cwm_cli.sandbox.scripting import allow_deep_recursion, run_script
from cwm_cli.sandbox.seeding import reseed, reseed_for, reseeded

PROGRAM = "<program>"
"""The file name of the program in tracebacks."""

READY = b"R"
"""Said once every guard is up, before the program is so much as compiled."""

_REHEARSAL = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        return self.state + action, 0.0, False
"""

_SPACE = Space("box", "float64", (2,), (-1.0, -1.0), (1.0, 1.0))
_COLUMNS = dict.fromkeys(("observations", "actions"), np.zeros((2, 2)))
_REHEARSAL_JOB = Job(_REHEARSAL, 0, np.arange(2), _SPACE, _SPACE, _COLUMNS)

_SESSION_CPU_SECONDS = 86400.0
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
        job, arena = settle(request, files, ready)
        if job.is_script:
            allow_deep_recursion()
        limits = _for_the_kernel(request.limits, is_session=files.channel is not None)
        guards.last(limits, Room(before, request.job_bytes + request.arena_bytes))
        os.write(READY_DESCRIPTOR, READY)
        os.close(READY_DESCRIPTOR)
        perform(job, arena)
        code = 0
        signal.raise_signal(signal.SIGSTOP)  # upon which the worker has what it waits for
    except BaseException:  # noqa: BLE001  # nothing may escape into the code of the worker
        traceback.print_exc()
    finally:
        os._exit(code)


def _for_the_kernel(limits: Limits, *, is_session: bool) -> Limits:
    """Return what the kernel watches; in a session the worker counts each decision, it all."""
    return replace(limits, cpu_seconds=_SESSION_CPU_SECONDS) if is_session else limits


def _rehearse() -> None:
    """Do a small job to the end, so that the memory which that writes to is already our own."""
    perform(Job.decode(_REHEARSAL_JOB.encode()), mmap.mmap(-1, _REHEARSAL_JOB.layout.size))


def perform(job: Job, arena: mmap.mmap) -> None:
    """Have the program do its job; what it raises is reported."""
    views = job.layout.views(arena)
    reserve = mmap.mmap(-1, _RESERVE_BYTES)
    try:
        if job.gated:
            check(job.program, PROGRAM)
        code = compile(job.program, PROGRAM, "exec", dont_inherit=True)
        if job.is_script:
            run_script(code, job, views)
        elif job.planners or job.is_timed:
            _converse(load(code, job, views), job, views)
        else:
            answer_all(code, job, views)
        views["phase"][...] = Phase.DONE
    except BaseException as error:  # noqa: BLE001  # also SystemExit is the program's failure
        reserve.close()  # so that there is some memory to report with when the program took all
        _report(error, views)


def _converse(environment: Any, job: Job, views: Columns) -> None:
    """Have the program asked, as long as anybody asks; what that takes is loaded only here."""
    if job.is_timed:
        from cwm_cli.sandbox.pacing import pace

        pace(environment, job, views, CHANNEL_DESCRIPTOR)
    else:
        from cwm_cli.sandbox.deciding import decide

        decide(environment, job, views, CHANNEL_DESCRIPTOR, partial(reseed_for, job))


def load(code: CodeType, job: Job, views: Columns) -> Any:
    """Run the text of a program and make its Environment."""
    if job.draws:
        reseed(job.seed)
    module = ModuleType("world_model")
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)  # noqa: S102
    factory = getattr(module, "Environment", None)
    if not callable(factory):
        raise Complaint("the program defines no class Environment")
    environment = factory()
    for method in ("set_state", "step"):
        if not callable(getattr(environment, method, None)):
            raise Complaint(f"the class Environment has no method {method}")
    views["phase"][...] = Phase.STEPPING
    return environment


def answer_all(code: CodeType, job: Job, views: Columns) -> None:
    """Ask for every row; those that are asked again go to a program that knows of no other."""
    questions = enumerate(_inputs(job))
    answer(load(code, job, views), islice(questions, len(job.rows) - job.again), job, views)
    if job.again:
        answer(load(code, job, views), questions, job, views)


def answer(
    environment: Any, questions: Iterable[tuple[int, tuple[Any, Any]]], job: Job, views: Columns
) -> None:
    """Ask for one row after the other; this loop is where the time goes."""
    slots = (views[name] for name, _ in job.observation_space.leaves("next_observations"))
    write = writer(job.observation_space, slots)
    write_valid = mask_writer(job.action_space, views["valid_actions"]) if job.valid else None
    rewards, progress = views["rewards"], views["progress"].reshape(1).data
    terminations, status = views["terminations"].data, views["status"].data
    set_state, step = environment.set_state, environment.step
    for row, (observation, action) in questions:
        set_state(observation)
        result = step(action)
        if write_valid:
            *result, valid = parts(result, with_valid=True)
            write_valid(row, valid)
        elif type(result) is not tuple or len(result) != 3:
            result = parts(result)
        next_observation, reward, terminated = result
        write(row, next_observation)
        rewards[row] = reward if type(reward) is float else reward_of(reward)
        terminations[row] = terminated if type(terminated) is bool else terminated_of(terminated)
        status[row] = 1
        progress[0] = row + 1


def _inputs(job: Job) -> Iterator[tuple[Any, Any]]:
    """Yield observations and actions."""
    observations = values(job.observation_space, iter(job.observations))
    actions = values(job.action_space, iter(job.actions))
    pairs = zip(observations, actions, strict=True)
    return reseeded(pairs, job) if job.draws else pairs


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
