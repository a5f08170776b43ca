"""The worker: starts one process per program, watches it and reports how it ended.

It never compiles, reads or forwards data of a program, so that one program leaves nothing for the
next.
"""

import ctypes
import faulthandler
import gc
import importlib
import mmap
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cwm_cli.sandbox import candidate
from cwm_cli.sandbox.candidate import MAX_DESCRIPTORS, READY
from cwm_cli.sandbox.confinement import Guards
from cwm_cli.sandbox.handlers import handler_class
from cwm_cli.sandbox.job import CONTROL_BYTES, Phase
from cwm_cli.sandbox.linux import adopt_orphans, fork_sibling, landlock_version, process_stat
from cwm_cli.sandbox.protocol import (
    BEGINNING,
    FLAGS,
    QUESTION_ANSWERED,
    QUESTION_SENT,
    RESUMED,
    Descriptors,
    EndReason,
    Hello,
    JobReport,
    JobRequest,
    Limits,
    Setup,
)

PRELOADED = """
abc argparse array ast atexit base64 binascii bisect calendar cmath codecs collections.abc colorsys
contextlib copy csv dataclasses datetime decimal difflib enum errno fractions functools getpass
graphlib gzip hashlib heapq html inspect io itertools json keyword linecache locale logging math
numbers operator os.path pathlib pickle pprint queue random re reprlib resource sched secrets select
shlex signal statistics string stringprep struct sys tempfile textwrap threading time timeit
token tokenize traceback types typing unicodedata uuid warnings weakref zlib
_strptime encodings.ascii encodings.latin_1 encodings.utf_16 encodings.utf_8_sig encodings.idna
numpy.char numpy.fft numpy.lib.stride_tricks numpy.linalg numpy.ma numpy.polynomial numpy.random
numpy.rec numpy.strings
"""
"""Modules that are imported before programs run: modules that only compute, and modules that these
import late."""

FORBIDDEN = "gymnasium"
"""This module contains the true environments, each a perfect model of itself."""

_PROGRESS = Struct("<QB7xB")  # the first three slots of the control page


class Disconnected(Exception):
    """The trusted side has closed the connection or ended."""


class BadTool(Exception):
    """A tool cannot be given to programs; the message is the reason."""


class Endpoint(NamedTuple):
    """The connection of a worker, and its empty working folder."""

    control: socket.socket
    folder: Path


def main() -> None:
    """Run jobs until the trusted side closes the connection."""
    control, setup, *second = sys.argv[1:]
    first = Endpoint(socket.socket(fileno=int(control)), Path.cwd())
    other = Endpoint(socket.socket(fileno=int(second[0])), Path(second[1])) if second else None
    worker = _make_worker(Setup.decode(setup), first, other)
    with suppress(Disconnected, ConnectionError):
        while worker.serve(worker.next_request()):
            pass
    worker.end()


def _make_worker(setup: Setup, end: Endpoint, second: Endpoint | None) -> "Worker":
    """Prepare the interpreter, fork a twin if there is a second endpoint, and send the greeting."""
    adopt_orphans()
    environment = dict(os.environ)
    guards, hello = prepare_interpreter(setup)
    if second is not None:
        end, hello = _fork_twin(end, second, hello)
    hello.send(end.control)
    make: Callable[[bool], PreparedProcess] = partial(PreparedProcess, guards)
    if setup.cold:
        make = partial(FreshProcess, setup, environment)
    return Worker(*end, make, leave_nothing=guards.leave_nothing)


def _fork_twin(first: Endpoint, second: Endpoint, hello: Hello) -> tuple[Endpoint, Hello]:
    """Fork a second worker if possible; return the endpoint and the greeting of this process."""
    twin = None
    with suppress(OSError):  # then the trusted side starts another worker
        twin = fork_sibling()
    if twin != 0:
        second.control.close()
        return first, hello._replace(twin=twin or 0)
    first.control.close()
    os.setsid()  # as `pool.start` does for a worker of its own
    os.chdir(second.folder)
    os.dup2(sys.stdout.fileno(), 2)  # close standard error, whose reader waits for the first worker
    adopt_orphans()
    return second, hello


def prepare_interpreter(setup: Setup) -> tuple[Guards, Hello]:
    """Import tools, handlers and modules for programs, and activate the guards of the worker.

    Programs are forked from this interpreter, so their time limits exclude the imports.

    Raises:
        ImportError: A handler imports Gymnasium.
    """
    faulthandler.enable(file=2, all_threads=False)
    # `WatchedProcess.dump` sends this signal to a program that takes too long.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    for name in PRELOADED.split():
        importlib.import_module(name)
    # numpy initialises these parts when they are first used.
    np.random.default_rng(0).normal(size=3)
    np.linalg.inv(np.eye(2))
    str(np.array([1.5]))
    complaint = ""
    try:
        for tool in setup.tools:
            _load_tool(tool)
    except BadTool as error:
        complaint = str(error)
    for address in () if complaint else setup.handlers:
        handler_class(address)
        if FORBIDDEN in sys.modules:
            raise ImportError(
                f"the handler {address} imports {FORBIDDEN}, which no program may see"
            )
    guards = Guards(setup.layers, ("numpy", *setup.tools))
    guards.apply_inherited()
    sys.meta_path.insert(0, guards.imports)  # from here on, only imported modules can be imported
    sys.argv = sys.orig_argv = [""]
    sys.path.clear()
    sys.path_importer_cache.clear()
    os.environ.clear()
    # A collection in a fork would otherwise write to all objects, and so copy their pages.
    gc.freeze()
    gc.enable()
    return guards, Hello(guards.layers, landlock_version(), complaint)


def _load_tool(tool: str) -> None:
    """Import a tool, and all its attributes that it imports lazily."""
    try:
        module = importlib.import_module(tool)
    except BaseException as error:
        raise BadTool(f"{tool!r} cannot be imported ({type(error).__name__}: {error})") from error
    WITHOUT_THREADS.get(tool, lambda module: None)(module)
    for name in dir(module):
        with suppress(Exception):  # a part that cannot be loaded here is not available
            getattr(module, name)
    if FORBIDDEN in sys.modules:
        raise BadTool(
            f"{tool!r} imports {FORBIDDEN}, which would let a program look up the true answers"
        )


def _adapt_mujoco(mujoco: Any) -> None:
    """Make MuJoCo compile textures and meshes in one thread, and read no clock in a step.

    Models and steps are the same. MuJoCo reads the clock several times in a step to fill
    `data.timer`. Each reading is a system call in the sandbox, and takes longer than the step.
    """
    for library in Path(getattr(mujoco, "__file__", "")).parent.glob("libmujoco.*"):
        with suppress(OSError, ValueError):  # then steps are slow
            ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), "mjcb_time").value = None
    read, compiler = mujoco.MjModel.from_xml_string, '<compiler usethread="false"/>'

    def from_xml_string(xml: str | bytes, *more: Any, **named: Any) -> Any:
        text = xml.decode() if isinstance(xml, bytes) else xml
        before, end, after = text.rpartition("</mujoco>")  # the last compiler element has priority
        return read(f"{before}{compiler}{end}{after}" if end else text, *more, **named)

    mujoco.MjModel.from_xml_string = staticmethod(from_xml_string)

    def in_one_thread(method: Callable[..., Any]) -> Callable[..., Any]:
        def compile_in_one_thread(self: Any, *more: Any, **named: Any) -> Any:
            self.compiler.usethread = False
            return method(self, *more, **named)

        return compile_in_one_thread

    if hasattr(mujoco, "MjSpec"):  # since 3.2
        for name in ("compile", "recompile"):
            setattr(mujoco.MjSpec, name, in_one_thread(getattr(mujoco.MjSpec, name)))
    try:
        mujoco.MjModel.from_xml_string("<mujoco/>")
        if hasattr(mujoco, "MjSpec"):
            mujoco.MjSpec().compile()
    except Exception as error:
        raise BadTool(f"this 'mujoco' compiles models only in threads ({error})") from error


WITHOUT_THREADS: Mapping[str, Callable[[Any], None]] = {"mujoco": _adapt_mujoco}
"""Functions that make tools work without threads, which programs may not start."""


class Worker:
    """Runs one job after the other, and does other work while no request waits.

    Processes for programs are forked before their jobs arrive, so that no job waits for a fork.

    Args:
        control: Connection to the trusted side.
        folder: The empty working folder.
        make_process: Starts a process; its argument is whether there is time for a rehearsal.
        leave_nothing: Whether the guards prevent programs from leaving files and processes. Then
            cleaning up after a program may wait until the next job is done.
    """

    def __init__(
        self,
        control: socket.socket,
        folder: Path,
        make_process: Callable[[bool], "PreparedProcess"],
        *,
        leave_nothing: bool,
    ) -> None:
        self._control, self._folder, self._make_process = control, folder, make_process
        self._leave_nothing = leave_nothing
        self._changes = ChildChanges()
        self._prepared: deque[PreparedProcess] = deque()
        self._finished: WatchedProcess | None = None
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)

    def next_request(self) -> tuple[JobRequest, Descriptors] | None:
        """Wait for a request; clean up and prepare processes in the meantime."""
        # If a request follows within 2 ms, it does not have to wait until all is cleaned up.
        if not self._poller.poll(2):
            self._clean_up()
        # Prepare processes after 50 ms without a request, or immediately if there are none.
        is_urgent = self._poller.poll(50 if self._prepared else 0)
        if not (is_urgent and self._prepared):
            while len(self._prepared) < 2:  # two forks in a row cause fewer page faults here
                self._prepared.append(self._make_process(not is_urgent))
        return JobRequest.receive(self._control)

    def serve(self, received: tuple[JobRequest, Descriptors] | None) -> bool:
        """Run one job and send the report; return False if there is no request.

        The caller must not store the request in a variable: processes that are forked later would
        see it.
        """
        if received is None:
            return False
        request, files = received
        if not self._leave_nothing:
            self._clean_up()
        prepared = self._prepared.popleft()
        marks = files.channel.marks if files.channel else None
        process = WatchedProcess(prepared.pid, self._control, self._changes, marks)
        try:
            prepared.give(request._replace(limits=request.limits.without_time()), files)
            self._clean_up(prepared.pid)
            allowance = _Allowance(request.limits, process.cpu_seconds())
            with mmap.mmap(files.slots, CONTROL_BYTES, prot=mmap.PROT_READ) as page:
                reason = _watch(process, allowance, page)
        except BaseException:
            process.end()
            raise
        # A process that has finished its job is only stopped; its end would delay the report.
        is_done = reason is EndReason.EXITED and not process.is_reaped
        used = allowance.used(process.cpu_seconds())
        process.kill()
        code = 0 if is_done else process.end()
        self._finished = process
        guarded = os.read(prepared.ready, 1) == READY  # does not block: the writer has ended
        JobReport(guarded, reason, code, used, allowance.slept).send(self._control)
        for descriptor in (prepared.ready, *files.all):
            os.close(descriptor)
        return True

    def end(self) -> NoReturn:
        """Remove the folder and end all processes that this one has started, then this one."""
        shutil.rmtree(self._folder, ignore_errors=True)
        _kill_children(())
        os._exit(0)  # without finalisation, which takes longer than a job

    def _clean_up(self, *running: int) -> None:
        """Remove processes and files of the last program, except `running` processes."""
        if self._finished is None:
            return
        self._finished.end()
        self._finished = None
        _kill_children({*running, *(prepared.pid for prepared in self._prepared)})
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _kill_children(spared: Collection[int]) -> None:
    """Kill and reap the children of this process, except `spared`.

    The loop repeats, since orphans of a killed process become children of this one. It takes
    milliseconds; after 5 s it gives up.
    """
    deadline = time.monotonic() + 5.0
    while strays := [pid for pid in _children() if pid not in spared]:
        if time.monotonic() > deadline:
            raise TimeoutError("processes of a program cannot be ended")
        for pid in strays:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> list[int]:
    with suppress(OSError):  # some kernels do not have this file
        return [int(pid) for pid in Path("/proc/thread-self/children").read_bytes().split()]
    return []


class PreparedProcess:
    """A forked process that waits for its job.

    `ready` is a descriptor that receives `READY` when all guards are active.
    """

    def __init__(self, guards: Guards, rehearses: bool) -> None:
        """Fork this process and close all descriptors in the fork that it does not need.

        With a rehearsal the process runs its job faster, but by less than the rehearsal takes.
        """
        worker = os.getpid()
        self.ready, ready = os.pipe()
        self._requests, requests = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ChildChanges.disable()  # the worker reads the same pipe
            first = 3  # after the standard streams
            for descriptor in sorted((requests.fileno(), ready, *guards.descriptors)):
                os.closerange(first, descriptor)
                first = descriptor + 1
            os.closerange(first, MAX_DESCRIPTORS)
            candidate.run(requests, ready, worker, guards, rehearses=rehearses)
        requests.close()
        os.close(ready)

    def give(self, request: JobRequest, files: Descriptors) -> None:
        """Send the job; ignore a process that has failed to start, which the report shows."""
        with self._requests, suppress(BrokenPipeError):
            request.send(self._requests, files)


class FreshProcess(PreparedProcess):
    """A new interpreter, for systems where a fork after loading numpy is not safe."""

    def __init__(self, setup: Setup, environment: dict[str, str], _: bool) -> None:
        """Start it; `environment` contains the paths of modules and libraries."""
        self.ready, ready = os.pipe()
        self._requests, requests = socket.socketpair()
        with requests:
            ends = (requests.fileno(), ready)
            words = [*map(str, ends), str(os.getpid()), setup.encode()]
            command = "from cwm_cli.sandbox.worker import become_program; become_program()"
            process = subprocess.Popen(
                [sys.executable, *FLAGS, f"{BEGINNING}; {command}", *words],
                pass_fds=ends,
                env=environment,
            )
        os.close(ready)
        self.pid = process.pid
        process.returncode = 0  # keeps `Popen` from reaping it: the worker does that

    def give(self, request: JobRequest, files: Descriptors) -> None:
        """Send the job once the interpreter is prepared."""
        self._requests.recv(1)
        super().give(request, files)


def become_program() -> NoReturn:
    """Run as the process of one program, in a new interpreter."""
    requests, ready, worker = map(int, sys.argv[1:4])
    guards, _ = prepare_interpreter(Setup.decode(sys.argv[4]))
    control = socket.socket(fileno=requests)
    control.send(b"W")
    candidate.run(control, ready, worker, guards, rehearses=False)


def _watch(process: "WatchedProcess", allowance: "_Allowance", page: mmap.mmap) -> EndReason:
    """Wait until a program ends or has to be ended; return the reason.

    A process that has finished its job stops itself, because ending itself would take longer.
    """
    while True:
        process.wait()
        rows, phase, failure_kind = _PROGRESS.unpack_from(page)
        if process.is_done(phase == Phase.DONE or failure_kind > 0):
            return EndReason.EXITED
        if process.has_children():
            return EndReason.FORKED
        marks, used = process.marks(), process.cpu_seconds()
        if marks == b"":
            return EndReason.DISMISSED
        if marks is not None:
            allowance.apply_mark(marks[-1:], used)
        reason = allowance.exceeded(used, (phase, rows), asleep=process.is_asleep())
        if reason is not None:
            process.dump()
            return reason


class _Allowance:
    """The remaining time of a program, for the whole job or for each question.

    In a conversation, time does not count between two questions. Only forward moves count as
    progress, so a program can forge progress only until its CPU time is used up.
    """

    def __init__(self, limits: Limits, used: float) -> None:
        self._limits = limits
        self._furthest = (-1, -1)
        self._restart(used, counting=True)

    def _restart(self, used: float, *, counting: bool) -> None:
        self._counting = counting
        self._began = self._moved = used
        self._seen, self.slept = time.monotonic(), 0.0
        self._deadline = self._seen + self._limits.wall_seconds

    def apply_mark(self, mark: bytes, used: float) -> None:
        """Restart for a new question, resume counting, or pause."""
        if mark in (QUESTION_SENT, QUESTION_ANSWERED):
            self._restart(used, counting=mark == QUESTION_SENT)
        else:
            self._counting, self._seen = mark == RESUMED, time.monotonic()

    def used(self, now: float) -> float:
        """Return the CPU time since the last restart, given the CPU time of the process."""
        return now - self._began

    def exceeded(self, used: float, place: tuple[int, int], *, asleep: bool) -> EndReason | None:
        """Return the limit that a program exceeds, or None.

        Args:
            used: CPU time of the process in seconds.
            place: Phase and row of the program.
            asleep: Whether the process is sleeping or stopped.
        """
        now = time.monotonic()
        self.slept += now - self._seen if asleep and self._counting else 0.0
        self._seen = now
        if place > self._furthest and place[0] <= Phase.DONE:  # no forged phase counts
            self._furthest, self._moved = place, used
        if not self._counting:
            return None
        if used - self._moved > self._limits.stall_seconds:
            return EndReason.STALLED
        if used - self._began > self._limits.cpu_seconds:
            return EndReason.OUT_OF_CPU
        if self.slept > self._limits.sleep_seconds:
            return EndReason.ASLEEP
        return EndReason.OUT_OF_TIME if now > self._deadline else None


class ChildChanges:
    """A descriptor that becomes readable when a child of this process ends or stops."""

    def __init__(self) -> None:
        self.descriptor, end = os.pipe()
        for descriptor in (self.descriptor, end):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)

    @staticmethod
    def disable() -> None:
        """Stop writing to the descriptor, in a process that was forked from this one."""
        signal.set_wakeup_fd(-1)

    def clear(self) -> None:
        """Make the descriptor unreadable until the next change."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 1 << 12)


class WatchedProcess:
    """The process of a program, from the view of the worker.

    Args:
        pid: Process number.
        control: Connection to the trusted side, which is watched for its end.
        changes: Reports changes of child processes.
        marks: The pipe of marks of a conversation, or None.
    """

    def __init__(
        self, pid: int, control: socket.socket, changes: ChildChanges, marks: int | None
    ) -> None:
        self.pid = pid
        self._is_stopped = False
        self._started = time.monotonic()
        self._status: int | None = None
        self._control = control.fileno()
        self._changes = changes
        self._poller = select.poll()
        self._marks = marks
        for descriptor in (self._control, changes.descriptor):
            self._poller.register(descriptor, select.POLLIN)
        if marks is not None:  # read at each tick; only the end of the pipe wakes the worker
            os.set_blocking(marks, False)
            self._poller.register(marks, select.POLLHUP)

    def wait(self) -> None:
        """Wait up to one tick until the process ends or stops.

        Raises:
            Disconnected: The trusted side has closed the connection.
        """
        if self._has_changed():
            return
        tick_milliseconds = 50  # a twentieth of the shortest usual limit
        events = [descriptor for descriptor, _ in self._poller.poll(tick_milliseconds)]
        if self._control in events:
            raise Disconnected
        if self._changes.descriptor in events:
            self._changes.clear()
            self._has_changed()

    def _has_changed(self) -> bool:
        """Update the state; return whether the process has ended or stopped."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            self._is_stopped = os.WIFSTOPPED(status)
            self._status = None if self._is_stopped else status
        return bool(pid)

    def is_done(self, is_finished: bool) -> bool:
        """Return whether the process has ended, or has stopped after a finished job."""
        return self._status is not None or (self._is_stopped and is_finished)

    @property
    def is_reaped(self) -> bool:
        """Whether the process has ended, as opposed to being stopped."""
        return self._status is not None

    def marks(self) -> bytes | None:
        """Return new marks, None if there are none, or b"" if the pipe is closed."""
        with suppress(BlockingIOError):
            return None if self._marks is None else os.read(self._marks, 1 << 16)
        return None

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process, or the elapsed time if that cannot be read."""
        if sys.platform == "linux":
            with suppress(OSError):
                return time.clock_gettime((~self.pid << 3) | 2)  # clock_getcpuclockid(pid)
        return time.monotonic() - self._started

    def is_asleep(self) -> bool:
        """Return whether the process sleeps or is stopped, as opposed to waiting for a core."""
        stat = process_stat(self.pid)
        return stat is not None and stat.state in "STt"

    def has_children(self) -> bool:
        """Return whether the process has started others; the limit on them does not bind root."""
        with suppress(OSError):
            return bool(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_bytes())
        return False

    def dump(self) -> None:
        """Make the process write its stack to its log, and wait up to 0.5 s for that."""
        before = self.cpu_seconds()
        os.kill(self.pid, signal.SIGUSR1)
        for _ in range(25):
            time.sleep(0.02)
            if self.cpu_seconds() > before:
                break

    def kill(self) -> None:
        """Kill the process and its group without waiting for its end."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
        # `candidate.run` has made the process the leader of its group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill and reap the process; return its exit code."""
        self.kill()
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(self._status)
