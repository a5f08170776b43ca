"""The folder of a run over coding problems: searches of problems, or judged programs.

Several processes may work on the same folder. Each problem is a run of its own, and shared files
change under a lock.
"""

import dataclasses
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from cwm_apps.judging import JudgeRules
from cwm_apps.report import CodingReport, coding_report, problem_grid
from cwm_apps.scoring import PassAt, ProblemOutcome, pass_at
from cwm_apps.tasks import CodingTask, digest, from_record, to_record
from cwm_cli._version import __version__
from cwm_cli.bench.estimate import PROBLEMS
from cwm_cli.data.reading import LARGEST, UnreadableError, read_json, read_text
from cwm_cli.errors import CwmError
from cwm_cli.export.publishing import MARK, Export, template
from cwm_cli.runs.files import read_found, replace
from cwm_cli.runs.report import Grid, RunSummary, Section, table_of, with_effort
from cwm_cli.runs.searches import JOURNAL, JournalTail, SearchConfig, SearchHeader, SearchRun
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import HEADER, RESULT, Run, RunHeader, differences
from cwm_cli.search.spending import open_spending, read_spending

TASK = "task.json"
SOLUTIONS = "solutions.json"


class CodingConfig(BaseModel):
    """The choices that identify a run over coding problems.

    Attributes:
        data: Name of the problems, the same on every machine.
        strategy: Search strategy; empty if programs from `--solutions` are judged.
        backend: Backend of the search, "solutions" for `--solutions`.
        model: Language model, or the name of the file of `--solutions`.
        options: All options by their owners. With `--solutions`, includes the digest of the file.
        seed: Random seed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str
    strategy: str = ""
    backend: str
    model: str = ""
    options: dict[str, dict[str, Any]] = {}
    seed: int = 0

    @property
    def rules(self) -> JudgeRules:
        """The rules for judging programs."""
        rules: JudgeRules = self.options.get("problem", {}).get("rules", "ours")
        return rules


class CodingHeader(RunHeader[CodingConfig]):
    """The requested problems. `skipped` contains the reason for each unusable problem."""

    kind: str = "coding"
    problems: tuple[int, ...]
    skipped: dict[int, str] = Field(default_factory=dict)


class JudgedSolution(BaseModel):
    """A line of the journal: the tests that program `number` of a problem passes."""

    model_config = ConfigDict(frozen=True)

    number: int
    outcome: ProblemOutcome

    @property
    def key(self) -> tuple[int, int]:
        """The id of the problem and the number of the program."""
        return self.outcome.id, self.number


class ProblemResult(ProblemOutcome):
    """The result of a problem in `result.json`.

    `solved` means that a program passes all public tests.
    """

    run: str
    program: str | None
    solved: bool
    given_up: bool
    digest: str

    def enough(self, budget: int) -> bool:
        """Return whether a search with this budget is finished."""
        return self.solved or self.given_up or self.completions >= budget

    def save(self, run: SearchRun) -> None:
        """Save the result of a problem."""
        more = {"strict": self.strict, "share": self.share, "no_hidden_tests": not self.has_hidden}
        run.save_result(self.model_dump() | more)


class TaskFile(NamedTuple):
    """The task of a problem as saved in its run, without the known solutions."""

    task: CodingTask

    def save(self, path: Path) -> None:
        """Save the task as JSON."""
        record = to_record(dataclasses.replace(self.task, solutions=()))
        replace(path, json.dumps(record) + "\n")


class CompletionsLeft(NamedTuple):
    """The number of unfinished problems, and the maximum number of completions left for them."""

    problems: int
    completions: int


class CodingRun(Run[CodingHeader, JudgedSolution]):
    """A run over coding problems, each in its own folder below `problems`."""

    kind = "coding"
    header_type = CodingHeader
    record_type = JudgedSolution
    journal_name = "judged.jsonl"
    patience: ClassVar[float] = 60.0
    """Seconds to wait for the lock. It is held briefly, to change the header or to add a line."""

    @classmethod
    def join(cls, folder: Path, header: CodingHeader) -> "CodingRun":
        """Start a run, or continue the existing one, possibly with further problems."""
        try:
            run = cls.begin(folder, header)
        except CwmError:
            if not (folder / HEADER).exists():
                raise
            run = cls.begin(folder, header)  # another process has started it since
        run.add(header.problems)
        return run

    def add(self, problems: Sequence[int] = (), skipped: Mapping[int, str] | None = None) -> None:
        """Record further requested problems, and reasons why problems are unusable."""
        with self:
            before = type(self).load(self.folder).header
            asked = tuple(sorted({*before.problems, *problems}))
            known = {**before.skipped, **(skipped or {})}
            self.update(before.model_copy(update={"problems": asked, "skipped": known}))

    def problem_folder(self, number: int) -> Path:
        """Return the folder of the run of a problem."""
        return self.folder / PROBLEMS / f"{number:04}"

    def problem(self, task: CodingTask) -> SearchRun:
        """Return the run of a problem, and start it if it does not exist."""
        folder, config = self.problem_folder(task.id), self.header.config
        header = SearchHeader(
            config=SearchConfig(
                env=f"apps/{task.id:04}",
                dataset=digest(task),
                strategy=config.strategy,
                backend=config.backend,
                model=config.model,
                options=config.options,
                seed=config.seed,
            ),
            description=task.question,
            source=config.data,
            created=self.header.created,
            protection=self.header.protection,
        )
        with type(self)(self.folder, self.header):  # no other process starts the same run
            if (folder / HEADER).exists():
                run = SearchRun.load(folder)
                self.check_task(task, run.config.dataset)
            return SearchRun.begin(folder, header, {TASK: TaskFile(task)})

    def check_task(self, task: CodingTask, known: str) -> None:
        """Raise if the digest of a task differs from the digest in the run of its problem."""
        if digest(task) != known:
            words = "was started with another text or tests: choose another --run"
            raise CwmError(f"{named(self.problem_folder(task.id))} {words}")

    def started(self) -> list[Path]:
        """Return the folders of started problems in the order of their ids."""
        folders = (file.parent for file in (self.folder / PROBLEMS).glob(f"[0-9]*/{HEADER}"))
        return sorted((p for p in folders if p.name.isdecimal()), key=lambda path: int(path.name))

    def task(self, problem: Path) -> CodingTask:
        """Read the task of a problem."""
        file = problem / TASK
        try:
            record = read_json(file, LARGEST)
            return from_record(record if isinstance(record, dict) else {})
        except CwmError as error:
            reason = error.reason if isinstance(error, UnreadableError) else str(error)
            raise UnreadableError(file, reason, "choose another --run") from error

    def found(self, problem: Path) -> ProblemResult | None:
        """Read the result of a problem, None if it is missing or damaged."""
        return read_found(problem / RESULT, ProblemResult)

    def is_finished(self, number: int, budget: int) -> bool:
        """Return whether the search of a problem is finished with this budget."""
        found = self.found(self.problem_folder(number))
        return found is not None and found.enough(budget)

    def left(self, numbers: Iterable[int], budget: int) -> CompletionsLeft:
        """Count the unfinished problems and the completions left, without early successes."""
        problems, completions = 0, 0
        for number in numbers:
            if number in self.header.skipped or self.is_finished(number, budget):
                continue
            tail = JournalTail(self.problem_folder(number))
            tail.read()
            if tail.completions < budget and tail.best != 1.0:
                problems, completions = problems + 1, completions + budget - tail.completions
        return CompletionsLeft(problems, completions)

    def results(self) -> Iterator[ProblemResult]:
        """Yield the results of all problems that have one."""
        return (found for problem in self.started() if (found := self.found(problem)))

    @property
    def spending_file(self) -> Path:
        """The file that limits the cost of all processes together (`cwm_cli.search.spending`)."""
        return self.folder / "spending.json"

    def log_file(self, number: int) -> Path:
        """Return the log file of the process of a problem."""
        return self.folder / "logs" / f"{number:04}.txt"

    def spent(self) -> float:
        """Return the known cost so far, in US dollars.

        The processes count the cost of failed requests as well, which journals do not contain.
        """
        counted = read_spending(self.spending_file)
        if counted is None:
            return self._recorded_cost()
        return max(self._recorded_cost(), counted.spent) + counted.lost + counted.reserved_amount

    def begin_spending(self, limit: float | None) -> None:
        """Set the cost limit of all processes, in US dollars. Earlier costs count."""
        open_spending(self.spending_file, limit, self._recorded_cost)

    def _recorded_cost(self) -> float:
        """Return the cost of all recorded completions."""
        return sum(self._spent(folder) for folder in self.started())

    def _spent(self, folder: Path) -> float:
        """Return the cost of a problem's completions from its result or its journal."""
        if found := self.found(folder):
            return found.cost or 0.0
        tail = JournalTail(folder)
        tail.read()
        return tail.known_cost

    def judged(self) -> dict[tuple[int, int], JudgedSolution]:
        """Read the judged programs from `--solutions`."""
        found: dict[tuple[int, int], JudgedSolution] = {}
        for record in self.records():
            found.setdefault(record.key, record)
        return found

    @property
    def is_bare(self) -> bool:
        """Whether the run has no completion and no judged program."""
        journals = (problem / JOURNAL for problem in self.started())
        is_searched = any(file.exists() and file.stat().st_size for file in journals)
        return not is_searched and not self.judged()

    def summary(self) -> RunSummary:
        """Summarize the choices of the run and the number of solved problems."""
        config, whole = self.header.config, self.report([self]).summary
        return RunSummary(
            self.place,
            self.kind,
            environment="apps",
            strategy=config.strategy,
            answers=config.model or config.backend,
            seed=config.seed,
            completions=whole.completions,
            done=f"{whole.problems} of {len(self.header.problems)} problems",
            result=f"{whole.solved}/{len(self.header.problems)} solved",
            best=whole.strict_accuracy,
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence["CodingRun"]) -> CodingReport:
        """Merge runs with equal choices. A problem of several runs counts with its first result."""
        first, config = runs[0], runs[0].header.config
        for run in runs[1:]:
            if changed := differences(config, run.header.config):
                names = ", ".join(change.name for change in changed)
                words = f"{first.place} and {run.place} differ in {names}"
                raise CwmError(f"{words}: report them one by one")
        gather = _gather_searches if config.strategy else _gather_judged
        outcomes, passes, remarks = gather(runs)
        problems = {number for run in runs for number in run.header.problems}
        skipped = {n: why for run in runs for n, why in run.header.skipped.items()}
        skipped = {n: why for n, why in sorted(skipped.items()) if n not in outcomes}
        unfinished = sorted(problems - outcomes.keys() - skipped.keys())
        if unfinished:
            remarks.append(f"{len(unfinished)} problems are not finished.")
        ordered = [outcomes[number] for number in sorted(outcomes)]
        competition = bool(ordered) and all(o.difficulty == "competition" for o in ordered)
        report = coding_report(
            " · ".join(
                filter(None, (config.data, config.strategy, config.model or config.backend))
            ),
            ordered,
            passes=passes,
            skipped=skipped,
            is_published=config.data == "hub" and competition,
            remarks=remarks,
        )
        run_names = " ".join(run.place for run in runs)
        facts = {**report.facts, "unfinished": unfinished, "run": run_names}
        found = report.summary
        verdict = with_effort(
            f"{found.solved} of {len(problems)} problems solved",
            completions=found.completions,
            tokens=found.tokens,
            cost=found.cost,
            seconds=found.seconds,
        )
        return dataclasses.replace(report, facts=facts, verdict=verdict)

    @classmethod
    def sections(cls, runs: Sequence["CodingRun"]) -> list[Section]:
        """Return the tables by difficulty, and a filterable table of problems."""
        report = cls.report(runs)
        problems = table_of(problem_grid(report.outcomes), filters=(1, 2))
        return [
            *(Section("table", each.title.capitalize(), table_of(each)) for each in report.grids),
            Section("table", "Problems", problems),
            Section("notes", "Notes", {"lines": [*report.notes]}),
        ]

    def grids(self) -> list[Grid]:
        """Return a table with a row per problem."""
        return [problem_grid(self.report([self]).outcomes)]

    def export(self) -> Export:
        """Export the best program of each problem that has one, in the format of `--solutions`."""
        programs = {}
        for problem in self.started():
            file = problem / "best.py"
            program = read_text(file) if file.exists() else ""
            if program.strip():
                programs[str(int(problem.name))] = program
        if not programs:
            raise CwmError(f"{self.place} has no program yet: continue it first")
        config, report = self.header.config, self.report([self])
        unfinished = report.facts["unfinished"]
        facts = {
            "problems": len(self.header.problems),
            "programs": len(programs),
            "solved": report.summary.solved,
            "finished": not unfinished,
        }
        known = {"shipped": "", "hub": " --data hub"}
        data = known.get(config.data, f" --data {shlex.quote(config.data.partition(' ')[2])}")
        card = template("SOLUTIONS.md", __package__).substitute(
            facts,
            answers=config.model or config.backend,
            strategy=config.strategy,
            seed=config.seed,
            version=__version__,
            data=data,
            mark=MARK,
        )
        left = f"{len(unfinished)} problems are not finished: best programs so far"
        text = json.dumps(programs, indent=2) + "\n"
        return Export(
            files={SOLUTIONS: text.encode(), "README.md": card.encode()},
            paths={"solutions": SOLUTIONS},
            facts=facts,
            use=(f"cwm apps{data} --solutions $folder/{SOLUTIONS}",),
            notes=(left,) if unfinished else (),
        )


class _Gathered(NamedTuple):
    """The outcomes of problems, pass@k if there are several programs, and remarks."""

    outcomes: dict[int, ProblemOutcome]
    passes: list[PassAt]
    remarks: list[str]


def _gather_searches(runs: Sequence[CodingRun]) -> _Gathered:
    """Gather the results of searches."""
    known: dict[int, tuple[CodingRun, ProblemResult]] = {}
    remarks = []
    for run in runs:
        for found in run.results():
            first, before = known.setdefault(found.id, (run, found))
            where = f"in {first.place} and {run.place}"
            if before.digest != found.digest:
                words = f"problem {found.id} is not the same {where}"
                raise CwmError(f"{words}: report them one by one")
            if first is not run:
                remarks.append(f"problem {found.id} is {where}: the first counts")
    fields = set(ProblemOutcome.model_fields)
    outcomes = {
        number: ProblemOutcome(**found.model_dump(include=fields))
        for number, (_, found) in known.items()
    }
    return _Gathered(outcomes, [], remarks)


def _gather_judged(runs: Sequence[CodingRun]) -> _Gathered:
    """Gather the results of judged programs. The first program of a problem is its outcome."""
    lines: dict[tuple[int, int], ProblemOutcome] = {}
    remarks = []
    for run in runs:
        judged = run.judged()
        if known := sorted({number for number, _ in judged.keys() & lines.keys()}):
            words = f"problem {known[0]}" + (f" and {len(known) - 1} more" if known[1:] else "")
            remarks.append(f"{words} of {run.place} was judged before: the first counts")
        lines = {key: line.outcome for key, line in judged.items()} | lines
    verdicts: defaultdict[int, list[bool]] = defaultdict(list)
    for (number, _), outcome in sorted(lines.items()):
        verdicts[number].append(outcome.strict)
    least = min(map(len, verdicts.values()), default=0)
    # the k of pass@k in reports, up to the number of programs per problem
    ks = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
    passes = list(pass_at(verdicts.values(), [k for k in ks if k <= least]))
    outcomes = {number: outcome for (number, place), outcome in lines.items() if place == 0}
    return _Gathered(outcomes, passes, remarks)
