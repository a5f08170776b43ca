"""What a run over coding problems is: its choices, its data, and what they make."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from cwm_apps.judging import LIMITS
from cwm_apps.reading import shipped
from cwm_cli.agents.synthesizing import Choices, check_flags
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.runs.searches import SearchConfig
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.scripting import ScriptJob
from cwm_cli.search.contracts import Backend, Strategy

ENVIRONMENT = "apps"
"""What stands for an environment in the configuration of a run."""


class Source(NamedTuple):
    """Where problems are, and what the data is called, on whatever machine."""

    name: str
    path: Path


class Parts(NamedTuple):
    """What searches are made with, and every option of it."""

    strategy: Callable[[], Strategy]
    backend: Backend
    settings: dict[str, dict[str, Any]]


def source(data: str | None) -> Source:
    """Find the problems that were asked for, and download them if need be."""
    if data is None:
        return Source("shipped", shipped())
    if data == "hub":
        from cwm_apps.reading import hub

        return Source("hub", hub())
    path = Path(data)
    if not path.exists():
        raise CwmError(f"there is no {path}: --data names a folder, a .jsonl file, or hub")
    return Source(f"{'folder' if path.is_dir() else 'file'} {path.resolve().name}", path)


def make(choices: Choices) -> Parts:
    """Build the backend, and what builds a strategy, with the options of the user."""
    owners = [
        Owner("strategy", find("strategy", choices.strategy)),
        Owner("backend", find("backend", choices.backend)),
        Owner("sandbox", Limits),
    ]
    options = read_options(choices.options, owners)
    check_flags(choices.backend, choices.flags)
    options["backend"] |= choices.flags

    def strategy() -> Strategy:
        made: Strategy = owners[0].factory(**options["strategy"])
        return made

    backend = owners[1].factory(model=choices.model, **options["backend"])
    settings = {
        "strategy": owners[0].identity(strategy()),
        "backend": owners[1].identity(backend),
        "sandbox": asdict(limits(options["sandbox"])),
    }
    return Parts(strategy, backend, settings)


def judging_settings(options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of judging alone."""
    chosen = read_options(list(options), [Owner("sandbox", Limits)])["sandbox"]
    return {"sandbox": asdict(limits(chosen))}


def limits(chosen: dict[str, Any]) -> Limits:
    """Return the limits that a user named, the others as they are for a test of a problem."""
    return Limits.chosen(asdict(LIMITS) | chosen)


def sandbox(config: SearchConfig, accepted: Sequence[str]) -> Sandbox:
    """Make the sandbox of a run, which judges as many programs at a time as there are cores."""
    sandbox = Sandbox(Limits(**config.options["sandbox"]), cores(), accepted=accepted)
    sandbox.prepare(ScriptJob.handler)
    return sandbox


def cores() -> int:
    """Return how many programs can be judged at a time."""
    return max(2, os.cpu_count() or 1)


def searching(choices: Choices, data: Source, parts: Parts) -> SearchConfig:
    """Gather what makes a run what it is."""
    return SearchConfig(
        env=ENVIRONMENT,
        dataset=data.name,
        strategy=choices.strategy,
        backend=choices.backend,
        model=choices.model,
        options=parts.settings,
        seed=choices.seed,
    )


def judging(file: Path, data: Source, *, options: Sequence[str], seed: int) -> SearchConfig:
    """Gather what makes the judging of programs from elsewhere what it is."""
    settings = judging_settings(options)
    settings["solutions"] = {"digest": sha256(file.read_bytes()).hexdigest()}
    return SearchConfig(
        env=ENVIRONMENT,
        dataset=data.name,
        strategy="",
        backend="solutions",
        model=file.name,
        options=settings,
        seed=seed,
    )


def now() -> str:
    """Return the time as files have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
