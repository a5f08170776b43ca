"""Work on many coding problems in parallel: search for programs, or judge existing programs.

Each kind of work yields the states of its problems while it runs.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from cwm_apps.choices import CodingAccess, CodingParts
from cwm_apps.judging import JudgeRules, judge
from cwm_apps.problem import CodingProblem
from cwm_apps.progress import FAILED, JUDGING, SEARCHING, SKIPPED, SOLVED, UNSOLVED, ProblemState
from cwm_apps.reading import Malformed, Tasks
from cwm_apps.runs import CodingRun, JudgedSolution, ProblemResult
from cwm_apps.scoring import ProblemOutcome
from cwm_apps.tasks import CodingTask
from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import ANSWERS, PendingAnswers, SearchRun
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import RESULT, BusyError
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import (
    Node,
    total,
)
from cwm_cli.search.loop import Search
from cwm_cli.search.spending import CostLimit
from cwm_cli.search.threads import start

T = TypeVar("T")
R = TypeVar("R")

BUSY = "another process is using it"


OUT_OF_MONEY = "another completion might exceed --max-cost"
"""The reason of a problem whose search stopped at the cost limit."""

THREADS = "threads"
"""The name under which all searches of one process reserve their cost."""


@dataclass(kw_only=True)
class ProblemWork:
    """Work on some problems of a run.

    `skipped` contains the reason for each unusable problem, and `repair_notes` describes repairs of
    damaged journals.
    """

    run: CodingRun
    tasks: Tasks
    positions: Sequence[int]
    skipped: dict[int, str] = field(default_factory=dict, init=False)
    repair_notes: list[str] = field(default_factory=list, init=False)

    def is_left(self) -> bool:
        """Return whether some work is left."""
        raise NotImplementedError

    def work(self) -> Iterator[ProblemState]:
        """Do the work, and yield the states of problems."""
        raise NotImplementedError


@dataclass(kw_only=True)
class SearchWork(ProblemWork):
    """The searches of a run. `out_of_money` is set when one search stops at the cost limit."""

    access: CodingAccess
    out_of_money: bool = field(default=False, init=False)

    def is_left(self) -> bool:
        """Return whether a requested problem has an unfinished search."""
        header = self.run.header
        numbers = (number for number in header.problems if number not in header.skipped)
        return not all(self.run.is_finished(number, self.access.budget) for number in numbers)

    def begin(self, position: int) -> "BegunProblem | ProblemState":
        """Start or load the run of a problem, or return a state with the reason for its absence."""
        number, difficulty = self.tasks.ids[position]
        state = ProblemState(number, difficulty, SEARCHING, budget=self.access.budget)
        task = self.tasks[position]
        if isinstance(task, Malformed):
            self.skipped[number] = task.reason
            return state._replace(state=SKIPPED, reason=task.reason)
        try:
            return BegunProblem(task, self.run.problem(task), state)
        except BusyError:
            return state._replace(state=SKIPPED, reason=BUSY)
        except CwmError as error:
            return state._replace(state=FAILED, reason=str(error))


class BegunProblem(NamedTuple):
    """A problem with its run, which is not locked yet, and its first state."""

    task: CodingTask
    run: SearchRun
    state: ProblemState


@dataclass(kw_only=True)
class Searches(SearchWork):
    """The searches of a run in threads of this process.

    At most `access.parallel` completions are in flight: one for each of that number of problems, or
    several per problem if there are fewer problems. With one completion in flight per problem, the
    result of a problem does not depend on the other problems; with several models, each search
    chooses a model only by its own results. Earlier costs of the run count towards the limit.
    """

    parts: CodingParts
    sandbox: Sandbox
    stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _search: "ProblemSearch" = field(init=False)

    def work(self) -> Iterator[ProblemState]:
        """Yield the states of problems. Raise an error of the backend when all have stopped."""
        most, limit = self.access.max_cost, None
        if most is not None:
            limit = CostLimit.own(most, self.run.spent(), job=THREADS)
        threads = min(self.access.parallel, len(self.positions))
        each = max(1, self.access.parallel // len(self.positions))
        self._search = ProblemSearch(
            coding=self.run,
            parts=self.parts,
            sandbox=self.sandbox,
            budget=self.access.budget,
            parallel=each,
            limit=limit,
            stopping=self.stopping,
        )
        return stream(self._solve, self.positions, threads=threads, stopping=self.stopping)

    def _solve(self, position: int) -> Iterator[ProblemState]:
        """Finish the search of a problem."""
        problem = self.begin(position)
        if isinstance(problem, ProblemState):
            yield problem
            return
        try:
            with problem.run as run:
                self.repair_notes += filter(None, [run.repair_note])
                for state in self._search.states(problem.task, run, problem.state):
                    if state.reason == OUT_OF_MONEY:
                        self.out_of_money = True
                        self.stopping.set()
                    yield state
        except BusyError:
            yield problem.state._replace(state=SKIPPED, reason=BUSY)
        except CwmError as error:
            yield problem.state._replace(state=FAILED, reason=str(error))
            raise


@dataclass(kw_only=True)
class ProblemSearch:
    """A search of single problems, with `parallel` completions in flight per problem.

    When `stopping` is set, a search ends after the completions in flight.
    """

    coding: CodingRun
    parts: CodingParts
    sandbox: Sandbox
    budget: int
    parallel: int = 1
    limit: CostLimit | None = None
    stopping: threading.Event = field(default_factory=threading.Event)

    def states(
        self, task: CodingTask, run: SearchRun, state: ProblemState
    ) -> Iterator[ProblemState]:
        """Search if the search is unfinished, judge the best program, and yield the states.

        An unfinished search has no result. If it stopped at the cost limit, the last state contains
        this reason.
        """
        found = self.coding.found(run.folder)
        if found is None or not found.enough(self.budget):
            (run.folder / RESULT).unlink(missing_ok=True)
            search = self._search(task, run)
            yield (state := _with_progress(state, search))
            for note in self._steps(search, run):
                yield (state := _with_progress(state, search))._replace(note=note)
            if not _is_over(search, self.budget):
                if search.out_of_money:
                    run.log(f"stopped: {OUT_OF_MONEY}")
                    yield state._replace(state=SKIPPED, reason=OUT_OF_MONEY)
                return
            yield state._replace(state=JUDGING)
            found = self._save_judgement(task, run, search)
        yield final_state(found, self.budget)

    def _search(self, task: CodingTask, run: SearchRun) -> Search:
        """Build the search of a problem with the existing nodes of its run."""
        seed, options = run.config.seed, self.coding.header.config.options.get("problem", {})
        answers = PendingAnswers(self.parts.search_backend, run.folder / ANSWERS)
        search = Search(
            CodingProblem(task, self.sandbox, seed, **options),
            self.parts.strategy(),
            answers,
            seed=seed,
            parallel=self.parallel,
            journal=run.learn,
            limit=self.limit,
        )
        search.resume(run.nodes(), answers.lost())
        if search.best:  # a crash may have prevented its saving
            search.problem.keep(run.folder, search.best)
        run.log(f"budget {self.budget}, {len(search.nodes)} nodes")
        return search

    def _steps(self, search: Search, run: SearchRun) -> Iterator[str]:
        """Search, and yield the note of each completion, which is usually empty.

        Completions in flight at the end of the search are already paid for, so they are
        recorded too.
        """
        stopped: CwmError | None = None
        try:
            for record in search.run(self.budget):
                _save_if_best(search, run, record.node)
                yield record.note
                if self.stopping.is_set():
                    break
        except CwmError as error:
            stopped = error
        for record in search.drain():
            _save_if_best(search, run, record.node)
            yield record.note
        if stopped and not _is_over(search, self.budget):
            run.log(f"stopped: {stopped}")
            raise stopped

    def _save_judgement(self, task: CodingTask, run: SearchRun, search: Search) -> ProblemResult:
        """Judge the best program with all tests, and save the result."""
        spent = total([node.usage for node in search.nodes])
        program = search.best.program if search.best else ""
        found = ProblemResult(
            id=task.id,
            difficulty=task.difficulty,
            **passed_tests(
                program,
                task,
                self.sandbox,
                seed=run.config.seed,
                rules=self.coding.header.config.rules,
            ),
            completions=len(search.nodes),
            tokens=spent.tokens,
            cost=spent.cost,
            seconds=round(spent.seconds, 3),
            run=run.place,
            program=named(run.folder / "best.py") if search.best else None,
            solved=search.solved,
            given_up=search.given_up,
            digest=run.config.dataset,
        )
        found.save(run)
        run.log(f"finished with {len(search.nodes)} nodes, all tests passed: {found.strict}")
        return found


class UnjudgedSolution(NamedTuple):
    """A program to judge: the position of its problem, and its number among the programs."""

    position: int
    number: int


@dataclass(kw_only=True)
class SolutionsJudging(ProblemWork):
    """The judging of programs from `--solutions`."""

    sandbox: Sandbox
    programs: Mapping[int, Sequence[str]]
    seed: int
    _firsts: dict[int, bool] = field(default_factory=dict, init=False)
    _done: Counter[int] = field(default_factory=Counter, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def is_left(self) -> bool:
        """Return whether some programs are not judged yet."""
        return bool(self.left())

    def left(self) -> list[UnjudgedSolution]:
        """Return the programs that are not judged yet, except for unusable problems."""
        done, skipped = self.run.judged(), self.run.header.skipped
        every = (
            UnjudgedSolution(p, n) for p in self.positions for n in range(len(self._programs(p)))
        )
        named = ((place, self.tasks.ids[place.position][0]) for place in every)
        return [p for p, id in named if (id, p.number) not in done and id not in skipped]

    def work(self) -> Iterator[ProblemState]:
        """Yield the states of problems."""
        done, items = self.run.judged(), self.left()
        self._firsts = {key[0]: one.outcome.strict for key, one in done.items() if key[1] == 0}
        self._done = Counter(number for number, _ in done)
        self._task = lru_cache(maxsize=self.sandbox.workers)(self.tasks.__getitem__)
        left = {item.position for item in items}
        for position in self.positions:
            if position not in left:
                yield self._final_state(position)
        stopping = threading.Event()
        yield from stream(self._judge, items, threads=self.sandbox.workers, stopping=stopping)

    def _judge(self, place: UnjudgedSolution) -> Iterator[ProblemState]:
        """Judge a program, and save the tests that it passes."""
        number, difficulty = self.tasks.ids[place.position]
        programs = self._programs(place.position)
        state = ProblemState(number, difficulty, JUDGING, budget=len(programs), unit="program")
        task = self._task(place.position)
        if isinstance(task, Malformed):
            if place.number == 0:
                self.skipped[number] = task.reason
                yield state._replace(state=SKIPPED, reason=task.reason)
            return
        yield state._replace(completions=self._done[number])
        program, rules = programs[place.number], self.run.header.config.rules
        passed = passed_tests(program, task, self.sandbox, seed=self.seed, rules=rules)
        outcome = ProblemOutcome(id=number, difficulty=task.difficulty, **passed)
        with self._lock:
            with self.run:
                self.run.append(JudgedSolution(number=place.number, outcome=outcome))
            self._done[number] += 1
            is_over = self._done[number] == len(programs)
            if place.number == 0:
                self._firsts[number] = outcome.strict
        if is_over:
            yield self._final_state(place.position)

    def _programs(self, position: int) -> Sequence[str]:
        return self.programs.get(self.tasks.ids[position][0], ())

    def _final_state(self, position: int) -> ProblemState:
        """Return the state of a problem after the judging of its first program."""
        number, difficulty = self.tasks.ids[position]
        if reason := self.run.header.skipped.get(number):
            return ProblemState(number, difficulty, SKIPPED, reason=reason)
        total = len(self._programs(position))
        state = SOLVED if self._firsts[number] else UNSOLVED
        return ProblemState(number, difficulty, state, total, total, unit="program")


@dataclass
class Rejudging:
    """The judging of a run's finished problems again. `changed` describes changed verdicts."""

    run: CodingRun
    sandbox: Sandbox
    changed: dict[int, str] = field(default_factory=dict, init=False)

    def finished(self) -> list[Path]:
        """Return the folders of problems that have a result."""
        return [path for path in self.run.started() if (path / RESULT).exists()]

    def work(self) -> Iterator[ProblemState]:
        """Yield the states of problems."""
        threads = self.sandbox.workers
        return stream(self._judge, self.finished(), threads=threads, stopping=threading.Event())

    def _judge(self, path: Path) -> Iterator[ProblemState]:
        """Judge the program of a problem again."""
        before = self.run.found(path)
        if before is None:
            reason = "its result cannot be read: continue the run"
            yield ProblemState(int(path.name), "", SKIPPED, reason=reason)
            return
        state = final_state(before, before.completions)
        yield state._replace(state=JUDGING)
        try:
            with SearchRun.load(path) as run:
                found = self._save_judgement(run, before)
        except BusyError:
            yield state._replace(state=SKIPPED, reason=BUSY)
            return
        yield final_state(found, before.completions)

    def _save_judgement(self, run: SearchRun, before: ProblemResult) -> ProblemResult:
        """Judge the program, save the new result, and record a change."""
        task = self.run.task(run.folder)
        program = run.best_program() if before.program else ""
        rules = self.run.header.config.rules
        passed = passed_tests(program, task, self.sandbox, seed=run.config.seed, rules=rules)
        found = before.model_copy(update=passed)
        if found != before:
            self.changed[found.id] = f"{_describe(found)}, before {_describe(before)}"
            found.save(run)
            run.log(f"judged again: {self.changed[found.id]}")
        return found


def stream(
    work: Callable[[T], Iterable[R]],
    items: Iterable[T],
    *,
    threads: int,
    stopping: threading.Event,
) -> Iterator[R]:
    """Yield everything that `work` yields for the items, in order of arrival.

    Several threads run `work`. After an error, or when `stopping` is set, no further item starts;
    running items finish, then the error is raised. If the consumer stops iterating, for example
    after Ctrl-C, it does not wait for the threads.
    """
    remaining, lock = iter(items), threading.Lock()
    arrivals: queue.SimpleQueue[R | _Finished] = queue.SimpleQueue()

    def work_on_items() -> None:
        error: BaseException | None = None
        try:
            while not stopping.is_set():
                with lock:
                    item = next(remaining, None)
                if item is None:
                    break
                for found in work(item):
                    arrivals.put(found)
        except BaseException as caught:  # noqa: BLE001  # raised again by the consumer
            error = caught
            stopping.set()
        arrivals.put(_Finished(error))

    for _ in range(threads):
        start(work_on_items)
    errors: list[BaseException] = []
    try:
        while threads:
            found = arrivals.get()
            if isinstance(found, _Finished):
                threads -= 1
                errors += [found.error] if found.error else []
            else:
                yield found
    finally:
        stopping.set()
    if errors:
        raise errors[0]


class _Finished(NamedTuple):
    """The end of a thread, with the error that ended it, if any."""

    error: BaseException | None


def passed_tests(
    program: str, task: CodingTask, sandbox: Sandbox, *, seed: int, rules: JudgeRules
) -> dict[str, int]:
    """Run a program on all tests and return the counts of an outcome."""
    passed = judge(program, task, task.tests, sandbox, seed=seed, rules=rules).passed
    public = len(task.public)
    return {
        "passed": sum(passed[public:]),
        "tests": len(task.hidden),
        "public_passed": sum(passed[:public]),
        "public_tests": public,
    }


def final_state(found: ProblemResult, budget: int) -> ProblemState:
    """Return the final state of a problem."""
    return ProblemState(
        found.id,
        found.difficulty,
        SOLVED if found.strict else UNSOLVED,
        found.completions,
        budget,
        found.public_passed / found.public_tests,
        found.cost,
    )


def _save_if_best(search: Search, run: SearchRun, node: Node) -> None:
    """Save the program of a node if it is the best one."""
    if search.best is node:
        search.problem.keep(run.folder, node)


def _with_progress(state: ProblemState, search: Search) -> ProblemState:
    """Return the state with the progress of a search."""
    best = search.best.verdict.score if search.best else None
    return state._replace(completions=len(search.nodes), best=best, cost=search.spent)


def _is_over(search: Search, budget: int) -> bool:
    """Return whether the search is finished."""
    return search.solved or search.given_up or len(search.nodes) >= budget


def _describe(found: ProblemResult) -> str:
    """Describe the tests that the program of a problem passes."""
    passed, tests = found.passed + found.public_passed, found.tests + found.public_tests
    return f"{'solved' if found.strict else 'not solved'} ({passed} of {tests} tests)"
