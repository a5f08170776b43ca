"""Executors, which run the repeatable commands of a benchmark in parallel.

`carried_out` runs commands on an `Executor`, such as `LocalProcesses`. A `JobProcess` is the
process of one command: it ends with its parent process, and reports its memory and CPU time.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.runs.storage import BusyError, storage_of
from cwm_cli.search.spending import SPENDING, lapse
from cwm_cli.text import clean

LOST = "its process ended without a result"
"""Failure reason of a job whose process reported no error."""

ERROR = "Error: "
"""Prefix of an output line that reports the error of a command."""

BUSY = "another process is using it"
"""Prefix of the error of a command if another process holds the lock on its work."""

KILLED = "its process was ended by"
"""Prefix of the failure reason if a signal ended the process."""

LONGEST_WAIT = 1.0
"""Seconds after which `Executor.wait` returns if no command has ended."""

STARTER = "CWM_STARTER"
"""Environment variable with the number of a pipe that is closed when the parent process ends."""

TICK_SECONDS = 0.05
"""Interval between checks whether a process has ended; jobs take at least seconds."""

LONGEST_REASON = 300
"""Maximum length of a failure reason, in characters."""


class Command(NamedTuple):
    """A repeatable command: it saves its results in files before it exits with code 0.

    Attributes:
        name: A name that is unique among the commands of an executor.
        words: The program and its arguments.
        log: The file for the output of the command.
        environment: Further environment variables.
        held: File descriptors that a process on this machine keeps open. If one belongs to a
            lock, a command that briefly outlives its executor keeps the lock.
        spending: The file, on the executor's machine, with the shared cost limit of all
            commands (`cwm_cli.search.spending`), or None for no limit. The environment variable
            `CWM_SPENDING` of the command contains the address for its spending requests.
        cores: Number of CPU cores that the command and its children use.
    """

    name: str
    words: Sequence[str]
    log: Path
    environment: Mapping[str, str] = {}
    held: Sequence[int] = ()
    spending: Path | None = None
    cores: float = 1.0


class Ended(NamedTuple):
    """The outcome of a command that has ended.

    Attributes:
        name: The name of the command.
        reason: Why the command failed, in one line; None if it succeeded.
        lost: Whether the command was lost with its machine, so that a retry can succeed.
        peak_memory: Peak memory of the process in bytes, or None if unknown.
        place: The machine of the command, or "" if unknown.
        cpu_seconds: CPU time of the process and its children, as counted by
            `ProcessEnd`, or None if unknown.
    """

    name: str
    reason: str | None = None
    lost: bool = False
    peak_memory: int | None = None
    place: str = ""
    cpu_seconds: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the command did nothing because another process does its work."""
        return bool(self.reason) and str(self.reason).startswith(BUSY)

    @property
    def is_gone(self) -> bool:
        """Whether the command was ended from outside, without an error of its own."""
        return self.lost or str(self.reason).startswith(KILLED)


class Started(NamedTuple):
    """The event of a command being started, for the first time or again."""

    command: Command


class Postponed(NamedTuple):
    """The event of a started command that will be started again, and the reason."""

    command: Command
    reason: str


class Idle(NamedTuple):
    """The event that no command has ended for a while; `running` counts the commands."""

    running: int


@dataclass
class Executor:
    """Base class for executors, which run independent commands, at most `workers` at a time.

    Subclasses are dataclasses; their other fields are options (`-o executor.KEY=VALUE`).

    The caller checks `has_room`, calls `start` for each command and `wait` for the results,
    and finally `close`, which ends the commands that are still running. A lost command can be
    started again: it resumes from its saved state. Plugins add executors, such as the queue of a
    cluster, with the hook `cwm_executors`::

        @dataclass
        class Queue(Executor):
            def start(self, command):
                submit(command.words, command.environment, command.log)
    """

    workers: int = field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 2))
    """Maximum number of commands that run at the same time. Default: one for every two CPU cores.
    With 0, which some executors accept, only the size of the cluster limits the number."""

    def has_room(self) -> bool:
        """Return whether another command can be started now."""
        raise NotImplementedError

    def start(self, command: Command) -> None:
        """Start a command without waiting for its end."""
        raise NotImplementedError

    def wait(self) -> list[Ended]:
        """Wait until at least one command has ended.

        Returns:
            The outcomes of all commands that have ended since the last call. The list is empty
            if no command ended within about a second.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End all commands that are still running."""


class _Child(NamedTuple):
    command: Command
    process: "JobProcess"


@dataclass
class LocalProcesses(Executor):
    """An executor that runs commands as child processes, which end when this process ends.

    Ctrl-C reaches only this process because each child has its own session.
    """

    _children: list[_Child] = field(default_factory=list, init=False, repr=False)

    def has_room(self) -> bool:
        """Return whether fewer than `workers` processes are running."""
        return len(self._children) < self.workers

    def start(self, command: Command) -> None:
        """Start a process that has no input and prints to its log."""
        spending = {SPENDING: f"file:{command.spending}"} if command.spending else {}
        environment = {**os.environ, **command.environment, **spending}
        with fresh_log(command.log) as output:
            process = JobProcess(command.words, output, environment, held=command.held)
        self._children.append(_Child(command, process))

    def wait(self) -> list[Ended]:
        """Wait for at most a second until a process has ended."""
        deadline = time.monotonic() + LONGEST_WAIT
        while True:
            ended, running = [], []
            for child in self._children:
                if (end := child.process.ended()) is None:
                    running.append(child)
                    continue
                name, reason = child.command.name, logged_reason(end.code, child.command.log)
                ended.append(
                    Ended(name, reason, peak_memory=end.peak_memory, cpu_seconds=end.cpu_seconds)
                )
            self._children = running
            if ended or time.monotonic() >= deadline:
                return ended
            time.sleep(TICK_SECONDS)

    def close(self) -> None:
        """Kill all child processes and their descendants, and wait for their end."""
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.wait()
        self._children = []


CommandEvent = Started | Postponed | Ended | Idle


def carried_out(
    executor: Executor,
    commands: Iterable[Command | None],
    *,
    stopping: Callable[[int], None] | None = lambda running: None,
) -> Generator[CommandEvent]:
    """Run commands on an executor, yield an event for each change, and close the executor.

    A lost command is started up to three more times: the command itself may be the reason why
    machines fail. A command whose work another process does is retried after 1 second. This delay
    doubles with each retry, up to 60 seconds.

    The first Ctrl-C stops further starts. When the running commands have ended, the function
    raises `KeyboardInterrupt`. A second Ctrl-C raises it immediately, which ends the running
    commands. Ctrl-C is handled only in the main thread.

    Args:
        executor: The executor that runs the commands.
        commands: The commands. The next one is taken only if it can be started, so that it may
            depend on the events yielded before. None means that no command is ready yet.
        stopping: Callback for the first Ctrl-C, with the number of running commands. It runs in
            its own thread. None leaves Ctrl-C alone: the first one raises `KeyboardInterrupt`.

    Yields:
        `Started`, `Postponed` and `Ended` for a command, and `Idle` about once a second while no
        command ends. Close the generator if it is not exhausted.
    """
    queue = _CommandQueue(executor, iter(commands), stopping)
    with closing(executor), queue.handle_interrupts():
        while True:
            yield from queue.start_commands()
            if queue.running:
                yield from queue.wait()
            elif queue.is_stopped:
                raise KeyboardInterrupt
            elif queue.is_exhausted and not queue.retries:
                return
            else:
                time.sleep(TICK_SECONDS)


# Marks the end of the commands, since None means that no command is ready yet.
_END = Command("", (), Path())


class _Retry(NamedTuple):
    command: Command
    due: float  # by time.monotonic()


@dataclass
class _CommandQueue:
    """The running commands by name, the pending retries, and the source of further commands."""

    executor: Executor
    source: Iterator[Command | None]
    stopping: Callable[[int], None] | None
    running: dict[str, Command] = field(default_factory=dict)
    retries: deque[_Retry] = field(default_factory=deque)
    losses: dict[str, int] = field(default_factory=dict)
    delays: dict[str, float] = field(default_factory=dict)
    is_stopped: bool = False
    is_exhausted: bool = False

    def start_commands(self) -> Iterator[Started]:
        """Start commands until the executor is full or no command is ready."""
        while not self.is_stopped and self.executor.has_room():
            now = time.monotonic()
            retry = next((each for each in self.retries if each.due <= now), None)
            if retry is not None:
                self.retries.remove(retry)
                command: Command | None = retry.command
            else:
                command = next(self.source, _END)
            if command is _END:
                self.is_exhausted = True
            if command is None or command is _END:
                return
            self.executor.start(command)
            self.running[command.name] = command
            yield Started(command)

    def wait(self) -> Iterator[Postponed | Ended | Idle]:
        """Wait for commands to end, and schedule retries of lost and busy ones."""
        outcomes = self.executor.wait()
        if not outcomes:
            yield Idle(len(self.running))
        for ended in outcomes:
            command = self.running.pop(ended.name)
            reason = ended.reason or ""
            # A command that died may have paid for its open requests, so they count as spent.
            if command.spending and not ended.is_busy:
                lapse(command.spending, command.name)
            if ended.is_busy:
                delay = self.delays.get(ended.name, 1.0)
                self.delays[ended.name] = min(2 * delay, 60.0)
                self.retries.append(_Retry(command, time.monotonic() + delay))
                yield Postponed(command, reason)
            elif ended.lost and self.losses.get(ended.name, 0) < 3:
                self.losses[ended.name] = self.losses.get(ended.name, 0) + 1
                self.retries.append(_Retry(command, 0.0))
                yield Postponed(command, reason)
            else:
                yield ended

    @contextmanager
    def handle_interrupts(self) -> Iterator[None]:
        """Stop further starts at the first Ctrl-C, if this thread can handle signals."""
        before, stopping = signal.getsignal(signal.SIGINT), self.stopping
        is_main = threading.current_thread() is threading.main_thread()
        if stopping is None or not is_main or before in (signal.SIG_IGN, None):
            yield
            return

        def handle(*_: Any) -> None:
            if self.is_stopped:
                raise KeyboardInterrupt
            self.is_stopped = True
            # In a thread, because the interrupted code may hold a lock that `stopping` needs.
            args = (len(self.running),)
            threading.Thread(target=stopping, args=args, daemon=True).start()

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def chosen_executor(
    name: str, workers: int | None, options: Sequence[str] | Mapping[str, Any]
) -> tuple[Executor, list[str]]:
    """Create an executor from the command line.

    Args:
        name: The registered name of the executor.
        workers: Maximum number of parallel commands, or None for the executor's default.
        options: All options. Those of the executor have the form `executor.KEY=VALUE`.

    Returns:
        The executor and the remaining options.
    """
    pairs = [f"{k}={v}" for k, v in options.items()] if isinstance(options, Mapping) else options
    own = [pair for pair in pairs if pair.startswith("executor.")]
    owner = Owner("executor", find("executor", name))
    chosen = read_options(own, [owner])["executor"]
    given = {} if workers is None else {"workers": workers}
    executor = owner.factory(**{**chosen, **given})
    return executor, [pair for pair in pairs if pair not in own]


def stopping_words(running: int) -> str:
    """Return the message for the first Ctrl-C, with the number of running jobs."""
    jobs = "1 running job" if running == 1 else f"{running} running jobs"
    return f"stopping: waiting for {jobs}; press Ctrl-C again to end now"


@contextmanager
def job_process() -> Iterator[None]:
    """Run the work of a command's process within this context.

    The process ends when its parent process ends. A `CwmError`, such as a lock held by another
    process, ends it with an error line that the executor reports.
    """
    end_with_starter()
    try:
        yield
    except CwmError as error:
        busy = f"{BUSY}: " if isinstance(error, BusyError) else ""
        sys.exit(f"{ERROR}{busy}{' '.join(str(error).split())}")


def seconds_between_reads(folder: Path) -> float:
    """Return the polling interval for the journals of running jobs in a folder, in seconds."""
    return 5.0 if storage_of(folder) else 0.2  # from a URL, each read is a request


def logged_reason(code: int, log: Path) -> str | None:
    """Return why a process failed, according to its log; see `reason_of`."""
    text = ""
    if code > 0:
        with suppress(OSError):
            text = log.read_text(encoding="utf-8", errors="replace")
    return reason_of(code, text)


def reason_of(code: int, text: str) -> str | None:
    """Return why a process failed, in one line, or None if it succeeded.

    Args:
        code: The exit code, or the negated number of the signal that ended the process.
        text: The output of the process. The last line with an error is the reason; if there is
            none, the last line that is not empty.
    """
    if code == 0:
        return None
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        return f"{KILLED} {known.get(-code, f'signal {-code}')}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    last = (errors or lines or [f"its process ended with exit code {code}"])[-1]
    return clean(last, limit=LONGEST_REASON)


_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


class ProcessEnd(NamedTuple):
    """The exit status and the resource usage of a process.

    Attributes:
        code: The exit code, or the negated number of the signal that ended the process.
        peak_memory: Peak memory in bytes, without child processes. It is sampled while the process
            runs: a peak in the last moments may be missing, and a very short process has None.
        cpu_seconds: CPU time in user and system mode, including the descendants whose parent
            waited for them. The workers of a closed sandbox and the programs in them are
            included. Workers of a process that was killed, or that ended with its parent, are not.
    """

    code: int
    peak_memory: int | None
    cpu_seconds: float


class JobProcess:
    """A running command that ends when this process ends, even if this process is killed.

    For that, the command must call `end_with_starter`. The environment variable `STARTER` contains
    the number of a pipe that the system closes when this process ends. As a context manager, the
    command is killed on exit.
    """

    def __init__(
        self,
        words: Sequence[str],
        output: IO[bytes],
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        held: Sequence[int] = (),
        in_session: bool = False,
    ) -> None:
        """Start the command, without input.

        Args:
            words: The program and its arguments.
            output: The file for stdout and stderr.
            environment: All environment variables of the command, except `STARTER`.
            folder: The working directory; default: the folder of this process.
            held: Further file descriptors that the command keeps open.
            in_session: Whether the command shares the session of this process. If it does, a
                Ctrl-C in the terminal also reaches the command.
        """
        watched, self._open_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**environment, STARTER: str(watched)},
                pass_fds=(watched, *held),
                start_new_session=not in_session,
            )
        except BaseException:
            os.close(self._open_end)
            raise
        finally:
            os.close(watched)
        self._began, self._peak = time.monotonic(), 0
        self._end: ProcessEnd | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is None:
            self.kill()
            self.wait()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def ended(self) -> ProcessEnd | None:
        """Return the exit status, or None while the process runs.

        Call this method often, because each call samples the memory. The `ru_maxrss` that the
        system reports after the end would include the memory of this process: before `exec`, the
        child process is a copy of this process.
        """
        if self._end is not None:
            return self._end
        with suppress(OSError):
            found = _PEAK.search(Path(f"/proc/{self.pid}/status").read_text())
            self._peak = max(self._peak, 1024 * int(found[1]) if found else 0)
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        os.close(self._open_end)
        peak = self._peak
        if not Path("/proc/self/status").exists():
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._end = ProcessEnd(code, peak or None, usage.ru_utime + usage.ru_stime)
        return self._end

    def wait(self) -> ProcessEnd:
        """Wait until the process has ended, and return its exit status."""
        while (end := self.ended()) is None:
            # The interval grows, so that waiting takes at most a tenth longer than the process.
            tenth = (time.monotonic() - self._began) / 10
            time.sleep(min(max(tenth, 0.001), TICK_SECONDS))
        return end

    def kill(self) -> None:
        """Kill the process and its descendants, without waiting for their end."""
        if self._end is None:
            for pid in (self.pid, *_descendants(self.pid)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Return the IDs of all descendants that /proc lists.

    Killing the process group is not enough because sandboxes have their own sessions.
    """
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return [found for child in children for found in (child, *_descendants(child))]


def fresh_log(place: Path) -> IO[bytes]:
    """Create an empty log file for a job.

    An existing file is removed first: if it were a pipe, opening it would block.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    return place.open("wb")


def end_with_starter() -> None:
    """End this process as soon as its parent has ended, if `STARTER` is set in the environment."""
    descriptor = os.environ.pop(STARTER, "")

    def watch() -> None:
        # The parent writes nothing: the read returns when the system closes the other end.
        while os.read(int(descriptor), 4096):
            pass
        os._exit(1)

    if descriptor:
        threading.Thread(target=watch, daemon=True).start()
