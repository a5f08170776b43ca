"""The trusted side of the sandbox: asks programs for predictions, whatever they do."""

import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple, Self, TypeVar

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.sandbox.confinement import LAYERS
from cwm_cli.sandbox.failures import (
    KILLED_WORKERS,
    LONGEST_PROGRAM,
    TOO_LONG,
    Failure,
    failure_of,
    overflow,
)
from cwm_cli.sandbox.job import Job, PredictionJob
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.pool import (
    GRACE_SECONDS,
    Outcome,
    Pool,
    SandboxError,
    Worker,
    WorkerLost,
    memory_file,
    read_all,
)
from cwm_cli.sandbox.prediction import Half, broke_down, contradiction, halves, may_outlast, merged
from cwm_cli.sandbox.protection import Protection, check_names
from cwm_cli.sandbox.protocol import BEGUN, MADE, Channel, Console, Setup
from cwm_cli.sandbox.results import Predictions

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


T = TypeVar("T")


class Reply(NamedTuple):
    """What came of a job: the slots of its answers, what went wrong, and what it printed."""

    slots: Columns
    failure: Failure | None
    output: bytes = b""


class Sandbox:
    """Warm worker processes that run programs; for use by several threads at once.

    A worker serves one program at a time, in a process that exists for that
    program only; at most `workers` such processes are at work. Workers start
    when they are first needed. Programs may import the modules `tools` as well.
    A machine with gaps in its protection that are not in `accepted` is refused,
    by an `Unprotected` from whatever first needs a worker. `layers` and `cold`
    are for finding out what each guard does.
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
        self._pool = Pool(workers, setup, check_names(tuple(accepted)))

    @property
    def protection(self) -> Protection:
        """What programs cannot do here, found out by trying; `Unprotected` if it is too little."""
        return self._pool.protection

    def predict(self, program: str, dataset: Dataset, *, seed: int = 0) -> Predictions:
        """Ask a program for every row; only observations and actions are sent.

        No process of the program gets two consecutive rows of an episode. Rows
        are shuffled by `seed`, which also seeds, row by row, the random numbers
        that the program draws. Some rows are asked again, in another order: a
        program that then answers differently fails.
        """
        if len(program) > LONGEST_PROGRAM:
            return Predictions({}, TOO_LONG)
        rng = np.random.default_rng(seed)
        asked = halves(dataset, rng)
        jobs = [
            replace(self._job(program, dataset, half.asked, seed), again=len(half.again))
            for half in asked
        ]
        replies = self._insist(jobs)
        for half, reply in zip(asked, replies, strict=False):  # none after a failure
            if reply.failure:
                again = reply.slots and reply.slots["progress"] >= len(half.rows)
                return Predictions({}, broke_down(reply.failure) if again else reply.failure)
        answered = [(half, reply.slots) for half, reply in zip(asked, replies, strict=True)]
        failure = self._doubt(program, dataset, answered, seed)
        return Predictions({} if failure else merged(dataset, answered), failure)

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

    def converse(self, job: Job) -> Conversation:
        """Return a conversation with the process of a program, to be closed.

        `SandboxError` when the sandbox fails, upon which `insist` tries again.
        """
        self.prepare(job.handler)
        return Conversation(self.lend, job, self._encoded(job), self.limits)

    def prepare(self, *handlers: str, compiling: bool = False) -> None:
        """Have workers that know handlers by their addresses; those that do not are replaced.

        Every kind of job sees to that itself, when it is first done: this saves the time
        of starting workers twice. `compiling` ones let programs run machine code.
        """
        self._pool.prepare(handlers, compiling=compiling)

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

    def lend(self) -> AbstractContextManager[Worker]:
        """Lend a free worker; one with which something fails is ended and later replaced."""
        return self._pool.lend_any()

    def _doubt(
        self, program: str, dataset: Dataset, answered: list[tuple[Half, Columns]], seed: int
    ) -> Failure | None:
        """Compare the answers to what was asked twice, if need be also by another process."""
        for half, slots in answered:
            job = self._job(program, dataset, half.repeated, seed)
            if failure := contradiction(job, half.first(slots), half.second(slots)):
                return failure
        if not answered or not may_outlast(program):
            return None
        half, slots = answered[0]
        job = self._job(program, dataset, half.repeated, seed)
        [reply] = self._insist([job])
        if reply.failure:
            return broke_down(reply.failure)
        return contradiction(job, half.first(slots), reply.slots)

    def _job(self, program: str, dataset: Dataset, rows: np.ndarray, seed: int) -> PredictionJob:
        """Return the question for some rows of a dataset."""
        inputs = dataset.select("observations", "actions")
        return PredictionJob(
            program=program,
            seed=int(seed),
            observation_space=dataset.observation_space,
            action_space=dataset.action_space,
            columns={name: column[rows] for name, column in inputs.items()},
            rows=rows,
            valid=dataset.has_valid_actions,
        )

    def _encoded(self, job: Job) -> bytes:
        """Return a job as it is sent."""
        return job.encode(gated=self.protection.is_gated)

    def _insist(self, jobs: Sequence[PredictionJob]) -> list[Reply]:
        """Run one job per side, again if the sandbox fails."""
        replies = self.insist(lambda: self._ask(jobs))
        return [Reply({}, KILLED_WORKERS)] if replies is None else replies

    def _ask(self, jobs: Sequence[PredictionJob]) -> list[Reply]:
        """Run one job per side, at the same time if there are places, else up to a failure."""
        replies: list[Reply] = []
        encoded = [(job, self._encoded(job)) for job in jobs]
        with self._pool.place(), ExitStack() as stack:
            if len(jobs) > 1 and stack.enter_context(self._pool.another_place()):
                begun = [
                    stack.enter_context(self._begun(job, text, side))
                    for side, (job, text) in enumerate(encoded)
                ]
                return [finish() for finish in begun]
            for side, (job, text) in enumerate(encoded):
                with self._begun(job, text, side) as finish:
                    replies.append(finish())
                if replies[-1].failure:
                    break
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
        self, job: Job, encoded: bytes, side: int, console: Console | None = None
    ) -> Iterator[Callable[[], Reply]]:
        """Begin a job on a worker of one side; what is given waits for its end."""
        layout, limits = job.layout, self.limits
        if job.in_one_step:
            limits = replace(limits, stall_seconds=limits.cpu_seconds)
        with (
            self._pool.lend(side) as worker,
            worker.running(encoded, layout.size, limits, console) as finish,
        ):

            def reply() -> Reply:
                outcome = finish()
                slots = layout.views(outcome.arena)
                return Reply(slots, failure_of(outcome, slots, job, limits))

            yield reply
