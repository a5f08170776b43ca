"""Run a job on a machine of the cluster in its own process, and relay its spending requests.

Ray reuses its workers for other jobs. So no job runs inside a worker: restrictions that a job sets
for itself, by seccomp and Landlock, would remain in force.
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


class RemoteJob(NamedTuple):
    """A command in the form that is sent to another machine.

    Attributes:
        words: The command line.
        environment: Environment variables to set.
        python: The sender's interpreter. If the command starts with it, a machine uses its own.
        folder: Working folder, if the machine has it.
        spending: The file for spending requests, on the sender's machine.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    python: str
    folder: str
    spending: str | None = None


class RemoteOutcome(NamedTuple):
    """How a process ended, the end of its output, and the machine that it ran on."""

    end: ProcessEnd
    printed: bytes
    place: str


class SpendingAnswers:
    """Answers spending requests of jobs, on the machine that has the file."""

    def answer(self, place: str, request: bytes) -> bytes:
        """Answer a request line with a reply line."""
        return answer_request(Path(place), request)


def carry_out(job: RemoteJob, answers: Any = None) -> RemoteOutcome:
    """Run a job in a new process and wait for it; `answers` is an actor of `SpendingAnswers`.

    The process ends with this worker, because it watches a pipe that closes then.
    """
    import ray

    def ask(request: bytes) -> bytes:
        reply: bytes = ray.get(answers.answer.remote(job.spending, request))
        return reply

    with tempfile.TemporaryFile() as output, _asking(ask if job.spending else None) as spending:
        end = _run(job, output, spending)
        size = output.seek(0, os.SEEK_END)
        # Maximum number of last bytes of a job's output to keep. They pass through Ray's memory.
        longest_printed = 256 << 10
        output.seek(max(0, size - longest_printed))
        return RemoteOutcome(end, output.read(), _place())


def _run(job: RemoteJob, output: IO[bytes], spending: socket.socket | None) -> ProcessEnd:
    """Run a job, and return how it ended."""
    python = job.words[0] == job.python
    words = [sys.executable if python else job.words[0], *job.words[1:]]
    of_ray = "RAY_"  # prefix of the variables that Ray sets for its workers, including its keys
    environment = {k: v for k, v in os.environ.items() if not k.startswith(of_ray)}
    environment |= job.environment
    held = [spending.fileno()] if spending else []
    if spending:
        environment[SPENDING] = f"fd:{spending.fileno()}"
    folder = Path(job.folder) if Path(job.folder).is_dir() else None
    # Ray ignores this signal, and the job would inherit that: neither could get exit codes
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with JobProcess(words, output, environment, folder=folder, held=held) as process:
        if spending:
            spending.close()
        return process.wait()


@contextmanager
def _asking(ask: Callable[[bytes], bytes] | None) -> Iterator[socket.socket | None]:
    """Yield a socket for spending requests, or None without a function that answers them."""
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
    """Forward each request line and its answer until one side closes."""
    with suppress(OSError), ours.makefile("rb") as requests:
        for request in requests:
            ours.sendall(ask(request).rstrip(b"\n") + b"\n")


def _place() -> str:
    """Return the name of this cluster node."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return f"{ray.util.get_node_ip_address()} ({node[:8]})"
