"""What is done on a machine of the cluster: a job as a process of its own, and what it asks.

The worker of Ray is used again for other jobs. So nothing of a job happens in it: what a job
forbids itself, by seccomp and Landlock, would stay forbidden.
"""

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from cwm_cli.bench.executor import JobProcess, ProcessEnd
from cwm_cli.search.spending import SPENDING, answer_request

LONGEST_PRINTED = 256 << 10
"""Bytes of what a job prints that are kept, the last ones: they travel through Ray's memory."""

OF_RAY = "RAY_"
"""What the variables begin with that Ray gives its workers, its keys among them."""


class RemoteJob(NamedTuple):
    """A command as it is sent to another machine.

    `python` is the interpreter that the command means, in whose place a machine takes its own;
    `folder` is where it is started, if the machine has such a folder; `spending` is the file
    about which it may ask, on the machine that sent it.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    python: str
    folder: str
    spending: str | None = None


class RemoteOutcome(NamedTuple):
    """How a process ended, the end of what it printed, and where it ran."""

    end: ProcessEnd
    printed: bytes
    place: str


class SpendingAnswers:
    """Answers what jobs ask about spending; it runs on the machine that has the file."""

    def answer(self, place: str, request: bytes) -> bytes:
        """Answer a line with a line."""
        return answer_request(Path(place), request)


def carry_out(job: RemoteJob, answers: Any = None) -> RemoteOutcome:
    """Do a job in a fresh process, and wait for it; `answers` is an actor `SpendingAnswers`.

    The process ends when this worker does: it watches a pipe that is then closed.
    """
    import ray

    def ask(request: bytes) -> bytes:
        reply: bytes = ray.get(answers.answer.remote(job.spending, request))
        return reply

    with tempfile.TemporaryFile() as output, _asking(ask if job.spending else None) as spending:
        end = _run(job, output, spending)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - LONGEST_PRINTED))
        return RemoteOutcome(end, output.read(), _place())


def _run(job: RemoteJob, output: IO[bytes], spending: socket.socket | None) -> ProcessEnd:
    """Carry a job out, and return how it ended."""
    python = job.words[0] == job.python
    words = [sys.executable if python else job.words[0], *job.words[1:]]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(OF_RAY)}
    environment |= job.environment
    held = [spending.fileno()] if spending else []
    if spending:
        environment[SPENDING] = f"fd:{spending.fileno()}"
    folder = Path(job.folder) if Path(job.folder).is_dir() else None
    # Ray ignores this signal: nobody would get exit codes, nor would the job, which inherits that
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with JobProcess(words, output, environment, folder=folder, held=held) as process:
        if spending:
            spending.close()
        return process.wait()


@contextmanager
def _asking(ask: Callable[[bytes], bytes] | None) -> Iterator[socket.socket | None]:
    """Give a socket to ask on, if there is something to ask."""
    if ask is None:
        yield None
        return
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_relay, args=(ours, ask), daemon=True)
    thread.start()
    try:
        yield theirs
    finally:
        theirs.close()
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        thread.join()
        ours.close()


def _relay(ours: socket.socket, ask: Callable[[bytes], bytes]) -> None:
    """Pass on each line that a job asks, and its answer, until one of them hangs up."""
    with suppress(OSError), ours.makefile("rb") as requests:
        for request in requests:
            ours.sendall(ask(request).rstrip(b"\n") + b"\n")


def _place() -> str:
    """Name the node of the cluster that this is."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return f"{ray.util.get_node_ip_address()} ({node[:8]})"
