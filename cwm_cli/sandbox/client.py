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
from cwm_cli.sandbox.conversation import Conversation, Reply
from cwm_cli.sandbox.episodes import EpisodeQuestions
from cwm_cli.sandbox.failures import (
    KILLED_WORKERS,
    LONGEST_PROGRAM,
    TOO_LONG,
    Failure,
    add_line,
    failure_of,
    find_misread_choice,
    find_unrepeatable_line,
    output_overflow,
)
from cwm_cli.sandbox.job import Job, abilities_of
from cwm_cli.sandbox.pool import SIDES, SandboxError, WorkerLost, WorkerPool, memory_file, read_all
from cwm_cli.sandbox.prediction import PredictedColumns, ProgramAnswers, RowQuestions
from cwm_cli.sandbox.protection import Protection, check_gaps
from cwm_cli.sandbox.protocol import LAYERS, Console, Limits, Setup

T = TypeVar("T")


class Sandbox:
    """A pool of warm worker processes that run programs. Instances are thread-safe.

    A worker runs one program at a time, in a process that exists only for that program. Workers
    start when they are first needed. Workers form two sides: two processes whose inputs contain
    each other's answers run on different sides, so that they cannot exchange data.

    Args:
        limits: Bounds on the time and memory of each program.
        workers: Maximum number of programs that run at the same time.
        tools: Modules that programs may import in addition to the usual ones.
        accepted: Names of gaps in the protection that the user accepts. `ALL_GAPS` accepts the
            gaps that the first worker finds. If another gap is open, the first use of a worker
            raises `Unprotected`.
        layers: Guards to use if the machine has them (for tests of each guard).
        cold: Start an interpreter for each program instead of a fork (for tests).
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
        """The result of the probe on this machine; raises `Unprotected` for gaps not accepted."""
        return self._pool.protection

    def predict(self, program: str, dataset: Dataset, *, seed: int = 0) -> PredictedColumns:
        """Return one unconfirmed answer of a program for each row: the likeliest, or the first."""
        answers = self.ask(program, dataset, seed=seed)
        return PredictedColumns(answers.likeliest(), answers.failure)

    def ask(
        self, program: str, dataset: Dataset, *, seed: int = 0, draws: int = 1
    ) -> ProgramAnswers:
        """Return all answers of a program for each row of a dataset.

        The program receives only observations and actions, in shuffled order, and no process
        receives two consecutive rows of an episode. A program with memory is instead asked along
        whole episodes. The answers must not count before `audit` has confirmed them.

        Args:
            program: Source text of the program.
            dataset: The recorded transitions.
            seed: Seed, together with the digest of the dataset, of the random numbers that the
                program draws.
            draws: Answers per row of a program that samples from `self.rng`. A program with the
                method `outcomes` returns all its outcomes instead.
        """
        if len(program) > LONGEST_PROGRAM:
            return ProgramAnswers({}, TOO_LONG)
        if misread := find_misread_choice(program):
            return ProgramAnswers({}, misread)
        return self._questions(program, dataset, seed).ask(draws)

    def audit(
        self,
        program: str,
        dataset: Dataset,
        answers: Columns | ProgramAnswers,
        *,
        seed: int = 0,
    ) -> Failure | None:
        """Ask for rows again, far apart from rows of the same episode, and compare the answers.

        Returns:
            The failure of a program that answers differently this time, else None.
        """
        if not isinstance(answers, ProgramAnswers):
            answers = ProgramAnswers(answers)
        failure = self._questions(program, dataset, seed).audit(answers)
        if failure and failure.kind == "nondeterministic" and not abilities_of(program).is_plain:
            return add_line(failure, program, find_unrepeatable_line(program))
        return failure

    def _questions(
        self, program: str, dataset: Dataset, seed: int
    ) -> RowQuestions | EpisodeQuestions:
        if abilities_of(program).remembers:
            return EpisodeQuestions(self.converse_apart, self.limits, program, dataset, seed)
        return RowQuestions(self.run_apart, self.limits, program, dataset, seed)

    def run(self, job: Job, stdin: bytes | None = None) -> Reply:
        """Run a job of any kind to its end.

        Args:
            job: The job.
            stdin: Standard input of the program. If given, the reply contains the program's
                standard output; output beyond `Limits.output_bytes` is a failure.
        """
        if len(job.program) > LONGEST_PROGRAM:
            return Reply({}, TOO_LONG)
        self.prepare(job.handler)

        def attempt() -> Reply:
            with self._pool.places, ExitStack() as stack:
                if stdin is None:
                    return stack.enter_context(self._start_job(job, 0))()
                files = [stack.enter_context(memory_file(text)) for text in (stdin, b"")]
                console = Console(*files)
                with self._start_job(job, 0, console) as finish:
                    reply = finish()
                # One byte more than the limit shows that there was more.
                output = read_all(console.stdout, self.limits.output_bytes + 1)
            if len(output) > self.limits.output_bytes:
                return reply._replace(output=output[:-1], failure=output_overflow(self.limits))
            return reply._replace(output=output)

        reply = self.insist(attempt)
        return Reply({}, KILLED_WORKERS) if reply is None else reply

    def run_apart(
        self, sides: Sequence[Sequence[Job]], limits: Sequence[Limits]
    ) -> list[list[Reply]]:
        """Run jobs on workers of two sides, so that neither side can leave data for the other.

        The sides work at the same time if there are free places. After a failure, or if two
        workers died, no other job starts.

        Args:
            sides: The jobs of each side, in order.
            limits: The limits of each side, shared by all its jobs.

        Returns:
            The replies of each side, fewer than the jobs after a failure.
        """
        replies = self.insist(lambda: self._run_apart(sides, limits))
        return [[Reply({}, KILLED_WORKERS)]] if replies is None else replies

    def converse(self, job: Job, *, side: int = 0, limits: Limits | None = None) -> Conversation:
        """Open a conversation with the process of a program; the caller has to close it.

        Args:
            job: The job; its handler answers questions until the conversation ends.
            side: The side whose worker runs the job, 0 or 1.
            limits: Bounds on the time and memory of the process; default: as the sandbox.

        Raises:
            SandboxError: The sandbox failed; `insist` retries.
        """
        self.prepare(job.handler)
        return Conversation(self._pool.lend_any(side), job, job.encode(), limits or self.limits)

    def converse_apart(
        self,
        jobs: Sequence[Job],
        limits: Sequence[Limits],
        talk: Callable[[Sequence[tuple[int, Conversation]]], list[T] | Failure],
    ) -> list[T] | Failure:
        """Hold conversations about jobs, on workers of alternating sides.

        One or two conversations are open at a time, depending on the free places. If the sandbox
        fails, all conversations are repeated.

        Args:
            jobs: The job of each conversation.
            limits: The limits of each conversation, for all its questions together.
            talk: Holds the open conversations, each given with the index of its job.

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
            with self._pool.places, ExitStack() as stack:
                is_parallel = len(jobs) > 1 and stack.enter_context(self._pool.try_reserve_place())
                for first in range(0, len(jobs), 1 + is_parallel):
                    numbers = range(first, min(len(jobs), first + 1 + is_parallel))
                    with ExitStack() as open_now:
                        opened = [open_now.enter_context(closing(converse(n))) for n in numbers]
                        new = talk(list(zip(numbers, opened, strict=True)))
                    if isinstance(new, Failure):
                        return new
                    answers += new
            return answers

        result = self.insist(attempt)
        return KILLED_WORKERS if result is None else result

    def prepare(self, *handlers: str) -> None:
        """Make sure that workers have imported handlers; replace workers that have not.

        Each job does this itself. A call with all handlers that will be needed saves starting
        workers twice.

        Args:
            handlers: Addresses of handlers, `module:name`.
        """
        self._pool.prepare(handlers)

    def close(self) -> None:
        """End all workers, including workers that run a program."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def insist(self, attempt: Callable[[], T]) -> T | None:
        """Call `attempt`, and call it again if the sandbox fails.

        Returns:
            The result of `attempt`, or None if a worker died in both calls: then the program is
            the cause.
        """
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
        replies: list[list[Reply]] = [[] for _ in sides]
        remaining = list(limits)
        running: deque[tuple[int, float, ExitStack, Callable[[], Reply]]] = deque()

        def finish_oldest() -> None:
            side, began, stack, finish = running.popleft()
            with stack:
                replies[side].append(reply := finish())
            passed = time.monotonic() - began
            remaining[side] = remaining[side].less(
                used=reply.used, slept=reply.slept, passed=passed
            )

        # Alternate between the sides: first job of each side, second job of each side, ...
        turns = enumerate(chain.from_iterable(zip_longest(*sides)))
        with self._pool.places, ExitStack() as stacks:
            is_parallel = len(sides) > 1 and stacks.enter_context(self._pool.try_reserve_place())
            for side, job in ((number % len(sides), job) for number, job in turns if job):
                while running and (not is_parallel or side in [busy for busy, *_ in running]):
                    finish_oldest()
                if any(done[-1].failure for done in replies if done):
                    break
                stack = stacks.enter_context(ExitStack())
                finish = stack.enter_context(self._start_job(job, side, limits=remaining[side]))
                running.append((side, time.monotonic(), stack, finish))
            while running:
                finish_oldest()
        return replies

    @contextmanager
    def _start_job(
        self,
        job: Job,
        side: int,
        console: Console | None = None,
        limits: Limits | None = None,
    ) -> Iterator[Callable[[], Reply]]:
        """Start a job on a worker of a side; yield a function that waits for the reply.

        A failure message names the limits of the sandbox, even if `limits` are lower.
        """
        layout, limits = job.layout, limits or self.limits
        if job.in_one_step:
            limits = replace(limits, stall_seconds=limits.cpu_seconds)
        with (
            self._pool.lend(side) as worker,
            worker.start_job(job.encode(), layout.size, limits, console) as finish,
        ):

            def reply() -> Reply:
                result = finish()
                slots = layout.views(result.slots)
                failure = failure_of(result, slots, job, self.limits)
                return Reply(slots, failure, b"", result.report.used, result.report.slept)

            yield reply
