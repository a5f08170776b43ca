"""Where the jobs of a benchmark run: commands that may be repeated, several at a time."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cwm_cli.registry import Owner, find, read_options
from cwm_cli.text import clean

TICK_SECONDS = 0.05
"""How often it is looked whether a process has ended; tasks take seconds at least."""

ERROR = "Error: "
"""What the line begins with in which a command says why it ended."""

LONGEST_REASON = 300

OWN = "executor."
"""What the options of an executor begin with."""

SPENDING = "CWM_SPENDING"
"""The environment variable that says how a command asks what it may spend: `file:PATH`, or `fd:N`
for a socket to whoever asks for it."""

LEASH = "CWM_LEASH"
"""The environment variable with a descriptor that is closed when whoever started a process ends."""


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
    that of all of its processes in bytes, and `place` the machine that it ran on, where known.
    """

    name: str
    reason: str | None = None
    lost: bool = False
    peak_memory: int | None = None
    place: str = ""


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

    workers: int = 1

    def has_room(self) -> bool:
        """Whether another command may be started now."""
        raise NotImplementedError

    def start(self, command: Command) -> None:
        """Start a command, and do not wait for it."""
        raise NotImplementedError

    def wait(self) -> list[Ended]:
        """Wait until some command has ended, and return all that have."""
        raise NotImplementedError

    def close(self) -> None:
        """End all commands that are still running."""


class _Child(NamedTuple):
    """A process on this machine, and the command that it carries out."""

    command: Command
    process: "subprocess.Popen[bytes]"


@dataclass
class LocalProcesses(Executor):
    """Runs commands as processes on this machine, which end when this one does.

    Ctrl-C is left to this process: the others are in sessions of their own.
    """

    _children: list[_Child] = field(default_factory=list, init=False, repr=False)
    _leash: tuple[int, int] | None = field(default=None, init=False, repr=False)

    def has_room(self) -> bool:
        """Whether fewer processes than allowed are running."""
        return len(self._children) < self.workers

    def start(self, command: Command) -> None:
        """Start a process; it reads nothing, and prints to its log."""
        self._leash = self._leash or os.pipe()
        command.log.parent.mkdir(parents=True, exist_ok=True)
        command.log.unlink(missing_ok=True)  # whatever it was: a pipe would be waited for
        with command.log.open("wb") as output:
            process = subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    **command.environment,
                    **({SPENDING: f"file:{command.spending}"} if command.spending else {}),
                    LEASH: str(self._leash[0]),
                },
                pass_fds=(self._leash[0], *command.held),
            )
        self._children.append(_Child(command, process))

    def wait(self) -> list[Ended]:
        """Wait for processes to end."""
        while not (over := [c for c in self._children if c.process.poll() is not None]):
            time.sleep(TICK_SECONDS)
        self._children = [child for child in self._children if child not in over]
        return [Ended(child.command.name, _reason(child)) for child in over]

    def close(self) -> None:
        """End all processes, whatever they do."""
        for child in self._children:
            child.process.kill()
            child.process.wait()
        for descriptor in self._leash or ():
            os.close(descriptor)
        self._children, self._leash = [], None


def chosen_executor(
    name: str, workers: int | None, pairs: Sequence[str]
) -> tuple[Executor, list[str]]:
    """Make an executor with its options, and return the other options.

    Its own are written `executor.KEY=VALUE`; by default it has one worker for every two cores.
    """
    own = [pair for pair in pairs if pair.startswith(OWN)]
    owner = Owner("executor", find("executor", name))
    options = read_options(own, [owner])["executor"]
    made = owner.factory(workers=workers or max(1, (os.cpu_count() or 1) // 2), **options)
    return made, [pair for pair in pairs if pair not in own]


def end_with_starter() -> None:
    """Have this process end at once when the one that started it has ended, if that is asked."""
    if descriptor := os.environ.pop(LEASH, ""):
        threading.Thread(target=_watch, args=(int(descriptor),), daemon=True).start()


def _watch(descriptor: int) -> None:
    """End at once when a descriptor is closed at its other end."""
    while os.read(descriptor, 4096):
        pass
    os._exit(1)


def _reason(child: _Child) -> str | None:
    """Say in a line why a process that has ended did not do what it was to do."""
    code = child.process.returncode
    if code == 0:
        return None
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    text = child.command.log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    last = (errors or lines or [f"its process ended with exit code {code}"])[-1]
    return clean(last, limit=LONGEST_REASON)
