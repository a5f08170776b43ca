"""From what a user chose to a search that is ready: the run folder, new or continued."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.agents.job import Choices, Job
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
from cwm_cli.runs.store import DATASET, HEADER, fresh_folder, openings
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.protection import Protection
from cwm_cli.search.loop import Search


class Order(NamedTuple):
    """What is asked for: a model of an environment, made from a dataset that came from `source`."""

    spec: EnvironmentSpec
    env_args: dict[str, Any]
    dataset: Dataset
    source: str
    choices: Choices


class Parts(NamedTuple):
    """A strategy and a backend, and every option of theirs, of the problem and the sandbox."""

    strategy: Any
    backend: Any
    settings: dict[str, dict[str, Any]]


def owners_of(strategy: str, backend: str) -> list[Owner]:
    """Return all that has options in a search."""
    return [
        Owner("strategy", find("strategy", strategy)),
        Owner("backend", find("backend", backend)),
        Owner("problem", WorldModelProblem),
        Owner("sandbox", Limits),
    ]


def check_flags(backend: str, flags: Iterable[str]) -> None:
    """Refuse options with flags of their own that a backend does not have."""
    options = Owner("backend", find("backend", backend)).options
    for name in flags:
        if name not in options:
            flag = name.replace("_", "-")
            raise CwmError(f"the backend {backend!r} has no --{flag}: leave it out")


@contextmanager
def open_job(order: Order, *, folder: Path | None = None, new: bool = False) -> Iterator[Job]:
    """Open the run that an order names, new or continued, ready to search.

    No run is begun on a machine that is less protected than it has to be, or
    with a tool that it lacks.
    """
    choices, dataset = order.choices, order.dataset
    metric = find("metric", choices.metric).of(dataset.train)
    parts = _make(choices)
    config = _config(order, parts.settings)
    with (
        _sandbox(choices, parts.settings["sandbox"]) as sandbox,
        _open_run(order, config, sandbox.protection, folder=folder, new=new) as run,
    ):
        problem = WorldModelProblem(
            description=run.header.description,
            dataset=dataset.train,
            sandbox=sandbox,
            metric=metric,
            seed=choices.seed,
            tools=config.tools,
            **parts.settings["problem"],
        )
        search = _search(problem, parts, choices, run)
        run.log(f"budget {choices.budget}, parallel {choices.parallel}, {len(search.nodes)} nodes")
        _log_protection(run, sandbox.protection)
        yield Job(run, search, dataset, problem, choices)


def _search(problem: WorldModelProblem, parts: Parts, choices: Choices, run: SearchRun) -> Search:
    """Build the search, with the nodes that the run has already."""
    search = Search(
        problem,
        parts.strategy,
        parts.backend,
        seed=choices.seed,
        parallel=choices.parallel,
        max_cost=choices.max_cost,
        journal=run.learn,
    )
    search.resume(run.nodes())
    if search.best:  # which a crash may have kept from being saved
        run.save_best(search.best)
    return search


def _make(choices: Choices) -> Parts:
    """Build strategy and backend with the options of the user."""
    owners = owners_of(choices.strategy, choices.backend)
    options = read_options(choices.options, owners)
    check_flags(choices.backend, choices.flags)
    options["backend"] |= choices.flags
    strategy = owners[0].factory(**options["strategy"])
    backend = owners[1].factory(model=choices.model, **options["backend"])
    settings = {
        "strategy": owners[0].identity(strategy),
        "backend": owners[1].identity(backend),
        "problem": owners[2].defaults() | options["problem"],
        "sandbox": asdict(Limits.chosen(options["sandbox"])),
    }
    return Parts(strategy, backend, settings)


def _sandbox(choices: Choices, limits: dict[str, Any]) -> Sandbox:
    """Make the sandbox; two workers judge one program at the same time."""
    workers = max(2, min(choices.parallel, os.cpu_count() or 1))
    return Sandbox(Limits(**limits), workers, tools=choices.tools, accepted=choices.accepted)


def _log_protection(run: SearchRun, present: Protection) -> None:
    """Write down how programs are kept from this machine, where that is news."""
    before = run.header.protection
    if before is None or before != present.model_copy(update={"accepted": before.accepted}):
        run.log(f"protected otherwise than at the start: {openings(present)}; {present.kernel}")


def _config(order: Order, settings: dict[str, dict[str, Any]]) -> SearchConfig:
    """Gather what makes the run what it is."""
    choices = order.choices
    return SearchConfig(
        env=order.spec.id,
        env_args=order.env_args,
        dataset=order.dataset.digest,
        strategy=choices.strategy,
        backend=choices.backend,
        model=choices.model,
        options=settings,
        tools=choices.tools,
        metric=choices.metric,
        seed=choices.seed,
    )


def _open_run(
    order: Order, config: SearchConfig, protection: Protection, *, folder: Path | None, new: bool
) -> SearchRun:
    """Continue the named run, or the newest unfinished one of equal choices, or start one."""
    if folder is None and not new:
        folder = next(_unfinished(config, order.choices.budget), None)
    folder = folder or fresh_folder(config.env, config.strategy, str(config.seed))
    if (folder / HEADER).exists():
        run = SearchRun.load(folder)
        run.check(config)
        return run
    header = _header(order, config, protection)
    return SearchRun.start(folder, header, {DATASET: order.dataset})


def _header(order: Order, config: SearchConfig, protection: Protection) -> SearchHeader:
    """Describe the circumstances of a new run."""
    env = order.spec.make(**order.env_args)
    try:
        description = order.spec.describe(env)
    finally:
        env.close()
    return SearchHeader(
        config=config,
        description=description,
        versions={**order.spec.versions(), **_versions(config.tools)},
        source=order.source,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        protection=protection,
    )


def _versions(tools: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the packages that tools come from, where they come from one."""
    owners = packages_distributions() if tools else {}
    tops = {tool.partition(".")[0] for tool in tools}
    return {name: version(name) for top in sorted(tops) for name in owners.get(top, ())}


def _unfinished(config: SearchConfig, budget: int) -> Iterator[Path]:
    """Yield the runs of equal choices that can go on, the newest first."""
    for run in SearchRun.alike(config):
        nodes = list(run.nodes())
        if len(nodes) < budget and not any(node.verdict.solved or node.final for node in nodes):
            yield run.folder
