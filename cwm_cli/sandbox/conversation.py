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
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.pool import GRACE_SECONDS, JobResult, SandboxError, WorkerHandle, WorkerLost
from cwm_cli.sandbox.protocol import (
    PAUSED,
    QUESTION_ANSWERED,
    QUESTION_SENT,
    RESUMED,
    Channel,
    Limits,
)

_VANISHED = Failure(kind="early_exit", message="the program ended its own process when asked")


class Reply(NamedTuple):
    """The reply to a job.

    `slots` contains the answers and `output` the standard output of the program. `used` is the CPU
    time and `slept` the time of sleeping or waiting, in seconds.
    """

    slots: Columns
    failure: Failure | None
    output: bytes = b""
    used: float = 0.0
    slept: float = 0.0


class Conversation:
    """Questions to a confined process of a program, and its replies.

    The first question includes the time to load the program.

    Args:
        lent: Lends a worker when it is entered.
        job: The job.
        encoded: The result of `job.encode()`.
        limits: Bounds for each question.
        for_all: Whether `limits` hold for all questions together instead of each.
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
        self._question_mark, self._answer_mark = (
            (RESUMED, PAUSED) if for_all else (QUESTION_SENT, QUESTION_ANSWERED)
        )
        self._layout = job.layout
        self._deadline = 0.0
        self._is_marked = False
        self._is_over = False
        with ExitStack() as stack:
            worker = stack.enter_context(lent)
            self._pipes = stack.enter_context(ExitStack())
            with self._open() as channel:
                if for_all:  # time counts from the first question, not from the start
                    os.write(self._marks, PAUSED)
                self._finish = stack.enter_context(
                    worker.start_job(encoded, self._layout.size, limits, channel)
                )
            self._stack = stack.pop_all()

    def send(self, question: bytes, *, brief: bool = False) -> None:
        """Send a question.

        Args:
            question: The bytes that the handler reads.
            brief: Whether the reply usually takes less than a quarter of a second. The limits of a
                brief question begin only after that time, because starting them for each question
                would take longer than the question.

        Raises:
            EOFError: The process has ended.
        """
        self._deadline = time.monotonic() + self._limits.wall_seconds + GRACE_SECONDS
        # Size of a question that fits into a pipe even if its reader is not running.
        pipe_bytes = 1 << 15
        self._is_marked = not brief or len(question) > pipe_bytes
        try:
            if self._is_marked:
                os.write(self._marks, self._question_mark)
            rest = memoryview(question)  # slices of bytes would be copies
            while rest:
                rest = rest[os.write(self._questions, rest) :]
        except BrokenPipeError as error:
            raise EOFError from error

    @classmethod
    def in_order_of_reply(cls, conversations: Sequence[Self]) -> Iterator[Self]:
        """Yield conversations as soon as their replies begin to arrive."""
        waiting = {conversation._replies: conversation for conversation in conversations}
        while waiting:
            poller = select.poll()
            for replies in waiting:
                poller.register(replies, select.POLLIN)
            deadline = max(conversation._deadline for conversation in waiting.values())
            seconds = max(0.0, deadline - time.monotonic())
            ready = [replies for replies, _ in poller.poll(seconds * 1000)]
            for replies in ready or list(waiting):  # `receive` raises if a reply is late
                yield waiting.pop(replies)

    def wait(self, seconds: float) -> bool:
        """Wait for the beginning of a reply or the end of the process; return whether it came."""
        left = min(seconds, self._deadline - time.monotonic())
        return bool(self._poller.poll(max(0.0, left) * 1000))

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes of the reply.

        Raises:
            EOFError: The process has ended.
            WorkerLost: The limits and a grace period have passed, but the process has not ended.
        """
        pieces = []
        # Delay after which the limits of a brief question begin.
        brief_seconds = 0.25
        while size > 0:
            if not self._is_marked and not self._poller.poll(1000 * brief_seconds):
                self._is_marked = True
                self._mark(self._question_mark)
            seconds = self._deadline - time.monotonic()
            if not self._poller.poll(max(0.0, seconds) * 1000):
                raise WorkerLost("a sandbox worker does not respond")
            if not (piece := os.read(self._replies, size)):
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def rest(self) -> None:
        """Mark the question as answered, so that its limits no longer run."""
        if self._is_marked:
            self._mark(self._answer_mark)

    def _mark(self, mark: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._marks, mark)

    def end(self) -> JobResult:
        """End the process and return the result of the job."""
        self._is_over = True
        with self._stack:
            self._pipes.close()
            return self._finish()

    def close(self) -> None:
        """End the process if it has not ended."""
        if not self._is_over:
            with suppress(SandboxError):
                self.end()

    def failure(self, describe: Callable[[int], str] | None = None) -> Failure:
        """End the process and return its failure.

        Args:
            describe: Returns the question in words, given the progress of the program.
        """
        result = self.end()
        views = self._layout.views(result.slots)
        return failure_of(result, views, self._job, self._limits, describe) or _VANISHED

    @contextmanager
    def _open(self) -> Iterator[Channel]:
        """Open three pipes; yield the ends of the program, which are closed afterwards."""
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
