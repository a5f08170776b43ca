"""`cwm.train`: train a world model, and an agent in it.

`train` reads the choices and opens the run. Its `TrainingLoop` repeats epochs: it collects steps,
fits the model to all rows, trains the agent in the model, and at intervals plays test episodes in
the true environment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from cwm_cli.bench.executor import Executor, chosen_executor
from cwm_cli.commands.collect import (
    find_environment,
    load_transitions,
    recorded_args,
    warn_of_rows,
)
from cwm_cli.commands.episodes import FinishedEpisode, play
from cwm_cli.commands.imagine import ImaginedRollouts
from cwm_cli.commands.subjects import Subject, find_subject, protected
from cwm_cli.data.dataset import ALL_FITTED, VALID, Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec, refuse_two_players
from cwm_cli.envs.tasks import Setting, Task, step_limit
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.planning import Unsuited
from cwm_cli.registry import Owner, default, find, names, read_options, with_presets
from cwm_cli.runs.files import RowsAdded
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.storage import located, placed, storage_of
from cwm_cli.runs.store import (
    DATASET,
    HEADER,
    fresh_folder,
    kind_of,
    package_versions,
)
from cwm_cli.sandbox import Limits
from cwm_cli.worlds.model import WorldModel
from cwm_cli.worlds.program import ProgramModel
from cwm_neural.training.acting import Collector
from cwm_neural.training.job import TrainingJob
from cwm_neural.training.media import last_episode, replay, rows_of, save_media
from cwm_neural.training.runs import (
    AgentTest,
    Divergence,
    EpisodeReturn,
    EpochRecord,
    TrainConfig,
    TrainHeader,
    TrainingResult,
    TrainRun,
    usable_device,
)
from cwm_neural.training.trainer import (
    Agent,
    AgentTrainer,
    Diverged,
    Trainer,
    Training,
    TrainingTask,
)

COLLECTING, TESTING, ACTING = 0, 1, 2
"""Purposes of seeds, so that no test episode equals a collected one."""

Count = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Schedule:
    """Intervals of collecting, learning and testing, in environment steps."""

    every: Count = 200
    """Environment steps per epoch. After them, the model and the agent learn, and a checkpoint is
    saved."""
    warm_up: Number = 200
    """Number of random steps before the agent acts."""
    agent_from: Number = 0
    """Number of steps after which the agent learns and acts; before, the model is too
    inaccurate."""
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Probability of a random action while collecting."""
    test_every: Count = 5
    """Epochs between two tests in the true environment; there is always one at the end."""
    tests: Number = 5
    """Episodes per test."""
    max_steps: Count | None = None
    """Maximum steps of an episode, if the environment allows more."""
    media: Number = field(default=0, metadata={"identity": False})
    """Tests whose episodes are kept in the folder `media`: a collected, a test and an imagined
    episode each, as film and `.npz`, and reconstructions. 0: none."""


def train(
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    model: str | None = None,
    agent: str | None = None,
    tokenizer: str | None = None,
    profile: str | None = None,
    dataset: Dataset | Path | str | None = None,
    world: Path | str | None = None,
    steps: int | None = None,
    device: str = "auto",
    init: Sequence[str] | Mapping[str, Path | str] = (),
    freeze: Sequence[str] = (),
    options: Sequence[str] | Mapping[str, Any] = (),
    seed: int = 0,
    run: Path | str | None = None,
    new: bool = False,
    allow_gap: Sequence[str] = (),
    executor: str | None = None,
    observer: Observer = SILENT,
) -> TrainingResult:
    """Train a world model of an environment, and an agent in it; a stopped run continues.

    The agent collects environment steps in epochs. After each epoch the model is fitted to all
    rows, and the agent learns in the model.

    Args:
        env: Environment id.
        env_args: Arguments of the environment.
        model: Kind of model. Default: `ensemble`, or no model if the agent learns from rows alone.
        agent: Kind of agent. Default: the model's.
        tokenizer: Short for the option `model.tokenizer`.
        profile: Short for the option `preset` of the model and the agent.
        dataset: Rows to train on; then the agent collects no rows.
        world: Run folder or program of a world model. Only an agent is trained, in this model and
            on `dataset`, by default the rows of the run.
        steps: Number of environment steps, or of training steps without collection.
            Default: 5000.
        device: auto, cpu, cuda, cuda:N or mps.
        init: Initial states of parts from other runs, as PART=FOLDER or a mapping.
        freeze: Parts that are not trained.
        options: Further options, as KEY=VALUE or a mapping.
        seed: Random seed.
        run: Run folder. Default: a new one, or an unfinished run with the same choices.
        new: Start a new run even if an unfinished one has the same choices.
        allow_gap: Missing protections of the sandbox that are accepted.
        executor: Executor that trains in a job: local, ray, slurm or a plugin's. Its options have
            the form `executor.KEY=VALUE`. Default: train in this process.
        observer: Receives the `TrainingLoop` or `TrainingJob`, each `EpochRecord` and each
            `AgentTest`.

    Raises:
        CwmError: If a choice is invalid, or if a loss is not finite.
    """
    if steps is not None and steps < 1:
        raise CwmError("nothing to train: --steps must be at least 1")
    jobs: Executor | None = None
    if executor is not None:
        if run is not None and storage_of(placed(run)):
            raise CwmError(f"{run} is no folder, which a job needs: choose another --run")
        jobs, options = chosen_executor(executor, 1, options)
    spec = find_environment(env, observer)
    refuse_two_players(spec, "cwm train")
    args = dict(env_args or {})
    chosen = _Choices.of(model, agent, tokenizer, profile, options, in_world=world is not None)
    parts = _init_folders(init)
    with _world(world, env, args, allow_gap, observer) as given_world:
        rows = _given_rows(spec, dataset, args, given_world, observer)
        if rows is not None:
            args = recorded_args(rows, args)
        config = TrainConfig(
            env=spec.id,
            env_args=args,
            model=chosen.model,
            agent=chosen.agent,
            dataset="" if rows is None else rows.digest,
            world="" if given_world is None else given_world.subject.digest,
            init={part: _digest(folder) for part, folder in parts.items()},
            freeze=tuple(sorted(set(freeze))),
            options=chosen.identity,
            seed=seed,
        )
        # The machine of a job may have another device than this one.
        device_name = usable_device(device, chosen.requires) if jobs is None else "cpu"
        task = TrainingTask.of(spec, config, device_name, observer.note)
        if rows is not None and (rows.observation_space, rows.action_space) != task[:2]:
            raise CwmError(
                f"the transitions do not fit the spaces of {spec.id}: choose another --dataset"
            )
        training, acting_agent = chosen.begin(config, task, parts, freeze)
        with closing(spec.make(**args)) as simulator:
            limit = step_limit(simulator, chosen.schedule.max_steps)
        header = TrainHeader(
            config=config,
            parameters=_parameters(training, acting_agent),
            world=str(world or ""),
            versions={**spec.versions(), **package_versions(chosen.requires)},
            protection=None if given_world is None else given_world.protection,
        )
        initial_rows = rows if rows is not None else _no_rows(spec, config, task)
        wanted = 5000 if steps is None else steps
        own_model = None if training is None else training.model
        with _open_run(header, initial_rows, run, wanted, new=new) as train_run:
            train_run.report_repair(observer)
            if jobs is None:
                loop = TrainingLoop(
                    run=train_run,
                    setting=Setting(spec.id, args, seed, limit),
                    spec=spec,
                    schedule=chosen.schedule,
                    training=training,
                    agent=acting_agent,
                    own_agent=bool(chosen.agent),
                    model=given_world.model if given_world else own_model,
                    rows=initial_rows,
                    collects=rows is None,
                    learns=chosen.learns,
                    wanted=wanted,
                    observer=observer,
                )
                with closing(loop):
                    loop.resume()
                    verb = f"continues after {loop.steps:,} steps" if loop.steps else "started"
                    observer.note(f"{train_run.place} {verb}, on {device_name}", "Run")
                    return _run_loop(loop)
        # The run is not locked any more: the job locks it.
        arguments = {
            "env": env,
            "env_args": args,
            "model": model,
            "agent": agent,
            "tokenizer": tokenizer,
            "profile": profile,
            "dataset": None if rows is None else train_run.folder / DATASET,
            "world": world,
            "steps": wanted,
            "device": device,
            "init": parts,
            "freeze": freeze,
            "options": options,
            "seed": seed,
            "run": train_run.folder,
            "allow_gap": allow_gap,
        }
        return TrainingJob(train_run, wanted, arguments, observer).train(jobs)


class _Choices(NamedTuple):
    """The trainers of the model and the agent, and all options."""

    model: str
    agent: str
    trainer: Trainer | None
    agent_trainer: AgentTrainer | None
    schedule: Schedule
    identity: dict[str, dict[str, Any]]
    learns: bool

    @classmethod
    def of(
        cls,
        model: str | None,
        agent: str | None,
        tokenizer: str | None,
        profile: str | None,
        options: Sequence[str] | Mapping[str, Any],
        *,
        in_world: bool,
    ) -> _Choices:
        """Find the trainers, apply defaults, and read the options."""
        if in_world and model is not None:
            raise CwmError("--world and --model exclude each other: leave out --model")
        agent_factory = find("agent", agent) if agent is not None else None
        if in_world and agent_factory is None:
            raise CwmError(
                f"choose the agent that learns in it: --agent {' or '.join(_learning_agents())}"
            )
        if (
            model is None
            and not in_world
            and (agent_factory is None or agent_factory.needs_model or not agent_factory.learns)
        ):
            model = default("trainer")
        model_factory = find("trainer", model) if model is not None else None
        if agent_factory is None and model_factory is not None and model_factory.agent:
            agent, agent_factory = model_factory.agent, find("agent", model_factory.agent)
        if in_world and agent_factory is not None and not agent_factory.learns:
            raise CwmError(
                f"the agent {agent} does not learn: "
                f"choose --agent {' or '.join(_learning_agents())}"
            )
        for factory in filter(None, (model_factory, agent_factory)):
            factory.check()
        owners = [Owner("training", Schedule)]
        owners += [Owner("model", model_factory)] if model_factory is not None else []
        owners += [Owner("agent", agent_factory)] if agent_factory is not None else []
        planners = {}
        if agent_factory is not None and agent_factory.plans:
            planners = {name: Owner(name, find("planner", name)) for name in names("planner")}
        given = _options(options, [*owners, *planners.values()], tokenizer, profile)
        schedule = Schedule(**given["training"])
        trainer = model_factory(**given["model"]) if model_factory is not None else None
        agent_trainer = agent_factory(**given["agent"]) if agent_factory is not None else None
        parts = {"training": schedule, "model": trainer, "agent": agent_trainer}
        identity = {each.label: each.identity(parts[each.label]) for each in owners}
        planning = {f"{n}.{key}": v for n in planners for key, v in given[n].items()}
        if agent_trainer is not None and agent_trainer.plans:
            agent_trainer.chosen = planning
            identity["planner"] = planning
        learns = agent_factory is None or agent_factory.learns
        return cls(model or "", agent or "", trainer, agent_trainer, schedule, identity, learns)

    @property
    def requires(self) -> tuple[str, ...]:
        """The packages that the trainers require."""
        return tuple(
            name
            for each in (self.trainer, self.agent_trainer)
            if each is not None
            for name in each.requires
        )

    def begin(
        self,
        config: TrainConfig,
        task: Any,
        init: Mapping[str, Path],
        freeze: Sequence[str],
    ) -> tuple[Training | None, Agent]:
        """Return the training and the agent, with initialised and frozen parts."""
        training = None if self.trainer is None else self.trainer.begin(task)
        if training is None and (init or freeze):
            raise CwmError("no model is trained: leave out --init and --freeze")
        if training is not None:
            for part, folder in init.items():
                training.adopt(part, folder)
            for part in freeze:
                training.freeze(part)
        acting_agent = None if self.agent_trainer is None else self.agent_trainer.begin(task)
        if acting_agent is None and training is not None:
            acting_agent = training.agent
        if acting_agent is None:
            raise CwmError(f"{config.model} has no agent of its own: choose an --agent")
        return training, acting_agent


def _learning_agents() -> list[str]:
    """Return the names of agents that learn in a world model."""
    known = {name: find("agent", name) for name in names("agent")}
    return [name for name, each in known.items() if each.learns and each.needs_model]


def _options(
    options: Sequence[str] | Mapping[str, Any],
    owners: list[Owner],
    tokenizer: str | None,
    profile: str | None,
) -> dict[str, dict[str, Any]]:
    """Read the options, `--tokenizer` and `--profile`."""
    given = read_options(options, owners)
    by_label = {owner.label: owner for owner in owners}
    has_tokenizer = "model" in by_label and "tokenizer" in by_label["model"].options
    if tokenizer is not None and has_tokenizer:
        given["model"] |= read_options({"model.tokenizer": tokenizer}, owners)["model"]
    elif tokenizer not in (None, "none"):
        raise CwmError("this model has no tokenizer: leave out --tokenizer")
    if profile is not None:
        presets = {
            label: getattr(by_label[label].factory, "PRESETS", {})
            for label in ("model", "agent")
            if label in by_label
        }
        supported = [label for label, known in presets.items() if profile in known]
        if not supported:
            known = [name for each in presets.values() for name in each]
            if known:
                raise UnknownNameError("profile", profile, known)
            raise CwmError("this model has no profiles: leave out --profile")
        for label in supported:
            given[label].setdefault("preset", profile)
    return with_presets(given, owners)


class _World(NamedTuple):
    """A given world model, its source, and the protection of its sandbox."""

    subject: Subject
    model: WorldModel
    protection: Any


@contextmanager
def _world(
    source: Path | str | None,
    env: str,
    env_args: Mapping[str, Any],
    allow_gap: Sequence[str],
    observer: Observer,
) -> Iterator[_World | None]:
    """Open the given world model for training; a program runs in the sandbox."""
    if source is None:
        yield None
        return
    if located(source).is_file():
        subject = find_subject(program=source, env=env, env_args=env_args, observer=observer)
    else:
        subject = find_subject(source, env=env, env_args=env_args, options=(), observer=observer)
    if subject.text is None:
        assert subject.model is not None
        yield _World(subject, subject.model, None)
        return
    limits = Limits.chosen(dict(subject.limits))
    with protected(
        limits, tools=subject.tools, accepted=allow_gap, workers=3, observer=observer
    ) as sandbox:
        model = ProgramModel(subject.text, sandbox, subject.name)
        yield _World(subject, model, sandbox.protection)


def _given_rows(
    spec: EnvironmentSpec,
    dataset: Dataset | Path | str | None,
    env_args: Mapping[str, Any],
    world: _World | None,
    observer: Observer,
) -> Dataset | None:
    """Return the rows to train on, None if rows are collected."""
    if dataset is None and world is None:
        return None
    if dataset is None and world is not None:
        rows = world.subject.transitions(observer=observer)
    else:
        rows, _ = load_transitions(spec, env_args=env_args, dataset=dataset, observer=observer)
    min_rows = 32  # minimum train rows of a dataset: a batch of the smallest presets
    if len(rows.train) < min_rows:
        words = f"{len(rows.train)} train rows; at least {min_rows} are needed"
        raise CwmError(f"the dataset has {words}: record more with `cwm collect`")
    for name, column in rows.columns.items():
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            place = int(np.argwhere(~np.isfinite(column))[0, 0])
            words = f"{name} that are not finite numbers, first in row {place}"
            raise CwmError(f"the dataset has {words}: remove such rows")
    warn_of_rows(rows, observer)
    return rows


def _no_rows(spec: EnvironmentSpec, config: TrainConfig, task: Any) -> Dataset:
    """Return an empty dataset for the rows that are collected."""
    rows = Dataset.of(
        [],
        observation_space=task.observation_space,
        action_space=task.action_space,
        metadata={"env": spec.id, "env_args": config.env_args, **ALL_FITTED},
    )
    if spec.valid_actions is not None and task.action_space.kind == "discrete":
        rows.columns[VALID] = np.empty((0, task.action_space.count), np.bool_)
    return rows


def _init_folders(init: Sequence[str] | Mapping[str, Path | str]) -> dict[str, Path]:
    """Return the checkpoint folder for each part; for a run it is the best checkpoint."""
    pairs = init.items() if isinstance(init, Mapping) else [_part(text) for text in init]
    folders = {}
    for part, place in pairs:
        folder = placed(place)
        if (folder / HEADER).is_file() and kind_of(folder) == TrainRun.kind:
            run = TrainRun.load(folder)
            folder = run.checkpoint(run.epoch_of("best"))
        if (folder / "model").is_dir():
            folder /= "model"
        if not folder.is_dir():
            raise CwmError(f"there is no checkpoint {place}: choose a run of `cwm train`")
        folders[part] = folder
    return folders


def _part(text: str) -> tuple[str, str]:
    part, separator, folder = text.partition("=")
    if not separator or not folder:
        raise CwmError(f"--init {text!r} has no folder: write --init {part}=RUN")
    return part, folder


def _digest(folder: Path) -> str:
    """Return the hash of all files in a folder."""
    digest = sha256()
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        digest.update(f"{file.relative_to(folder)} {file.stat().st_size};".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _parameters(training: Training | None, agent: Agent) -> dict[str, int]:
    """Return the number of parameters of each part."""
    found = dict(training.parameters) if training is not None else {}
    own = training is None or agent is not training.agent
    return found | (dict(agent.parameters) if own else {})


def _open_run(
    header: TrainHeader, rows: Dataset, folder: Path | str | None, steps: int, *, new: bool
) -> TrainRun:
    """Continue the named run, or the newest unfinished run with equal choices, or start one."""
    config = header.config
    if folder is None and not new:
        alike = TrainRun.find_equal(config)
        folder = next((run.folder for run in alike if not run.is_over(steps)), None)
    words = [config.env, config.model or "world", config.agent, "train", str(config.seed)]
    folder = placed(folder) if folder else fresh_folder(*filter(None, words))
    return TrainRun.begin(folder, header, {DATASET: rows})


@dataclass
class TrainingLoop:
    """Collects rows, fits the model, trains and tests the agent, and saves the results.

    The seed, the number of an epoch and the saved files determine the epoch. So a run that is
    killed at any time continues to the same result. `steps` is the number of environment steps, or
    of training steps on given rows. `doing` describes the current work.
    """

    run: TrainRun
    setting: Setting
    spec: EnvironmentSpec
    schedule: Schedule
    training: Training | None
    agent: Agent
    own_agent: bool
    model: WorldModel | None
    rows: Dataset
    collects: bool
    learns: bool
    wanted: int
    observer: Observer
    epochs: list[EpochRecord] = field(default_factory=list, init=False)
    played: list[AgentTest] = field(default_factory=list, init=False)
    doing: str = field(default="", init=False)
    _fresh: list[Dataset] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._task = self.setting.task(self.spec)
        collected = self._seeded(COLLECTING)
        self._collector = Collector(collected, self.schedule.epsilon)
        self.agent.model = self.model

    def close(self) -> None:
        """Close the environment."""
        self._collector.close()

    @property
    def steps(self) -> int:
        """The number of steps at the end of the last epoch."""
        return self.epochs[-1].steps if self.epochs else 0

    def resume(self) -> None:
        """Restore the state of an earlier process from the run folder."""
        if self.collects:
            metadata = self.rows.metadata
            self.rows = Dataset(
                self.rows.columns, self.rows.observation_space, self.rows.action_space, metadata
            )
        for event in self.run.events():
            if isinstance(event, RowsAdded):
                self._add_rows(self.run.read_rows(event))
            elif isinstance(event, EpochRecord):
                self.epochs.append(event)
                self._fresh.clear()
            elif isinstance(event, AgentTest):
                self.played.append(event)
            elif isinstance(event, Divergence):
                raise CwmError(self._divergence_message(event))
        if self.epochs:
            folder = self.run.checkpoint(self.epochs[-1].number)
            if not folder.is_dir():
                raise CwmError(f"{folder} is missing: restore it, or start another run")
            if self.training is not None:
                self.training.load(folder / "model")
            if self.own_agent:
                self.agent.load(folder / "agent")
        if self.collects and not self._collector.resume(self.rows):
            words = "the environment did not reproduce the unfinished episode"
            self.observer.note(f"{words}: the next episode starts instead", "Warning")

    def train(self) -> None:
        """Run epochs and tests until the wanted number of steps."""
        if self.schedule.tests and not self.played:
            self._run_test(0)
        while self.steps < self.wanted:
            if self._is_due(self.schedule.test_every):
                self._run_test(self.epochs[-1].number)
            self._run_epoch()
        if self._is_due(1):
            self._run_test(self.epochs[-1].number)
        self.run.delete_old_checkpoints()

    def _is_due(self, every: int) -> bool:
        """Whether the agent of the last epoch must be tested."""
        number = self.epochs[-1].number if self.epochs else 0
        tested = any(each.number == number for each in self.played)
        return bool(self.schedule.tests and number and not tested and number % every == 0)

    def _run_epoch(self) -> None:
        """Collect rows, fit the model and the agent, and save the results."""
        began, number = time.monotonic(), len(self.epochs) + 1
        portion = min(self.schedule.every, self.wanted - self.steps)
        if self.collects and not self._fresh:
            self._collect(number, portion)
        fresh = self._fresh[-1] if self._fresh else None
        portion = portion if fresh is None else len(fresh)
        try:
            losses, held_out = self._fit(fresh, portion)
        except Diverged as error:
            found = Divergence(number=number, steps=self.steps + portion, words=str(error))
            self.run.append(found)
            raise CwmError(self._divergence_message(found)) from error
        self.doing = f"epoch {number}: saving a checkpoint"
        self.run.save_checkpoint(number, self.training, self.agent if self.own_agent else None)
        record = EpochRecord(
            number=number,
            steps=self.steps + portion,
            episodes=[] if fresh is None else self._ended_episodes(fresh),
            losses=losses,
            held_out=held_out,
            seconds=round(time.monotonic() - began, 3),
        )
        self.run.append(record)
        self.epochs.append(record)
        self._fresh.clear()
        self.run.delete_old_checkpoints()
        self.observer.advanced(record)

    def _collect(self, number: int, count: int) -> None:
        """Act for `count` steps, and save the rows."""
        rows: list[Transition] = []
        session = None
        # the first steps are random
        first = max(self.schedule.warm_up, self.schedule.agent_from if self.learns else 0)
        if self.steps >= max(first, 1):
            session = self.agent.open(self._seeded(COLLECTING), seed=self._seed(ACTING, number))
        with closing(session) if session is not None else nullcontext():
            for row in self._collector.collect(session, count):
                rows.append(row)
                self.doing = f"epoch {number}: step {len(rows)} of {count}"
        found = rows_of(rows, self.rows).with_columns_of(self.rows)
        self.run.add_rows(found)
        self._add_rows(found)

    def _add_rows(self, rows: Dataset) -> None:
        self._fresh = [rows]
        self.rows = self.rows.concatenate(rows)

    def _fit(
        self, fresh: Dataset | None, portion: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Fit the model and the agent; return losses and held-out measures."""
        number, rows = len(self.epochs) + 1, self.rows.train
        losses: dict[str, float] = {}
        held_out: dict[str, float] = {}
        if self.training is not None:
            if fresh is not None and self.epochs:
                self.doing = f"epoch {number}: evaluating the model on new rows"
                held_out = dict(self.training.measure(fresh))
            self.doing = f"epoch {number}: fitting the model"
            losses |= self.training.fit(rows, portion)
            if fresh is None and len(self.rows.test):
                self.doing = f"epoch {number}: evaluating the model on held-out rows"
                held_out = dict(self.training.measure(self.rows.test))
        if self.own_agent and self.steps + portion > self.schedule.agent_from:
            self.doing = f"epoch {number}: training the agent"
            for name, loss in self.agent.fit(self.model, rows, portion).items():
                losses[f"agent {name}" if name in losses else name] = loss
        return losses, held_out

    def _ended_episodes(self, fresh: Dataset) -> list[EpisodeReturn]:
        """Return the episodes that ended in the new rows, which are the last ones."""
        columns = self.rows.columns
        ends = columns["terminations"] | columns["truncations"]
        first, found = len(self.rows) - len(fresh), []
        for place in first + np.flatnonzero(ends[first:]):
            own = columns["episodes"] == columns["episodes"][place]
            found.append(
                EpisodeReturn(
                    steps=int(place) + 1,
                    returned=float(columns["rewards"][own].sum()),
                    length=int(own.sum()),
                )
            )
        return found

    def _run_test(self, number: int) -> None:
        """Play test episodes, whose rows are not used; number 0 plays at random."""
        began, count = time.monotonic(), self.schedule.tests
        task = self._seeded(TESTING)
        seed = self._seed(ACTING, TESTING, number)
        session = self.agent.open(task, greedy=True, seed=seed) if number else None
        finished: list[FinishedEpisode] = []
        self.doing = f"test: episode 1 of {count}"
        with closing(session) if session is not None else nullcontext():
            numbers = range(number * count, (number + 1) * count)
            with closing(play(task, numbers, session)) as stream:
                for progress in stream:
                    finished += progress.finished
                    self.doing = f"test: episode {min(len(finished) + 1, count)} of {count}"
        episodes = sorted((each.episode for each in finished), key=lambda each: each.number)
        record = AgentTest(
            number=number,
            steps=self.steps,
            returns=[each.returned for each in episodes],
            lengths=[each.length for each in episodes],
            failures=sum(each.failures for each in episodes),
            seconds=round(time.monotonic() - began, 3),
        )
        self.run.append(record)
        self.played.append(record)
        if number and self.training is not None:
            self.doing = "drawing pictures of predictions"
            rows = self.rows.test
            self.training.illustrate(rows if len(rows) else self.rows.train, self.run.folder)
        if number and self.schedule.media:
            self.doing = "saving episodes"
            self._save_media(number, min(finished, key=lambda each: each.episode.number))
        self.observer.advanced(record)

    def _save_media(self, number: int, tested: FinishedEpisode) -> None:
        """Save the newest collected episode, a test episode and an imagined one."""
        task, model = self._seeded(TESTING), self.model
        first = tested.episode.number
        episodes = {"test": replay(task, first, tested.actions, self.rows)}
        if self.collects and (collected := last_episode(self.rows)) is not None:
            episodes["train"] = collected
        if model is not None:
            seed = self._seed(ACTING, TESTING, number)
            with closing(self.agent.open(task, greedy=True, seed=seed)) as session:
                found = ImaginedRollouts(model, session, task, self.rows).episode(first)
            episodes["imagination"] = rows_of(found.rows, self.rows)
        save_media(self.run.folder, number, episodes, kept=self.schedule.media)

    def _seeded(self, purpose: int) -> Task:
        """Return the task with the seed of a purpose."""
        return self.setting._replace(seed=self._seed(purpose)).task(self.spec)

    def _seed(self, *purpose: int) -> int:
        """Return the seed of a purpose."""
        words = np.random.SeedSequence([self.setting.seed, *purpose]).generate_state(1)
        return int(words[0])

    def _divergence_message(self, found: Divergence) -> str:
        """Return the error message: the reason, and the options to change."""
        owners = self.run.config.options
        rates = [
            f"-o {label}.{name}=..."
            for label in ("model", "agent")
            for name in owners.get(label, {})
            if "rate" in name
        ]
        remedy = f"a smaller rate ({' or '.join(rates)})" if rates else "other options"
        kept = f", earlier epochs are saved in {self.run.place}" if self.epochs else ""
        return f"{found.words}, by step {found.steps:,}{kept}: start another run with {remedy}"


def _run_loop(loop: TrainingLoop) -> TrainingResult:
    """Train, and save and return the result; an interrupted or failed run stays resumable."""
    run, observer = loop.run, loop.observer
    observer.begins(loop)
    try:
        loop.train()
    except KeyboardInterrupt:
        words = f"interrupted after {loop.steps:,} steps"
        raise KeyboardInterrupt(f"{words}: the same command continues {run.place}") from None
    except Unsuited as reason:
        raise CwmError(
            f"no planner can plan in {loop.run.config.model} (it {reason}): choose another --agent"
        ) from reason
    except CwmError as error:
        run.log(f"stopped: {error}")
        raise
    finally:
        observer.ends()
    result = run.training_result()
    run.save_result(result.as_json())
    return result
