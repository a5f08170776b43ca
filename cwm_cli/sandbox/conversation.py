"""The reply to a job, and conversations with the process of a program."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import NamedTuple, Self

from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.failures import Failure, failure_of
from cwm_cli.sandbox.job import Job, Limits
from cwm_cli.sandbox.pool import GRACE_SECONDS, JobResult, SandboxError, WorkerHandle, WorkerLost
from cwm_cli.sandbox.protocol import BEGUN, MADE, PAUSED, RESUMED, Channel

VANISHED = Failure(kind="early_exit", message="the program ended its own process when asked")

OVERDUE = 0.25
"""Seconds after which the limits of a brief question begin: to mark each costs more than to ask."""

ROOM = 1 << 15
"""Bytes of a question that a pipe has room for even if nobody reads it."""


class Reply(NamedTuple):
    """The reply to a job: the slots of its answers, its failure, and its printed output.

    `used` and `slept` are seconds of CPU time and of waiting.
    """

    slots: Columns
    failure: Failure | None
    output: bytes = b""
    used: float = 0.0
    slept: float = 0.0


class Conversation:
    """A confined process of the program, and the pipes to it and to the worker that watches it.

    The limits hold for each question, or `for_all` questions together. The time of the first
    question includes loading the program.
    """

    def __init__(
        self,
        lent: AbstractContextManager[WorkerHandle],
        job: Job,
        encoded: bytes,
        limits: Limits,
        *,
        for_all: bool = False,
    ) -> None:
        self._job = job
        self._limits = limits
        self._asked, self._answered = (RESUMED, PAUSED) if for_all else (BEGUN, MADE)
        self._layout = job.layout
        self._deadline = 0.0
        self._marked = False
        self._is_over = False
        with ExitStack() as stack:
            worker = stack.enter_context(lent)
            self._pipes = stack.enter_context(ExitStack())
            with self._open() as theirs:
                if for_all:  # whose time begins when there is something to do
                    os.write(self._marks, PAUSED)
                self._finish = stack.enter_context(
                    worker.running(encoded, self._layout.size, limits, theirs)
                )
            self._stack = stack.pop_all()

    def send(self, question: bytes, *, brief: bool = False) -> None:
        """Ask a question; EOFError when the process has ended.

        The limits of a brief one, of which there are many, begin when its answer is overdue.
        """
        self._deadline = time.monotonic() + self._limits.wall_seconds + GRACE_SECONDS
        self._marked = not brief or len(question) > ROOM
        try:
            if self._marked:
                os.write(self._marks, self._asked)
            left = memoryview(question)  # slices of bytes would be copies
            while left:
                left = left[os.write(self._questions, left) :]
        except BrokenPipeError as error:
            raise EOFError from error

    @classmethod
    def as_answered(cls, asked: Sequence[Self]) -> Iterator[Self]:
        """Yield conversations as soon as their replies begin to arrive."""
        waiting = {each._replies: each for each in asked}
        while waiting:
            poller = select.poll()
            for replies in waiting:
                poller.register(replies, select.POLLIN)
            seconds = max(each._deadline for each in waiting.values()) - time.monotonic()
            come = [replies for replies, _ in poller.poll(max(0.0, seconds) * 1000)]
            for replies in come or list(waiting):  # `receive` raises if a reply is late
                yield waiting.pop(replies)

    def receive(self, size: int) -> bytes:
        """Return as many bytes of the reply; EOFError when the process has ended."""
        pieces = []
        while size > 0:
            if not self._marked and not self._poller.poll(1000 * OVERDUE):
                self._marked = True
                self._mark(self._asked)
            seconds = self._deadline - time.monotonic()
            if not self._poller.poll(max(0.0, seconds) * 1000):
                raise WorkerLost("a sandbox worker does not respond")
            if not (piece := os.read(self._replies, size)):
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def rest(self) -> None:
        """Mark a question as answered, so that its limits no longer run."""
        if self._marked:
            self._mark(self._answered)

    def _mark(self, mark: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._marks, mark)

    def end(self) -> JobResult:
        """End the process through its worker; return the result."""
        self._is_over = True
        with self._stack:
            self._pipes.close()
            return self._finish()

    def close(self) -> None:
        """End the process, unless that was done."""
        if not self._is_over:
            with suppress(SandboxError):
                self.end()

    def failure(self, asked: Callable[[int], str] | None = None) -> Failure:
        """End the process; return its failure, with the question from `asked` by its progress."""
        result = self.end()
        views = self._layout.views(result.slots)
        return failure_of(result, views, self._job, self._limits, asked) or VANISHED

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
