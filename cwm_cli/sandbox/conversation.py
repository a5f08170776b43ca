"""The process of one program that is asked again and again: questions in, replies out."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from cwm_cli.sandbox.failures import Failure, failure_of
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.pool import GRACE_SECONDS, Outcome, SandboxError, Worker, WorkerLost
from cwm_cli.sandbox.protocol import BEGUN, MADE, Channel

VANISHED = Failure(kind="early_exit", message="the program ended its own process when asked")


class Conversation:
    """A confined process of the program, and the pipes to it and to the worker that watches it.

    The limits hold for each question, the first of which includes loading the program.
    """

    def __init__(
        self,
        lend: Callable[[], AbstractContextManager[Worker]],
        job: Job,
        encoded: bytes,
        limits: Limits,
    ) -> None:
        self._job = job
        self._limits = limits
        self._layout = job.layout
        self._deadline = 0.0
        self._is_over = False
        with ExitStack() as stack:
            worker = stack.enter_context(lend())
            self._pipes = stack.enter_context(ExitStack())
            with self._open() as theirs:
                self._finish = stack.enter_context(
                    worker.running(encoded, self._layout.size, limits, theirs)
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
        self._is_over = True
        with self._stack:
            self._pipes.close()
            return self._finish()

    def close(self) -> None:
        """End the process, unless that was done."""
        if not self._is_over:
            with suppress(SandboxError):
                self.end()

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
