"""Solve coding problems: search for programs, or judge existing programs.

Each function saves its results in a run folder, reports progress to an observer, and returns a
report. The observer receives a `CodingProgress` at the start, then each `ProblemState`.
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
from cwm_apps.work import ProblemSearch, ProblemWork, Rejudging, SolutionsJudging
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
    """The state of a run's folder. `changed` describes verdicts that differ from earlier ones."""

    run: Path
    report: CodingReport
    changed: Mapping[int, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
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
    """Search for programs, each problem in its own run. A stopped run continues.

    Args:
        data: Folder or file of problems, or "hub". Default: the bundled problems.
        idx: Position of the first problem, from 0.
        total: Number of problems.
        difficulty: Difficulty of the problems, or "all".
        strategy: Search strategy.
        options: Options as `NAME=VALUE` words or as a mapping.
        model: Language model, or several models.
        backend: Backend that answers.
        budget: Maximum number of completions per problem.
        parallel: Maximum number of completions in flight, per problem if processes search.
        seed: Random seed.
        max_cost: Cost limit for all problems together, in US dollars.
        cache: Whether to cache and reuse answers.
        api_base: Address of the model's server.
        temperature: Sampling temperature of the model.
        judge: Rules for judging programs, "ours" or "published".
        allow_gap: Gaps of the sandbox protection that are accepted.
        run: Folder of the run.
        new: Whether to start a new run in any case.
        executor: Executor that starts one process per problem. Default: threads of this process,
            or "local" with `workers`.
        workers: Number of problems that processes solve at a time.
        ask: Function that receives the `CostEstimate` of a language model and returns whether to
            start. Without it, the estimate is only reported.
        observer: Receiver of progress and notes.
    """
    backend, models = _choose_language_model(backend, named_models(model))
    strategy = strategy or default("strategy")
    jobs, options = _choose_executor(executor, workers, options, run)
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

    def searches(coding: CodingRun, sandbox: Sandbox) -> SearchJobs:
        each = access.model_copy(update={"parallel": max(1, parallel // len(numbers))})
        search = ProblemSearch(coding=coding, parts=parts, sandbox=sandbox, access=each)
        return SearchJobs(
            run=coding,
            tasks=problems.tasks,
            positions=problems.positions,
            access=access,
            executor=jobs,
            search=search if jobs is None else None,
            observer=observer,
        )

    def agree(coding: CodingRun) -> None:
        if find("backend", backend).is_language_model:
            in_flight = parallel if jobs is None else parallel * min(jobs.workers, len(numbers))
            searches = SearchesToCome(models, parts.backend, *coding.left(numbers, budget))
            left = None if max_cost is None else max_cost - coding.spent()
            estimate = estimated(
                [searches], in_flight=in_flight, left=left, folders=coding.started()
            )
            agreed(estimate, ask, observer)

    numbers = [problems.tasks.ids[position][0] for position in problems.positions]
    work = _run_work(
        config, problems, searches, allow_gap, observer, run=run, new=new, before=agree
    )
    if work.out_of_money:
        words = f"stopped before --max-cost {max_cost:g} was exceeded"
        observer.note(f"{words}: the same command with a higher limit continues")
    return _save_report(work.run)


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
    """Judge programs from a file. Programs judged before are not judged again.

    The file contains a JSON object: each problem id with a program or a list of programs. The other
    arguments are as for `solve`.
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

    work = _run_work(config, problems, judging, allow_gap, observer, run=run, new=new)
    return _save_report(work.run)


def judge_again(
    run: Path | str, *, allow_gap: Sequence[str] = (), observer: Observer = SILENT
) -> CodingResult:
    """Judge the results of a run's searches again, and save the changed verdicts."""
    coding = CodingRun.load(placed(run))
    if not coding.header.config.strategy:
        raise CwmError(
            f"{coding.place} contains programs from --solutions: use --solutions FILE --new"
        )
    with _sandbox(coding.header.config, allow_gap, observer) as sandbox, _resumable(coding.folder):
        work = Rejudging(coding, sandbox)
        _follow(work.work(), len(work.finished()), coding, observer)
    for number, words in sorted(work.changed.items()):
        observer.note(f"problem {number}: {words}", kind="Changed")
    if not work.changed:
        observer.note("no verdict has changed")
    return _save_report(coding, work.changed)


class Problems(NamedTuple):
    """The selected problems, by their positions in the data."""

    data: Data
    tasks: Tasks
    positions: list[int]


def _problems(data: str | None, idx: int, total: int, difficulty: str) -> Problems:
    found = find_data(data)
    tasks = read(found.path)
    return Problems(found, tasks, chosen(tasks, idx, total, difficulty))


def _choose_language_model(backend: str | None, models: Sequence[str]) -> tuple[str, str]:
    """Choose the backend and the models. Only language models can answer."""
    if backend and find("backend", backend).from_data:
        raise CwmError(f"the backend {backend!r} works from transitions; {LANGUAGE_MODEL}")
    if not (backend or any(models) or os.environ.get(MODEL_VARIABLE)):
        raise CwmError(f"no --model given: {LANGUAGE_MODEL}")
    answers = choose_backend(backend, models)
    return answers.backend, answers.model


def _choose_executor(
    name: str | None, workers: int | None, options: Options, run: Path | str | None
) -> tuple[Executor | None, Options]:
    """Create the executor, if one is requested, and return the remaining options."""
    if name is None and workers is None:
        return None, options
    if run is not None and named(located(run)).startswith("memory://"):
        raise CwmError(f"{run} exists in this process only: choose another --run")
    return chosen_executor(name or "local", workers, options)


@contextmanager
def _sandbox(
    config: CodingConfig, accepted: Sequence[str], observer: Observer
) -> Iterator[Sandbox]:
    """Yield the sandbox of a run, with one worker per core but at least two."""
    workers = max(2, os.cpu_count() or 1)
    with Sandbox(Limits(**config.options["sandbox"]), workers, accepted=accepted) as sandbox:
        sandbox.prepare(ScriptJob.handler)
        warn_of_gaps(sandbox.protection, observer)
        yield sandbox


def _run_work(
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
    """Work in the named run, the newest unfinished run with equal choices, or a new run.

    `before` is called with the run, which may not exist yet. If it raises, nothing is done.
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
            with _resumable(folder):
                work = make(coding, sandbox)
                _follow(work.work(), len(problems.positions), coding, observer)
        except CwmError as error:
            if is_new and coding.is_bare:
                remove(folder)
                raise error.__cause__ or error from None
            raise
    coding.add(skipped=work.skipped)
    return work


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Add to errors and interrupts that the same command continues the run."""
    try:
        yield
    except CwmError as error:
        raise CwmError(f"{error} (kept in {named(folder)}: the same command continues)") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted: the same command continues the run {named(folder)}"
        ) from None


def _follow(states: Iterator[ProblemState], total: int, run: CodingRun, observer: Observer) -> None:
    """Do the work and report its progress to the observer."""
    config = run.header.config
    words = (run.folder.name, config.strategy, config.model or config.backend)
    progress = CodingProgress(" · ".join(filter(None, words)), total)
    observer.begins(progress)
    try:
        for state in states:
            progress.record(state)
            observer.advanced(state)
    finally:
        observer.ends()


def _save_report(run: CodingRun, changed: Mapping[int, str] | None = None) -> CodingResult:
    """Save and return the report of a run."""
    report = CodingRun.report([run])
    with run:
        report.save(run.folder)
    return CodingResult(run.folder, report, changed)
