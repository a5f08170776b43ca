"""Work on many coding problems in parallel: search for programs, or judge existing programs.

Each kind of work yields the states of its problems while it runs.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from cwm_apps.choices import CodingAccess, CodingParts
from cwm_apps.judging import JudgeRules, judge
from cwm_apps.problem import CodingProblem
from cwm_apps.progress import JUDGING, SKIPPED, SOLVED, UNSOLVED, ProblemState
from cwm_apps.reading import Malformed, Tasks
from cwm_apps.runs import CodingRun, JudgedSolution, ProblemResult
from cwm_apps.scoring import ProblemOutcome
from cwm_apps.tasks import CodingTask
from cwm_cli.bench.executor import BUSY
from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import ANSWERS, PendingAnswers, SearchRun
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import RESULT, BusyError
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import Node, total
from cwm_cli.search.loop import Search
from cwm_cli.search.spending import CostLimit
from cwm_cli.search.threads import submit

OUT_OF_MONEY = "another completion might exceed --max-cost"
"""The reason of a problem whose search stopped at the cost limit."""


@dataclass(kw_only=True)
class ProblemWork:
    """Work on some problems of a run. `skipped` contains the reason for each unusable problem."""

    run: CodingRun
    tasks: Tasks
    positions: Sequence[int]
    skipped: dict[int, str] = field(default_factory=dict, init=False)

    def is_left(self) -> bool:
        """Return whether some work is left."""
        raise NotImplementedError

    def work(self) -> Iterator[ProblemState]:
        """Do the work, and yield the states of problems."""
        raise NotImplementedError


@dataclass(kw_only=True)
class ProblemSearch:
    """The searches of single problems, with `access.parallel` completions in flight per search."""

    coding: CodingRun
    parts: CodingParts
    sandbox: Sandbox
    access: CodingAccess

    def solve(
        self,
        run: SearchRun,
        limit: CostLimit | None = None,
        note: Callable[[str], None] = lambda words: None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Finish the search of a problem, and save its result.

        Args:
            run: The run of the problem, which this process has locked.
            limit: The cost limit.
            note: Receives the notes of completions, which are also in the log of the run.
            is_stopping: Returns whether the search ends after the completions in flight, without a
                result.

        Raises:
            CwmError: If the search could not be finished. The message is `OUT_OF_MONEY` if it
                stopped at the cost limit.
        """
        if run.repair_note:
            run.log(run.repair_note)
        found = self.coding.found(run.folder)
        if found is not None and found.enough(self.access.budget):
            return
        (run.folder / RESULT).unlink(missing_ok=True)
        task = self.coding.task(run.folder)
        search = self._search(task, run, limit)
        for words in filter(None, self._steps(search, run, is_stopping)):
            run.log(words)
            note(words)
        if _is_over(search, self.access.budget):
            self._save_judgement(task, run, search)
        elif search.out_of_money:
            run.log(f"stopped: {OUT_OF_MONEY}")
            raise CwmError(OUT_OF_MONEY)

    def _search(self, task: CodingTask, run: SearchRun, limit: CostLimit | None) -> Search:
        """Build the search of a problem with the existing nodes of its run."""
        seed, options = run.config.seed, self.coding.header.config.options.get("problem", {})
        answers = PendingAnswers(self.parts.search_backend, run.folder / ANSWERS)
        search = Search(
            CodingProblem(task, self.sandbox, seed, **options),
            self.parts.strategy(),
            answers,
            seed=seed,
            parallel=self.access.parallel,
            journal=run.learn,
            limit=limit,
        )
        search.resume(run.nodes(), answers.lost())
        if search.best:  # a crash may have prevented its saving
            search.problem.keep(run.folder, search.best)
        run.log(f"budget {self.access.budget}, {len(search.nodes)} nodes")
        return search

    def _steps(
        self, search: Search, run: SearchRun, is_stopping: Callable[[], bool]
    ) -> Iterator[str]:
        """Search, and yield the note of each completion, which is usually empty.

        Completions in flight at the end of the search are already paid for, so they are
        recorded too.
        """
        stopped: CwmError | None = None
        try:
            for record in search.run(self.access.budget):
                _save_if_best(search, run, record.node)
                yield record.note
                if is_stopping():
                    break
        except CwmError as error:
            stopped = error
        for record in search.drain():
            _save_if_best(search, run, record.node)
            yield record.note
        if stopped and not _is_over(search, self.access.budget):
            run.log(f"stopped: {stopped}")
            raise stopped

    def _save_judgement(self, task: CodingTask, run: SearchRun, search: Search) -> None:
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
        yield from _in_threads(self._judgings(items), self.sandbox.workers)

    def _judgings(self, items: Iterable[UnjudgedSolution]) -> "Iterator[_Judging]":
        """Yield the judging of each program of a usable problem."""
        for place in items:
            number, difficulty = self.tasks.ids[place.position]
            budget, done = len(self._programs(place.position)), self._done[number]
            state = ProblemState(number, difficulty, JUDGING, done, budget, unit="program")
            task = self._task(place.position)
            if not isinstance(task, Malformed):
                yield _Judging(state, partial(self._judge, place, task))
            elif number not in self.skipped:
                self.skipped[number] = task.reason
                yield _Judging(state._replace(state=SKIPPED, reason=task.reason))

    def _judge(self, place: UnjudgedSolution, task: CodingTask) -> ProblemState | None:
        """Judge a program, save the tests that it passes; return the state after the last one."""
        number, programs = self.tasks.ids[place.position][0], self._programs(place.position)
        program, rules = programs[place.number], self.run.header.config.rules
        passed = passed_tests(program, task, self.sandbox, seed=self.seed, rules=rules)
        outcome = ProblemOutcome(id=number, difficulty=task.difficulty, **passed)
        with self._lock:
            with self.run:
                self.run.append(JudgedSolution(number=place.number, outcome=outcome))
            self._done[number] += 1
            if place.number == 0:
                self._firsts[number] = outcome.strict
            is_over = self._done[number] == len(programs)
        return self._final_state(place.position) if is_over else None

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
        return _in_threads(map(self._begin, self.finished()), self.sandbox.workers)

    def _begin(self, path: Path) -> "_Judging":
        """Return the first state of a problem, and the judging of its program."""
        before = self.run.found(path)
        if before is None:
            reason = "its result cannot be read: continue the run"
            return _Judging(ProblemState(int(path.name), "", SKIPPED, reason=reason))
        state = final_state(before, before.completions)._replace(state=JUDGING)
        return _Judging(state, partial(self._judge, path, before))

    def _judge(self, path: Path, before: ProblemResult) -> ProblemState:
        """Judge the program of a problem again."""
        try:
            with SearchRun.load(path) as run:
                return final_state(self._save_judgement(run, before), before.completions)
        except BusyError:
            return final_state(before, before.completions)._replace(state=SKIPPED, reason=BUSY)

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


class _Judging(NamedTuple):
    """The first state of a problem, and the work that returns its last state, if it ends it."""

    state: ProblemState
    work: Callable[[], ProblemState | None] = lambda: None


def _in_threads(items: Iterable[_Judging], threads: int) -> Iterator[ProblemState]:
    """Yield the first and the last states, in the order of the items.

    Several threads judge. After an error, no further item starts, and the error is raised when the
    running items have ended.
    """
    running: deque[Future[ProblemState | None]] = deque()

    def oldest() -> Iterator[ProblemState]:
        if state := running.popleft().result():
            yield state

    try:
        for item in items:
            yield item.state
            running.append(submit(item.work))
            if len(running) >= threads:
                yield from oldest()
        while running:
            yield from oldest()
    except CwmError:
        wait(running)
        raise


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


def _is_over(search: Search, budget: int) -> bool:
    """Return whether the search is finished."""
    return search.solved or search.given_up or len(search.nodes) >= budget


def _describe(found: ProblemResult) -> str:
    """Describe the tests that the program of a problem passes."""
    passed, tests = found.passed + found.public_passed, found.tests + found.public_tests
    return f"{'solved' if found.strict else 'not solved'} ({passed} of {tests} tests)"
