"""The worker: makes one process per program, watches it and says how it ended.

It never compiles, reads or relays anything of a program, so that nothing of
one program is left for the next.
"""

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
from cwm_cli.sandbox.candidate import MOST_DESCRIPTORS, READY
from cwm_cli.sandbox.confinement import Guards
from cwm_cli.sandbox.handlers import handler_class
from cwm_cli.sandbox.job import CONTROL_BYTES, Limits, Phase
from cwm_cli.sandbox.linux import adopt_orphans, fork_sibling, landlock_version, process_stat
from cwm_cli.sandbox.protocol import (
    BEGINNING,
    BEGUN,
    FLAGS,
    MADE,
    RESUMED,
    Descriptors,
    EndReason,
    Hello,
    JobReport,
    JobRequest,
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
"""Modules that programs find imported: those that compute, and those that these import late."""

ALWAYS = ("numpy",)
FORBIDDEN = "gymnasium"
"""It holds the true environments, each of which would be a perfect model of itself."""

_PREPARED = 2
"""How many processes are kept ready; to fork both at once causes fewer page faults here."""

_PATIENCE_SECONDS = 0.002
"""How long a further request may be waited for before the last program is cleaned up after."""

_LEISURE_SECONDS = 0.05
"""How long there has to be no request before processes are prepared, unless there are none."""

_TICK_SECONDS = 0.05
"""How often a program is looked at: twenty times within the shortest of the usual limits."""

_DUMP_SECONDS, _MOST_DUMP_WAITS = 0.02, 25
"""How long to wait for a process to write where it is; on a busy machine its turn may take long."""

_SWEEP_SECONDS = 5.0
"""How long ending what programs left behind may take, which is a matter of milliseconds."""

_MOST_MARKS = 1 << 16
_FIRST_DESCRIPTOR = 3
_PROGRESS = Struct("<QB7xB")
"""The first three fields of the first page of a job's answers."""

_COMMAND = f"{BEGINNING}; from cwm_cli.sandbox.worker import become_program; become_program()"


class HungUp(Exception):
    """The trusted side is gone, so there is nobody left to work for."""


class BadTool(Exception):
    """A tool cannot be given to programs; the text says why."""


class Endpoint(NamedTuple):
    """Where a worker hears of its jobs, and the empty folder that it lives in."""

    control: socket.socket
    folder: Path


def main() -> None:
    """Serve requests until the other side hangs up."""
    control, setup, *second = sys.argv[1:]
    first = Endpoint(socket.socket(fileno=int(control)), Path.cwd())
    other = Endpoint(socket.socket(fileno=int(second[0])), Path(second[1])) if second else None
    worker = _started(Setup.decode(setup), first, other)
    with suppress(HungUp, ConnectionError):
        while worker.serve(worker.next_request()):
            pass
    worker.end()


def _started(setup: Setup, end: Endpoint, second: Endpoint | None) -> "Worker":
    """Prepare the interpreter, become two workers if there is a second endpoint, and greet."""
    adopt_orphans()
    environment = dict(os.environ)
    guards, hello = prepare_interpreter(setup)
    if second is not None:
        end, hello = _doubled(end, second, hello)
    hello.send(end.control)
    make: Callable[[bool], PreparedProcess] = partial(PreparedProcess, guards)
    if setup.cold:
        make = partial(FreshProcess, setup, environment)
    return Worker(*end, make, leave_nothing=guards.leave_nothing)


def _doubled(first: Endpoint, second: Endpoint, hello: Hello) -> tuple[Endpoint, Hello]:
    """Become two workers where that is possible; return where this one lives and how it greets."""
    twin = None
    with suppress(OSError):  # upon which the other side starts another worker
        twin = fork_sibling()
    if twin != 0:
        second.control.close()
        return first, hello._replace(twin=twin or 0)
    first.control.close()
    os.setsid()
    os.chdir(second.folder)
    os.dup2(sys.stdout.fileno(), 2)  # who waits for last words of the first is to hear its end
    adopt_orphans()
    return second, hello


def prepare_interpreter(setup: Setup) -> tuple[Guards, Hello]:
    """Import and touch what programs and their handlers use, so that no program pays for it."""
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    for name in PRELOADED.split():
        importlib.import_module(name)
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
    guards = Guards(setup.layers, (*ALWAYS, *setup.tools))
    guards.inherited()
    sys.meta_path.insert(0, guards.imports)
    sys.argv = sys.orig_argv = [""]
    sys.path.clear()
    sys.path_importer_cache.clear()
    os.environ.clear()
    gc.freeze()
    gc.enable()
    return guards, Hello(guards.layers, landlock_version(), complaint)


def _load_tool(tool: str) -> None:
    """Import a tool and whatever it imports only when that is first used."""
    try:
        module = importlib.import_module(tool)
    except BaseException as error:
        raise BadTool(f"{tool!r} cannot be imported ({type(error).__name__}: {error})") from error
    WITHOUT_THREADS.get(tool, lambda module: None)(module)
    for name in dir(module):
        with suppress(Exception):  # a part that cannot be loaded here cannot be used, either
            getattr(module, name)
    if FORBIDDEN in sys.modules:
        raise BadTool(
            f"{tool!r} imports {FORBIDDEN}, which would let a program look up the true answers"
        )


def _compile_in_one_thread(mujoco: Any) -> None:
    """Have MuJoCo compile textures and meshes one after the other: the models are the same."""
    read, compiler = mujoco.MjModel.from_xml_string, '<compiler usethread="false"/>'

    def from_xml_string(xml: str | bytes, *more: Any, **named: Any) -> Any:
        """Load a model from the text of an XML file."""
        text = xml.decode() if isinstance(xml, bytes) else xml
        before, end, after = text.rpartition("</mujoco>")  # what comes last holds
        return read(f"{before}{compiler}{end}{after}" if end else text, *more, **named)

    mujoco.MjModel.from_xml_string = staticmethod(from_xml_string)
    if hasattr(mujoco, "MjSpec"):  # since 3.2
        for name in ("compile", "recompile"):
            _alone(mujoco.MjSpec, name)
    try:
        mujoco.MjModel.from_xml_string("<mujoco/>")
        if hasattr(mujoco, "MjSpec"):
            mujoco.MjSpec().compile()
    except Exception as error:
        raise BadTool(f"this 'mujoco' compiles models only in threads ({error})") from error


def _alone(spec: Any, name: str) -> None:
    """Have a method of a MuJoCo specification compile in one thread."""
    method = getattr(spec, name)

    def compile_alone(self: Any, *more: Any, **named: Any) -> Any:
        """Compile the model."""
        self.compiler.usethread = False
        return method(self, *more, **named)

    setattr(spec, name, compile_alone)


WITHOUT_THREADS: Mapping[str, Callable[[Any], None]] = {"mujoco": _compile_in_one_thread}
"""Tools that start threads, which programs may not, and how they do without."""


class Worker:
    """Serves one request after the other; what can wait is done while there is none.

    Processes for programs are prepared ahead of their jobs, so that no job waits for that.
    Cleaning up after a program can wait if its guards have it `leave_nothing`.
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
        self._leaving: WatchedProcess | None = None
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)

    def next_request(self) -> tuple[JobRequest, Descriptors] | None:
        """Wait for a request, and meanwhile clean up and prepare processes."""
        if not self._poller.poll(_PATIENCE_SECONDS * 1000):
            self._clean_up()
        hurries = self._poller.poll(_LEISURE_SECONDS * 1000 if self._prepared else 0)
        if not (hurries and self._prepared):
            while len(self._prepared) < _PREPARED:
                self._prepared.append(self._make_process(not hurries))
        return JobRequest.receive(self._control)

    def serve(self, received: tuple[JobRequest, Descriptors] | None) -> bool:
        """Run one job and report; return whether there was one.

        No request stays in a variable of a caller, where a process that is forked later sees it.
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
        done = reason is EndReason.EXITED and not process.is_reaped
        used = allowance.used(process.cpu_seconds())
        process.kill()
        code = 0 if done else process.end()
        self._leaving = process
        guarded = os.read(prepared.ready, 1) == READY  # does not wait: nobody can write
        JobReport(guarded, reason, code, used, allowance.slept).send(self._control)
        for descriptor in (prepared.ready, *files.all):
            os.close(descriptor)
        return True

    def end(self) -> NoReturn:
        """End, with every process that this one has started, and its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        _sweep(())
        os._exit(0)  # nothing is left to clean up, and tearing numpy down takes longer than a job

    def _clean_up(self, *at_work: int) -> None:
        """See to it that nothing is left of the last program, if it is not the one at work."""
        if self._leaving is None:
            return
        self._leaving.end()
        self._leaving = None
        _sweep({*at_work, *(prepared.pid for prepared in self._prepared)})
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _sweep(spared: Collection[int]) -> None:
    """Kill and reap what programs leave behind; orphans are adopted one generation at a time."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while strangers := [pid for pid in _children() if pid not in spared]:
        if time.monotonic() > deadline:
            raise TimeoutError("processes of a program cannot be ended")
        for pid in strangers:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Return the processes whose parent this one is, as far as that is known."""
    with suppress(OSError):
        return [int(pid) for pid in Path("/proc/thread-self/children").read_bytes().split()]
    return []


class PreparedProcess:
    """A process that waits for its job; `ready` tells once every guard is up."""

    def __init__(self, guards: Guards, rehearses: bool) -> None:
        """Fork this process, which keeps what it needs open and nothing else.

        One that rehearses is quicker once it is asked, by less than that takes.
        """
        worker = os.getpid()
        self.ready, ready = os.pipe()
        self._requests, requests = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ChildChanges.stop_telling()
            first = _FIRST_DESCRIPTOR
            for descriptor in sorted((requests.fileno(), ready, *guards.descriptors)):
                os.closerange(first, descriptor)
                first = descriptor + 1
            os.closerange(first, MOST_DESCRIPTORS)
            candidate.run(requests, ready, worker, guards, rehearses=rehearses)
        requests.close()
        os.close(ready)

    def give(self, request: JobRequest, files: Descriptors) -> None:
        """Hand the job over; a process that could not be set up is no longer there to take it."""
        with self._requests, suppress(BrokenPipeError):
            request.send(self._requests, files)


class FreshProcess(PreparedProcess):
    """A new interpreter, where forking one that has loaded numpy is not safe."""

    def __init__(self, setup: Setup, environment: dict[str, str], _: bool) -> None:
        """Start it; `environment` has what it takes to find modules and libraries."""
        self.ready, ready = os.pipe()
        self._requests, requests = socket.socketpair()
        with requests:
            ends = (requests.fileno(), ready)
            words = [*map(str, ends), str(os.getpid()), setup.encode()]
            process = subprocess.Popen(
                [sys.executable, *FLAGS, _COMMAND, *words], pass_fds=ends, env=environment
            )
        os.close(ready)
        self.pid = process.pid
        process.returncode = 0  # the worker itself waits for the end of it

    def give(self, request: JobRequest, files: Descriptors) -> None:
        """Hand the job over once the interpreter is prepared."""
        self._requests.recv(1)
        super().give(request, files)


def become_program() -> NoReturn:
    """Be the process of one program, in a new interpreter."""
    requests, ready, worker = map(int, sys.argv[1:4])
    guards, _ = prepare_interpreter(Setup.decode(sys.argv[4]))
    control = socket.socket(fileno=requests)
    control.send(b"W")
    candidate.run(control, ready, worker, guards, rehearses=False)


def _watch(process: "WatchedProcess", allowance: "_Allowance", page: mmap.mmap) -> EndReason:
    """Wait for the end of a program, or for a reason to end it.

    A process that has done its job stops itself, because to end takes it longer. In a
    conversation the limits hold for each question, and nothing is counted between two of them.
    """
    while True:
        process.wait()
        rows, phase, complaint = _PROGRESS.unpack_from(page)
        if process.is_done(phase == Phase.DONE or complaint > 0):
            return EndReason.EXITED
        if process.has_children():
            return EndReason.FORKED
        marks, used = process.marks(), process.cpu_seconds()
        if marks == b"":
            return EndReason.DISMISSED
        if marks is not None:
            allowance.mark(marks[-1:], used)
        reason = allowance.overdrawn(used, (phase, rows), asleep=process.is_asleep())
        if reason is not None:
            process.dump()
            return reason


class _Allowance:
    """What a program may use up, all in all or for one question.

    Only moves forward count as progress, and progress can be feigned for no
    longer than all the CPU time that a program has.
    """

    def __init__(self, limits: Limits, used: float) -> None:
        self._limits = limits
        self._furthest = (-1, -1)
        self.renew(used, counting=True)

    def renew(self, used: float, *, counting: bool) -> None:
        """Count anew from the CPU time used so far, or not at all."""
        self._counting = counting
        self._began = self._moved = used
        self._seen, self.slept = time.monotonic(), 0.0
        self._deadline = self._seen + self._limits.wall_seconds

    def mark(self, mark: bytes, used: float) -> None:
        """Count for a new question, go on counting, or stop."""
        if mark in (BEGUN, MADE):
            self.renew(used, counting=mark == BEGUN)
        else:
            self._counting, self._seen = mark == RESUMED, time.monotonic()

    def used(self, now: float) -> float:
        """Return the CPU time that has been used since it is counted."""
        return now - self._began

    def overdrawn(self, used: float, place: tuple[int, int], *, asleep: bool) -> EndReason | None:
        """Return the limit that is exceeded, if one is, by a program at a phase and a row."""
        now = time.monotonic()
        self.slept += now - self._seen if asleep and self._counting else 0.0
        self._seen = now
        if place > self._furthest and place[0] <= Phase.DONE:
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
    """Something to poll for, which tells that a child of this process has ended or stopped."""

    def __init__(self) -> None:
        self.descriptor, end = os.pipe()
        for each in (self.descriptor, end):
            os.set_blocking(each, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)

    @staticmethod
    def stop_telling() -> None:
        """Have nothing told of the children of a process that was forked from this one."""
        signal.set_wakeup_fd(-1)

    def clear(self) -> None:
        """Forget what was told."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 1 << 12)


class WatchedProcess:
    """The process of a program, seen from the worker; a conversation also has a pipe of marks."""

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
        if marks is not None:  # which are read now and then, but the end of them is noticed
            os.set_blocking(marks, False)
            self._poller.register(marks, select.POLLHUP)

    def wait(self) -> None:
        """Wait a moment for the process to end or to stop."""
        if self._has_changed():
            return
        events = [descriptor for descriptor, _ in self._poller.poll(_TICK_SECONDS * 1000)]
        if self._control in events:
            raise HungUp
        if self._changes.descriptor in events:
            self._changes.clear()
            self._has_changed()

    def _has_changed(self) -> bool:
        """Learn whether the process has ended or stopped."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            self._is_stopped = os.WIFSTOPPED(status)
            self._status = None if self._is_stopped else status
        return bool(pid)

    def is_done(self, says_so: bool) -> bool:
        """Return whether the process has ended, or has stopped when it said that it is done."""
        return self._status is not None or (self._is_stopped and says_so)

    @property
    def is_reaped(self) -> bool:
        """Whether the process has ended, as opposed to being stopped."""
        return self._status is not None

    def marks(self) -> bytes | None:
        """Return the marks that have come, empty when there will be no more, or None."""
        with suppress(BlockingIOError):
            return None if self._marks is None else os.read(self._marks, _MOST_MARKS)
        return None

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, or else the time it has had."""
        if sys.platform == "linux":
            with suppress(OSError):
                return time.clock_gettime((~self.pid << 3) | 2)  # the clock of another process
        return time.monotonic() - self._started

    def is_asleep(self) -> bool:
        """Return whether the process waits or is stopped, as opposed to having no turn."""
        stat = process_stat(self.pid)
        return stat is not None and stat.state in "STt"

    def has_children(self) -> bool:
        """Return whether the process has started others, which no limit stops root from."""
        with suppress(OSError):
            return bool(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_bytes())
        return False

    def dump(self) -> None:
        """Have the process write to its log where it is, before it is ended."""
        before = self.cpu_seconds()
        os.kill(self.pid, signal.SIGUSR1)
        for _ in range(_MOST_DUMP_WAITS):
            time.sleep(_DUMP_SECONDS)
            if self.cpu_seconds() > before:
                break

    def kill(self) -> None:
        """Kill the process and its group, without waiting for the end."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill and reap the process; return its exit code."""
        self.kill()
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(self._status)
