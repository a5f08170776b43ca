"""The Python function of `cwm learn`: learn an environment while acting in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.commands.choices import (
    ChosenBackend,
    check_flags,
    choose_backend,
    named_models,
    uncached,
)
from cwm_cli.commands.collect import find_environment, recorded_args
from cwm_cli.commands.subjects import protected
from cwm_cli.data.dataset import Dataset, outside_space
from cwm_cli.data.objects import OBJECTS
from cwm_cli.data.spaces import refuse_pictures
from cwm_cli.envs.checking import no_simulator
from cwm_cli.envs.spec import EnvironmentSpec, is_simulator, space_of
from cwm_cli.envs.tasks import Setting, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.problems.feedback import documented_names
from cwm_cli.registry import Owner, default, environment, find, read_options, with_presets
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.searches import ANSWERS, RecordedAnswers
from cwm_cli.runs.storage import placed
from cwm_cli.runs.store import DATASET, HEADER, folder_word, fresh_folder
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.protection import check_access
from cwm_cli.search.answers import AnswerCache
from cwm_cli.search.contracts import Backend
from cwm_cli.search.models import (
    InFlight,
    ModelChoice,
    ModelPool,
    innermost,
    make_backend,
    models_text,
    read_models,
)
from cwm_learn.actors.base import Actor, Knowledge
from cwm_learn.doubting import DoubtingModel
from cwm_learn.goals import GoalCondition
from cwm_learn.imagination import ImaginedSearchJob
from cwm_learn.learner import Learner, Stop
from cwm_learn.missions import StateView
from cwm_learn.optimism import RuleInventor
from cwm_learn.runs import EARLIER, Budget, LearnConfig, LearnHeader, LearningResult, LearnRun
from cwm_learn.sessions import RecordedSession
from cwm_learn.starting_point import RunOrRows, StartingPoint, convert_rows
from cwm_learn.strategy import LearningTask
from cwm_learn.writing import BudgetedModel, ProgramWriter

ACTORS = (
    "cwm_learn.actors.tabular:TabularActor",
    "cwm_learn.actors.continuous:ContinuousActor",
)
"""Actor classes; the first one that supports the spaces of an environment is used."""


def learn(
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    steps: int = 5000,
    start: RunOrRows | None = None,
    model: Sequence[str] | str | None = None,
    backend: str | None = None,
    api_base: str | None = None,
    temperature: float | None = None,
    strategy: str | None = None,
    curriculum: Sequence[str] = (),
    goal: str | None = None,
    stop: str = "certified",
    seconds: float | None = None,
    completions: int | None = None,
    max_cost: float | None = None,
    cache: bool = False,
    options: Sequence[str] | Mapping[str, Any] = (),
    seed: int = 0,
    run: Path | str | None = None,
    new: bool = False,
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    observer: Observer = SILENT,
) -> LearningResult:
    """Learn an environment by acting in it; an interrupted run continues.

    Args:
        env: Id of the environment.
        env_args: Arguments of the environment.
        steps: Maximum number of environment steps.
        start: Rows and program to start with: the folder of a run, a file, or a dataset. Rows of
            another environment are used until they contradict this one.
        model: Language models, for rows that induction does not explain.
        backend: Backend that answers; the default depends on `model`.
        api_base: Address of the API of the backend.
        temperature: Sampling temperature of the backend.
        strategy: Learning strategy that replaces the default learning loop.
        curriculum: Environments to learn first, each from the result of the one before.
        goal: Condition on observations such as `position >= 0.6`, which replaces the reward: it
            pays 1 and ends the episode. Earlier rows remain valid with a goal. Some strategies
            accept a goal in words.
        stop: Stop when "certified", at a mean return ("return=X"), or "never".
        seconds: Maximum duration.
        completions: Maximum number of completions.
        max_cost: Maximum cost of the completions in US dollars.
        cache: Whether repeated requests are answered from a cache, free of charge.
        options: Options `OWNER.KEY=VALUE` of the sandbox, the strategy, the backend, the search.
        seed: Seed of all randomness.
        run: Folder of the run. Default: continue the newest unfinished run with these arguments.
        new: Start a new run in any case.
        tools: Python packages that programs may import.
        allow_gap: Missing protections of the sandbox to accept.
        observer: Receives the `Learner` and its events.

    Raises:
        CwmError: An argument is invalid, or the environment is not supported.
    """
    arguments = dict(locals())  # for the environments of a curriculum
    check_access(tools, allow_gap)
    budget = _read_budget(steps, seconds, stop)
    flags = {"api_base": api_base, "temperature": temperature}
    answers = choose_backend(backend, named_models(model))
    chosen = _Choices.read(answers, strategy, options, flags, cache=cache)
    if cache and (words := uncached(chosen.answers.backend)):
        observer.note(words)
    folder = None if run is None else placed(run)
    if curriculum and strategy is None:
        folder = folder or fresh_folder(env, "learn", str(seed))
        start = _learn_curriculum(curriculum, folder, start, arguments)
    point = StartingPoint.read(start).for_environment(env)
    with protected(
        chosen.limits,
        tools=tools,
        accepted=allow_gap,
        workers=3,
        handlers=[ImaginedSearchJob.handler],
        observer=observer,
    ) as sandbox:
        subject = _Subject.of(env, env_args, point, seed, observer)
        if strategy is None:
            refuse_pictures(subject.known.observation_space, "a program")
        point = subject.convert(point)
        if goal is not None and strategy is None:
            subject, point = subject.with_goal(goal, point)
        config = LearnConfig(
            env=subject.spec.id,
            env_args=subject.setting.env_args,
            begins=point.digest,
            strategy=strategy or "",
            goal=goal or "",
            curriculum=tuple(curriculum) if strategy else (),
            models=chosen.models,
            options=chosen.identity,
            tools=tuple(sorted(set(tools))),
            seed=seed,
        )
        found = _open_run(config, subject, point, sandbox, folder=folder, budget=budget, new=new)
        if (finished := found.finished(budget)) is not None:
            observer.note(f"{found.place} is finished", "Run")
            return finished
        with found as opened:
            opened.report_repair(observer)
            if strategy is None:
                language_model = _open_model(chosen, opened, completions, max_cost)
                return _run_loop(
                    opened, subject, sandbox, budget, language_model, point=point, observer=observer
                )
            others = [_Subject.of(each, None, StartingPoint(), seed) for each in curriculum]
            tasks = [each.learning_task for each in (*others, subject)]
            session = RecordedSession.of(opened, tasks, sandbox, observer)
            session.goal, session.in_flight = goal, chosen.in_flight
            if chosen.has_model:
                session.backend = RecordedAnswers(chosen.backend, opened.folder / ANSWERS)
            session.steps, session.seconds = budget.steps, _or_inf(budget.seconds)
            session.completions, session.max_cost = _or_inf(completions), _or_inf(max_cost)
            return session.run_strategy(chosen.strategy)


def _learn_curriculum(
    curriculum: Sequence[str], folder: Path, start: RunOrRows | None, arguments: Mapping[str, Any]
) -> RunOrRows | None:
    """Learn the environments of a curriculum; return the starting point for the last environment.

    The runs are beside the folder of the last environment. They have its arguments, except those
    that apply to the last environment only.
    """
    last_only = ("env_args", "curriculum", "strategy", "goal", "new")
    shared = {name: value for name, value in arguments.items() if name not in last_only}
    folders = [
        *(
            placed(folder.with_name(f"{folder.name}-{n}-{folder_word(env)}"))
            for n, env in enumerate(curriculum, 1)
        ),
        folder,
    ]
    for env, own, following in zip(curriculum, folders, folders[1:], strict=False):
        if (following / HEADER).exists():  # the following run started from this run already
            start = own
        else:
            result = learn(**shared | {"env": env, "start": start, "run": own})
            start = result.run if result.program else None
    return start


class _Choices(NamedTuple):
    """The chosen backend and strategy, with all options."""

    answers: ChosenBackend
    options: Mapping[str, Mapping[str, Any]]
    limits: Limits
    strategy: Any
    in_flight: InFlight
    cache: bool

    @classmethod
    def read(
        cls,
        answers: ChosenBackend,
        strategy: str | None,
        options: Sequence[str] | Mapping[str, Any],
        flags: Mapping[str, Any],
        *,
        cache: bool,
    ) -> _Choices:
        """Read the options; `flags` are options of the backend."""
        owners = [Owner("sandbox", Limits)]
        factory = None if strategy is None else find("learning strategy", strategy)
        if factory is not None:
            owners.append(Owner("strategy", factory))
        if not find("backend", answers.backend).from_data:
            owners.append(Owner("backend", find("backend", answers.backend)))
            owners.append(Owner("search", ModelChoice))
        flags = {name: value for name, value in flags.items() if value is not None}
        check_flags(answers.backend, flags)
        values = with_presets(read_options(options, owners), owners)
        made = factory(**values["strategy"]) if factory else None
        if "backend" in values:
            values = values | {"backend": values["backend"] | flags}
        return cls(answers, values, Limits.chosen(values["sandbox"]), made, InFlight(), cache)

    @property
    def has_model(self) -> bool:
        """Whether the backend is more than induction from data."""
        return not find("backend", self.answers.backend).from_data

    @property
    def models(self) -> tuple[str, ...]:
        """The models, with their weights."""
        if not (self.has_model and self.answers.model):
            return self.answers.models if self.has_model else ()
        found = read_models([self.answers.model])
        return tuple(map(str, found)) if len(found) > 1 else (models_text(found),)

    @property
    def backend(self) -> Backend:
        """The backend of all models."""
        factory, options = find("backend", self.answers.backend), self.options["backend"]
        factory = AnswerCache().making(factory) if self.cache else factory
        factory = self.in_flight.making(factory)
        choice = ModelChoice(**self.options["search"])
        return make_backend(factory, self.answers.model, options, choice.models)

    @property
    def identity(self) -> dict[str, dict[str, Any]]:
        """The options that distinguish one run from another."""
        identity = {"sandbox": asdict(self.limits)}
        if self.has_model:
            backend = self.backend
            owner = Owner("backend", find("backend", self.answers.backend))
            identity["backend"] = owner.identity(innermost(backend))
            if isinstance(backend, ModelPool) and backend.choosing != ModelChoice().models:
                identity["search"] = {"models": backend.choosing}  # absent from older runs
        if self.strategy is not None:
            identity["strategy"] = dict(self.options["strategy"])
        return identity


def _or_inf(limit: float | None) -> float:
    return inf if limit is None else limit


def _open_model(
    chosen: _Choices, run: LearnRun, completions: int | None, max_cost: float | None
) -> BudgetedModel | None:
    """Return the language model, after a check that it works; None without one."""
    if not chosen.has_model:
        return None
    strategy, backend = find("strategy", default("strategy")), chosen.backend
    backend.ready(max_cost)
    backend = RecordedAnswers(backend, run.folder / ANSWERS)
    return BudgetedModel(
        backend, strategy, completions=completions, max_cost=max_cost, in_flight=chosen.in_flight
    )


def _read_budget(steps: int, seconds: float | None, stop: str) -> Budget:
    word, _, value = stop.partition("=")
    if word == "return" and value:
        try:
            return Budget(steps, seconds, certified=False, target=float(value))
        except ValueError:
            pass
    if stop not in ("certified", "never"):
        raise CwmError(f"unknown --stop {stop}: choose certified, return=X or never")
    return Budget(steps, seconds, certified=stop == "certified")


class _Subject(NamedTuple):
    """The environment to learn, and everything known about it before the first step."""

    spec: EnvironmentSpec
    setting: Setting
    description: str
    known: Knowledge
    actions: tuple[str, ...] = ()
    goal: GoalCondition | None = None

    @classmethod
    def of(
        cls,
        env: str,
        env_args: Mapping[str, Any] | None,
        point: StartingPoint,
        seed: int,
        observer: Observer = SILENT,
    ) -> _Subject:
        """Make the environment once, and read its spaces and its documentation."""
        spec = find_environment(env, observer)
        args = dict(env_args or {})
        if point.rows is not None:
            args = recorded_args(point.rows, env_args)
        with closing(spec.make(**args)) as made:
            if not is_simulator(made):
                raise no_simulator(spec.id)
            space, description = space_of(made.observation_space), spec.describe(made)
            known = Knowledge(
                space,
                space_of(made.action_space, "actions"),
                step_limit(made),
                seed,
                spec.objects(made) if spec.objects else None,
                documented_names(description, space),
            )
            if point.rows is not None and point.rows.observation_space != known.observation_space:
                raise CwmError(f"the initial transitions are not from {spec.id}: choose others")
            setting = Setting(env, args, seed, known.limit)
            names = spec.action_names(made) if spec.action_names else ()
            return cls(spec, setting, description, known, tuple(names))

    def convert(self, point: StartingPoint) -> StartingPoint:
        """Convert the earlier rows of a starting point to rows of this environment.

        Without a program, rows that do not fit are an error; with one, they are dropped.
        """
        if point.earlier is None:
            return point
        try:
            return point._replace(earlier=convert_rows(point.earlier, self.no_rows))
        except ValueError as error:
            if point.program:
                return point._replace(earlier=None)
            raise CwmError(
                f"the transitions do not fit {self.spec.id} ({error}): choose others"
            ) from None

    def with_goal(self, text: str, point: StartingPoint) -> tuple[_Subject, StartingPoint]:
        """Return the environment and the starting point with the rewards of a goal."""
        goal = GoalCondition.parse(text, self.known.observation_space, self.description)
        rows = None if point.rows is None else goal.relabel(point.rows)
        earlier = None if point.earlier is None else goal.relabel(point.earlier)
        program = goal.add_to(point.program) if point.program else ""
        words = f"{self.description}\n\nThe only reward is 1 for reaching this goal: {text}."
        return self._replace(goal=goal, description=words), StartingPoint(rows, program, earlier)

    def rule_inventor(
        self, language_model: BudgetedModel | None, sandbox: Sandbox
    ) -> RuleInventor | None:
        """Return the inventor of rules, None without a mission or without a language model."""
        known = self.known
        if language_model is None or known.action_space.kind != "discrete":
            return None
        first = int(known.action_space.low[0])
        view = StateView(known.observation_space, known.schema, self.actions, first)
        return RuleInventor(language_model, sandbox, view, known.seed) if view.has_mission else None

    @property
    def learning_task(self) -> LearningTask:
        """The task of a learning strategy."""
        task, schema = self.setting.task(self.spec), self.known.schema
        return LearningTask(self.spec.id, task, schema, self.actions)

    @property
    def no_rows(self) -> Dataset:
        """A dataset of this environment without rows."""
        about: dict[str, Any] = {"env": self.setting.env, "env_args": self.setting.env_args}
        if self.known.schema is not None:
            about[OBJECTS] = self.known.schema.to_json()
        return Dataset.of(
            [],
            observation_space=self.known.observation_space,
            action_space=self.known.action_space,
            metadata=about,
        )


def _open_run(
    config: LearnConfig,
    subject: _Subject,
    point: StartingPoint,
    sandbox: Sandbox,
    *,
    folder: Path | None,
    budget: Budget,
    new: bool,
) -> LearnRun:
    """Open the named run, or the newest unfinished one with these choices, or start a run."""
    if folder is None and not new:
        unfinished = (run for run in LearnRun.find_equal(config) if run.finished(budget) is None)
        folder = next((run.folder for run in unfinished), None)
    folder = folder or fresh_folder(config.env, "learn", str(config.seed))
    if (folder / HEADER).exists():
        run = LearnRun.load(folder)
        run.check(config)
        return run
    description, protection = subject.description, sandbox.protection
    header = LearnHeader(config=config, description=description, protection=protection)
    files = {DATASET: point.rows if point.rows is not None else subject.no_rows}
    if point.earlier is not None:
        files[EARLIER] = point.earlier
    started = LearnRun.start(folder, header, files)
    if point.program:
        started.write_best(point.program)
    return started


def choose_actor(known: Knowledge) -> type[Actor]:
    """Return the first actor class that supports an environment."""
    for address in ACTORS:
        module, _, name = address.partition(":")
        actor: type[Actor] = getattr(import_module(module), name)
        if actor.supports(known.observation_space, known.action_space):
            return actor
    raise CwmError(
        "no learning strategy supports this environment: use `cwm synthesize` on recorded data"
    )


def _run_loop(
    run: LearnRun,
    subject: _Subject,
    sandbox: Sandbox,
    budget: Budget,
    language_model: BudgetedModel | None,
    *,
    point: StartingPoint,
    observer: Observer,
) -> LearningResult:
    """Learn with the default loop, and write the result; errors name the run."""
    known, task = subject.known, subject.setting.task(subject.spec)
    doubting_model = None
    if language_model is not None:
        doubting_model = DoubtingModel(language_model, known, subject.description, subject.actions)
    learner = Learner(
        title=f"{subject.spec.id} · learning",
        task=subject.goal.wrap(task) if subject.goal else task,
        known=known,
        actor=choose_actor(known)(known),
        writer=ProgramWriter(sandbox, known.seed, subject.description, model=language_model),
        sandbox=sandbox,
        run=run,
        budget=budget,
        observer=observer,
        initial_program=point.program,
        rule_inventor=subject.rule_inventor(language_model, sandbox),
        doubting_model=doubting_model,
    )
    steps = learner.known_steps
    verb = f"continues after {steps:,} steps" if steps else "started"
    observer.note(f"{run.place} {verb}", "Run")
    with closing(learner):
        try:
            stopped = learner.learn()
        except KeyboardInterrupt:
            words = f"interrupted after {learner.known_steps:,} steps"
            raise KeyboardInterrupt(f"{words}: the same command continues {run.place}") from None
        except CwmError as error:
            if not learner.known_steps:
                raise
            raise CwmError(f"{error} (kept in {run.place}: the same command continues)") from error
        if words := outside_space(run.dataset_of(known.rows)):
            observer.note(words, "Warning")
        result = _make_result(learner, stopped)
        if known.program:
            run.write_best(with_docstring(known.program, _program_facts(learner, result)))
        run.save_result(result.as_json())
        return result


def _make_result(learner: Learner, stopped: Stop) -> LearningResult:
    run, (completions, cost) = learner.run, learner.usage
    return LearningResult(
        run=run.folder,
        program=run.folder / "best.py" if learner.known.program else None,
        steps=learner.steps,
        episodes=len(learner.episodes),
        returns=[each.curve_point for each in learner.episodes if not each.is_cut],
        certificate=learner.certificate,
        questions=list(learner.questions),
        completions=completions,
        cost=cost,
        seconds=round(run.elapsed, 3),
        stopped=stopped,
        changed=learner.verification.changed,
        refits=len(learner.programs),
        mismatches=dict(learner.mismatches),
        writing_seconds=round(learner.writing_seconds, 3),
        planning_seconds=round(learner.planning_seconds + learner.learning_seconds, 3),
        gaps=tuple(each.text for each in learner.questions.open if each.source == "gaps"),
        has_simulator=environment(run.config.env).has_simulator(run.config.env_args),
    )


def _program_facts(learner: Learner, result: LearningResult) -> list[str]:
    """Return lines on the accuracy, the certificate and the open questions of the program."""
    rows, is_random = learner.rows_to_explain, learner.writer.contract == "chance"
    wrong = int(learner.writer.wrong(learner.known.program, rows).sum())
    right = f"{len(rows) - wrong:,}" if wrong else "all"
    verb = "It gives a positive probability to" if is_random else "It predicts"
    lines = [
        f"{learner.run.config.env}, learned from {result.steps:,} steps in the environment.",
        f"{verb} {right} of {len(rows):,} recorded transitions.",
    ]
    if ignored := len(learner.known.rows) - len(rows):
        lines += [f"{ignored:,} more transitions had other outcomes: randomness, or hidden state."]
    if result.certificate:
        lines += [f"Certified: {result.certificate}."]
    else:
        lines += ["Not certified: too few steps of play without a mismatch."]
    if questions := learner.questions.open:
        lines += ["Not covered by the data:", *(f"- {each.text}" for each in questions)]
    return lines


def with_docstring(program: str, lines: Sequence[str]) -> str:
    """Return a program with the lines as its module docstring."""
    text = "\n".join(line.replace("\\", "/").replace('"""', "'''") for line in lines)
    return f'"""{text}\n"""\n\n{program.lstrip()}'
