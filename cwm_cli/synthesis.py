"""One synthesis from its settings to its result: the run folder and the search that fills it."""

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cwm_cli.environments import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Metric, Score, evaluate
from cwm_cli.problems.world_model import OPTIONS, WorldModelProblem
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.runs import Header, Run, RunConfig, differences, is_free, runs_in
from cwm_cli.sandbox import Sandbox
from cwm_cli.search import Node, Search
from cwm_cli.transitions import Dataset

RUNS = Path("runs")


class Choices(NamedTuple):
    """What a user chose on the command line; `flags` are options of the backend."""

    strategy: str
    backend: str
    model: str
    options: list[str]
    flags: Mapping[str, Any]
    metric: Literal["accuracy", "paper"]
    seed: int
    parallel: int
    max_cost: float | None
    budget: int


@dataclass
class Job:
    """A search with the run that records it."""

    run: Run
    search: Search
    dataset: Dataset
    problem: WorldModelProblem
    choices: Choices
    started: float = field(default_factory=time.monotonic)

    @property
    def title(self) -> str:
        """Name the job in a few words."""
        config = self.run.config
        return f"{config.env} · {config.strategy} · {config.model or config.backend}"

    def nodes(self) -> Iterator[Node]:
        """Search; yield each node when it is written down, learned and, if best, saved."""
        stopped: CwmError | None = None
        try:
            for record in self.search.run(self.choices.budget):
                yield self._learned(record.node)
        except CwmError as error:
            stopped = error
        for record in self.search.drain():  # what is in flight is paid for
            yield self._learned(record.node)
        if stopped:
            raise stopped

    def finish(self) -> tuple[dict[str, Any], Score | None, Score | None]:
        """Score the best program on train and held-out rows, and write the result down."""
        best = self.search.best
        train, test = (self._score(best, part) for part in (self.dataset.train, self.dataset.test))
        tokens = (n.usage.prompt_tokens + n.usage.completion_tokens for n in self.search.nodes)
        result = {
            "run": str(self.run.folder),
            "program": str(self.run.folder / "best.py") if best else None,
            "solved": self.search.solved,
            "completions": len(self.search.nodes),
            "tokens": sum(tokens),
            "cost": self._cost(),
            "seconds": round(time.monotonic() - self.started, 3),
            "train": train.model_dump() if train else None,
            "test": test.model_dump() if test else None,
        }
        self.run.save_result(result)
        self.run.log(f"finished with {len(self.search.nodes)} nodes, solved: {self.search.solved}")
        return result, train, test

    def next_command(self) -> str:
        """Return what a user would type next."""
        config = self.run.config
        words = ["cwm", "plan", "--env", config.env]
        for key, value in config.env_args.items():
            words += ["--env-arg", f"{key}={json.dumps(value)}"]
        return shlex.join([*words, "--run", str(self.run.folder)])

    def _cost(self) -> float | None:
        """Add up the costs, None when one of them is unknown."""
        costs = [node.usage.cost for node in self.search.nodes]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def _learned(self, node: Node) -> Node:
        """Save a program that is the best so far."""
        if self.search.best is node:
            self.run.save_best(node)
        return node

    def _score(self, best: Node | None, rows: Dataset) -> Score | None:
        """Score the best program on some rows, if there are both."""
        if best is None or not len(rows):
            return None
        problem = self.problem
        return evaluate(best.program, rows, problem.sandbox, problem.metric, problem.seed).score


class Order(NamedTuple):
    """What is asked for: a model of an environment, made from a dataset that came from `source`."""

    spec: EnvironmentSpec
    env_args: dict[str, Any]
    dataset: Dataset
    source: str
    choices: Choices


@contextmanager
def open_job(order: Order, *, folder: Path | None = None, new: bool = False) -> Iterator[Job]:
    """Open the run that an order names, new or continued, ready to search."""
    choices, dataset = order.choices, order.dataset
    if not len(dataset.train):
        raise CwmError("the dataset has no train rows: record some with `cwm collect`")
    parts = _make(choices)
    config = _config(order, parts.settings)
    with ExitStack() as stack:
        run = stack.enter_context(_open_run(order, config, folder, new))
        workers = max(1, min(choices.parallel, os.cpu_count() or 1))
        problem = WorldModelProblem(
            description=run.header.description,
            dataset=dataset.train,
            sandbox=stack.enter_context(Sandbox(workers=workers)),
            metric=Metric.of(dataset.train, choices.metric),
            seed=choices.seed,
            **parts.settings["problem"],
        )
        search = Search(
            problem,
            parts.strategy,
            parts.backend,
            seed=choices.seed,
            parallel=choices.parallel,
            max_cost=choices.max_cost,
            journal=run.append,
        )
        search.resume(run.nodes())
        run.log(f"budget {choices.budget}, parallel {choices.parallel}, {len(search.nodes)} nodes")
        yield Job(run, search, dataset, problem, choices)


class Parts(NamedTuple):
    """A strategy and a backend, and every option of theirs and of the problem."""

    strategy: Any
    backend: Any
    settings: dict[str, dict[str, Any]]


def _make(choices: Choices) -> Parts:
    """Build strategy and backend with the options of the user."""
    owners = [
        Owner("strategy", find("strategy", choices.strategy)),
        Owner("backend", find("backend", choices.backend)),
        Owner("problem", WorldModelProblem, OPTIONS),
    ]
    options = read_options(choices.options, owners)
    for name, value in choices.flags.items():
        if name not in owners[1].options:
            flag = name.replace("_", "-")
            raise CwmError(f"the backend {choices.backend!r} has no --{flag}: leave it out")
        options["backend"][name] = value
    strategy = owners[0].factory(**options["strategy"])
    backend = owners[1].factory(model=choices.model, **options["backend"])
    settings = {
        "strategy": owners[0].identity(strategy),
        "backend": owners[1].identity(backend),
        "problem": owners[2].defaults() | options["problem"],
    }
    return Parts(strategy, backend, settings)


def _config(order: Order, settings: dict[str, dict[str, Any]]) -> RunConfig:
    """Gather what makes the run what it is."""
    choices = order.choices
    return RunConfig(
        env=order.spec.id,
        env_args=order.env_args,
        dataset=order.dataset.digest,
        strategy=choices.strategy,
        backend=choices.backend,
        model=choices.model,
        options=settings,
        metric=choices.metric,
        seed=choices.seed,
    )


def _open_run(order: Order, config: RunConfig, folder: Path | None, new: bool) -> Run:
    """Continue the named run, or the newest unfinished one of equal choices, or start one."""
    if folder is None and not new:
        folder = next(_unfinished(config, order.choices.budget), None)
    if folder is not None and (folder / "run.json").exists():
        run = Run.load(folder)
        if changed := differences(run.config, config):
            names = ", ".join(changed)
            raise CwmError(f"{folder} was started with another {names}: choose another --run")
        return run
    if folder is not None and not is_free(folder):
        raise CwmError(f"{folder} holds something else: choose another --run")
    return Run.start(folder or _fresh_folder(config), _header(order, config), order.dataset)


def _header(order: Order, config: RunConfig) -> Header:
    """Describe the circumstances of a new run."""
    env = order.spec.make(**order.env_args)
    try:
        description = order.spec.describe(env)
    finally:
        env.close()
    return Header(
        config=config,
        description=description,
        versions=dict(order.spec.versions()),
        source=order.source,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def _unfinished(config: RunConfig, budget: int) -> Iterator[Path]:
    """Yield the runs of equal choices that can go on, the newest first."""
    for run in runs_in(RUNS):
        if run.config == config:
            nodes = list(run.nodes())
            if len(nodes) < budget and not any(node.verdict.solved for node in nodes):
                yield run.folder


def _fresh_folder(config: RunConfig) -> Path:
    """Name a folder that is not there yet."""
    env = "".join(c if c.isalnum() or c in "-_." else "-" for c in config.env)
    name = f"{env}-{config.strategy}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())
