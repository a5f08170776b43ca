"""What a benchmark is: its choices, the terms on which it goes on, its jobs and their tasks."""

import re
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from itertools import product
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, field_validator

from cwm_cli.commands.choices import Choices, check_choices, check_names, owners_of
from cwm_cli.credentials import without_credentials
from cwm_cli.envs.tasks import SHIFTED, SUITES
from cwm_cli.envs.variants import HIDE, NOISE, SHIFT, check_shift
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.registry import environment, find, read_options
from cwm_cli.runs.store import RunHeader

START_OPTION = "search.start="
"""The option behind `--start`."""

Group = Literal["discrete", "continuous", "text"]
"""The kinds of environments."""


class Trial(NamedTuple):
    """A job of a benchmark: one search."""

    environment: str
    strategy: str
    model: str
    seed: int
    train_rows: int = 0
    """Number of train rows; 0 for all."""

    @property
    def name(self) -> str:
        """The name of its run folder."""
        size = f"{self.train_rows}-rows" if self.train_rows else ""
        words = (self.environment, self.strategy, self.model, size, str(self.seed))
        return "-".join(slug(word) for word in words if word)


class BenchmarkTask(NamedTuple):
    """Something that a process does: for an environment, or for the trial of that name.

    "prepare" makes an environment and records its data, "write" has a program of it
    written for backends that start from one, "search" and "play" are for a trial,
    "ceiling" and "oracle" say what can be reached in an environment; `planner` is
    that of an oracle.
    """

    kind: str
    name: str
    planner: str = ""

    @property
    def key(self) -> str:
        """A name for files."""
        return "-".join((self.kind, slug(self.name), *([self.planner] if self.planner else [])))


class BenchmarkConfig(BaseModel):
    """The choices that make a benchmark what it is; it is continued only under the same ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments: tuple[str, ...]
    strategies: tuple[str, ...]
    models: tuple[str, ...] = ("",)
    backend: str
    baseline: str = ""
    """The offline backend that gets a row of its own beside language models, or ""."""
    seeds: int = 1
    options: tuple[str, ...] = ()
    temperature: float | None = None
    tools: tuple[str, ...] = ()
    metric: str = "accuracy"
    data_seed: int = 0
    rows: tuple[int, ...] = ()
    """Numbers of train rows in rising order, each with jobs of its own; empty for all rows."""
    max_steps: int | None = None
    shift: int | None = None
    hide: tuple[str, ...] = ()
    noise: dict[str, float] = {}

    @field_validator("options")
    @classmethod
    def _without_credentials(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        """Remove credentials, which jobs get from `BenchmarkAccess`."""
        return tuple(map(without_credentials, options))

    @property
    def env_args(self) -> dict[str, Any]:
        """The arguments of every environment."""
        chosen = {HIDE: list(self.hide) or None, NOISE: self.noise or None, SHIFT: self.shift}
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def trials(self) -> list[Trial]:
        """The jobs: all strategies of an environment, then the next; the baseline comes last."""
        sizes = self.rows or (0,)
        sets = (self.environments, self.strategies, self.models, sizes, range(self.seeds))
        baseline = [
            Trial(environment, self.strategies[0], self.baseline, 0, rows)
            for environment, rows in product(self.environments, sizes)
            if self.baseline
        ]
        return [
            *(
                Trial(env, strategy, model, seed, n)
                for env, strategy, model, n, seed in product(*sets)
            ),
            *baseline,
        ]

    @cached_property
    def needs_programs(self) -> bool:
        """Whether a program of each environment has to be there first, for the backend."""
        option = find("backend", self.backend).starts_from
        keys = {pair.partition("=")[0] for pair in self.options}
        return bool(option) and not keys & {option, f"backend.{option}"}

    def options_of(self, strategy: str) -> list[str]:
        """Return the options that are for a strategy, or for all."""
        return [pair for pair in self.options if self._takes(strategy, pair)]

    def check(self, access: "BenchmarkAccess", max_cost: float | None) -> None:
        """Refuse at once what any search would refuse, and options that nobody has."""
        for name in self.environments:
            check_shift(environment(name), self.shift)
            if self.hide or self.noise:
                environment(name).make(**self.env_args).close()
        for pair in self.options:
            if not any([self._takes(strategy, pair) for strategy in self.strategies]):
                read_options([pair], owners_of(self.strategies[0], self.backend))
        terms = BenchmarkTerms(max_cost=max_cost)
        for strategy, model in product(self.strategies, self.models):
            choices = self.choices(strategy, model, terms, access)
            if self.needs_programs:  # and its backend cannot be made before they are there
                check_names(choices)
            else:
                check_choices(choices)

    def choices(
        self, strategy: str, model: str, terms: "BenchmarkTerms", access: "BenchmarkAccess"
    ) -> Choices:
        """Return the choices of a search; the baseline takes its model's place."""
        chosen = Choices(
            strategy=strategy,
            backend=self.backend,
            model=model,
            options=[access.private.get(pair, pair) for pair in self.options_of(strategy)],
            flags=access.flags(self),
            metric=self.metric,
            seed=0,
            parallel=terms.parallel,
            max_cost=terms.max_cost,
            budget=terms.budget,
            tools=self.tools,
            accepted=access.accepted,
            cache=access.cache,
        )
        if not model or model != self.baseline:
            return chosen
        pairs = [pair for pair in self.options if self._takes(strategy, pair, self.baseline)]
        return chosen._replace(
            backend=self.baseline,
            model="",
            options=[pair for pair in pairs if not pair.startswith(START_OPTION)],
            flags={},
            parallel=1,
            max_cost=None,
            cache=False,
        )

    def _takes(self, strategy: str, pair: str, backend: str = "") -> bool:
        """Whether an option is for a strategy or for all; a value that is refused raises."""
        try:
            read_options([pair], owners_of(strategy, backend or self.backend))
        except UnknownNameError:
            return False
        return True


class BenchmarkTerms(BaseModel):
    """How far a benchmark goes; other terms may be given when it is continued.

    `parallel` completions of each search are in flight. All of them together cost `max_cost` US
    dollars at most. If `episodes` is None, the number of episodes depends on their length.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: int = 10
    parallel: int = 1
    max_cost: float | None = None
    plan: bool = False
    episodes: int | None = None
    ceilings: bool = False


class BenchmarkAccess(BaseModel):
    """Settings that jobs get from the command and that no file holds.

    `private` are the options with credentials, by the form that the configuration holds.
    """

    model_config = ConfigDict(frozen=True)

    api_base: str | None = None
    accepted: tuple[str, ...] = ()
    cache: bool = False
    private: dict[str, str] = {}

    def flags(self, config: BenchmarkConfig) -> dict[str, Any]:
        """Return the options of the backend that have flags of their own."""
        flags = {"api_base": self.api_base, "temperature": config.temperature}
        return {name: value for name, value in flags.items() if value is not None}


class BenchmarkHeader(RunHeader[BenchmarkConfig]):
    """What a benchmark begins with; the terms are those of the last command.

    `caveat` is a warning about all answers of the backend. `remedy` is the advice of the backend
    if no program runs.
    """

    kind: str = "benchmark"
    terms: BenchmarkTerms
    caveat: str = ""
    remedy: str = ""


def environments_of(suite: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the environments that were named, or those of a suite, each once."""
    if not named and suite not in SUITES:
        raise UnknownNameError("suite", suite, SUITES)
    return tuple(dict.fromkeys(named or SUITES[suite]))


def sizes_of(rows: str | Sequence[int]) -> tuple[int, ...]:
    """Return numbers of train rows in rising order, each once; "100,300" is text of `--rows`."""
    try:
        given = [int(word) for word in rows.split(",")] if isinstance(rows, str) else [*rows]
    except ValueError:
        given = [0]
    if min(given, default=1) < 1:
        words = rows if isinstance(rows, str) else ",".join(map(str, rows))
        raise CwmError(f"invalid --rows {words}: write numbers of at least 1, such as 100,300,1000")
    return tuple(sorted(set(given)))


def shift_of(suite: str, named: Sequence[str], seed: int | None) -> int | None:
    """Return the seed of the shift that was named, or that of a shifted suite."""
    return 0 if seed is None and not named and suite in SHIFTED else seed


def slug(text: str) -> str:
    """Return a text as part of a file name; two texts never become the same."""
    safe = re.sub(r"[^\w.-]+", "-", text)
    return safe if safe == text else f"{safe}-{sha256(text.encode()).hexdigest()[:6]}"
