"""The searches of a run as jobs: each problem has its own process or thread."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cwm_apps.choices import CodingAccess
from cwm_apps.progress import FAILED, JUDGING, SEARCHING, SKIPPED, WAITING, ProblemState
from cwm_apps.reading import Malformed
from cwm_apps.runs import CodingRun
from cwm_apps.tasks import CodingTask
from cwm_apps.work import OUT_OF_MONEY, ProblemSearch, ProblemWork, final_state
from cwm_cli.bench.executor import (
    BUSY,
    LONGEST_WAIT,
    LOST,
    Command,
    CommandEvent,
    Ended,
    Executor,
    Idle,
    Started,
    carried_out,
    seconds_between_reads,
    stopping_words,
)
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.searches import JournalTail, SearchRun
from cwm_cli.runs.storage import BusyError, StorageError, storage_of
from cwm_cli.search.spending import CostLimit
from cwm_cli.search.threads import submit

ACCESS = "CWM_APPS_ACCESS"
"""The environment variable that passes the choices of a search to the process of a problem."""

LOCKED = "its run is locked"
"""The reason of a thread that leaves its problem to another process."""

THREADS = "threads"
"""The name under which all searches of one process reserve their cost."""


def job_name(number: int) -> str:
    """Return the name of the job of a problem, which the executor and the cost limit use."""
    return f"{number:04}"


def job_command(run: CodingRun, number: int, access: CodingAccess) -> Command:
    """Return the command that searches for a problem whose run exists."""
    return Command(
        name=job_name(number),
        words=(sys.executable, "-m", "cwm_apps.worker", run.place, str(number)),
        log=run.log_file(number),
        environment={ACCESS: access.model_dump_json()},
        spending=run.spending_file,
    )


@dataclass
class Threads(Executor):
    """An executor that calls `work` for each command, in a thread of this process."""

    work: Callable[[Command], None] = field(kw_only=True)
    _running: dict[Future[None], str] = field(default_factory=dict, init=False, repr=False)

    def has_room(self) -> bool:
        """Return whether fewer than `workers` threads are running."""
        return len(self._running) < self.workers

    def start(self, command: Command) -> None:
        """Start a thread."""
        self._running[submit(partial(self.work, command))] = command.name

    def wait(self) -> list[Ended]:
        """Wait for at most a second until a thread has ended; raise errors of the program."""
        outcomes = []
        for future in wait(self._running, LONGEST_WAIT, FIRST_COMPLETED).done:
            name, error = self._running.pop(future), future.exception()
            if error is not None and not isinstance(error, CwmError):
                raise error
            outcomes.append(Ended(name, None if error is None else str(error)))
        return outcomes


class _ActiveJob(NamedTuple):
    """A problem whose job was started: its run, its last reported state and its journal."""

    run: SearchRun
    state: ProblemState
    tail: JournalTail
    is_running: bool = False


@dataclass(kw_only=True)
class SearchJobs(ProblemWork):
    """The searches of a run, each a job: a process that an executor starts, or a thread.

    With `search` the jobs are at most `access.parallel` threads of this process. A process
    needs only the folder of its problem, which is created here. Progress is read from the journal
    of the problem, and the result from its result file. The cost of an event does not grow with the
    number of problems.

    A job that is ended from outside, or leaves no result, has failed, and the other jobs continue.
    After an error in a job, no further job starts, and the error is raised when all jobs have
    ended. If the cost limit is reached, no further job starts either, but no error is raised, and
    `out_of_money` is set. In both cases threads end after the completions in flight. `observer`
    receives the notes of threads, and a note when Ctrl-C is pressed.
    """

    access: CodingAccess
    executor: Executor | None = None
    search: ProblemSearch | None = None
    observer: Observer = SILENT
    out_of_money: bool = field(default=False, init=False)
    _active: dict[str, _ActiveJob] = field(default_factory=dict, init=False)
    _updates: deque[ProblemState] = field(default_factory=deque, init=False)
    _error: str = field(default="", init=False)
    _is_stopping: bool = field(default=False, init=False)
    _limit: CostLimit | None = field(default=None, init=False)
    _next_read: float = field(default=0.0, init=False)

    def is_left(self) -> bool:
        """Return whether a requested problem has an unfinished search."""
        header = self.run.header
        numbers = (number for number in header.problems if number not in header.skipped)
        return not all(self.run.is_finished(number, self.access.budget) for number in numbers)

    def work(self) -> Iterator[ProblemState]:
        """Yield the states of problems. The first Ctrl-C lets running processes finish."""
        if self.executor:
            self.run.begin_spending(self.access.max_cost)
        elif self.access.max_cost is not None:
            self._limit = CostLimit.own(self.access.max_cost, self.run.spent(), job=THREADS)
        left = []
        for position in self.positions:
            if state := self._finished_state(position):
                yield state
            else:
                left.append(position)
        count = max(1, min(self.access.parallel, len(left)))
        threads = Threads(count, work=self._search_here)
        events = carried_out(
            self.executor or threads,
            self._commands(left),
            stopping=self._report_stopping if self.executor else None,
        )
        try:
            with closing(events):
                for event in events:
                    self._handle(event)
                    self._read()
                    while self._updates:
                        yield self._updates.popleft()
                    if self._is_stopping and not any(
                        each.is_running for each in self._active.values()
                    ):
                        break
        finally:
            self._is_stopping = True
        yield from self._updates
        if self._error:
            raise CwmError(self._error)

    def _finished_state(self, position: int) -> ProblemState | None:
        """Return the final state of a finished problem; failed if the problem has changed since."""
        number, difficulty = self.tasks.ids[position]
        found = self.run.found(self.run.problem_folder(number))
        if found is None or not found.enough(self.access.budget):
            return None
        task = self.tasks[position]
        try:
            if isinstance(task, CodingTask):
                self.run.check_task(task, found.digest)
        except CwmError as error:
            return ProblemState(number, difficulty, FAILED, reason=str(error))
        return final_state(found, self.access.budget)

    def _commands(self, left: Iterable[int]) -> Iterator[Command]:
        """Create the runs of problems when each can be started, and yield their commands."""
        for position in left:
            if self._is_stopping:
                return
            if (job := self._begin(position)) is None:
                continue
            command = job_command(self.run, job.state.id, self.access)
            if not self.executor:
                command = command._replace(spending=None)
            self._active[command.name] = job
            yield command

    def _begin(self, position: int) -> _ActiveJob | None:
        """Start or load the run of a problem; None if there is a reason not to search."""
        number, difficulty = self.tasks.ids[position]
        state = ProblemState(number, difficulty, SEARCHING, budget=self.access.budget)
        task = self.tasks[position]
        if isinstance(task, Malformed):
            self.skipped[number] = task.reason
            self._updates.append(state._replace(state=SKIPPED, reason=task.reason))
            return None
        try:
            run = self.run.problem(task)
            if self.executor and storage_of(run.folder) and not run.is_continued:
                with run:  # uploads the run to the place where the job looks for it
                    pass
        except CwmError as error:
            is_busy = isinstance(error, BusyError)
            reason, name = (BUSY, SKIPPED) if is_busy else (str(error), FAILED)
            self._updates.append(state._replace(state=name, reason=reason))
            return None
        return _ActiveJob(run, state, JournalTail(run.folder))

    def _search_here(self, command: Command) -> None:
        """Do the work of a command in this process; raise an error with `LOCKED` if it is busy."""
        assert self.search is not None
        run = self._active[command.name].run

        def note(words: str) -> None:
            self.observer.note(f"problem {int(command.name)}: {words}")

        try:
            with run:
                if run.repair_note:
                    self.observer.note(run.repair_note, "Warning")
                self.search.solve(run, self._limit, note, lambda: self._is_stopping)
        except BusyError as error:
            raise CwmError(LOCKED) from error

    def _handle(self, event: CommandEvent) -> None:
        """Update the state of the job that an event is about."""
        if isinstance(event, Idle):
            return
        if isinstance(event, Ended):
            work = self._active.pop(event.name)
            self._updates.append(self._ended_state(work, event))
            return
        name, is_running = event.command.name, isinstance(event, Started)
        self._update_state(name, self._active[name]._replace(is_running=is_running))
        self._updates.append(self._active[name].state)

    def _ended_state(self, work: _ActiveJob, event: Ended) -> ProblemState:
        """Return the state of an ended job: its result, or the reason why it has none."""
        state, folder = work.state, work.run.folder
        _bring(folder)
        found = self.run.found(folder)
        if event.reason is None and found is not None and found.enough(self.access.budget):
            return final_state(found, self.access.budget)
        work.tail.read()
        state = state._replace(completions=work.tail.completions, cost=work.tail.cost)
        reason = event.reason or LOST
        if reason == LOCKED:
            return state._replace(state=SKIPPED, reason=BUSY)
        if reason == OUT_OF_MONEY:
            self.out_of_money = self._is_stopping = True
            return state._replace(state=SKIPPED, reason=reason)
        if event.reason is None and self._is_stopping:
            return state  # a thread has obeyed
        if event.reason and not event.is_gone:
            self._error = self._error or reason
            self._is_stopping = True
        return state._replace(state=FAILED, reason=reason)

    def _read(self) -> None:
        """Read the journals of running problems, unless the last reading is recent."""
        began = time.monotonic()
        if began < self._next_read:
            return
        is_elsewhere = storage_of(self.run.folder) is not None
        for name, work in list(self._active.items()):
            if not work.is_running:
                continue
            if is_elsewhere:
                with suppress(StorageError):  # only the display of progress needs it
                    _bring(work.run.folder)
            self._update_state(name, work)
            if self._active[name].state != work.state:
                self._updates.append(self._active[name].state)
        taken = time.monotonic() - began
        # maximum share of the time spent on reading journals, for any number of active problems
        reading_share = 0.1
        self._next_read = began + max(seconds_between_reads(self.run.folder), taken / reading_share)

    def _update_state(self, name: str, work: _ActiveJob) -> None:
        """Update the state of an active problem from its journal."""
        tail = work.tail
        tail.read()
        is_over = tail.completions >= self.access.budget or tail.best == 1.0
        doing = JUDGING if is_over else SEARCHING
        state = work.state._replace(
            state=doing if work.is_running else WAITING,
            completions=tail.completions,
            best=tail.best,
            cost=tail.cost,
        )
        self._active[name] = work._replace(state=state)

    def _report_stopping(self, running: int) -> None:
        """Report that no further jobs start."""
        self.observer.note(stopping_words(running))


def _bring(folder: Path) -> None:
    """Download the files that show the progress of a problem, if its run is on an object store."""
    if storage := storage_of(folder):
        storage.bring(light=True)
