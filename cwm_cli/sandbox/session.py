"""The trusted side of a planning session: observation in, actions out."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from cwm_cli.packing import Space
from cwm_cli.programs import Failure
from cwm_cli.sandbox.arena import Layout
from cwm_cli.sandbox.failures import KILLED_WORKERS, failure_of
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.messages import QUESTION, REPLY, Record
from cwm_cli.sandbox.process import GRACE_SECONDS, Outcome, SandboxError, Worker, WorkerLost
from cwm_cli.sandbox.protocol import BEGUN, MADE, Channel

FORGED = Failure(
    kind="wrong_output",
    message="the program meddled with its process, which answered with no plan",
)
VANISHED = Failure(kind="early_exit", message="the program ended its own process while planning")

T = TypeVar("T")


class Plan(NamedTuple):
    """The next actions and how many steps of the model they took; no actions after a failure."""

    actions: list[Any]
    steps: int
    failure: Failure | None


class Lender(Protocol):
    """What a session needs of a sandbox."""

    limits: Limits

    def lend(self) -> AbstractContextManager[Worker]:
        """Lend a free worker; one that raises is not used again."""

    def insist(self, attempt: Callable[[], T]) -> T | None:
        """Attempt something, again if the sandbox fails; None when two workers died of it."""


class Session:
    """Plans with a program, one decision after the other.

    The program lives in one confined process, which is replaced after it
    failed. The limits hold for each decision, loading the program included.
    What is planned depends on the seed and the number of the decision, not on
    earlier failures. Between the first decision and `close` a worker is taken.
    """

    def __init__(self, sandbox: Lender, job: Job) -> None:
        self._sandbox = sandbox
        self._job = job
        self._decisions = 0
        self._process: _Process | None = None
        self._observations, self._actions = (
            Record(job.observation_space, "observations"),
            Record(job.action_space, "actions"),
        )

    def plan(self, observation: Any, *, horizon: int) -> Plan:
        """Return what to do at an observation with so many steps to go."""
        content = self._observations.encode(observation)
        question = QUESTION.pack(len(content), self._decisions, horizon) + content
        self._decisions += 1
        plan = self._sandbox.insist(lambda: self._ask(question, horizon))
        return plan or Plan([], 0, KILLED_WORKERS)

    def close(self) -> None:
        """End the process of the program."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(SandboxError):
                process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, question: bytes, horizon: int) -> Plan:
        """Ask the process, a new one unless there is one."""
        if self._process is None:
            self._process = _Process(self._sandbox, self._job)
        process = self._process
        try:
            return self._read(process, question, horizon)
        except EOFError:
            self._process = None
            return Plan([], 0, process.failure())
        except ValueError:
            self.close()
            return Plan([], 0, FORGED)
        except WorkerLost:
            self.close()
            raise

    def _read(self, process: "_Process", question: bytes, horizon: int) -> Plan:
        """Return what the process answers; ValueError when it makes no sense."""
        process.send(question)
        size, steps = REPLY.unpack(process.receive(REPLY.size))
        count, rest = divmod(size, self._actions.size)
        if rest or not 1 <= count <= horizon:
            raise ValueError(f"a reply of {size} bytes")
        reply, size = process.receive(size), self._actions.size
        actions = [self._actions.decode(reply[i * size : (i + 1) * size]) for i in range(count)]
        process.rest()
        return Plan([_admitted(action, self._job.action_space) for action in actions], steps, None)


class _Process:
    """A confined process of the program, and the pipes to it and to the worker that watches it."""

    def __init__(self, sandbox: Lender, job: Job) -> None:
        self._job = job
        self._limits = sandbox.limits
        self._layout = Layout(job.observation_space, 0)
        self._deadline = 0.0
        with ExitStack() as stack:
            worker = stack.enter_context(sandbox.lend())
            self._pipes = stack.enter_context(ExitStack())
            with self._open() as theirs:
                self._finish = stack.enter_context(
                    worker.running(job.encode(), self._layout.size, sandbox.limits, theirs)
                )
            self._stack = stack.pop_all()

    def send(self, question: bytes) -> None:
        """Begin a decision; EOFError when the process has ended."""
        self._deadline = time.monotonic() + self._limits.wall_seconds + GRACE_SECONDS
        try:
            os.write(self._marks, BEGUN)
            while question:
                question = question[os.write(self._questions, question) :]
        except BrokenPipeError as error:
            raise EOFError from error

    def receive(self, size: int) -> bytes:
        """Return as many bytes of the reply; EOFError when the process has ended."""
        reply = b""
        while len(reply) < size:
            seconds = self._deadline - time.monotonic()
            if not self._poller.poll(max(0.0, seconds) * 1000):
                raise WorkerLost("a worker of the sandbox does not end a decision")
            part = os.read(self._replies, size - len(reply))
            if not part:
                raise EOFError
            reply += part
        return reply

    def rest(self) -> None:
        """End a decision, so that its limits no longer run."""
        with suppress(BrokenPipeError):
            os.write(self._marks, MADE)

    def end(self) -> Outcome:
        """Have the worker end the process; return what is left of it."""
        with self._stack:
            self._pipes.close()
            return self._finish()

    def failure(self) -> Failure:
        """Say why the process has ended."""
        outcome = self.end()
        views = self._layout.views(outcome.arena)
        return failure_of(outcome, views, self._job, self._limits) or VANISHED

    @contextmanager
    def _open(self) -> Iterator[Channel]:
        """Open three pipes; lend the ends that are not ours until they are passed on."""
        questions, self._questions = os.pipe()
        self._replies, replies = os.pipe()
        marks, self._marks = os.pipe()
        for descriptor in (self._questions, self._replies, self._marks):
            self._pipes.callback(os.close, descriptor)
        self._poller = select.poll()
        self._poller.register(self._replies, select.POLLIN)
        try:
            yield Channel(questions, replies, marks)
        finally:
            for descriptor in (questions, replies, marks):
                os.close(descriptor)


def _admitted(action: Any, space: Space) -> Any:
    """Return an action in the type of its environment; ValueError when it is out of bounds."""
    values = np.asarray(action).reshape(-1)
    if not ((np.asarray(space.low) <= values) & (values <= np.asarray(space.high))).all():
        raise ValueError(f"{action} is no action")
    return action if space.kind == "discrete" else np.asarray(action, dtype=space.dtype)
