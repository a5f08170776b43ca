"""The trusted side of the sandbox: asks programs for predictions, whatever they do."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, TypeVar, Unpack

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.confinement import LAYERS
from cwm_cli.sandbox.failure import Failure
from cwm_cli.sandbox.failures import KILLED_WORKERS, LONGEST_PROGRAM, TOO_LONG, failure_of, overflow
from cwm_cli.sandbox.greeting import Setup
from cwm_cli.sandbox.halves import Half, broke_down, contradiction, halves, may_outlast, merged
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.pool import Pool
from cwm_cli.sandbox.process import Worker, memory_file, read_all
from cwm_cli.sandbox.protection import Protection, check_names
from cwm_cli.sandbox.protocol import Console
from cwm_cli.sandbox.results import Predictions, Printed

if TYPE_CHECKING:
    from cwm_cli.sandbox.session import Session

T = TypeVar("T")


class How(TypedDict, total=False):
    """How a program is planned with; with `valid` it says which actions are valid."""

    form: str
    seed: int
    valid: bool


class _Reply(NamedTuple):
    """The slots of an arena after a job, and what went wrong in it."""

    slots: Columns
    failure: Failure | None


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
        for half, (slots, failed) in zip(asked, replies, strict=False):  # none after a failure
            if failed:
                again = slots and slots["progress"] >= len(half.rows)
                return Predictions({}, broke_down(failed) if again else failed)
        answered = [(half, reply.slots) for half, reply in zip(asked, replies, strict=True)]
        failure = self._doubt(program, dataset, answered, seed)
        return Predictions({} if failure else merged(dataset, answered), failure)

    def run_script(
        self, program: str, stdin: str = "", *, function: str = "", seed: int = 0
    ) -> Printed:
        """Run a program that reads standard input and writes standard output.

        With a `function` that is called, with the JSON list in standard input, and its
        answer comes back as JSON. All CPU time may go into one step, as there are no rows.
        """
        if len(program) > LONGEST_PROGRAM:
            return Printed("", TOO_LONG)
        nothing = Space("tuple")
        rows, gated = np.empty(0, dtype=np.int64), self.protection.is_gated
        job = Job(program, int(seed), rows, nothing, nothing, {}, gated=gated)
        job = replace(job, is_script=True, function=function)
        limits = replace(self.limits, stall_seconds=self.limits.cpu_seconds)
        printed = self.insist(lambda: self._print(job, stdin.encode("utf-8", "replace"), limits))
        return printed or Printed("", KILLED_WORKERS)

    def prepare(self, *, compiling: bool = False) -> None:
        """Have workers that can plan, and compile what they plan with if that is wanted.

        To compile leaves the gap machine-code. Workers that are not prepared end.
        """
        self._pool.prepare(compiling=compiling)

    def session(
        self,
        program: str,
        spaces: tuple[Space, Space],
        *,
        planners: Sequence[tuple[str, Mapping[str, Any]]],
        rows: Columns | None = None,
        **how: Unpack[How],
    ) -> "Session":
        """Return a session that plans with a program; to be closed, as by `with`.

        `spaces` are those of observations and of actions, `planners` names and
        options: the first that suits the program is used. `rows` are columns of
        real observations and actions; only forms of the program that agree with
        it there stand in for it, and none does if `form` is scalar.
        """
        from cwm_cli.sandbox.session import Session

        self.prepare()
        settings = [(name, dict(options)) for name, options in planners]
        columns: Columns = {}
        for name, space in zip(("observations", "actions"), spaces, strict=True):
            columns |= space.pack(name, [])
        numbers = np.empty(0, dtype=np.int64)
        gated = self.protection.is_gated
        about = numbers, *spaces, rows or columns, settings
        form, valid = how.get("form", "auto"), how.get("valid", False)
        job = Job(program, how.get("seed", 0), *about, gated=gated, form=form, valid=valid)
        return Session(self, job)

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

    def _job(self, program: str, dataset: Dataset, rows: np.ndarray, seed: int) -> Job:
        """Return the question for some rows of a dataset."""
        inputs = dataset.select("observations", "actions")
        columns = {name: column[rows] for name, column in inputs.items()}
        spaces = (dataset.observation_space, dataset.action_space)
        gated = self.protection.is_gated
        valid = dataset.has_valid_actions
        return Job(program, int(seed), rows, *spaces, columns, gated=gated, valid=valid)

    def _insist(self, jobs: Sequence[Job]) -> list[_Reply]:
        """Run one job per side, again if the sandbox fails."""
        replies = self.insist(lambda: self._ask(jobs))
        return [_Reply({}, KILLED_WORKERS)] if replies is None else replies

    def _ask(self, jobs: Sequence[Job]) -> list[_Reply]:
        """Run one job per side, at the same time if there are places, else up to a failure."""
        replies: list[_Reply] = []
        with self._pool.place(), ExitStack() as stack:
            if len(jobs) > 1 and stack.enter_context(self._pool.another_place()):
                begun = [
                    stack.enter_context(self._begun(job, side)) for side, job in enumerate(jobs)
                ]
                return [finish() for finish in begun]
            for side, job in enumerate(jobs):
                with self._begun(job, side) as finish:
                    replies.append(finish())
                if replies[-1].failure:
                    break
        return replies

    def _print(self, job: Job, stdin: bytes, limits: Limits) -> Printed:
        """Run a script on a free worker."""
        layout = job.layout
        with self.lend() as worker, memory_file(stdin) as read, memory_file() as written:
            console = Console(read, written)
            with worker.running(job.encode(), layout.size, limits, console) as finish:
                outcome = finish()
            output = read_all(written, limits.output_bytes + 1)
        failure = failure_of(outcome, layout.views(outcome.arena), job, limits)
        if len(output) > limits.output_bytes:
            output, failure = output[:-1], overflow(limits)
        return Printed(output.decode("utf-8", "replace"), failure)

    @contextmanager
    def _begun(self, job: Job, side: int) -> Iterator[Callable[[], _Reply]]:
        """Begin a job on a worker of one side; what is given waits for its end."""
        layout = job.layout
        with (
            self._pool.lend(side) as worker,
            worker.running(job.encode(), layout.size, self.limits) as finish,
        ):

            def reply() -> _Reply:
                outcome = finish()
                slots = layout.views(outcome.arena)
                return _Reply(slots, failure_of(outcome, slots, job, self.limits))

            yield reply
