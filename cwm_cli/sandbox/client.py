"""The trusted side of the sandbox: runs programs in confined worker processes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Self, TypeVar

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.abilities import abilities_of, misread_choice, unrepeatable
from cwm_cli.sandbox.confinement import LAYERS
from cwm_cli.sandbox.conversation import Conversation, Reply
from cwm_cli.sandbox.episodes import EpisodeQuestions
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
from cwm_cli.sandbox.job import Job, Limits
from cwm_cli.sandbox.pool import (
    SIDES,
    SandboxError,
    WorkerLost,
    WorkerPool,
    memory_file,
    read_all,
)
from cwm_cli.sandbox.prediction import PredictedColumns, ProgramAnswers, RowQuestions
from cwm_cli.sandbox.protection import Protection, check_gaps
from cwm_cli.sandbox.protocol import (
    Console,
    Setup,
)

T = TypeVar("T")


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
        return self._questions(program, dataset, seed).ask(draws)

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
        failure = self._questions(program, dataset, seed).audit(answers)
        if failure and failure.kind == "nondeterministic" and not abilities_of(program).is_plain:
            return pointing(failure, program, unrepeatable(program))
        return failure

    def _questions(
        self, program: str, dataset: Dataset, seed: int
    ) -> RowQuestions | EpisodeQuestions:
        """Return the questions for a program: row by row, or along episodes if it remembers."""
        if abilities_of(program).remembers:
            return EpisodeQuestions(self.converse_apart, self.limits, program, dataset, seed)
        return RowQuestions(self.run_apart, self.limits, program, dataset, seed)

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
        return Conversation(self._pool.lend_any(side), job, job.encode(), self.limits)

    def converse_apart(
        self,
        jobs: Sequence[Job],
        limits: Sequence[Limits],
        talk: Callable[[Sequence[tuple[int, Conversation]]], list[T] | Failure],
    ) -> list[T] | Failure:
        """Hold conversations about jobs on workers of the two sides in turn.

        As many are open at a time as there are places, up to two. All of them are held again if
        the sandbox fails.

        Args:
            jobs: The job of each conversation.
            limits: The limits of each conversation, for all its questions together.
            talk: Holds the open conversations, which come with the places of their jobs.

        Returns:
            All answers that `talk` returned, or its first failure.
        """
        self.prepare(*{job.handler for job in jobs})
        encoded = [job.encode() for job in jobs]

        def converse(number: int) -> Conversation:
            worker = self._pool.lend(number % SIDES)
            return Conversation(worker, jobs[number], encoded[number], limits[number], for_all=True)

        def attempt() -> list[T] | Failure:
            answers: list[T] = []
            with self._pool.place(), ExitStack() as stack:
                several = len(jobs) > 1 and stack.enter_context(self._pool.another_place())
                for first in range(0, len(jobs), 1 + several):
                    numbers = range(first, min(len(jobs), first + 1 + several))
                    with ExitStack() as together:
                        opened = [together.enter_context(closing(converse(n))) for n in numbers]
                        found = talk(list(zip(numbers, opened, strict=True)))
                    if isinstance(found, Failure):
                        return found
                    answers += found
            return answers

        found = self.insist(attempt)
        return KILLED_WORKERS if found is None else found

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
        try:
            return attempt()
        except SandboxError as first:
            try:
                return attempt()
            except WorkerLost:
                if isinstance(first, WorkerLost) and not self._pool.is_closed:
                    return None
                raise

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
        with self._pool.place(), ExitStack() as stacks:
            several = len(sides) > 1 and stacks.enter_context(self._pool.another_place())
            for side, job in ((number % len(sides), job) for number, job in turns if job):
                while at_work and (not several or side in [busy for busy, *_ in at_work]):
                    finish()
                if any(done[-1].failure for done in replies if done):
                    break
                stack = stacks.enter_context(ExitStack())
                reply = stack.enter_context(self._begun(job, side, limits=left[side]))
                at_work.append((side, time.monotonic(), stack, reply))
            while at_work:
                finish()
        return replies

    def _run(self, job: Job, stdin: bytes | None) -> Reply:
        """Do a job on a free worker, with files for what it reads and writes if it has any."""
        with self._pool.place(), ExitStack() as stack:
            console = None
            if stdin is not None:
                console = Console(
                    *(stack.enter_context(memory_file(text)) for text in (stdin, b""))
                )
            with self._begun(job, 0, console) as finish:
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
            worker.running(job.encode(), layout.size, limits, console) as finish,
        ):

            def reply() -> Reply:
                result = finish()
                slots = layout.views(result.slots)
                failure = failure_of(result, slots, job, self.limits)
                return Reply(slots, failure, b"", result.report.used, result.report.slept)

            yield reply
