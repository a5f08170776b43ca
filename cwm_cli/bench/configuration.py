"""What a benchmark is: its choices, the terms on which it goes on, and its jobs."""

import re
from collections.abc import Iterator
from hashlib import sha256
from itertools import product
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

SIMULATED = "simulated"
"""The backend whose answers are no language model's, and that breaks a program of its own."""

SIMULATED_NOTE = (
    "These are simulated proposals, not a language model's: the backend `simulated` makes errors "
    "in a program that was induced from data, and repairs some."
)


class Trial(NamedTuple):
    """A job of a benchmark: one search."""

    environment: str
    strategy: str
    model: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its run folder."""
        words = (self.environment, self.strategy, self.model, str(self.seed))
        return "-".join(slug(word) for word in words if word)


class Configuration(BaseModel):
    """The choices that make a benchmark what it is; it is continued only under the same ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments: tuple[str, ...]
    strategies: tuple[str, ...]
    models: tuple[str, ...] = ("",)
    backend: str
    seeds: int = 1
    options: tuple[str, ...] = ()
    temperature: float | None = None
    tools: tuple[str, ...] = ()
    metric: Literal["accuracy", "paper"] = "accuracy"
    data_seed: int = 0
    max_steps: int | None = None

    @property
    def trials(self) -> list[Trial]:
        """The jobs: all strategies of an environment, then the next environment."""
        sets = (self.environments, self.strategies, self.models, range(self.seeds))
        return [Trial(*chosen) for chosen in product(*sets)]

    @property
    def simulated(self) -> bool:
        """Whether what answers is a simulation."""
        return self.backend == SIMULATED

    @property
    def needs_programs(self) -> bool:
        """Whether a program of each environment has to be there first, for the answers."""
        keys = (pair.partition("=")[0] for pair in self.options)
        return self.simulated and not {"program", "backend.program"} & set(keys)


class Terms(BaseModel):
    """How far a benchmark goes; other terms may be given when it is continued."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: int = 10
    max_cost: float | None = None
    plan: bool = False
    episodes: int = 10
    ceilings: bool = False


class Access(BaseModel):
    """What processes have to know and nobody writes down."""

    model_config = ConfigDict(frozen=True)

    api_base: str | None = None
    accepted: tuple[str, ...] = ()


class Header(BaseModel):
    """What `benchmark.json` holds."""

    model_config = ConfigDict(frozen=True)

    configuration: Configuration
    terms: Terms
    version: str
    created: str


def changes(before: Configuration, now: Configuration) -> Iterator[str]:
    """Name the choices in which two benchmarks differ, with both values."""
    for name in Configuration.model_fields:
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            yield f"{name.replace('_', ' ')} ({_words(old)}, not {_words(new)})"


def slug(text: str) -> str:
    """Return a text as part of a file name; two texts never become the same."""
    safe = re.sub(r"[^\w.-]+", "-", text)
    return safe if safe == text else f"{safe}-{sha256(text.encode()).hexdigest()[:6]}"


def _words(value: object) -> str:
    """Write a choice down."""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(str(item) for item in values if item not in ("", None)) or "none"
