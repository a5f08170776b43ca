"""The configuration of a benchmark: its choices, its terms, its jobs and their tasks."""

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
from cwm_cli.registry import environment, find, full_name, read_options
from cwm_cli.runs.store import RunHeader

START_OPTION = "search.start="
"""The option that `--start` sets."""

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
    """A task of one process: for an environment, or for the trial with the given name.

    "prepare" creates an environment and records its data. "write" writes its program for
    backends that start from a program. "search" and "play" are for a trial. "ceiling" and "oracle"
    measure the best possible results in an environment; `planner` is the planner of the oracle.
    """

    kind: str
    name: str
    planner: str = ""

    @property
    def key(self) -> str:
        """A name for files."""
        return "-".join((self.kind, slug(self.name), *([self.planner] if self.planner else [])))


class BenchmarkConfig(BaseModel):
    """The choices that identify a benchmark. It continues only with equal choices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments: tuple[str, ...]
    strategies: tuple[str, ...]
    models: tuple[str, ...] = ("",)
    backend: str
    baseline: str = ""
    """The offline backend that gets its own row next to language models, or ""."""
    seeds: int = 1
    options: tuple[str, ...] = ()
    temperature: float | None = None
    tools: tuple[str, ...] = ()
    metric: str = "accuracy"
    data_seed: int = 0
    rows: tuple[int, ...] = ()
    """Numbers of train rows in rising order, each with its own jobs; empty for all rows."""
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
        """The jobs, ordered by environment. The baseline is last."""
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
        """Whether the backend needs a program of each environment first."""
        option = find("backend", self.backend).starts_from
        keys = {pair.partition("=")[0] for pair in self.options}
        return bool(option) and not keys & {option, f"backend.{option}"}

    def options_of(self, strategy: str) -> list[str]:
        """Return the options for a strategy, including the options for all strategies."""
        return [pair for pair in self.options if self._takes(strategy, pair)]

    def check(self, access: "BenchmarkAccess", max_cost: float | None) -> None:
        """Raise for choices that any search would reject, and for unknown options."""
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
            if self.needs_programs:  # the backend cannot be created before its programs
                check_names(choices)
            else:
                check_choices(choices)

    def choices(
        self, strategy: str, model: str, terms: "BenchmarkTerms", access: "BenchmarkAccess"
    ) -> Choices:
        """Return the choices of a search. The name of the baseline may replace the model."""
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
        """Return whether an option is for a strategy or for all. An invalid value raises."""
        try:
            read_options([pair], owners_of(strategy, backend or self.backend))
        except UnknownNameError:
            return False
        return True


class BenchmarkTerms(BaseModel):
    """The limits of a benchmark, which may change when it continues.

    Attributes:
        budget: Maximum number of completions per search.
        parallel: Completions in flight per search.
        max_cost: Cost limit of all searches together, in US dollars.
        plan: Whether to play with the best programs.
        episodes: Number of episodes to play; if None, it depends on their length.
        ceilings: Whether to score the true environments.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget: int = 10
    parallel: int = 1
    max_cost: float | None = None
    plan: bool = False
    episodes: int | None = None
    ceilings: bool = False


class BenchmarkAccess(BaseModel):
    """Settings that jobs get from the command and that no file contains.

    `private` maps options without credentials, as in the configuration, to the complete options.
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
    """The header of a benchmark. The last command sets the terms.

    `caveat` is a warning about all answers of the backend. `remedy` is the advice of the backend
    if no program runs.
    """

    kind: str = "benchmark"
    terms: BenchmarkTerms
    caveat: str = ""
    remedy: str = ""


def environments_of(suite: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the named environments, or the environments of the suite, each once."""
    if not named and suite not in SUITES:
        raise UnknownNameError("suite", suite, SUITES)
    return tuple(dict.fromkeys(full_name("environment", env) for env in named or SUITES[suite]))


def sizes_of(rows: str | Sequence[int]) -> tuple[int, ...]:
    """Return numbers of train rows in rising order, each once; `--rows` gives "100,300" as text."""
    try:
        given = [int(word) for word in rows.split(",")] if isinstance(rows, str) else [*rows]
    except ValueError:
        given = [0]
    if min(given, default=1) < 1:
        words = rows if isinstance(rows, str) else ",".join(map(str, rows))
        raise CwmError(f"invalid --rows {words}: write numbers of at least 1, such as 100,300,1000")
    return tuple(sorted(set(given)))


def shift_of(suite: str, named: Sequence[str], seed: int | None) -> int | None:
    """Return the named seed of the shift, or the seed of a shifted suite."""
    return 0 if seed is None and not named and suite in SHIFTED else seed


def slug(text: str) -> str:
    """Return a text as part of a file name. Different texts have different results."""
    safe = re.sub(r"[^\w.-]+", "-", text)
    return safe if safe == text else f"{safe}-{sha256(text.encode()).hexdigest()[:6]}"
