"""The searches of a run as jobs: each problem a process of its own, here or on other machines."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cwm_apps.choices import CodingAccess
from cwm_apps.progress import FAILED, JUDGING, SEARCHING, SKIPPED, WAITING, ProblemState
from cwm_apps.runs import CodingRun
from cwm_apps.tasks import CodingTask
from cwm_apps.work import OUT_OF_MONEY, SearchWork, ended
from cwm_cli.bench.executor import (
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
from cwm_cli.runs.searches import JournalTail
from cwm_cli.runs.storage import StorageError, storage_of

ACCESS = "CWM_APPS_ACCESS"
"""The environment variable with what the process of a problem has to know and nobody writes."""

READING_SHARE = 0.1
"""The share of the time that reading journals may take, however many problems are at work."""


def job_name(number: int) -> str:
    """Name the job of a problem, for an executor and for those who ask what it may spend."""
    return f"{number:04}"


def job_command(run: CodingRun, number: int, access: CodingAccess) -> Command:
    """Return the command that searches for a problem whose run was begun."""
    return Command(
        name=job_name(number),
        words=(sys.executable, "-m", "cwm_apps.worker", run.place, str(number)),
        log=run.log_file(number),
        environment={ACCESS: access.model_dump_json()},
        spending=run.spending_file,
    )


class _AtWork(NamedTuple):
    """A problem whose job was begun: how far it was told to be, and its journal."""

    state: ProblemState
    tail: JournalTail
    is_running: bool = True


@dataclass(kw_only=True)
class SearchJobs(SearchWork):
    """The searches of a run, each done by a process of its own that an executor starts.

    A job needs only the folder of its problem, which is begun here; how far it is, its journal
    says, and its result is the file there. What an event costs does not grow with the number of
    problems. A job that is ended from outside, or leaves no result, has failed, and the others go
    on; after an error in one, nothing is begun any more, and it is raised once all have ended. So
    it is where money is short, but for the error. `told` hears a line when Ctrl-C is pressed.
    """

    executor: Executor
    told: Callable[[str], None]
    _at_work: dict[str, _AtWork] = field(default_factory=dict, init=False)
    _news: deque[ProblemState] = field(default_factory=deque, init=False)
    _error: str = field(default="", init=False)
    _is_stopping: bool = field(default=False, init=False)
    _due: float = field(default=0.0, init=False)

    def work(self) -> Iterator[ProblemState]:
        """Yield how far problems are; the first Ctrl-C lets finish what runs."""
        self.run.begin_spending(self.access.max_cost)
        left = []
        for position in self.positions:
            if state := self._finished(position):
                yield state
            else:
                left.append(position)
        events = carried_out(self.executor, self._commands(left), stopping=self._stopping)
        with closing(events):
            for event in events:
                self._took(event)
                self._read()
                while self._news:
                    yield self._news.popleft()
                if self._is_stopping and not any(w.is_running for w in self._at_work.values()):
                    break
        yield from self._news
        if self._error:
            raise CwmError(self._error)

    def _finished(self, position: int) -> ProblemState | None:
        """Say how a problem ended that is searched to the end, unless it has changed since."""
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
        return ended(found, self.access.budget)

    def _commands(self, left: Iterable[int]) -> Iterator[Command]:
        """Begin the runs of problems, when each can be started; yield what searches for them."""
        for position in left:
            if self._is_stopping:
                return
            begun = self.begun(position)
            if isinstance(begun, ProblemState):
                self._news.append(begun)
                continue
            if storage_of(begun.run.folder) and not begun.run.is_continued:
                with begun.run:  # which sends it to where the job looks for it
                    pass
            command = job_command(self.run, begun.task.id, self.access)
            tail = JournalTail(begun.run.folder)
            self._at_work[command.name] = _AtWork(begun.state, tail, is_running=False)
            yield command

    def _took(self, event: CommandEvent) -> None:
        """Take in what has become of a job."""
        if isinstance(event, Idle):
            return
        if isinstance(event, Ended):
            work = self._at_work.pop(event.name)
            self._news.append(self._over(work, event))
            return
        name, is_running = event.command.name, isinstance(event, Started)
        self._look(name, self._at_work[name]._replace(is_running=is_running))
        self._news.append(self._at_work[name].state)

    def _over(self, work: _AtWork, event: Ended) -> ProblemState:
        """Say what came of a job: a result, or why there is none."""
        state, folder = work.state, work.tail.run
        _bring(folder)
        found = self.run.found(folder)
        if event.reason is None and found is not None and found.enough(self.access.budget):
            return ended(found, self.access.budget)
        work.tail.read()
        state = state._replace(completions=work.tail.completions, cost=work.tail.cost)
        reason = event.reason or LOST
        if reason == OUT_OF_MONEY:
            self.out_of_money = self._is_stopping = True
            return state._replace(state=SKIPPED, reason=reason)
        if event.reason and not event.is_gone:
            self._error, self._is_stopping = self._error or reason, True
        return state._replace(state=FAILED, reason=reason)

    def _read(self) -> None:
        """Read the journals of running problems, unless they were read a moment ago."""
        began = time.monotonic()
        if began < self._due:
            return
        is_elsewhere = storage_of(self.run.folder) is not None
        for name, work in list(self._at_work.items()):
            if not work.is_running:
                continue
            if is_elsewhere:
                with suppress(StorageError):  # it is only to be looked at
                    _bring(work.tail.run)
            self._look(name, work)
            if self._at_work[name].state != work.state:
                self._news.append(self._at_work[name].state)
        taken = time.monotonic() - began
        self._due = began + max(seconds_between_reads(self.run.folder), taken / READING_SHARE)

    def _look(self, name: str, work: _AtWork) -> None:
        """Find out from its journal how far a problem at work is."""
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
        self._at_work[name] = work._replace(state=state)

    def _stopping(self, running: int) -> None:
        """Say that nothing is begun any more."""
        self.told(stopping_words(running))


def _bring(folder: Path) -> None:
    """Bring what tells how far a problem is, where its run is kept on an object store."""
    if storage := storage_of(folder):
        storage.bring(light=True)
