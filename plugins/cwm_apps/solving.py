"""Solve coding problems: search for programs, or judge programs that are there.

Each function keeps what it finds in a run folder, tells an observer how far it is, and returns
a report. A `CodingProgress` is what begins, a `ProblemState` what advances.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cwm_apps.choices import CodingAccess, Options, chosen_limits, coding_parts
from cwm_apps.jobs import SearchJobs
from cwm_apps.judging import JudgeRules
from cwm_apps.progress import CodingProgress, ProblemState
from cwm_apps.reading import ALL, Data, Tasks, chosen, find_data, read, read_solutions
from cwm_apps.report import CodingReport
from cwm_apps.runs import CodingConfig, CodingHeader, CodingRun
from cwm_apps.scripts import ScriptJob
from cwm_apps.work import ProblemWork, Rejudging, Searches, SearchWork, SolutionsJudging
from cwm_cli._version import __version__
from cwm_cli.bench.estimate import Ask, SearchesToCome, agreed, estimated
from cwm_cli.bench.executor import Executor, chosen_executor
from cwm_cli.commands.choices import MODEL_VARIABLE, choose_backend, named_models, uncached
from cwm_cli.commands.synthesize import warn_of_gaps
from cwm_cli.data.reading import read_bytes
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, default, find, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.storage import located, named, placed
from cwm_cli.runs.store import HEADER, fresh_folder, remove
from cwm_cli.sandbox import Limits, Sandbox

W = TypeVar("W", bound=ProblemWork)

LANGUAGE_MODEL = (
    "coding problems need a language model: "
    "add --model PROVIDER/NAME, such as --model openai/gpt-5 (needs cwm-cli[llm])"
)


@dataclass(frozen=True)
class CodingResult(Result):
    """What is in the folder of a run now; `changed` says which verdicts are other than before."""

    run: Path
    report: CodingReport
    changed: Mapping[int, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        facts = self.report.as_json()
        if self.changed is not None:
            facts["changed"] = {str(number): words for number, words in self.changed.items()}
        return facts


def solve(
    *,
    data: str | None = None,
    idx: int = 0,
    total: int = 100,
    difficulty: str = ALL,
    strategy: str | None = None,
    options: Options = (),
    model: Sequence[str] | str | None = None,
    backend: str | None = None,
    budget: int = 20,
    parallel: int = 1,
    seed: int = 0,
    max_cost: float | None = None,
    cache: bool = False,
    api_base: str | None = None,
    temperature: float | None = None,
    judge: JudgeRules | None = None,
    allow_gap: Sequence[str] = (),
    run: Path | str | None = None,
    new: bool = False,
    executor: str | None = None,
    workers: int | None = None,
    ask: Ask | None = None,
    observer: Observer = SILENT,
) -> CodingResult:
    """Search for programs, each problem in a run of its own; a stopped run goes on where it was.

    `data` is a folder or file of problems, or "hub"; those that ship are taken by default.
    `max_cost` is in US dollars, and for all problems together. `judge` says by which rules
    programs are judged, those of the published evaluator being others than ours. With an `executor`
    or a number of `workers`, so many problems at a time are searched by processes of their own,
    each with `parallel` completions in flight; else all are by threads of this one. What a language
    model will take is told before it is asked, and with `ask`, which is given the `CostEstimate`,
    nothing is done unless that says so.
    """
    backend, models = _asked(backend, named_models(model))
    strategy = strategy or default("strategy")
    jobs, options = _executor(executor, workers, options, run)
    flags = {"api_base": api_base, "temperature": temperature}
    access = CodingAccess(
        options=dict(options) if isinstance(options, Mapping) else tuple(options),
        flags={name: value for name, value in flags.items() if value is not None},
        accepted=tuple(allow_gap),
        cache=cache,
        budget=budget,
        parallel=parallel,
        max_cost=max_cost,
    )
    parts = coding_parts(strategy, backend, models, access, judge=judge)
    if cache and (words := uncached(backend)):
        observer.note(words)
    problems = _problems(data, idx, total, difficulty)
    config = CodingConfig(
        data=problems.data.name,
        strategy=strategy,
        backend=backend,
        model=models,
        options=parts.options,
        seed=seed,
    )

    def searches(coding: CodingRun, sandbox: Sandbox) -> SearchWork:
        common: dict[str, Any] = {"run": coding, "access": access}
        common |= {"tasks": problems.tasks, "positions": problems.positions}
        if jobs is not None:
            return SearchJobs(**common, executor=jobs, told=observer.note)
        return Searches(**common, parts=parts, sandbox=sandbox)

    def agree(coding: CodingRun) -> None:
        if find("backend", backend).is_language_model:
            in_flight = parallel if jobs is None else parallel * min(jobs.workers, len(numbers))
            searches = SearchesToCome(models, parts.backend, *coding.left(numbers, budget))
            left = None if max_cost is None else max_cost - coding.spent()
            told = estimated([searches], in_flight=in_flight, left=left, folders=coding.started())
            agreed(told, ask, observer)

    numbers = [problems.tasks.ids[position][0] for position in problems.positions]
    work = _worked(config, problems, searches, allow_gap, observer, run=run, new=new, before=agree)
    if work.out_of_money:
        words = f"stopped before --max-cost {max_cost:g} was exceeded"
        observer.note(f"{words}: the same command with a higher limit continues")
    return _concluded(work.run)


def judge_solutions(
    file: Path | str,
    *,
    data: str | None = None,
    idx: int = 0,
    total: int = 100,
    difficulty: str = ALL,
    options: Options = (),
    seed: int = 0,
    judge: JudgeRules | None = None,
    allow_gap: Sequence[str] = (),
    run: Path | str | None = None,
    new: bool = False,
    observer: Observer = SILENT,
) -> CodingResult:
    """Judge programs from elsewhere; what was judged before is not judged again.

    The file is a JSON object of the ids of problems, each with a program or a list of them.
    """
    file = Path(file)
    programs = read_solutions(file)
    asked = _problems(data, idx, total, difficulty)
    having = [p for p in asked.positions if programs.get(asked.tasks.ids[p][0])]
    if not having:
        raise CwmError(f"{file} has no program for the chosen problems: see --idx and --total")
    problems = asked._replace(positions=having)
    read_in = read_options(options, [Owner("sandbox", Limits)])["sandbox"]
    config = CodingConfig(
        data=problems.data.name,
        backend="solutions",
        model=file.name,
        options={
            "sandbox": asdict(chosen_limits(read_in)),
            "problem": {"rules": judge or "ours"},
            "solutions": {"digest": sha256(read_bytes(file)).hexdigest()},
        },
        seed=seed,
    )

    def judging(coding: CodingRun, sandbox: Sandbox) -> SolutionsJudging:
        return SolutionsJudging(
            run=coding,
            tasks=problems.tasks,
            positions=problems.positions,
            sandbox=sandbox,
            programs=programs,
            seed=seed,
        )

    work = _worked(config, problems, judging, allow_gap, observer, run=run, new=new)
    return _concluded(work.run)


def judge_again(
    run: Path | str, *, allow_gap: Sequence[str] = (), observer: Observer = SILENT
) -> CodingResult:
    """Judge what the searches of a run have found once more, and write down what changed."""
    coding = CodingRun.load(placed(run))
    if not coding.header.config.strategy:
        raise CwmError(
            f"{coding.place} contains programs from --solutions: use --solutions FILE --new"
        )
    with _sandbox(coding.header.config, allow_gap, observer) as sandbox, _kept(coding.folder):
        work = Rejudging(coding, sandbox)
        _follow(work.work(), len(work.finished()), coding, observer)
    for number, words in sorted(work.changed.items()):
        observer.note(f"problem {number}: {words}", kind="Changed")
    if not work.changed:
        observer.note("no verdict has changed")
    return _concluded(coding, work.changed)


class Problems(NamedTuple):
    """The problems that were asked for, by their positions in the data."""

    data: Data
    tasks: Tasks
    positions: list[int]


def _problems(data: str | None, idx: int, total: int, difficulty: str) -> Problems:
    """Find the problems that were asked for."""
    found = find_data(data)
    tasks = read(found.path)
    return Problems(found, tasks, chosen(tasks, idx, total, difficulty))


def _asked(backend: str | None, models: Sequence[str]) -> tuple[str, str]:
    """Choose the backend and the models: nothing but a language model can answer."""
    if backend and find("backend", backend).from_data:
        raise CwmError(f"the backend {backend!r} works from transitions; {LANGUAGE_MODEL}")
    if not (backend or any(models) or os.environ.get(MODEL_VARIABLE)):
        raise CwmError(f"no --model given: {LANGUAGE_MODEL}")
    answers = choose_backend(backend, models)
    return answers.backend, answers.model


def _executor(
    name: str | None, workers: int | None, options: Options, run: Path | str | None
) -> tuple[Executor | None, Options]:
    """Make what runs processes, if that is asked for, and return the options of all else."""
    if name is None and workers is None:
        return None, options
    if run is not None and named(located(run)).startswith("memory://"):
        raise CwmError(f"{run} exists in this process only: choose another --run")
    return chosen_executor(name or "local", workers, options)


@contextmanager
def _sandbox(
    config: CodingConfig, accepted: Sequence[str], observer: Observer
) -> Iterator[Sandbox]:
    """Give the sandbox of a run, which judges as many programs at a time as there are cores."""
    workers = max(2, os.cpu_count() or 1)
    with Sandbox(Limits(**config.options["sandbox"]), workers, accepted=accepted) as sandbox:
        sandbox.prepare(ScriptJob.handler)
        warn_of_gaps(sandbox.protection, observer)
        yield sandbox


def _worked(
    config: CodingConfig,
    problems: Problems,
    make: Callable[[CodingRun, Sandbox], W],
    accepted: Sequence[str],
    observer: Observer,
    *,
    run: Path | str | None,
    new: bool,
    before: Callable[[CodingRun], None] = lambda coding: None,
) -> W:
    """Work in the named run, or the newest of equal choices with something left, or a new one.

    Whatever `before` raises of a run, which need not be there yet, nothing is done then.
    """
    with _sandbox(config, accepted, observer) as sandbox:
        header = CodingHeader(
            config=config,
            problems=tuple(sorted(problems.tasks.ids[p][0] for p in problems.positions)),
            versions={"cwm-cli": __version__},
            protection=sandbox.protection,
        )
        folder = None if run is None else placed(run)
        if folder is None and not new:
            alike = (
                r for r in CodingRun.find_equal(config) if r.header.problems == header.problems
            )
            folder = next((r.folder for r in alike if make(r, sandbox).is_left()), None)
        if folder is None:
            folder = fresh_folder("apps", config.strategy or config.backend, str(config.seed))
        is_new = not (folder / HEADER).exists()
        known = CodingRun(folder, header) if is_new else CodingRun.load(folder)
        known.check(config)
        before(known)
        coding = CodingRun.join(folder, header)
        observer.note(f"{coding.place} {'started' if is_new else 'continues'}", kind="Run")
        coding.report_repair(observer)
        try:
            with _kept(folder):
                work = make(coding, sandbox)
                _follow(work.work(), len(problems.positions), coding, observer)
        except CwmError as error:
            if is_new and coding.is_bare:
                remove(folder)
                raise error.__cause__ or error from None
            raise
    coding.add(skipped=work.skipped)
    for words in work.mended:
        observer.note(words, "Warning")
    return work


@contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """Say, when something ends the work early, that it can go on."""
    try:
        yield
    except CwmError as error:
        raise CwmError(f"{error} (kept in {named(folder)}: the same command continues)") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted: the same command continues the run {named(folder)}"
        ) from None


def _follow(states: Iterator[ProblemState], total: int, run: CodingRun, observer: Observer) -> None:
    """Do the work, and tell the observer how far it is."""
    config = run.header.config
    words = (run.folder.name, config.strategy, config.model or config.backend)
    progress = CodingProgress(" · ".join(filter(None, words)), total)
    observer.begins(progress)
    try:
        for state in states:
            if state.note:
                observer.note(f"problem {state.id}: {state.note}")
            progress.saw(state)
            observer.advanced(state)
    finally:
        observer.ends()


def _concluded(run: CodingRun, changed: Mapping[int, str] | None = None) -> CodingResult:
    """Report what is in a folder now, and keep that there."""
    report = CodingRun.report([run])
    with run:
        report.save(run.folder)
    return CodingResult(run.folder, report, changed)
