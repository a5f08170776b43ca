"""The Python function of `cwm learn`: learn an environment while acting in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
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
from cwm_cli.envs.spec import EnvironmentSpec, is_simulator, refuse_two_players, space_of
from cwm_cli.envs.tasks import Setting, Task, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.problems.feedback import documented_names
from cwm_cli.registry import Owner, default, find, read_options, with_presets
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
    read_models,
)
from cwm_learn.actors.base import Knowledge
from cwm_learn.certificate import NEEDED
from cwm_learn.doubting import DoubtingModel
from cwm_learn.goals import GoalCondition
from cwm_learn.imagination import ImaginedSearchJob
from cwm_learn.learner import Learner, Stop
from cwm_learn.missions import StateView
from cwm_learn.optimism import RuleInventor
from cwm_learn.runs import EARLIER, Budget, LearnConfig, LearnHeader, LearningResult, LearnRun
from cwm_learn.sessions import RecordedSession
from cwm_learn.starting_point import RunOrRows, StartingPoint, convert_rows
from cwm_learn.strategy import LearningStrategy, LearningTask
from cwm_learn.writing import BudgetedModel, ProgramWriter


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
    answers = choose_backend(backend, named_models(model))
    flags = {"api_base": api_base, "temperature": temperature}
    chosen = _read_choices(answers, strategy, options, flags, cache=cache)
    if cache and (words := uncached(answers.backend)):
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
            refuse_pictures(subject.known.observation_space)
        point = subject.convert(point)
        if goal is not None and strategy is None:
            subject, point = subject.with_goal(goal, point)
        config = LearnConfig(
            env=subject.spec.id,
            env_args=subject.no_rows.metadata["env_args"],
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
            recorded = chosen.backend and RecordedAnswers(chosen.backend, opened.folder / ANSWERS)
            if chosen.strategy is None:
                language_model = None
                if recorded is not None:
                    recorded.ready(max_cost)
                    language_model = BudgetedModel(
                        recorded,
                        find("strategy", default("strategy")),
                        completions=completions,
                        max_cost=max_cost,
                        in_flight=chosen.in_flight,
                    )
                return _run_loop(
                    opened, subject, sandbox, budget, language_model, point=point, observer=observer
                )
            others = [_Subject.of(each, None, StartingPoint(), seed) for each in curriculum]
            tasks = [
                LearningTask(each.spec.id, each.task, each.known.schema, each.actions)
                for each in (*others, subject)
            ]
            session = RecordedSession(
                tasks=tasks,
                sandbox=sandbox,
                backend=recorded,
                in_flight=chosen.in_flight,
                seed=seed,
                goal=goal,
                steps=steps,
                seconds=inf if seconds is None else seconds,
                completions=inf if completions is None else completions,
                max_cost=inf if max_cost is None else max_cost,
                observer=observer,
                run=opened,
            )
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
    """The chosen limits, strategy and backend, and the options that identify the run.

    `strategy` is None for the default loop, and `backend` is None for induction from data alone.
    """

    limits: Limits
    strategy: LearningStrategy | None
    backend: Backend | None
    models: tuple[str, ...]
    in_flight: InFlight
    identity: dict[str, dict[str, Any]]


def _read_choices(
    answers: ChosenBackend,
    strategy: str | None,
    options: Sequence[str] | Mapping[str, Any],
    flags: Mapping[str, Any],
    *,
    cache: bool,
) -> _Choices:
    """Create strategy and backend with the options of the user; `flags` are of the backend."""
    owners = {"sandbox": Owner("sandbox", Limits)}
    if strategy is not None:
        owners["strategy"] = Owner("strategy", find("learning strategy", strategy))
    factory = find("backend", answers.backend)
    if not factory.from_data:
        owners["backend"] = Owner("backend", factory)
        owners["search"] = Owner("search", ModelChoice)
    flags = {name: value for name, value in flags.items() if value is not None}
    check_flags(answers.backend, flags)
    values = read_options(options, [*owners.values()])
    values = with_presets(values, [*owners.values()])
    limits, in_flight = Limits.chosen(values["sandbox"]), InFlight()
    identity = {"sandbox": asdict(limits)}
    backend, models = None, tuple[str, ...]()
    if not factory.from_data:
        factory = in_flight.making(AnswerCache().making(factory) if cache else factory)
        choice = ModelChoice(**values["search"])
        backend = make_backend(factory, answers.model, values["backend"] | flags, choice.models)
        models = (answers.model,)
        identity["backend"] = owners["backend"].identity(innermost(backend))
        if isinstance(backend, ModelPool):
            models = tuple(map(str, read_models(answers.models)))
            if choice != ModelChoice():  # absent from older runs
                identity["search"] = {"models": choice.models}
    made = None
    if strategy is not None:
        made = owners["strategy"].factory(**values["strategy"])
        identity["strategy"] = values["strategy"]
    return _Choices(limits, made, backend, models, in_flight, identity)


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
    task: Task
    description: str
    known: Knowledge
    actions: tuple[str, ...]
    no_rows: Dataset
    """A dataset of this environment without rows."""

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
        refuse_two_players(spec, "cwm learn")
        args = dict(env_args or {})
        if point.rows is not None:
            args = recorded_args(point.rows, env_args)
        with closing(spec.make(**args)) as made:
            if not is_simulator(made):
                raise no_simulator(spec.id)
            space, description = space_of(made.observation_space), spec.describe(made)
            schema = spec.objects(made) if spec.objects else None
            known = Knowledge(
                space,
                space_of(made.action_space, "actions"),
                step_limit(made),
                seed,
                schema,
                documented_names(description, space),
            )
            names = spec.action_names(made) if spec.action_names else ()
        if point.rows is not None and point.rows.observation_space != space:
            raise CwmError(f"the initial transitions are not from {spec.id}: choose others")
        metadata: dict[str, Any] = {"env": env, "env_args": args}
        if schema is not None:
            metadata[OBJECTS] = schema.to_json()
        no_rows = Dataset.of(
            [], observation_space=space, action_space=known.action_space, metadata=metadata
        )
        task = Setting(env, args, seed, known.limit).task(spec)
        return cls(spec, task, description, known, tuple(names), no_rows)

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
        subject = self._replace(task=goal.wrap(self.task), description=words)
        return subject, StartingPoint(rows, program, earlier)

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
    header = LearnHeader(
        config=config, description=subject.description, protection=sandbox.protection
    )
    files = {DATASET: subject.no_rows if point.rows is None else point.rows}
    if point.earlier is not None:
        files[EARLIER] = point.earlier
    run = LearnRun.begin(folder, header, files)
    if point.program and not run.is_continued:
        run.write_best(point.program)
    return run


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
    known, doubting_model = subject.known, None
    if language_model is not None:
        doubting_model = DoubtingModel(language_model, known, subject.description, subject.actions)
    learner = Learner(
        title=f"{subject.spec.id} · learning",
        task=subject.task,
        known=known,
        writer=ProgramWriter(sandbox, known.seed, subject.description, model=language_model),
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
    run, costs = learner.run, [record.cost for record in learner.programs]
    completions = sum(record.completions for record in learner.programs)
    return LearningResult(
        run=run.folder,
        program=run.folder / "best.py" if learner.known.program else None,
        steps=learner.steps,
        episodes=len(learner.episodes),
        returns=[each.curve_point for each in learner.episodes if not each.is_cut],
        certificate=learner.verification.certificate,
        questions=list(learner.questions),
        completions=completions + learner.completions_without_program,
        cost=None if None in costs else sum(cost or 0.0 for cost in costs),
        seconds=round(run.elapsed, 3),
        stopped=stopped,
        changed=learner.verification.changed,
        refits=len(learner.programs),
        mismatches=dict(learner.mismatches),
        writing_seconds=round(learner.writing_seconds, 3),
        planning_seconds=round(learner.actor.planning_seconds + learner.actor.learning_seconds, 3),
        gaps=tuple(each.text for each in learner.questions.open if each.source == "gaps"),
    )


def _program_facts(learner: Learner, result: LearningResult) -> list[str]:
    """Return lines on the accuracy, the certificate and the open questions of the program."""
    rows, is_random = learner.rows_to_explain, learner.writer.is_stochastic
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
        lines += [f"Not certified: {NEEDED}."]
    if questions := learner.questions.open:
        lines += ["Not covered by the data:", *(f"- {each.text}" for each in questions)]
    return lines


def with_docstring(program: str, lines: Sequence[str]) -> str:
    """Return a program with the lines as its module docstring."""
    text = "\n".join(line.replace("\\", "/").replace('"""', "'''") for line in lines)
    return f'"""{text}\n"""\n\n{program.lstrip()}'
