"""Search for a program that predicts an environment (`cwm synthesize`).

`synthesize` checks the choices of the user, loads or records transitions, and runs the search.
`open_job` opens a run with its search for callers that show or steer it.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from cwm_cli.commands.choices import (
    AUTO,
    Choices,
    SearchParts,
    Settings,
    check_choices,
    choose_backend,
    make_parts,
    named_models,
    uncached,
)
from cwm_cli.commands.collect import environment_in, load_transitions, recorded_args, warn_of_rows
from cwm_cli.commands.tolerances import with_tolerances
from cwm_cli.data.dataset import TOLERANCES, Dataset
from cwm_cli.data.reading import read_text
from cwm_cli.data.spaces import refuse_pictures
from cwm_cli.envs.bodies import ENVIRONMENT, TOOL, Body, body_of, read_body
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Metric, Score, baseline, evaluate, unseen
from cwm_cli.evaluation.finding import (
    CERTAIN,
    USUAL_METRICS,
    ContractName,
    Finding,
    find_contract,
    usual_metric,
)
from cwm_cli.evaluation.missing_data import find_gaps, find_untested, find_unverified
from cwm_cli.evaluation.noise import noise_levels
from cwm_cli.evaluation.residuals import with_components
from cwm_cli.evaluation.verdicts import explains_all_but_noise
from cwm_cli.problems.feedback import documented_names
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import default, environment, find
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.searches import ANSWERS, PendingAnswers, SearchConfig, SearchHeader, SearchRun
from cwm_cli.runs.storage import named, placed
from cwm_cli.runs.store import (
    DATASET,
    HEADER,
    Savable,
    check_free,
    fresh_folder,
    openings,
    package_versions,
)
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.protection import Protection, dangers
from cwm_cli.search.contracts import Node, Record, Remark, Switch, Turn, total
from cwm_cli.search.loop import Search
from cwm_cli.search.models import ModelUse, model_uses
from cwm_cli.search.simplification import Size, measure
from cwm_cli.text import first_few
from cwm_cli.worlds import EnvironmentModel, ProgramModel
from cwm_cli.worlds.confined_trails import TrailsJob

BODY = "body.xml"
"""File of a run folder with the given MuJoCo model."""


class Scores(NamedTuple):
    """Scores of a program on train rows, on held-out rows, and on held-out rows with new inputs."""

    train: Score | None
    test: Score | None
    unseen: Score | None

    @property
    def refuted(self) -> bool:
        """Whether a train or held-out row shows that the program is wrong."""
        return any(score is not None and score.refuted for score in (self.train, self.test))


@dataclass(frozen=True)
class SynthesisResult(
    Result,
    shown="solved train test gaps failure contract body program completions tokens cost seconds",
):
    """The result of a search.

    Attributes:
        run: Folder of the run.
        program: File of the best program, None if there is no program.
        solved: Whether no train or held-out row shows that the program is wrong, and held-out rows
            verify every rare event.
        settled: Whether the best reachable score is unknown, and the score stopped improving.
        given_up: Whether induction finds no further improvement.
        completions: Number of completions.
        tokens: Number of prompt and completion tokens.
        cost: Cost in US dollars, None if unknown.
        seconds: Wall-clock time of the search.
        scores: Scores of the best program.
        failure: Why the program scores 0 on rows that the search did not use, or why its answers
            were not confirmed.
        gaps: Sentences on missing data.
        unasked: The move that wrote the best program, if it cost no completion.
        contract: The contract of the best program.
        finding: The contract that the data suggest, with the reasons.
        body: Origin of the MuJoCo model that was given, "" if none was.
        models: Completions, cost and improvements of each model.
        reused: Number of completions from the cache, at no cost.
        cached_tokens: Number of tokens that the provider had cached.
        reasoning_tokens: Number of tokens of reasoning, which the completions do not contain.
        finished: Whether the search ended because nothing was left to improve on train rows: it
            is solved, `unverified`, `settled`, or refuted by held-out rows.
        unverified: Phrases on rare events that no held-out row verifies.
        untested: Phrases on events that no row contains, such as the end of an episode.
        has_simulator: Whether the environment can be simulated; otherwise no command can act in it.
        baseline: Score of predictions without a model, on held-out rows if there are any.
        size: Lines of code and description length in bits of the best program.
        original_size: Size before simplification; None if the program was not simplified.
    """

    run: Path
    program: Path | None
    solved: bool
    settled: bool
    given_up: bool
    completions: int
    tokens: int
    cost: float | None
    seconds: float
    scores: Scores
    failure: Failure | None = None
    gaps: tuple[str, ...] = ()
    unasked: str = ""
    contract: ContractName = "plain"
    finding: Finding | None = None
    body: str = ""
    models: tuple[ModelUse, ...] = ()
    reused: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    finished: bool = False
    unverified: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    has_simulator: bool = True
    baseline: Score | None = None
    size: Size | None = None
    original_size: Size | None = None

    @property
    def text(self) -> str:
        """The source text of the best program; empty without one."""
        return self.program.read_text(encoding="utf-8") if self.program else ""

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm synthesize --json`."""
        facts = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "scores"
        }
        facts |= {"baseline": self.baseline and self.baseline.model_dump()}
        for name in ("size", "original_size"):
            facts[name] = size._asdict() if (size := getattr(self, name)) else None
        facts |= {"models": [use.as_json() for use in self.models]}
        facts |= {"run": named(self.run)}
        facts |= {"program": named(self.program) if self.program else None}
        facts |= {"failure": asdict(self.failure) if self.failure else None}
        facts |= {"finding": self.finding.model_dump() if self.finding else None}
        scores = self.scores._asdict().items()
        return facts | {name: score.model_dump() if score else None for name, score in scores}


def synthesize(
    env: str | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    model: Sequence[str] | str | None = None,
    backend: str | None = None,
    strategy: str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    start: Path | str | None = None,
    budget: int = 10,
    parallel: int = 1,
    seed: int = 0,
    data_seed: int = 0,
    dataset: Dataset | Path | str | None = None,
    metric: str | None = None,
    tolerance: Sequence[str] | Mapping[str, float] = (),
    contract: ContractName | Literal["auto"] = "auto",
    max_cost: float | None = None,
    api_base: str | None = None,
    temperature: float | None = None,
    tools: Iterable[str] = (),
    body: Path | str | None = None,
    description: Path | str | None = None,
    allow_gap: Iterable[str] = (),
    cache: bool = False,
    run: Path | str | None = None,
    new: bool = False,
    observer: Observer = SILENT,
) -> SynthesisResult:
    """Search for a program that predicts an environment, or continue a stopped search.

    Args:
        env: Id of the environment; optional if a dataset names it.
        env_args: Arguments of the environment.
        model: Language model, or several that share the completions, such as `"a"` or, with a
            weight, `"a=3"`. By default `$CWM_MODEL`; without any model, induction writes programs.
        backend: Backend of completions, by default the usual one with or without a model.
        strategy: Search strategy, by default the usual one.
        options: Options as `"KEY=VALUE"` or as a mapping, as for `-o`.
        start: Start of the search: a program file, a run, a backend that needs only data, or
            "none" (the option `search.start`).
        budget: Maximum number of completions.
        parallel: Number of parallel completions.
        seed: Random seed of the search.
        data_seed: Random seed of recorded transitions.
        dataset: Transitions or their file; by default they are recorded.
        metric: Metric of programs, by default the usual one of the contract.
        tolerance: Absolute tolerances of exactness: `"NAME=VALUE"`, `"VALUE"` for all real
            numbers, or a mapping by name of the component (or `reward`).
        contract: Methods that a program must have, "auto" to choose by the data.
        max_cost: Maximum cost in US dollars.
        api_base: URL of the provider.
        temperature: Sampling temperature.
        tools: Modules that programs may import.
        body: MuJoCo model that programs simulate: an MJCF file, or "env" for the environment's own
            model. Programs may then import `mujoco`.
        description: Text file that replaces the description of the environment in prompts.
        allow_gap: Missing protections of the sandbox that are accepted.
        cache: Whether to store completions for this user and to reuse stored ones at no cost.
        run: Folder of the run. By default the newest unfinished run with equal arguments
            continues, or a new folder is used.
        new: Start a new run even if an unfinished one has equal arguments.
        observer: Receives the `SearchJob` at the start, then each new `Node`.

    Returns:
        The scores of the best program, and the costs.

    Raises:
        CwmError: The request is invalid, or the backend failed.
        KeyboardInterrupt: Interrupted; the message names the run that the same call continues.
    """
    if start is not None and isinstance(options, Mapping):
        options = {**options, "search.start": str(start)}
    elif start is not None:
        options = [*options, f"search.start={start}"]
    answers = choose_backend(backend, named_models(model))
    flags = {"api_base": api_base, "temperature": temperature}
    choices = Choices(
        strategy=strategy or default("strategy"),
        backend=answers.backend,
        model=answers.model,
        options=options,
        flags={name: value for name, value in flags.items() if value is not None},
        metric=metric,
        seed=seed,
        parallel=parallel,
        max_cost=max_cost,
        budget=budget,
        tools=tuple(sorted({*tools, *([TOOL] if body is not None else [])})),
        accepted=tuple(allow_gap),
        contract=contract,
        cache=cache,
        description=read_description(Path(description)) if description else "",
    )
    with prepared_job(
        choices,
        env=env,
        env_args=env_args,
        data_seed=data_seed,
        dataset=dataset,
        tolerance=tolerance,
        body=body,
        notes=(answers.note, uncached(choices.backend) if cache else ""),
        run=run,
        new=new,
        observer=observer,
    ) as job:
        _search_observed(job, observer)
        result = job.finish()
        best = job.search.best
    if body is not None and best and TOOL not in best.program:
        observer.note(
            "the best program does not simulate the body: it may be the body of another "
            "environment, or observations show too little of its state",
            "Warning",
        )
    if result.failure and result.scores.train and result.scores.train.accuracy:
        reason = result.failure.message.splitlines()[0]
        observer.note(
            f"the best program fails on rows that the search did not use: {reason}", "Warning"
        )
    return result


@contextmanager
def prepared_job(
    choices: Choices,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    data_seed: int = 0,
    dataset: Dataset | Path | str | None = None,
    tolerance: Sequence[str] | Mapping[str, float] = (),
    body: Path | str | None = None,
    notes: Iterable[str] = (),
    run: Path | str | None = None,
    new: bool = False,
    is_over: Callable[[SearchRun, int], bool] | None = None,
    observer: Observer = SILENT,
) -> Iterator["SearchJob"]:
    """Check the choices, load or record transitions, and open the run with its search.

    Args:
        choices: The choices of the search.
        env: Id of the environment; optional if a dataset names it.
        env_args: Arguments of the environment.
        data_seed: Random seed of recorded transitions.
        dataset: Transitions or their file; by default they are recorded.
        tolerance: Absolute tolerances of exactness, as for `synthesize`.
        body: MuJoCo model that programs simulate, as for `synthesize`.
        notes: Messages to report before the transitions are loaded.
        run: Folder of the run, by default chosen as in `open_job`.
        new: Start a new run even if an unfinished one has equal choices.
        is_over: Returns whether a run with equal choices is over for a budget (see `open_job`).
        observer: Receives notes.

    Raises:
        CwmError: The request is invalid.
    """
    env, env_args = environment_in(dataset, env, env_args)
    if env is None:
        raise CwmError("name an environment with --env ID, or transitions with --dataset FILE")
    spec = environment(env)
    settings = check_choices(choices)
    given_body = _load_body(body, spec, env_args)
    if run is not None and dataset is None:
        # Refuse a wrong folder before transitions are recorded, which may take long.
        _check_folder(placed(run), spec, env_args, choices, settings, given_body)
    load = partial(
        load_transitions,
        spec,
        env_args=env_args,
        dataset=dataset,
        data_seed=data_seed,
        observer=observer,
    )
    given = load() if dataset is not None else None
    if given is None:
        with closing(spec.make(**(env_args or {}))) as made:
            refuse_pictures(space_of(made.observation_space))
    with _sandbox(choices, settings["sandbox"]) as sandbox:
        warn_of_gaps(sandbox.protection, observer)
        for words in filter(None, (spec.note, *notes)):
            observer.note(words)
        rows, source = given or load()
        if run is not None and given is None:
            rows = _recorded_before(placed(run), rows, source, observer)
        warn_of_rows(rows, observer)
        if given_body is not None:
            given_body.check(rows.observation_space, rows.action_space)
            observer.note(given_body.origin, "Body")
        args = recorded_args(rows, env_args)
        rows = with_tolerances(rows, tolerance, spec, args)
        order = Order(spec, args, rows, source, choices, given_body)
        folder = None if run is None else placed(run)
        with open_job(order, sandbox=sandbox, folder=folder, new=new, is_over=is_over) as job:
            job.describe(observer)
            yield job


def read_description(file: Path) -> str:
    """Return the text of a description; raise CwmError if it is empty or not a text."""
    text = read_text(file).strip()
    if not text:
        raise CwmError(f"{file} is empty: write a description of the environment into it")
    return text


def _recorded_before(folder: Path, rows: Dataset, source: str, observer: Observer) -> Dataset:
    """Return the transitions of an existing run if this version ships different ones."""
    if not (folder / HEADER).exists():
        return rows
    run = SearchRun.load(folder)
    if run.config.dataset == rows.digest or Path(run.header.source).name != Path(source).name:
        return rows
    observer.note(
        f"{named(folder)} keeps its transitions, although this version ships different ones"
    )
    return run.dataset()


def _load_body(
    body: Path | str | None, spec: EnvironmentSpec, env_args: Mapping[str, Any] | None
) -> Body | None:
    """Read the MuJoCo model that the user gave, from a file or from the environment."""
    if body is None:
        return None
    if str(body) != ENVIRONMENT:
        return read_body(Path(body))
    with closing(spec.make(**(env_args or {}))) as made:
        return body_of(made, spec.id)


def _search_observed(job: "SearchJob", observer: Observer) -> None:
    """Run the search, and report its progress. All results are kept if it is stopped."""
    observer.begins(job)
    try:
        for node in job.nodes():
            while job.notes:
                observer.note(job.notes.pop(0))
            observer.advanced(node)
        for note in job.notes:
            observer.note(note)
    except CwmError as error:
        job.run.log(f"stopped: {error}")
        if not job.search.nodes:
            raise
        raise CwmError(f"{error} (kept in {job.run.place}: the same command continues)") from error
    except KeyboardInterrupt:
        job.run.log("interrupted")
        if not job.search.nodes:
            words = "interrupted before the first completion: the same command starts again"
            raise KeyboardInterrupt(words) from None
        raise KeyboardInterrupt(
            f"interrupted after {job.search.completions} completions: "
            f"the same command continues the run {job.run.place}"
        ) from None
    finally:
        observer.ends()
    if reused := sum(node.usage.reused for node in job.search.nodes):
        every = job.search.completions
        observer.note(f"{reused} of {every} completions were reused from the cache")
    if job.search.given_up and not job.search.solved:
        observer.note("stopped: induction from data finds no further improvement")
    if job.search.out_of_money:
        observer.note(
            f"stopped: the next completion might exceed --max-cost {job.choices.max_cost:g}"
        )


def warn_of_gaps(protection: Protection, observer: Observer) -> None:
    """Warn about open gaps that the user accepted, with their consequences."""
    if protection.gaps:
        observer.note(
            f"generated programs can {dangers(protection.gaps)} on this machine "
            f"(open gaps: {', '.join(protection.gaps)}; see `cwm doctor`)",
            "Warning",
        )


@dataclass
class SearchJob:
    """A search with the run that records it."""

    run: SearchRun
    search: Search
    dataset: Dataset
    choices: Choices
    finding: Finding
    notes: list[str] = field(default_factory=list)
    """Messages to print before the next node."""
    _saved: Node | None = field(default=None, init=False)

    @property
    def problem(self) -> WorldModelProblem:
        """The problem with the current contract."""
        return cast("WorldModelProblem", self.search.problem)

    @property
    def title(self) -> str:
        """A short name of the job."""
        return self.run.config.title

    def describe(self, observer: Observer) -> None:
        """Report the data, the contract, and the nodes of a run that continues."""
        train, test = len(self.dataset.train), len(self.dataset.test)
        env = self.run.config.env
        observer.note(f"{env}: {train:,} training and {test:,} held-out transitions", "")
        if done := len(self.search.nodes):
            observer.note(f"{self.run.place} continues with {done} nodes", "Run")
        if self.problem.contract != "plain" or self.finding.contract != "plain":
            observer.note(self.contract_words(), "Model type")
        if noise := self.noise_words():
            observer.note(noise, "Noise")
        self.run.report_repair(observer)

    def contract_words(self) -> str:
        """Return the contract of programs, and the reason for it."""
        names = documented_names(self.run.header.description, self.dataset.observation_space)
        contract, found = self.problem.contract, self.problem.finding
        if found is not None and found.contract == contract:
            return f"{contract}: {found.words(names)}"
        chosen = "changed during the search" if self.search.switches else "chosen"
        return f"{contract} ({chosen}; the data suggest {self.finding.contract})"

    def noise_words(self) -> str:
        """Return the estimated noise of components, for programs with memory."""
        names = documented_names(self.run.header.description, self.dataset.observation_space)
        noise = self.finding.noise.items()
        found = [
            f"{([*names, 'reward'])[number]} about {level.reachable(remembers=True):.2g}"
            for number, level in noise
            if level.is_clear and number <= len(names)
        ]
        return first_few(found, 4)

    def nodes(self) -> Iterator[Node]:
        """Search; yield each node after it is in the journal and, if it is the best, saved."""
        stopped: CwmError | None = None
        try:
            for record in self.search.run(self.choices.budget):
                yield self._learned(record)
        except CwmError as error:
            stopped = error
        try:
            for record in self.search.drain():  # completions in flight are paid for
                yield self._learned(record)
        except KeyboardInterrupt:  # harmless if the search already has a correct program
            if not self.search.solved:
                raise
        self._save_best()
        if stopped:
            raise stopped

    def advance(self) -> list[Node]:
        """Search until one more completion is learned; return its node and earlier refinements.

        A change of the contract follows immediately, and judges the nodes again. The list has no
        node of a completion if the search is over. Only for a search without parallel completions.
        """
        found = list[Node]()
        for record in self.search.run(self.choices.budget):
            found.append(self._learned(record))
            if record.node.asked:
                break
        is_over = self.search.solved or self.search.completions >= self.choices.budget
        if not is_over and (change := self.problem.next_contract) is not None:
            self.search.change_contract(change)
            self._save_best()
        return [self.search.nodes[node.id] for node in found]

    def finish(self, metric: Metric | None = None) -> SynthesisResult:
        """Score the best program on train and held-out rows, and save the result.

        The scores use `metric`, by default the metric of the search.
        """
        best, original = self.search.best, self.search.unsimplified
        train, test = self.dataset.train, self.dataset.test
        spent = total([node.usage for node in self.search.nodes])
        model = ProgramModel(best.program, self.problem.sandbox) if best else None
        metric = metric or self.problem.metric
        parts = (train, test, test[unseen(test, train)])
        found = [
            evaluate(model, rows, metric, seed=self.problem.seed) if model and len(rows) else None
            for rows in parts
        ]
        failures = [each.failure for each in found if each and each.failure]
        spec = environment(self.run.config.env)
        has_simulator = spec.has_simulator(self.run.config.env_args)
        names = documented_names(self.run.header.description, train.observation_space)
        if not has_simulator:
            remembers = self.problem.contract == "memory"
            levels = self.finding.noise
            found = [
                each and with_components(each, rows, levels, names=names, remembers=remembers)
                for each, rows in zip(found, parts, strict=True)
            ]
        scores = Scores(*(each and each.score for each in found))
        rare = find_unverified(train, test)
        is_explained = not rare and explains_all_but_noise(scores.train, scores.test)
        finished = self.search.solved or is_explained
        result = SynthesisResult(
            run=self.run.folder,
            program=self.run.folder / self.problem.file if best else None,
            solved=is_explained
            or (finished and not (self.problem.settled or scores.refuted or rare)),
            settled=self.problem.settled and not is_explained,
            given_up=self.search.given_up and not is_explained,
            completions=self.search.completions,
            tokens=spent.tokens,
            cost=spent.cost,
            seconds=round(self.run.elapsed, 3),
            scores=scores,
            failure=failures[0] if failures else None,
            gaps=tuple(find_gaps(train, names, model=model)),
            unasked=original.action if original and not original.asked else "",
            contract=self.problem.contract,
            finding=self.problem.finding or self.finding,
            body=self.run.header.body,
            models=tuple(model_uses(self.search.nodes, self.choices.model or self.choices.backend)),
            reused=spent.reused,
            cached_tokens=spent.cached_tokens,
            reasoning_tokens=spent.reasoning_tokens,
            finished=finished,
            unverified=tuple(rare) if finished else (),
            untested=tuple(find_untested(self.dataset)),
            has_simulator=has_simulator,
            baseline=baseline(test if len(test) else train, train),
            size=measure(best.program) if best else None,
            original_size=measure(original.program) if original and original is not best else None,
        )
        self.run.save_result(result.as_json())
        self.run.log(f"finished with {len(self.search.nodes)} nodes, solved: {result.solved}")
        return result

    def _learned(self, record: Record) -> Node:
        """Save the best program so far, and add messages for the user."""
        self._save_best()
        self._add_note(record.note)
        if record.node.disclosed is not None:
            self._add_note(
                f"all rows in the prompt are predicted correctly, but other rows are not: episode "
                f"{record.node.disclosed} is added to the prompt"
            )
        return record.node

    def _save_best(self) -> None:
        """Write the best program to its file if it is new."""
        best = self.search.best
        if best is not None and best is not self._saved:
            self.problem.keep(self.run.folder, best)
            self._saved = best

    def write(self, found: Record | Remark | Switch) -> None:
        """Append an event of the search to the journal."""
        self.run.learn(found)
        if isinstance(found, Remark):
            self._add_note(found.note)
        elif isinstance(found, Switch):
            before = self.problem.contract
            self._add_note(f"contract changed from {before} to {found.contract}: {found.reason}")

    def _add_note(self, note: str) -> None:
        if note:
            self.run.log(note)
            self.notes.append(note)


class Order(NamedTuple):
    """A request for a model of an environment.

    `source` describes the origin of the dataset, and `body` is a given MuJoCo model.
    """

    spec: EnvironmentSpec
    env_args: dict[str, Any]
    dataset: Dataset
    source: str
    choices: Choices
    body: Body | None = None


@contextmanager
def open_job(
    order: Order,
    *,
    sandbox: Sandbox | None = None,
    folder: Path | None = None,
    new: bool = False,
    is_over: Callable[[SearchRun, int], bool] | None = None,
) -> Iterator[SearchJob]:
    """Open a run with its search: the run in `folder`, an unfinished equal one, or a new one.

    Args:
        order: The request.
        sandbox: Sandbox of the programs, by default a new one.
        folder: Folder of the run, by default chosen.
        new: Do not continue an unfinished run with equal choices.
        is_over: Returns whether a run with equal choices is over for a budget of completions, by
            default if it is solved, gave up or has spent the budget.

    Raises:
        CwmError: The machine lacks a protection or a tool, or the folder has another run.
    """
    dataset = order.dataset
    refuse_pictures(dataset.observation_space)
    finding = find_contract(dataset.train)
    if not order.spec.has_simulator(order.env_args):  # recorded by sensors, perhaps
        finding = finding.model_copy(update={"noise": noise_levels(dataset.train)})
    # cached, because `skill` runs the true environment to measure its ceiling
    measure = cache(partial(_measure, order, is_noisy=finding.is_noisy))
    is_open = order.choices.contract == AUTO
    choices = order.choices.with_defaults(finding.contract, is_noisy=finding.is_noisy)
    order = order._replace(choices=choices)
    parts = make_parts(choices)
    config = _config(
        order.spec.id,
        order.env_args,
        dataset.digest,
        choices=choices,
        settings=parts.settings,
        body=order.body,
        tolerances=dataset.tolerances,
    )
    if folder is None and not new:
        over = is_over or _is_over
        found = (run for run in SearchRun.find_equal(config) if not over(run, choices.budget))
        folder = next((run.folder for run in found), None)
    with (
        nullcontext(sandbox) if sandbox else _sandbox(choices, parts.settings["sandbox"]) as guard,
        _open_run(order, config, guard.protection, finding, folder=folder) as run,
    ):
        guard.prepare(TrailsJob.handler)
        problem = WorldModelProblem(
            description=run.header.description,
            dataset=dataset.train,
            sandbox=guard,
            metric=measure(config.contract),
            seed=choices.seed,
            tools=config.tools,
            body=order.body,
            contract=config.contract,
            finding=finding,
            noise=finding.noise,
            # only "auto" may change the contract, and with it the metric, during the search
            measure=measure if is_open and config.contract != "game" else None,
            **parts.settings["problem"],
        )
        search = _search(problem, parts, choices, run)
        run.log(f"data: {order.source}")
        run.log(f"budget {choices.budget}, parallel {choices.parallel}, {len(search.nodes)} nodes")
        before, present = run.header.protection, guard.protection
        if before is None or before != present.model_copy(update={"accepted": before.accepted}):
            run.log(
                f"protection changed since the run began: {openings(present)}; {present.kernel}"
            )
        job = SearchJob(run, search, dataset, choices, finding)
        # not earlier, because the job that writes the journal contains the search
        search.journal, search.log = job.write, run.log
        yield job


def _measure(order: Order, contract: ContractName, *, is_noisy: bool) -> Metric:
    """Create the metric; `skill` measures the ceiling with the true environment.

    There is no ceiling for a program with memory: it uses earlier observations, and the
    environment is restored to a single one.
    """
    name = order.choices.metric or usual_metric(contract, is_noisy=is_noisy)
    metric: Metric = find("metric", name).of(order.dataset.train)
    if contract != "chance":
        return metric.with_memory() if contract == "memory" else metric
    return metric.with_environment(
        EnvironmentModel(order.spec, order.env_args), seed=order.choices.seed
    )


def _search(
    problem: WorldModelProblem,
    parts: SearchParts,
    choices: Choices,
    run: SearchRun,
) -> Search:
    """Create the search, and replay the nodes that the run already has."""
    backend, lost = parts.backend, list[Turn]()
    if backend.is_language_model:
        backend = answers = PendingAnswers(backend, run.folder / ANSWERS)
        lost = answers.lost()
    search = Search(
        problem,
        parts.strategy,
        backend,
        seed=choices.seed,
        parallel=choices.parallel,
        max_cost=choices.max_cost,
        refiners=parts.refiners,
        start=parts.start and parts.start.make,
        simplify=parts.simplify,
    )
    search.resume(run.learned(), lost)
    if search.best:  # a crash may have prevented that it was saved
        problem.keep(run.folder, search.best)
    return search


def _sandbox(choices: Choices, limits: dict[str, Any]) -> Sandbox:
    """Create the sandbox; two workers evaluate one program at the same time."""
    workers = max(2, min(choices.parallel, os.cpu_count() or 1))
    sandbox = Sandbox(Limits(**limits), workers, tools=choices.tools, accepted=choices.accepted)
    sandbox.prepare(TrailsJob.handler)  # before the first worker starts
    return sandbox


def _config(
    env: str,
    env_args: Mapping[str, Any],
    digest: str,
    *,
    choices: Choices,
    settings: Settings,
    body: Body | None,
    tolerances: Mapping[str, float],
) -> SearchConfig:
    """Return the configuration that identifies a run."""
    if tolerances:  # they change scores, as the other options of the problem do
        settings = settings | {"problem": {**settings["problem"], TOLERANCES: dict(tolerances)}}
    if choices.contract in CERTAIN:
        # Patience has an effect only if the best reachable score is unknown.
        problem = {name: v for name, v in settings["problem"].items() if name != "patience"}
        settings = settings | {"problem": problem}
    return SearchConfig(
        env=env,
        env_args=dict(env_args),
        dataset=digest,
        strategy=choices.strategy,
        backend=choices.backend,
        model=choices.model,
        options=settings,
        tools=choices.tools,
        body=body.digest if body else "",
        description=sha256(text.encode()).hexdigest() if (text := choices.description) else "",
        metric=choices.metric or USUAL_METRICS["plain"],
        contract=cast("ContractName", choices.contract),
        seed=choices.seed,
    )


def _check_folder(
    folder: Path,
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any] | None,
    choices: Choices,
    settings: Settings,
    body: Body | None,
) -> None:
    """Raise an error if a folder has other content, or a run with other choices."""
    if not (folder / HEADER).exists():
        return check_free(folder, (DATASET, BODY))
    run = SearchRun.load(folder)
    # the transitions and the contract are not known yet: compare everything else
    found = run.header.finding
    is_noisy = found is not None and found.is_noisy
    digest = run.config.dataset
    choices = choices.with_defaults(run.config.contract, is_noisy=is_noisy)
    config = _config(
        spec.id,
        env_args or {},
        digest,
        choices=choices,
        settings=settings,
        body=body,
        tolerances=run.config.options["problem"].get(TOLERANCES, {}),
    )
    run.check(config)
    return None


def _is_over(run: SearchRun, budget: int) -> bool:
    """Return whether a run is solved, gave up or has spent a budget of completions."""
    nodes = list(run.nodes())
    ended = any(node.verdict.solved or node.final for node in nodes)
    return ended or sum(node.asked for node in nodes) >= budget


def _open_run(
    order: Order,
    config: SearchConfig,
    protection: Protection,
    finding: Finding,
    *,
    folder: Path | None,
) -> SearchRun:
    """Open the run in a folder, or a new run."""
    folder = folder or fresh_folder(config.env, config.method, str(config.seed))
    if (folder / HEADER).exists():
        run = SearchRun.load(folder)
        run.check(config)
        return run
    description = order.choices.description
    if not description:
        with closing(order.spec.make(**order.env_args)) as env:
            description = order.spec.describe(env)
    header = SearchHeader(
        config=config,
        description=description,
        versions={**order.spec.versions(), **package_versions(config.tools)},
        source=order.source,
        body=order.body.origin if order.body else "",
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        protection=protection,
        finding=finding,
    )
    files: dict[str, Savable] = {DATASET: order.dataset}
    return SearchRun.start(folder, header, files | ({BODY: order.body} if order.body else {}))
