"""Learn an environment while acting in it: what `cwm learn` does.

`learn` finds out what is asked for, opens the run, and lets a `Learner` go on until it is certified
or its budget is spent; what came of it is a program that others can read, plan with and go on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from hashlib import sha256
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.choices import (
    ChosenBackend,
    check_flags,
    choose_backend,
    named_models,
    uncached,
)
from cwm_cli.commands.collect import find_environment, load_dataset, recorded_args
from cwm_cli.commands.plays import PlayRun, wrong_rows
from cwm_cli.commands.subjects import protected, read_program
from cwm_cli.data.dataset import Dataset, outside_space
from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.data.spaces import refuse_pictures
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import Setting, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.problems.feedback import documented_names
from cwm_cli.registry import Owner, default, environment, find, read_options, with_presets
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import program_run
from cwm_cli.runs.searches import ANSWERS, RecordedAnswers
from cwm_cli.runs.storage import named, placed
from cwm_cli.runs.store import DATASET, HEADER, folder_word, fresh_folder, kind_of
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
from cwm_learn.doubting import UnsureModel
from cwm_learn.goals import GoalCondition
from cwm_learn.imagination import ImaginedSearchJob
from cwm_learn.learner import Learner, Stop
from cwm_learn.missions import StateView
from cwm_learn.optimism import Optimist
from cwm_learn.runs import (
    EARLIER,
    Budget,
    LearnConfig,
    LearnHeader,
    LearningResult,
    LearnRun,
)
from cwm_learn.sessions import RecordedSession, learned_by
from cwm_learn.strategy import LearningTask
from cwm_learn.writing import AskedModel, ProgramWriter

ACTORS = (
    "cwm_learn.actors.tabular:TabularActor",
    "cwm_learn.actors.continuous:Real",
)
"""The kinds of worlds that there are, in the order in which they are asked whether they serve."""

RunOrRows = Path | str | Dataset
"""The folder of a run, a file with transitions, or transitions."""


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
    """Learn an environment by acting in it; a stopped run continues where it was.

    It begins with nothing, or with the rows and the program of what it `start`s from: the folder
    of a run, or a dataset; those of another environment serve while they do not contradict this
    one. It goes on for so many `steps` of the environment and `seconds`, or
    until it `stop`s: certified, `return=X` once the mean return of its play reaches X, or never.
    A language `model` is asked where data alone do not explain every row, for so many
    `completions` and US dollars at most; with a `cache` what was asked before costs nothing. The
    environments of a `curriculum` are learned before
    this one, each beginning with the program of the one before. Another `strategy` than the usual
    loop learns them in its own way. With a `goal`, a condition on what is observed such as
    `position >= 0.6`, reaching that pays instead, and what was learned before needs no new data.
    The observer is told a `Learner`, and what that says it
    tells. Raises `CwmError` for what the user can mend.
    """
    check_access(tools, allow_gap)
    budget = _budget(steps, seconds, stop)
    flags = {"api_base": api_base, "temperature": temperature}
    chosen = _choices(choose_backend(backend, named_models(model)), strategy, options, flags)
    chosen = chosen._replace(cache=cache)
    if cache and (words := uncached(chosen.answers.backend)):
        observer.note(words)
    folder = None if run is None else placed(run)
    if curriculum and strategy is None:
        folder = folder or fresh_folder(env, "learn", str(seed))
        start = _before(
            curriculum,
            folder,
            start,
            steps=steps,
            backend=backend,
            model=model,
            api_base=api_base,
            temperature=temperature,
            stop=stop,
            seconds=seconds,
            completions=completions,
            max_cost=max_cost,
            cache=cache,
            options=options,
            seed=seed,
            tools=tools,
            allow_gap=allow_gap,
            observer=observer,
        )
    begun = _begun(start).into(env)
    with protected(
        chosen.limits,
        tools=tools,
        accepted=allow_gap,
        workers=3,
        handlers=[ImaginedSearchJob.handler],
        observer=observer,
    ) as sandbox:
        task = _LearnedTask.of(env, env_args, begun, seed, observer)
        if strategy is None:
            refuse_pictures(task.known.observation_space, "a program")
        begun = task.carrying(begun)
        if goal is not None and strategy is None:
            task, begun = task.pursuing(goal, begun)
        config = LearnConfig(
            env=task.spec.id,
            env_args=task.setting.env_args,
            begins=begun.digest,
            strategy=strategy or "",
            goal=goal or "",
            curriculum=tuple(curriculum) if strategy else (),
            models=chosen.models,
            options=chosen.identity,
            tools=tuple(sorted(set(tools))),
            seed=seed,
        )
        kept = _open_run(config, task, begun, sandbox, folder=folder, budget=budget, new=new)
        if (finished := kept.finished(budget)) is not None:
            observer.note(f"{kept.place} is finished", "Run")
            return finished
        with kept as opened:
            opened.report_repair(observer)
            if strategy is not None:
                others = [_LearnedTask.of(each, None, _Begun(), seed) for each in curriculum]
                tasks = [each.named for each in (*others, task)]
                session = RecordedSession.of(opened, tasks, sandbox, observer)
                session.goal = goal
                if chosen.asks:
                    session.backend = RecordedAnswers(chosen.backend, opened.folder / ANSWERS)
                session.in_flight = chosen.in_flight
                session.steps, session.seconds = budget.steps, _most(budget.seconds)
                session.completions, session.max_cost = _most(completions), _most(max_cost)
                return learned_by(chosen.strategy, session)
            asked = _asked(chosen, opened, completions, max_cost) if chosen.asks else None
            with _learner(
                opened, task, sandbox, budget, asked, observer, begins_with=begun.program
            ) as learner:
                steps = learner.replay.steps
                verb = f"continues after {steps:,} steps" if steps else "started"
                observer.note(f"{opened.place} {verb}", "Run")
                return _learned(learner)


def _before(
    curriculum: Sequence[str], folder: Path, start: RunOrRows | None, **same: Any
) -> RunOrRows | None:
    """Learn the environments that come first, each from what was learned in the one before.

    Each has a run of its own beside the folder of the last.
    """
    folders = [
        *(
            placed(folder.with_name(f"{folder.name}-{n}-{folder_word(env)}"))
            for n, env in enumerate(curriculum, 1)
        ),
        folder,
    ]
    for env, own, following in zip(curriculum, folders, folders[1:], strict=False):
        if (following / HEADER).exists():  # it began with this one as it is
            start = own
        else:
            done = learn(env, start=start, run=own, **same)
            start = done.run if done.program else None
    return start


class _Choices(NamedTuple):
    """Who answers, and in which way is learned, with all options."""

    answers: ChosenBackend
    options: Mapping[str, Mapping[str, Any]]
    limits: Limits
    strategy: Any
    in_flight: InFlight
    cache: bool = False

    @property
    def asks(self) -> bool:
        """Whether somebody is asked who does not answer from data alone."""
        return not find("backend", self.answers.backend).from_data

    @property
    def models(self) -> tuple[str, ...]:
        """The models that are asked, with their weights."""
        if not (self.asks and self.answers.model):
            return self.answers.models if self.asks else ()
        found = read_models([self.answers.model])
        return tuple(map(str, found)) if len(found) > 1 else (models_text(found),)

    @property
    def backend(self) -> Backend:
        """Those who are asked, as one."""
        factory, options = find("backend", self.answers.backend), self.options["backend"]
        factory = AnswerCache().making(factory) if self.cache else factory
        factory = self.in_flight.making(factory)
        choice = ModelChoice(**self.options["search"])
        return make_backend(factory, self.answers.model, options, choice.models)

    @property
    def identity(self) -> dict[str, dict[str, Any]]:
        """What tells one run from another."""
        told = {"sandbox": asdict(self.limits)}
        if self.asks:
            backend = self.backend
            owner = Owner("backend", find("backend", self.answers.backend))
            told["backend"] = owner.identity(innermost(backend))
            if isinstance(backend, ModelPool) and backend.choosing != ModelChoice().models:
                told["search"] = {"models": backend.choosing}  # runs of before took turns
        if self.strategy is not None:
            told["strategy"] = dict(self.options["strategy"])
        return told


def _choices(
    answers: ChosenBackend,
    strategy: str | None,
    options: Sequence[str] | Mapping[str, Any],
    flags: Mapping[str, Any],
) -> _Choices:
    """Read what was chosen; `flags` are options of the backend."""
    owners = [Owner("sandbox", Limits)]
    factory = None if strategy is None else find("learning strategy", strategy)
    if factory is not None:
        owners.append(Owner("strategy", factory))
    if not find("backend", answers.backend).from_data:
        owners.append(Owner("backend", find("backend", answers.backend)))
        owners.append(Owner("search", ModelChoice))
    wanted = {name: value for name, value in flags.items() if value is not None}
    check_flags(answers.backend, wanted)
    given = with_presets(read_options(options, owners), owners)
    made = factory(**given["strategy"]) if factory else None
    whole = given | ({"backend": given["backend"] | wanted} if "backend" in given else {})
    return _Choices(answers, whole, Limits.chosen(given["sandbox"]), made, InFlight())


def _most(limit: float | None) -> float:
    return inf if limit is None else limit


def _asked(
    chosen: _Choices, run: LearnRun, completions: int | None, max_cost: float | None
) -> AskedModel:
    """Make who is asked where data alone are not enough, once that is known to work."""
    strategy, backend = find("strategy", default("strategy")), chosen.backend
    backend.ready(max_cost)
    backend = RecordedAnswers(backend, run.folder / ANSWERS)
    return AskedModel(
        backend, strategy, completions=completions, max_cost=max_cost, in_flight=chosen.in_flight
    )


def _budget(steps: int, seconds: float | None, stop: str) -> Budget:
    """Read when to stop."""
    word, _, value = stop.partition("=")
    if word == "return" and value:
        try:
            return Budget(steps, seconds, certified=False, target=float(value))
        except ValueError:
            pass
    if stop not in ("certified", "never"):
        raise CwmError(f"unknown --stop {stop}: choose certified, return=X or never")
    return Budget(steps, seconds, certified=stop == "certified")


class _Begun(NamedTuple):
    """What learning begins with: rows, if there are any, and a program, "" for none.

    Rows of another environment that was learned `earlier` are none of its own.
    """

    rows: Dataset | None = None
    program: str = ""
    earlier: Dataset | None = None

    @property
    def digest(self) -> str:
        """The hash of both, empty for nothing."""
        rows = [each.digest for each in (self.rows, self.earlier) if each is not None]
        if not rows:
            return ""
        return "".join(rows) + (sha256(self.program.encode()).hexdigest() if self.program else "")

    def into(self, env: str) -> _Begun:
        """Return the same for an environment: rows of another one are those of an earlier one."""
        if self.rows is None or self.rows.metadata.get("env", env) == env:
            return self
        return _Begun(None, self.program, self.rows)


def _begun(start: RunOrRows | None) -> _Begun:
    """Read what learning begins with; held-out rows stay what they are, and are left out."""
    if start is None:
        return _Begun()
    if isinstance(start, Dataset):
        return _Begun(start.train)
    folder = placed(start)
    if folder.suffix == ".py":
        return _Begun(None, read_program(start)[1])
    if not folder.is_dir():
        return _Begun(load_dataset(folder).train)
    wrong = wrong_rows(folder)
    if kind_of(folder) == PlayRun.kind:
        searched = folder.parent.parent  # mostly it is kept within the run whose program was played
        if not (searched / HEADER).is_file():
            if wrong is None:
                words = f"the plan {named(folder)} has no wrong predictions"
                raise CwmError(f"{words}: choose a run of `cwm synthesize` or `cwm learn`")
            return _Begun(wrong)
        folder = searched
    found = program_run(folder)
    rows = found.dataset().train
    if wrong is not None:  # of plans that were made with its program
        wrong.columns["episodes"][:] += 1 + rows.columns["episodes"].max(initial=-1)
        rows = rows.concatenate(wrong)
    return _Begun(rows, found.best_program())


class _LearnedTask(NamedTuple):
    """An environment, and what is known of it before anything is done in it."""

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
        begun: _Begun,
        seed: int,
        observer: Observer = SILENT,
    ) -> _LearnedTask:
        """Look at an environment without acting in it."""
        spec = find_environment(env, observer)
        args = (
            recorded_args(begun.rows, env_args) if begun.rows is not None else dict(env_args or {})
        )
        with closing(spec.make(**args)) as made:
            space, description = space_of(made.observation_space), spec.describe(made)
            known = Knowledge(
                space,
                space_of(made.action_space, "actions"),
                step_limit(made),
                seed,
                spec.objects(made) if spec.objects else None,
                documented_names(description, space),
            )
            if begun.rows is not None and begun.rows.observation_space != known.observation_space:
                raise CwmError(f"the initial transitions are not from {spec.id}: choose others")
            setting = Setting(env, args, seed, known.limit)
            names = spec.action_names(made) if spec.action_names else ()
            return cls(spec, setting, description, known, tuple(names))

    def carrying(self, begun: _Begun) -> _Begun:
        """Return what it begins with, with the rows of an earlier environment as they are here."""
        if begun.earlier is None:
            return begun
        try:
            return begun._replace(earlier=carried(begun.earlier, self.nothing))
        except ValueError as error:
            if begun.program:
                return begun._replace(earlier=None)
            raise CwmError(
                f"the transitions do not fit {self.spec.id} ({error}): choose others"
            ) from None

    def pursuing(self, goal: str, begun: _Begun) -> tuple[_LearnedTask, _Begun]:
        """Return the same with another goal, and what it begins with as it is for that."""
        pursued = GoalCondition.parse(goal, self.known.observation_space, self.description)
        rows = None if begun.rows is None else pursued.relabel(begun.rows)
        earlier = None if begun.earlier is None else pursued.relabel(begun.earlier)
        program = pursued.add_to(begun.program) if begun.program else ""
        words = f"{self.description}\n\nThe only reward is 1 for reaching this goal: {goal}."
        return self._replace(goal=pursued, description=words), _Begun(rows, program, earlier)

    def optimist(self, asked: AskedModel | None, sandbox: Sandbox) -> Optimist | None:
        """Return who invents what a mission may take, where there are missions and a model."""
        known = self.known
        if asked is None or known.action_space.kind != "discrete":
            return None
        first = int(known.action_space.low[0])
        view = StateView(known.observation_space, known.schema, self.actions, first)
        if not view.has_mission:
            return None
        return Optimist(asked, sandbox, view, known.seed)

    def questioner(self, asked: AskedModel | None) -> UnsureModel | None:
        """Return who has a language model name questions, where one is asked."""
        if asked is None:
            return None
        return UnsureModel(asked, self.known, self.description, self.actions)

    @property
    def named(self) -> LearningTask:
        """The task as other loops take it."""
        task, schema = self.setting.task(self.spec), self.known.schema
        return LearningTask(self.spec.id, task, schema, self.actions)

    @property
    def nothing(self) -> Dataset:
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


def carried(rows: Dataset, into: Dataset) -> Dataset:
    """Return rows of an environment as rows of another one.

    ValueError where that has no place for them: what is observed has to be the same, or objects
    of the same classes and properties, and actions have to be among those that there are.
    """
    old, new = rows.action_space, into.action_space
    among = old.kind == new.kind == "discrete" and old.low == new.low and old.count <= new.count
    if old != new and not among:
        raise ValueError("its actions differ")
    kept = list(rows)
    if rows.observation_space != into.observation_space:
        if not ("objects" in rows.metadata and "objects" in into.metadata):
            raise ValueError("its observations differ")
        mine = ObjectSchema.from_json(rows.metadata["objects"])
        theirs = ObjectSchema.from_json(into.metadata["objects"])
        space = into.observation_space
        slots = space.children[space.keys.index(OBJECTS)].shape[0]
        sides = (
            mine.convert(np.stack([each[OBJECTS] for each in side]), theirs, slots)
            for side in zip(*((r.observation, r.next_observation) for r in kept), strict=True)
        )
        kept = [
            row._replace(
                observation={**row.observation, OBJECTS: before},
                next_observation={**row.next_observation, OBJECTS: after},
            )
            for row, before, after in zip(kept, *sides, strict=True)
        ]
    return Dataset.of(
        [row._replace(valid=None) for row in kept],
        observation_space=into.observation_space,
        action_space=into.action_space,
        metadata=into.metadata,
    )


def _open_run(
    config: LearnConfig,
    task: _LearnedTask,
    begun: _Begun,
    sandbox: Sandbox,
    *,
    folder: Path | None,
    budget: Budget,
    new: bool,
) -> LearnRun:
    """Continue the named run, or the newest unfinished one of equal choices, or start one."""
    if folder is None and not new:
        going_on = (run for run in LearnRun.find_equal(config) if run.finished(budget) is None)
        folder = next((run.folder for run in going_on), None)
    folder = folder or fresh_folder(config.env, "learn", str(config.seed))
    if (folder / HEADER).exists():
        run = LearnRun.load(folder)
        run.check(config)
        return run
    header = LearnHeader(config=config, description=task.description, protection=sandbox.protection)
    files = {DATASET: begun.rows if begun.rows is not None else task.nothing}
    if begun.earlier is not None:
        files[EARLIER] = begun.earlier
    started = LearnRun.start(folder, header, files)
    if begun.program:
        started.write_best(begun.program)
    return started


@contextmanager
def _learner(
    run: LearnRun,
    task: _LearnedTask,
    sandbox: Sandbox,
    budget: Budget,
    asked: AskedModel | None,
    observer: Observer,
    *,
    begins_with: str,
) -> Iterator[Learner]:
    """Make what learns."""
    known = task.known
    played = task.setting.task(task.spec)
    writer = ProgramWriter(sandbox, known.seed, task.description, model=asked)
    with closing(
        Learner(
            title=f"{task.spec.id} · learning",
            task=task.goal.wrap(played) if task.goal else played,
            known=known,
            actor=actor_for(known)(known),
            writer=writer,
            sandbox=sandbox,
            run=run,
            budget=budget,
            observer=observer,
            begins_with=begins_with,
            optimist=task.optimist(asked, sandbox),
            questioner=task.questioner(asked),
        )
    ) as learner:
        yield learner


def actor_for(known: Knowledge) -> type[Actor]:
    """Return the first kind of world that an environment is."""
    for address in ACTORS:
        module, _, name = address.partition(":")
        kind: type[Actor] = getattr(import_module(module), name)
        if kind.supports(known.observation_space, known.action_space):
            return kind
    raise CwmError(
        "no learning strategy supports this environment: use `cwm synthesize` on recorded data"
    )


def _learned(learner: Learner) -> LearningResult:
    """Learn, and write down what came of it, whatever ends it."""
    run = learner.run
    try:
        stopped = learner.learn()
    except KeyboardInterrupt:
        words = f"interrupted after {learner.known_steps:,} steps"
        raise KeyboardInterrupt(f"{words}: the same command continues {run.place}") from None
    except CwmError as error:
        if not learner.known_steps:
            raise
        raise CwmError(f"{error} (kept in {run.place}: the same command continues)") from error
    if words := outside_space(learner.dataset()):
        learner.observer.note(words, "Warning")
    result = _result(learner, stopped)
    if learner.known.program:
        run.write_best(described(learner.known.program, _account(learner, result)))
    run.save_result(result.as_json())
    return result


def _result(learner: Learner, stopped: Stop) -> LearningResult:
    """Gather what came of learning."""
    run, (completions, cost) = learner.run, learner.usage
    found = [each for each in learner.questions.open if each.source == "gaps"]
    return LearningResult(
        run=run.folder,
        program=run.folder / "best.py" if learner.known.program else None,
        steps=learner.steps,
        episodes=len(learner.episodes),
        returns=[
            {"steps": each.steps, "return": each.returned, "aim": each.aim}
            for each in learner.episodes
            if not each.is_cut
        ],
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
        gaps=tuple(each.text for each in found),
        has_simulator=environment(run.config.env).has_simulator(run.config.env_args),
    )


def _account(learner: Learner, result: LearningResult) -> list[str]:
    """Say of the program what is known, what is certified and what is not."""
    env = learner.run.config.env
    lines = [f"{env}, learned from {result.steps:,} steps in the environment."]
    rows = learner.explained
    left_out = len(learner.known.rows) - len(rows)
    wrong = int(learner.writer.wrong(learner.known.program, rows).sum())
    replayed = f"{len(rows) - wrong:,}" if wrong else "all"
    is_random = learner.writer.contract == "chance"
    does = "It gives a positive probability to" if is_random else "It predicts"
    lines += [f"{does} {replayed} of {len(rows):,} recorded transitions."]
    if left_out:
        lines += [f"{left_out:,} more transitions had other outcomes: randomness, or hidden state."]
    lines += [
        f"Certified: {result.certificate}."
        if result.certificate
        else "Not certified: too few steps of play without a mismatch."
    ]
    asked = learner.questions.open
    return (
        [*lines, "Not covered by the data:", *(f"- {each.text}" for each in asked)]
        if asked
        else lines
    )


def described(program: str, lines: Sequence[str]) -> str:
    """Put an account of a program at its head."""
    told = "\n".join(line.replace("\\", "/").replace('"""', "'''") for line in lines)
    return f'"""{told}\n"""\n\n{program.lstrip()}'
