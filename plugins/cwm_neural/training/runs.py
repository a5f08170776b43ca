"""The run folder of `cwm train`: rows, losses and returns of each epoch, and checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cwm_cli.commands.collect import find_environment
from cwm_cli.envs.tasks import Task
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.registry import Owner, environment, find, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Measures, Observer
from cwm_cli.runs.programs import ModelRun, Options
from cwm_cli.runs.report import (
    ChartLine,
    Grid,
    LineChart,
    RunReport,
    RunSummary,
    Section,
    table_of,
    with_effort,
)
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import RunHeader
from cwm_cli.text import UNKNOWN, mean_with_error
from cwm_cli.worlds.model import PlanningSession, WorldModel
from cwm_neural.training.trainer import Agent, AgentTrainer, Trainer, Training, TrainingTask

CHECKPOINTS = "checkpoints"
"""The folder with the checkpoints of the last epoch and of the best one."""

MAX_TABLE_LINES = 12
"""Maximum lines of a table, which shows the last epochs."""


class TrainConfig(BaseModel):
    """The choices that identify a training.

    The number of steps and the device are no such choices.

    Attributes:
        model: Name of the model's trainer; empty if no model is trained.
        agent: Name of the agent's trainer; empty if the agent is part of the model.
        dataset: Digest of the given rows; empty if rows are collected.
        world: Digest of a given world model for the agent; empty if the model is trained.
        init: Digests of the initial states of parts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str
    env_args: dict[str, Any] = {}
    model: str
    agent: str
    dataset: str = ""
    world: str = ""
    init: dict[str, str] = {}
    freeze: tuple[str, ...] = ()
    options: dict[str, dict[str, Any]] = {}
    seed: int = 0


class TrainHeader(RunHeader[TrainConfig]):
    """The header of the journal, with numbers of parameters and the source of a given model."""

    kind: str = "train"
    parameters: dict[str, int] = Field(default_factory=dict)
    world: str = ""

    @property
    def openings(self) -> str:
        """Return the protection of generated code."""
        return super().openings if self.protection else "no code is generated"


class EpisodeReturn(BaseModel):
    """A collected episode: the total steps at its end, its return and its length."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    steps: int
    returned: float
    length: int


class EpochRecord(BaseModel):
    """A line of the journal: the results of an epoch.

    `steps` is the number of environment steps, or of training steps on given rows, at its end.
    `episodes` ended in the epoch. `losses` include the losses of the model and of the agent.
    `held_out` are measures of the model on the test rows, or on new rows before it was fitted to
    them. The checkpoint folder has the number of the epoch.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: Literal["epoch"] = "epoch"
    number: int
    steps: int
    episodes: list[EpisodeReturn] = []
    losses: dict[str, float] = {}
    held_out: dict[str, float] = {}
    seconds: float = 0.0

    def measures(self) -> Measures:
        """Return the numbers for trackers."""
        returns = [each.returned for each in self.episodes]
        numbers = {"epoch": self.number, "seconds": self.seconds}
        numbers |= {f"loss/{name}": value for name, value in self.losses.items()}
        numbers |= {f"held-out/{name}": value for name, value in self.held_out.items()}
        mean = {"return": sum(returns) / len(returns)} if returns else {}
        return Measures(self.steps, numbers | mean)


class AgentTest(BaseModel):
    """A line of the journal: test episodes of the agent after an epoch.

    Number 0 is random play before the first epoch. `failures` is the number of decisions without
    a plan.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: Literal["played"] = "played"
    number: int
    steps: int
    returns: list[float]
    lengths: list[int]
    failures: int = 0
    seconds: float = 0.0

    def measures(self) -> Measures:
        """Return the numbers for trackers."""
        return Measures(self.steps, {"test/return": self.mean})

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def stderr(self) -> float | None:
        """The standard error of the mean return, None for a single episode."""
        count = len(self.returns)
        return float(np.std(self.returns, ddof=1) / count**0.5) if count > 1 else None


class Divergence(BaseModel):
    """A line of the journal: training that cannot continue, and the reason."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["diverged"] = "diverged"
    number: int
    steps: int
    words: str


TrainLine = EpochRecord | AgentTest | Divergence
"""A line of the journal."""

Which = Literal["best", "last"]


@dataclass(frozen=True)
class CheckpointChoice:
    """The checkpoint of a training that is used, and its device."""

    checkpoint: Which = "best"
    """best: checkpoint with the best test return, or the last one without tests; last: the last."""
    device: str = "cpu"
    """Device: auto, cpu, cuda or mps."""


class TrainRun(ModelRun[TrainHeader, TrainLine]):
    """The run folder of a training: all rows, a journal, and at most two checkpoints."""

    kind = "train"
    options_of = "checkpoint"
    header_type = TrainHeader
    record_type = TrainLine

    @property
    def config(self) -> TrainConfig:
        """The choices of this run."""
        return self.header.config

    @property
    def has_model(self) -> bool:
        """Whether a world model was trained, not only an agent."""
        return bool(self.config.model)

    @property
    def title(self) -> str:
        """The environment, the source of training and the agent."""
        source = self.config.model or self.header.world or "rows"
        return " · ".join(filter(None, (self.config.env, source, self.config.agent)))

    def epochs(self) -> list[EpochRecord]:
        """Return the records of all epochs."""
        return [each for each in self.records() if isinstance(each, EpochRecord)]

    def played(self) -> list[AgentTest]:
        """Return the records of all tests; the first is random play."""
        return [each for each in self.records() if isinstance(each, AgentTest)]

    def checkpoint(self, number: int) -> Path:
        """Return the checkpoint folder of an epoch."""
        return self.folder / CHECKPOINTS / f"{number:06}"

    def save_checkpoint(self, number: int, training: Training | None, agent: Agent | None) -> None:
        """Save the model and the agent after an epoch, atomically."""
        folder = self.checkpoint(number)
        partial = folder.with_name(f".{folder.name}.part")
        for stale in (partial, folder):
            shutil.rmtree(stale, ignore_errors=True)
        try:
            for name, part in (("model", training), ("agent", agent)):
                if part is not None:
                    (partial / name).mkdir(parents=True)
                    part.save(partial / name)
            partial.mkdir(parents=True, exist_ok=True)
            for file in (each for each in partial.rglob("*") if each.is_file()):
                with file.open("rb") as written:  # synced before the journal refers to it
                    os.fsync(written.fileno())
            partial.replace(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def delete_old_checkpoints(self) -> None:
        """Delete all checkpoints except the last one and the best one."""
        kept = {self.checkpoint(self.epoch_of("best")), self.checkpoint(self.epoch_of("last"))}
        for folder in (self.folder / CHECKPOINTS).glob("*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def epoch_of(self, which: Which) -> int:
        """Return the number of the last epoch, or of the best test return; 0 without epochs."""
        epochs = self.epochs()
        played = [each for each in self.played() if each.number]
        if which == "best" and played:
            return max(played, key=lambda each: (each.mean, each.number)).number
        return epochs[-1].number if epochs else 0

    def restore(
        self, options: Options = (), observer: Observer = SILENT
    ) -> tuple[Training | None, Agent]:
        """Return the training and the agent of a checkpoint, by default the best one."""
        choice = CheckpointChoice(**read_options(options, [CHECKPOINT])[CHECKPOINT.label])
        number = self.epoch_of(choice.checkpoint)
        if not number:
            raise CwmError(f"{self.place} has no trained model yet: continue it first")
        config, folder = self.config, self.checkpoint(number)
        if not folder.is_dir():
            raise CwmError(f"{folder} is missing: restore it, or choose another checkpoint")
        trainer = configured_trainer("trainer", config) if config.model else None
        agent_factory = configured_trainer("agent", config) if config.agent else None
        requires = [name for each in (trainer, agent_factory) if each for name in each.requires]
        at = usable_device(choice.device, requires)
        task = TrainingTask.of(find_environment(config.env), config, at)._replace(restores=True)
        training = None
        if trainer:
            training = trainer.begin(task)
            training.load(folder / "model")
        agent = training.agent if training is not None else None
        if agent_factory:
            agent = agent_factory.begin(task)
            agent.load(folder / "agent")
        assert agent is not None
        agent.model = training.model if training is not None else None
        observer.note(f"{choice.checkpoint} (epoch {number}) of {self.place}", "Checkpoint")
        return training, agent

    def trusted_model(self, options: Options, observer: Observer) -> WorldModel:
        """Return the trained world model of the chosen checkpoint."""
        if not self.has_model:
            world = self.header.world
            instead = f"name {world}" if world else f"see `cwm runs show {self.place}`"
            raise CwmError(f"{self.place} trained an agent, not a world model: {instead}")
        training, _ = self.restore(options, observer)
        assert training is not None
        return training.model

    def training_result(self) -> TrainingResult:
        """Return the result of the records so far."""
        epochs, played, config = self.epochs(), self.played(), self.config
        return TrainingResult(
            run=self.folder,
            epochs=epochs,
            tests=[each for each in played if each.number],
            random=next((each for each in played if not each.number), None),
            steps=epochs[-1].steps if epochs else 0,
            parameters=self.header.parameters,
            seconds=round(self.elapsed, 3),
            has_simulator=environment(config.env).has_simulator(config.env_args),
        )

    def model_scores(self) -> Mapping[str, Any]:
        """Return the measures of the last epoch on held-out rows."""
        epochs = self.epochs()
        return epochs[-1].held_out if epochs else {}

    @property
    def has_agent(self) -> bool:
        """Every training comes with an agent."""
        return True

    def open_agent(self, options: Options, task: Task, observer: Observer) -> PlanningSession:
        """Return a session of the trained agent, without exploration."""
        return self.agent(options, observer).open(task, greedy=True, seed=task.seed)

    def agent(self, options: Options = (), observer: Observer = SILENT) -> Agent:
        """Return the trained agent."""
        return self.restore(options, observer)[1]

    def is_over(self, steps: int) -> bool:
        """Whether the run is complete, with at least `steps` steps."""
        return self.result() is not None and any(each.steps >= steps for each in self.epochs())

    def summary(self) -> RunSummary:
        """Return the model, the agent, the number of steps, and the best test return."""
        config, epochs = self.config, self.epochs()
        played = [each for each in self.played() if each.number]
        best = max((each.mean for each in played), default=None)
        return RunSummary(
            self.place,
            self.kind,
            environment=config.env,
            strategy=config.agent or "its own agent",
            answers=config.model or self.header.world,
            seed=config.seed,
            done=f"{epochs[-1].steps if epochs else 0:,} steps",
            result="" if best is None else f"test return {best:.5g}",
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence[TrainRun]) -> RunReport:
        """Return losses, held-out measures and returns by epoch."""
        if len(runs) > 1:
            raise CwmError("runs of `cwm train` cannot be merged: report them one by one")
        run, about, epochs = runs[0], runs[0].summary(), runs[0].epochs()
        config, parameters = run.config, run.header.parameters
        grids = [
            number_grid("losses by epoch", epochs, "losses"),
            number_grid("held out, by epoch", epochs, "held_out"),
            played_grid(run.played()),
        ]
        sizes = ", ".join(f"{name} {count:,}" for name, count in parameters.items())
        return RunReport(
            title=f"{config.env} · {about.answers}, {about.strategy}, {about.run}",
            grids=[grid for grid in grids if grid.cells],
            verdict=_verdict(run),
            notes=[
                ", ".join(filter(None, (f"seed {config.seed}", about.done, about.result))),
                *([f"parameters: {sizes}"] if sizes else []),
                *(each.words for each in run.records() if isinstance(each, Divergence)),
            ],
            facts=about.as_json() | (run.result() or {}),
            rows=[each.model_dump(mode="json", exclude={"kind", "episodes"}) for each in epochs],
        )

    @classmethod
    def sections(cls, runs: Sequence[TrainRun]) -> list[Section]:
        """Return charts of returns, losses and held-out measures, and notes."""
        report = cls.report(runs)
        notes = Section("notes", "Notes", {"lines": [*report.notes]})
        return [*_sections(runs[0].epochs(), runs[0].played()), notes]


def _verdict(run: TrainRun) -> str:
    """Return the best mean return in test episodes, with steps and seconds."""
    played, epochs = run.played(), run.epochs()
    tested = [each for each in played if each.number]
    outcome = f"{len(epochs)} epoch{'' if len(epochs) == 1 else 's'} of training"
    if best := max(tested, key=lambda each: each.mean, default=None):
        returned = mean_with_error(best.mean, best.stderr)
        outcome = f"Best mean return {returned} in {len(best.returns)} test episodes"
        outcome += "".join(f" (random play {e.mean:.5g})" for e in played if not e.number)
    steps = epochs[-1].steps if epochs else None
    return with_effort(outcome, steps=steps, seconds=(run.result() or {}).get("seconds"))


def _sections(epochs: Sequence[EpochRecord], played: Sequence[AgentTest]) -> Iterator[Section]:
    """Yield charts of returns, losses and held-out measures, and tables."""
    collected = [episode for each in epochs for episode in each.episodes]
    tested = [each for each in played if each.number]
    random = next((each for each in played if not each.number), None)
    lines = []
    if collected:
        steps, returns = [e.steps for e in collected], [e.returned for e in collected]
        tips = [f"{e.length} steps" for e in collected]
        lines.append(ChartLine("collected", steps, returns, loose=True, tone="quiet", tips=tips))
    if tested:
        errors = [each.stderr or 0.0 for each in tested]
        lines.append(
            ChartLine(
                "test episodes",
                [each.steps for each in tested],
                [each.mean for each in tested],
                [each.mean - error for each, error in zip(tested, errors, strict=True)],
                [each.mean + error for each, error in zip(tested, errors, strict=True)],
                tone=0,
            )
        )
    if lines:
        rules = {"random play": random.mean if random else None}
        about = "The band is one standard error over the test episodes." if tested else ""
        drawn = LineChart("steps", "return of an episode", lines, rules=rules).data()
        yield Section("chart", "Returns", drawn, about)
    for title, part in {"Losses": "losses", "Held-out measures": "held_out"}.items():
        names = dict.fromkeys(name for each in epochs for name in getattr(each, part))
        curves = {n: [(each.steps, getattr(each, part).get(n)) for each in epochs] for n in names}
        panels = [
            [name, "chart", LineChart("steps", "", [ChartLine.of("", points)]).data()]
            for name, points in curves.items()
        ]
        if panels:
            yield Section("panels", title, {"sections": panels})
    for grid in (number_grid("losses by epoch", epochs, "losses"), played_grid(played)):
        if grid.cells:
            yield Section("table", grid.title.capitalize(), table_of(grid))


CHECKPOINT = Owner("checkpoint", CheckpointChoice)
"""The options `checkpoint.KEY` of other commands that use a trained model."""


def configured_trainer(kind: Literal["trainer", "agent"], config: TrainConfig) -> Any:
    """Return a trainer with the options of the run."""
    name, label = (config.model, "model") if kind == "trainer" else (config.agent, "agent")
    factory: type[Trainer | AgentTrainer] = find(kind, name)
    factory.check()
    owner = Owner(label, factory)
    known = {k: v for k, v in config.options.get(label, {}).items() if k in owner.options}
    trainer = factory(**known)
    if isinstance(trainer, AgentTrainer) and trainer.plans:
        trainer.chosen = config.options.get("planner", {})
    return trainer


def usable_device(name: str, requires: Sequence[str]) -> str:
    """Return the device by name; `auto` is a GPU if there is one and torch is required.

    Raises:
        CwmError: If the device is unknown or not available.
    """
    usable = {"cpu": 1, "cuda": 0, "mps": 0}
    if "torch" in requires and find_spec("torch") is not None:
        import torch

        usable["cuda"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        usable["mps"] = int(torch.backends.mps.is_available())
    if name == "auto":
        return next(kind for kind in ("cuda", "mps", "cpu") if usable[kind])
    kind, _, number = name.partition(":")
    if kind not in usable or (number and not number.isdigit()):
        raise UnknownNameError("device", name, ("auto", *usable))
    if int(number or 0) >= usable[kind]:
        raise CwmError(f"the device {name} is not available here: leave out --device")
    return name


def number_grid(title: str, epochs: Sequence[EpochRecord], part: str) -> Grid:
    """Return a table of the losses or measures of the last epochs."""
    shown = [(each, getattr(each, part)) for each in epochs[-MAX_TABLE_LINES:]]
    names = list(dict.fromkeys(name for _, numbers in shown for name in numbers))
    cells = [
        [str(each.number), f"{each.steps:,}"]
        + [f"{numbers[name]:.4g}" if name in numbers else UNKNOWN for name in names]
        for each, numbers in shown
    ]
    return Grid(title, ["epoch", "steps", *names], cells if names else [])


def played_grid(played: Sequence[AgentTest]) -> Grid:
    """Return a table of the last tests in the true environment."""
    return Grid(
        "test episodes in the true environment",
        ["agent", "steps", "episodes", "mean return", "standard error", "mean length"],
        [
            [
                f"epoch {each.number}" if each.number else "random",
                f"{each.steps:,}",
                str(len(each.returns)),
                f"{each.mean:.5g}",
                UNKNOWN if each.stderr is None else f"{each.stderr:.3g}",
                f"{np.mean(each.lengths):.5g}",
            ]
            for each in played[-MAX_TABLE_LINES:]
        ],
    )


@dataclass(frozen=True)
class TrainingResult(Result):
    """The result of `cwm train`.

    Attributes:
        run: The run folder.
        epochs: The records of all epochs.
        tests: Test episodes after epochs.
        random: Test episodes with random actions, None if there were no tests.
        steps: Number of environment steps, or of training steps on given rows.
        parameters: Number of parameters of each part.
        seconds: Duration of the training.
    """

    run: Path
    epochs: list[EpochRecord]
    tests: list[AgentTest]
    random: AgentTest | None
    steps: int
    parameters: Mapping[str, int]
    seconds: float
    has_simulator: bool = True
    """Whether commands such as `cwm plan` can act in the environment."""

    @property
    def returns(self) -> list[EpisodeReturn]:
        """All collected episodes."""
        return [episode for each in self.epochs for episode in each.episodes]

    @property
    def best(self) -> AgentTest | None:
        """The test with the highest mean return, None without tests."""
        return max(self.tests, key=lambda each: (each.mean, each.number), default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm train --json`."""
        best, last = self.best, self.epochs[-1] if self.epochs else None
        return {
            "run": named(self.run),
            "steps": self.steps,
            "epochs": len(self.epochs),
            "losses": dict(last.losses) if last else {},
            "held_out": dict(last.held_out) if last else {},
            "returns": [{"steps": e.steps, "return": e.returned} for e in self.returns],
            "tests": [_test_json(each) for each in self.tests],
            "random": None if self.random is None else _test_json(self.random),
            "best": None if best is None else _test_json(best),
            "parameters": dict(self.parameters),
            "seconds": self.seconds,
            "has_simulator": self.has_simulator,
        }


def _test_json(played: AgentTest) -> dict[str, Any]:
    """Return a test for the JSON output."""
    return {
        "epoch": played.number,
        "steps": played.steps,
        "mean": played.mean,
        "stderr": played.stderr,
        "episodes": len(played.returns),
    }
