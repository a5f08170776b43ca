"""Search for a program of each problem, several at a time, and judge it by the hidden tests."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cwm_apps.folder import Folder, Found, Header, save
from cwm_apps.judging import judge
from cwm_apps.overview import FAILED, JUDGING, SEARCHING, SKIPPED, SOLVED, UNSOLVED, Standing
from cwm_apps.problem import AppsProblem
from cwm_apps.purse import OutOfMoneyError
from cwm_apps.reading import Malformed, Tasks
from cwm_apps.tasks import CodingTask
from cwm_apps.threads import stream
from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import BusyError
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import Backend, Record, Strategy, total
from cwm_cli.search.loop import Search


class ChangedError(CwmError):
    """A run of a problem cannot go on with what is asked for now."""


@dataclass
class Searches:
    """The searches of a run; `skipped` says of problems why they cannot be used.

    At most `parallel` completions are in flight: as many problems at a time, and
    several completions of each where there are fewer. Otherwise each problem has one
    in flight, and what comes of it does not depend on the others.
    """

    folder: Folder
    header: Header
    tasks: Tasks
    positions: Sequence[int]
    strategy: Callable[[], Strategy]
    backend: Backend
    sandbox: Sandbox
    budget: int
    parallel: int = 1
    skipped: dict[int, str] = field(default_factory=dict, init=False)
    refused: dict[int, str] = field(default_factory=dict, init=False)
    busy: list[int] = field(default_factory=list, init=False)
    out_of_money: str = field(default="", init=False)
    stopping: threading.Event = field(default_factory=threading.Event, init=False)

    def run(self) -> Iterator[Standing]:
        """Yield how far problems are; an error of the backend is raised when all have stopped."""
        threads = min(self.parallel, len(self.positions))
        return stream(self._solve, self.positions, threads=threads, stopping=self.stopping)

    def _solve(self, position: int) -> Iterator[Standing]:
        """Do what is left to do for a problem."""
        number, difficulty = self.tasks.ids[position]
        standing = Standing(number, difficulty, SEARCHING, budget=self.budget)
        task = self.tasks[position]
        try:
            if isinstance(task, Malformed):
                self.skipped[number] = task.reason
                yield standing._replace(state=SKIPPED, reason=task.reason)
                return
            with self._open(task) as run:
                yield from self._continue(task, run, standing)
        except BusyError:
            self.busy.append(number)
            reason = "another process is working on it"
            yield standing._replace(state=SKIPPED, reason=reason)
        except ChangedError as error:
            self.refused[number] = str(error)
            yield standing._replace(state=FAILED, reason=str(error))
        except OutOfMoneyError as error:
            self.out_of_money = str(error)
            self.stopping.set()
            yield standing._replace(state=SKIPPED, reason=str(error))
        except CwmError as error:
            yield standing._replace(state=FAILED, reason=str(error))
            raise

    def _open(self, task: CodingTask) -> SearchRun:
        """Return the run of a problem."""
        try:
            return self.folder.run(task, self.header)
        except CwmError as error:
            raise ChangedError(str(error)) from error

    def _continue(self, task: CodingTask, run: SearchRun, standing: Standing) -> Iterator[Standing]:
        """Search, unless that is done, and judge the best program."""
        found = self.folder.found(run.folder)
        if found is None or not found.enough(self.budget):
            (run.folder / "result.json").unlink(missing_ok=True)
            search = self._search(task, run)
            yield (standing := _told(standing, search))
            for _ in self._records(search, run):
                yield (standing := _told(standing, search))
            if not _is_over(search, self.budget):
                return
            yield standing._replace(state=JUDGING)
            found = self._judged(task, run, search)
        yield ended(found, self.budget)

    def _search(self, task: CodingTask, run: SearchRun) -> Search:
        """Build the search of a problem, with the nodes that its run has already."""
        config = self.header.config
        problem = AppsProblem(task, self.sandbox, config.seed)
        search = Search(
            problem,
            self.strategy(),
            self.backend,
            seed=config.seed,
            parallel=max(1, self.parallel // len(self.positions)),
            journal=run.learn,
        )
        search.resume(run.nodes())
        if search.best:  # which a crash may have kept from being saved
            run.save_best(search.best)
        run.log(f"budget {self.budget}, {len(search.nodes)} nodes")
        return search

    def _records(self, search: Search, run: SearchRun) -> Iterator[Record]:
        """Search; what is in flight when the search ends is paid for, and learned as well."""
        stopped: CwmError | None = None
        try:
            for record in search.run(self.budget):
                yield self._learned(record, search, run)
                if self.stopping.is_set():
                    break
        except CwmError as error:
            stopped = error
        for record in search.drain():
            yield self._learned(record, search, run)
        if stopped and not _is_over(search, self.budget):
            run.log(f"stopped: {stopped}")
            raise stopped

    def _learned(self, record: Record, search: Search, run: SearchRun) -> Record:
        """Save a program that is the best so far."""
        if search.best is record.node:
            run.save_best(record.node)
        return record

    def _judged(self, task: CodingTask, run: SearchRun, search: Search) -> Found:
        """Judge the best program by all tests, and write the result down."""
        spent = total([node.usage for node in search.nodes])
        program = search.best.program if search.best else ""
        passed = verdicts(program, task, self.sandbox, seed=self.header.config.seed)
        found = Found(
            id=task.id,
            difficulty=task.difficulty,
            **counts(passed, task),
            completions=len(search.nodes),
            tokens=spent.tokens,
            cost=spent.cost,
            seconds=round(spent.seconds, 3),
            run=str(run.folder),
            program=str(run.folder / "best.py") if search.best else None,
            solved=search.solved,
            given_up=search.given_up,
            digest=run.config.dataset,
        )
        save(run, found)
        run.log(f"finished with {len(search.nodes)} nodes, all tests passed: {found.strict}")
        return found


def verdicts(program: str, task: CodingTask, sandbox: Sandbox, *, seed: int) -> tuple[bool, ...]:
    """Say which tests a program passes, the public ones first."""
    return judge(program, task, task.tests, sandbox, seed=seed).passed


def counts(passed: Sequence[bool], task: CodingTask) -> dict[str, int]:
    """Count passed tests as an outcome has them."""
    public = len(task.public)
    return {
        "passed": sum(passed[public:]),
        "tests": len(task.hidden),
        "public_passed": sum(passed[:public]),
        "public_tests": public,
    }


def ended(found: Found, budget: int) -> Standing:
    """Say how a problem ended."""
    return Standing(
        found.id,
        found.difficulty,
        SOLVED if found.strict else UNSOLVED,
        found.completions,
        budget,
        found.public_passed / found.public_tests,
        found.cost,
    )


def _told(standing: Standing, search: Search) -> Standing:
    """Say how far a search is."""
    best = search.best.verdict.score if search.best else None
    return standing._replace(completions=len(search.nodes), best=best, cost=search.spent)


def _is_over(search: Search, budget: int) -> bool:
    """Whether nothing is left to search for."""
    return search.solved or search.given_up or len(search.nodes) >= budget
