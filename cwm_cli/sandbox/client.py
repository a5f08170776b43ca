"""The trusted side of the sandbox: has programs do jobs, whatever else they do."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain, zip_longest
from typing import NamedTuple, Self, TypeVar

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox import episodes, prediction
from cwm_cli.sandbox.abilities import abilities_of, misread_choice, unrepeatable
from cwm_cli.sandbox.confinement import LAYERS
from cwm_cli.sandbox.failures import (
    KILLED_WORKERS,
    LONGEST_PROGRAM,
    TOO_LONG,
    Failure,
    failure_of,
    overflow,
    pointing,
    without_index,
)
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.pool import (
    GRACE_SECONDS,
    SIDES,
    JobResult,
    SandboxError,
    WorkerHandle,
    WorkerLost,
    WorkerPool,
    memory_file,
    read_all,
)
from cwm_cli.sandbox.prediction import PredictedColumns, ProgramAnswers
from cwm_cli.sandbox.protection import Protection, check_gaps
from cwm_cli.sandbox.protocol import (
    BEGUN,
    MADE,
    PAUSED,
    RESUMED,
    Channel,
    Console,
    Setup,
)

VANISHED = Failure(kind="early_exit", message="the program ended its own process when asked")

OVERDUE = 0.25
"""Seconds after which the limits of a brief question begin: to mark each costs more than to ask."""

ROOM = 1 << 15
"""Bytes of a question that a pipe has room for even if nobody reads it."""

T = TypeVar("T")


class Reply(NamedTuple):
    """What came of a job: the slots of its answers, what went wrong, and what it printed.

    `used` and `slept` are seconds of CPU time and of waiting.
    """

    slots: Columns
    failure: Failure | None
    output: bytes = b""
    used: float = 0.0
    slept: float = 0.0


class Sandbox:
    """Warm worker processes that run programs; for use by several threads at once.

    A worker serves one program at a time, in a process that exists for that
    program only; at most `workers` such processes are at work. Workers start
    when they are first needed. Programs may import the modules `tools` as well.
    The first use of a worker raises `Unprotected` if the protection of this
    machine has a gap that is not in `accepted`; `ALL_GAPS` accepts the gaps that
    the first worker finds. `layers` and `cold` are for tests of each guard.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int = 2,
        *,
        tools: Iterable[str] = (),
        accepted: Iterable[str] = (),
        layers: Iterable[str] = LAYERS,
        cold: bool | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.workers = workers
        setup = Setup(tuple(tools), tuple(layers))
        setup = setup if cold is None else setup._replace(cold=cold)
        self._pool = WorkerPool(workers, setup, check_gaps(tuple(accepted)))

    @property
    def protection(self) -> Protection:
        """What programs cannot do here, found out by trying; `Unprotected` if it is too little."""
        return self._pool.protection

    def predict(self, program: str, dataset: Dataset, *, seed: int = 0) -> PredictedColumns:
        """Ask a program for one answer to every row; only observations and actions are sent.

        No process of the program gets two consecutive rows of an episode. Rows are shuffled,
        and the random numbers that the program draws are seeded by `seed` and by what is
        asked. What it answers counts for nothing before `audit` has confirmed it.
        """
        answers = self.ask(program, dataset, seed=seed)
        return PredictedColumns(answers.likeliest(), answers.failure)

    def ask(
        self, program: str, dataset: Dataset, *, seed: int = 0, draws: int = 1
    ) -> ProgramAnswers:
        """Ask a program for all that it says to every row, as `predict` does.

        That is all outcomes of one that tells them, and so many `draws` of one that draws from
        `self.rng`. One with memory is asked along whole episodes.
        """
        if len(program) > LONGEST_PROGRAM:
            return ProgramAnswers({}, TOO_LONG)
        if misread := misread_choice(program):
            return ProgramAnswers({}, pointing(without_index(misread), program, misread.line))
        asked = episodes.ask if abilities_of(program).remembers else prediction.ask
        return asked(self, program, dataset, seed, draws=draws)

    def audit(
        self,
        program: str,
        dataset: Dataset,
        answers: Columns | ProgramAnswers,
        *,
        seed: int = 0,
    ) -> Failure | None:
        """Ask for rows that were answered once more, in processes where they lie far apart.

        Returns what is wrong with a program that answers differently there.
        """
        if not isinstance(answers, ProgramAnswers):
            answers = ProgramAnswers(answers)
        able = abilities_of(program)
        audited = episodes.audit if able.remembers else prediction.audit
        failure = audited(self, program, dataset, answers, seed)
        if failure is None or failure.kind != "nondeterministic" or able.is_plain:
            return failure
        return pointing(failure, program, unrepeatable(program))

    def run(self, job: Job, stdin: bytes | None = None) -> Reply:
        """Do a job of any kind to its end.

        With `stdin` the program reads that as its standard input, and what it flushes to its
        standard output is in the reply, up to the limit; more than that is a failure.
        """
        if len(job.program) > LONGEST_PROGRAM:
            return Reply({}, TOO_LONG)
        self.prepare(job.handler)
        reply = self.insist(lambda: self._run(job, stdin))
        return Reply({}, KILLED_WORKERS) if reply is None else reply

    def run_apart(
        self, sides: Sequence[Sequence[Job]], limits: Sequence[Limits]
    ) -> list[list[Reply]]:
        """Do jobs on workers of two sides, so that those of one side leave nothing for the other.

        The sides work at the same time if there are places. The jobs of a side share its
        limits; after a failure no other job is begun, nor if two workers died of the jobs.
        """
        replies = self.insist(lambda: self._run_apart(sides, limits))
        return [[Reply({}, KILLED_WORKERS)]] if replies is None else replies

    def converse(self, job: Job, *, side: int = 0) -> Conversation:
        """Return a conversation with the process of a program, to be closed.

        It is on a worker of one of the two sides. `SandboxError` when the sandbox fails, upon
        which `insist` tries again.
        """
        self.prepare(job.handler)
        return Conversation(self._pool.lend_any(side), job, self._encoded(job), self.limits)

    def converse_apart(
        self, jobs: Sequence[Job], limits: Sequence[Limits]
    ) -> Generator[list[Conversation]]:
        """Yield conversations about jobs, as many at a time as there are places for, up to two.

        They are on workers of the two sides in turn. The limits hold for all questions of one.
        """
        self.prepare(*{job.handler for job in jobs})
        encoded = [self._encoded(job) for job in jobs]
        with self._pool.place(), ExitStack() as stack:
            several = len(jobs) > 1 and stack.enter_context(self._pool.another_place())
            for first in range(0, len(jobs), 1 + several):
                with ExitStack() as together:
                    yield [
                        together.enter_context(
                            closing(
                                Conversation(
                                    self._pool.lend(number % SIDES),
                                    jobs[number],
                                    encoded[number],
                                    limits[number],
                                    for_all=True,
                                )
                            )
                        )
                        for number in range(first, min(len(jobs), first + 1 + several))
                    ]

    def prepare(self, *handlers: str) -> None:
        """Have workers that know handlers by their addresses; those that do not are replaced.

        Every kind of job sees to that itself, when it is first done: this saves the time
        of starting workers twice.
        """
        self._pool.prepare(handlers)

    def close(self) -> None:
        """End every worker, also those at work."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def insist(self, attempt: Callable[[], T]) -> T | None:
        """Attempt something, again if the sandbox fails; None when two workers died of it."""
        return self._pool.insist(attempt)

    def _encoded(self, job: Job) -> bytes:
        """Return a job as it is sent."""
        return job.encode(checks_source=self.protection.checks_source)

    def _run_apart(
        self, sides: Sequence[Sequence[Job]], limits: Sequence[Limits]
    ) -> list[list[Reply]]:
        """Have as many jobs at work as there are places, up to a failure."""
        replies: list[list[Reply]] = [[] for _ in sides]
        left = list(limits)
        at_work: deque[tuple[int, float, ExitStack, Callable[[], Reply]]] = deque()

        def finish() -> None:
            side, began, stack, reply = at_work.popleft()
            with stack:
                replies[side].append(done := reply())
            passed = time.monotonic() - began
            left[side] = left[side].less(used=done.used, slept=done.slept, passed=passed)

        turns = enumerate(chain.from_iterable(zip_longest(*sides)))
        checks_source = self.protection.checks_source  # finding out may take a place
        with self._pool.place(), ExitStack() as stacks:
            several = len(sides) > 1 and stacks.enter_context(self._pool.another_place())
            for side, job in ((number % len(sides), job) for number, job in turns if job):
                while at_work and (not several or side in [busy for busy, *_ in at_work]):
                    finish()
                if any(done[-1].failure for done in replies if done):
                    break
                stack = stacks.enter_context(ExitStack())
                encoded = job.encode(checks_source=checks_source)  # while others are at work
                begun = self._begun(job, encoded, side, limits=left[side])
                at_work.append((side, time.monotonic(), stack, stack.enter_context(begun)))
            while at_work:
                finish()
        return replies

    def _run(self, job: Job, stdin: bytes | None) -> Reply:
        """Do a job on a free worker, with files for what it reads and writes if it has any."""
        encoded = self._encoded(job)
        with self._pool.place(), ExitStack() as stack:
            console = None
            if stdin is not None:
                console = Console(
                    *(stack.enter_context(memory_file(text)) for text in (stdin, b""))
                )
            with self._begun(job, encoded, 0, console) as finish:
                reply = finish()
            if console is None:
                return reply
            output = read_all(console.stdout, self.limits.output_bytes + 1)
        if len(output) > self.limits.output_bytes:
            return reply._replace(output=output[:-1], failure=overflow(self.limits))
        return reply._replace(output=output)

    @contextmanager
    def _begun(
        self,
        job: Job,
        encoded: bytes,
        side: int,
        console: Console | None = None,
        limits: Limits | None = None,
    ) -> Iterator[Callable[[], Reply]]:
        """Begin a job on a worker of one side; what is given waits for its end.

        A failure tells all limits, also those of which a job has a part.
        """
        layout, limits = job.layout, limits or self.limits
        if job.in_one_step:
            limits = replace(limits, stall_seconds=limits.cpu_seconds)
        with (
            self._pool.lend(side) as worker,
            worker.running(encoded, layout.size, limits, console) as finish,
        ):

            def reply() -> Reply:
                result = finish()
                slots = layout.views(result.slots)
                failure = failure_of(result, slots, job, self.limits)
                return Reply(slots, failure, b"", result.report.used, result.report.slept)

            yield reply


class Conversation:
    """A confined process of the program, and the pipes to it and to the worker that watches it.

    The limits hold for each question, the first of which includes loading the program, or
    `for_all` questions together.
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
        """Yield conversations that were asked in the order in which their replies begin to come."""
        waiting = {each._replies: each for each in asked}
        while waiting:
            poller = select.poll()
            for replies in waiting:
                poller.register(replies, select.POLLIN)
            seconds = max(each._deadline for each in waiting.values()) - time.monotonic()
            come = [replies for replies, _ in poller.poll(max(0.0, seconds) * 1000)]
            for replies in come or list(waiting):  # who is late says so when it is heard
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
                raise WorkerLost("a worker of the sandbox does not answer")
            if not (piece := os.read(self._replies, size)):
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def rest(self) -> None:
        """Say that a question is answered, so that its limits no longer run."""
        if self._marked:
            self._mark(self._answered)

    def _mark(self, mark: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._marks, mark)

    def end(self) -> JobResult:
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

    def failure(self, asked: Callable[[int], str] | None = None) -> Failure:
        """Say why the process has ended, and what was `asked` by how far it had come."""
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
