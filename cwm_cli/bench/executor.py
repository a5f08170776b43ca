"""Where the jobs of a benchmark run: commands that may be repeated, several at a time."""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.bench.processes import TICK_SECONDS, JobProcess, end_with_starter, fresh_log
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.runs.places import storage_of
from cwm_cli.runs.storage import BusyError
from cwm_cli.search.spending import SPENDING, lapse
from cwm_cli.text import clean

LOST = "its process ended without a result"
"""Reason of a failed job whose process gave none."""

LONGEST_WAIT = 1.0
"""Seconds after which `LocalProcesses.wait` returns though no process has ended."""

RETRIES = 3
"""How often a command that was lost is started again: it may be the command that ends machines."""

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds until a command is tried again that others are busy with; doubled every time."""

ERROR = "Error: "
"""What the line begins with in which a command says why it ended."""

BUSY = "another process is using it"
"""What the line of a command begins with whose work is being done by another process."""

KILLED = "its process was ended by"
"""What the reason begins with why a command failed whose process was ended by a signal."""

LONGEST_REASON = 300

OWN = "executor."
"""What the options of an executor begin with."""


class Command(NamedTuple):
    """A command that may be repeated: what it did is in files before it ends with exit code 0.

    It prints to `log`. `held` are descriptors that a process on this machine keeps open:
    with that of a lock, a command that outlives its executor for a moment keeps the lock.
    `spending` is the file, on the machine of the executor, with what all commands together may
    spend, None for no limit (`cwm_cli.search.spending`): a command finds in the environment
    variable `CWM_SPENDING` how it asks there. It keeps `cores` busy, its children counted.
    """

    name: str
    words: Sequence[str]
    log: Path
    environment: Mapping[str, str] = {}
    held: Sequence[int] = ()
    spending: Path | None = None
    cores: float = 1.0


class Ended(NamedTuple):
    """A command that is over; `reason` says in a line why it failed, None if it did not.

    One that was `lost`, with the machine that it was on, is worth another try. `peak_memory` is
    the most that its process had in memory at a time, in bytes, and `cpu_seconds` what that and
    its children took, as far as `cwm_cli.bench.processes.ProcessEnd` counts them; `place` is the
    machine that it ran on. All are None, or empty, where they are not known.
    """

    name: str
    reason: str | None = None
    lost: bool = False
    peak_memory: int | None = None
    place: str = ""
    cpu_seconds: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it did nothing, since another process does its work."""
        return bool(self.reason) and str(self.reason).startswith(BUSY)

    @property
    def is_gone(self) -> bool:
        """Whether it was ended from outside, and did not fail itself."""
        return self.lost or str(self.reason).startswith(KILLED)


class Started(NamedTuple):
    """A command was started, for the first time or again."""

    command: Command


class Postponed(NamedTuple):
    """A command that was started is to be started again, `reason` says why."""

    command: Command
    reason: str


class Idle(NamedTuple):
    """No command has ended for a while; so many are `running`."""

    running: int


@dataclass
class Executor:
    """Runs many independent commands, at most `workers` at a time.

    A dataclass whose other fields are its options (`-o executor.KEY=VALUE`).

    In the order of a life: `has_room` says whether another command may begin, `start`
    begins it, `wait` returns those that have ended, `close` ends the others. A command
    may be repeated whenever it was lost: where it was stopped it goes on. The hook
    `cwm_executors` offers further ones, such as a queue of a cluster::

        @dataclass
        class Queue(Executor):
            def start(self, command):
                submit(command.words, command.environment, command.log)
    """

    workers: int = field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 2))
    """Maximum number of commands that run at the same time. Default: one for every two CPU cores.
    With 0, which some executors accept, only the size of the cluster limits the number."""

    def has_room(self) -> bool:
        """Whether another command may be started now."""
        raise NotImplementedError

    def start(self, command: Command) -> None:
        """Start a command, and do not wait for it."""
        raise NotImplementedError

    def wait(self) -> list[Ended]:
        """Wait until some command has ended, and return all that have; none after a while."""
        raise NotImplementedError

    def close(self) -> None:
        """End all commands that are still running."""


class _Child(NamedTuple):
    """A command, and the process on this machine that carries it out."""

    command: Command
    process: JobProcess


@dataclass
class LocalProcesses(Executor):
    """Runs commands as processes on this machine, which end when this one does.

    Ctrl-C is left to this process: the others are in sessions of their own.
    """

    _children: list[_Child] = field(default_factory=list, init=False, repr=False)

    def has_room(self) -> bool:
        """Whether fewer processes than allowed are running."""
        return len(self._children) < self.workers

    def start(self, command: Command) -> None:
        """Start a process; it reads nothing, and prints to its log."""
        spending = {SPENDING: f"file:{command.spending}"} if command.spending else {}
        environment = {**os.environ, **command.environment, **spending}
        with fresh_log(command.log) as output:
            process = JobProcess(command.words, output, environment, held=command.held)
        self._children.append(_Child(command, process))

    def wait(self) -> list[Ended]:
        """Wait for processes to end, for a second at most."""
        deadline = time.monotonic() + LONGEST_WAIT
        while not (ended := self._reaped()) and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS)
        return ended

    def _reaped(self) -> list[Ended]:
        """Take leave of the processes that have ended."""
        ended, left = [], []
        for child in self._children:
            end = child.process.ended()
            if end is None:
                left.append(child)
                continue
            reason = logged_reason(end.code, child.command.log)
            ended.append(
                Ended(
                    child.command.name,
                    reason,
                    peak_memory=end.peak_memory,
                    cpu_seconds=end.cpu_seconds,
                )
            )
        self._children = left
        return ended

    def close(self) -> None:
        """End all processes and whatever descends from them, whatever they do."""
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
    stopping: Callable[[int], None] = lambda running: None,
) -> Generator[CommandEvent]:
    """Start commands while there is room, wait for them, and close the executor in the end.

    Commands are asked for when one can be started, so that they may depend on what was yielded
    before; None says that there is nothing to start yet. Whatever was lost is started again, at
    most `RETRIES` times, and what another process works on until it does no more. `Idle` comes
    about once a second while nothing ends, for those who look after what runs.

    After the first Ctrl-C nothing is started any more: `stopping` is told how many commands are
    still let finish, in a thread of its own, and then `KeyboardInterrupt` is raised. A second one
    raises it at once, which ends them. Both need the main thread. Close the iterator if it is not
    used up.
    """
    with _CommandQueue(executor, iter(commands), stopping) as waiting, waiting.listening():
        while True:
            yield from waiting.begin()
            if waiting.running:
                yield from waiting.settle()
            elif waiting.is_stopped:
                raise KeyboardInterrupt
            elif waiting.is_over:
                return
            else:
                time.sleep(TICK_SECONDS)


class _Later(NamedTuple):
    """A command that is to be started again, not before a time."""

    command: Command
    due: float


@dataclass
class _CommandQueue:
    """The commands that run, by name, those to be started again, and what yields the others."""

    executor: Executor
    source: Iterator[Command | None]
    stopping: Callable[[int], None]
    running: dict[str, Command] = field(default_factory=dict)
    later: deque[_Later] = field(default_factory=deque)
    losses: dict[str, int] = field(default_factory=dict)
    delays: dict[str, float] = field(default_factory=dict)
    is_stopped: bool = False
    is_used_up: bool = False

    def __enter__(self) -> "_CommandQueue":
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.close()

    @property
    def is_over(self) -> bool:
        """Whether nothing is to come."""
        return self.is_used_up and not self.later

    def begin(self) -> Iterator[Started]:
        """Start what can be started."""
        while not self.is_stopped and self.executor.has_room():
            command = self._next()
            if command is None:
                return
            self.executor.start(command)
            self.running[command.name] = command
            yield Started(command)

    def settle(self) -> Iterator[Postponed | Ended | Idle]:
        """Wait, and say what has become of commands."""
        found = self.executor.wait()
        if not found:
            yield Idle(len(self.running))
        for ended in found:
            command = self.running.pop(ended.name)
            reason = ended.reason or ""
            if command.spending and not ended.is_busy:
                lapse(command.spending, command.name)
            if ended.is_busy:
                delay = self.delays.get(ended.name, FIRST_DELAY)
                self.delays[ended.name] = min(2 * delay, LONGEST_DELAY)
                self.later.append(_Later(command, time.monotonic() + delay))
                yield Postponed(command, reason)
            elif ended.lost and self.losses.get(ended.name, 0) < RETRIES:
                self.losses[ended.name] = self.losses.get(ended.name, 0) + 1
                self.later.append(_Later(command, 0.0))
                yield Postponed(command, reason)
            else:
                yield ended

    def _next(self) -> Command | None:
        """Return what is to be started now, if anything is."""
        now = time.monotonic()
        for place, each in enumerate(self.later):
            if each.due <= now:
                del self.later[place]
                return each.command
        if self.is_used_up:
            return None
        try:
            return next(self.source)
        except StopIteration:
            self.is_used_up = True
            return None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the first Ctrl-C as a wish to stop, where somebody can press it and be heard."""
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or before in (signal.SIG_IGN, None):
            yield
            return

        def heard(*_: Any) -> None:
            if self.is_stopped:
                raise KeyboardInterrupt
            self.is_stopped = True
            # a handler must not wait for a lock that the code it stands in may hold
            words = threading.Thread(target=self.stopping, args=(len(self.running),), daemon=True)
            words.start()

        signal.signal(signal.SIGINT, heard)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def chosen_executor(
    name: str, workers: int | None, options: Sequence[str] | Mapping[str, Any]
) -> tuple[Executor, list[str]]:
    """Make an executor with its options, and return the other options.

    Its own are written `executor.KEY=VALUE`; None for `workers` leaves their number to it.
    """
    pairs = [f"{k}={v}" for k, v in options.items()] if isinstance(options, Mapping) else options
    own = [pair for pair in pairs if pair.startswith(OWN)]
    owner = Owner("executor", find("executor", name))
    chosen = read_options(own, [owner])["executor"]
    given = {} if workers is None else {"workers": workers}
    made = owner.factory(**{**chosen, **given})
    return made, [pair for pair in pairs if pair not in own]


def stopping_words(running: int) -> str:
    """Say that nothing is begun any more, since Ctrl-C was pressed."""
    jobs = "1 running job" if running == 1 else f"{running} running jobs"
    return f"stopping: waiting for {jobs}; press Ctrl-C again to end now"


@contextmanager
def job_process() -> Iterator[None]:
    """Do within this what the process of a command is for.

    It ends with its starter; what the user can mend ends it with a line, which the executor
    tells, and so does a lock that another process has.
    """
    end_with_starter()
    try:
        yield
    except CwmError as error:
        busy = f"{BUSY}: " if isinstance(error, BusyError) else ""
        sys.exit(f"{ERROR}{busy}{' '.join(str(error).split())}")


def seconds_between_reads(folder: Path) -> float:
    """Return how long to wait before the journals of running jobs in a folder are read again."""
    return 5.0 if storage_of(folder) else 0.2  # from a URL, each read is a request


def logged_reason(code: int, log: Path) -> str | None:
    """Say in a line why a process did not do what it was to do, by the log that it printed to."""
    text = ""
    if code > 0:
        with suppress(OSError):
            text = log.read_text(encoding="utf-8", errors="replace")
    return reason_of(code, text)


def reason_of(code: int, text: str) -> str | None:
    """Say in a line why a process did not do what it was to do, None if it did.

    `code` is its exit code, or a signal's number less than 0; `text` is what it printed.
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
