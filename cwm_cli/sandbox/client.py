"""The trusted side of the sandbox: asks programs for predictions, whatever they do."""

import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from cwm_cli.packing import Columns, Space
from cwm_cli.programs import Failure
from cwm_cli.sandbox.arena import Layout
from cwm_cli.sandbox.failures import KILLED_WORKERS, failure_of
from cwm_cli.sandbox.job import Job
from cwm_cli.sandbox.limits import Limits
from cwm_cli.sandbox.process import Outcome, SandboxError, Worker, WorkerLost
from cwm_cli.sandbox.session import Session
from cwm_cli.transitions import Dataset

T = TypeVar("T")


class Predictions(NamedTuple):
    """What a program predicts for the rows of a dataset, in their order.

    The columns are `next_observations` (one per leaf: float64, int64 or str),
    `rewards` (float64) and `terminations` (bool). There are none when the
    program failed.
    """

    columns: Columns
    failure: Failure | None


class Sandbox:
    """Warm worker processes that run programs; for use by several threads at once.

    A worker serves one program at a time, in a process that exists for that
    program only. Workers start when they are first needed.
    """

    def __init__(self, limits: Limits | None = None, workers: int = 1) -> None:
        self.limits = limits or Limits()
        self._workers: set[Worker] = set()
        self._closed = False
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._free.put(None)

    def predict(self, program: str, dataset: Dataset, *, seed: int = 0) -> Predictions:
        """Ask a program for every row; only observations and actions are sent.

        Rows are shuffled by `seed`, which also seeds, row by row, the random
        numbers that the program draws.
        """
        order = np.random.default_rng(seed).permutation(len(dataset))
        inputs = dataset.select("observations", "actions")
        columns = {name: column[order] for name, column in inputs.items()}
        spaces = (dataset.observation_space, dataset.action_space)
        job = Job(program, int(seed), order, *spaces, columns)
        layout = Layout(dataset.observation_space, len(order))
        outcome = self.insist(lambda: self._run(job.encode(), layout.size))
        if outcome is None:
            return Predictions({}, KILLED_WORKERS)
        views = layout.views(outcome.arena)
        failure = failure_of(outcome, views, job, self.limits)
        return Predictions({} if failure else _answers(views, job), failure)

    def session(
        self,
        program: str,
        spaces: tuple[Space, Space],
        *,
        planner: str,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Session:
        """Return a session that plans with a program; to be closed, as by `with`.

        `spaces` are those of observations and of actions, `options` the fields
        of the planner.
        """
        settings = {"name": planner, "options": dict(options or {})}
        columns: Columns = {}
        for name, space in zip(("observations", "actions"), spaces, strict=True):
            columns |= space.pack(name, [])
        rows = np.empty(0, dtype=np.int64)
        return Session(self, Job(program, int(seed), rows, *spaces, columns, settings))

    def close(self) -> None:
        """End every worker, also those at work."""
        self._closed = True
        for worker in list(self._workers):
            self._retire(worker)

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
                if isinstance(first, WorkerLost) and not self._closed:
                    return None
                raise

    @contextmanager
    def lend(self) -> Iterator[Worker]:
        """Lend a free worker; one with which something fails is ended and later replaced."""
        worker = self._free.get()
        try:
            worker = self._started(worker)
            yield worker
        except BaseException:
            if worker:
                self._retire(worker)
            worker = None
            raise
        finally:
            self._free.put(worker)

    def _run(self, job: bytes, arena_bytes: int) -> Outcome:
        """Run a job on a free worker."""
        with self.lend() as worker:
            return worker.run(job, arena_bytes, self.limits)

    def _started(self, worker: Worker | None) -> Worker:
        """Start a worker unless there is one, and unless the sandbox is closed."""
        if worker is None and not self._closed:
            worker = Worker()
            self._workers.add(worker)
        if worker is None or self._closed:  # perhaps since a moment ago
            if worker:
                self._retire(worker)
            raise SandboxError("the sandbox is closed")
        return worker

    def _retire(self, worker: Worker) -> None:
        """End a worker."""
        worker.close()
        self._workers.discard(worker)


def _answers(views: Columns, job: Job) -> Columns:
    """Put answers back into the order of the dataset, in the types that are compared."""
    columns: Columns = {}
    names = [name for name, _ in job.observation_space.leaves("next_observations")]
    for name in (*names, "rewards", "terminations"):
        columns[name] = np.empty_like(views[name])
        columns[name][job.rows] = views[name]
        if columns[name].dtype.kind == "S":
            columns[name] = np.char.decode(columns[name], "utf-8", "replace")
    columns["terminations"] = columns["terminations"].astype(np.bool_)
    return columns
