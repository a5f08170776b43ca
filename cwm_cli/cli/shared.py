"""The parts of commands: options that several share, and output as text or as JSON.

Commands of plugins import from here, or get this module as `api`.
"""

import json as jsonlib
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from cwm_cli.cli.boundary import boundary
from cwm_cli.cli.completion import (
    complete_dataset,
    complete_gap,
    complete_model,
    complete_option,
    complete_run,
    complete_start,
    names_of,
    one_of,
)
from cwm_cli.cli.declarations import (
    advanced_option,
    basic_option,
    data_option,
    guarded,
    limit_option,
    model_option,
)
from cwm_cli.envs.variants import HIDE, NOISE, SHIFT
from cwm_cli.errors import CwmError
from cwm_cli.text import clean, read_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

    from cwm_cli.bench.estimate import CostEstimate
    from cwm_cli.runs.observer import Observer
    from cwm_cli.runs.report import RunReport

__all__ = [  # names from other modules, for `api`
    "advanced_option",
    "basic_option",
    "boundary",
    "complete_dataset",
    "complete_model",
    "complete_run",
    "data_option",
    "guarded",
    "limit_option",
    "model_option",
    "names_of",
    "one_of",
]

ALLOW_GAP = "CWM_ALLOW_GAP"
"""The environment variable with the accepted gaps, separated by spaces."""


def run_folder(place: Path | str) -> Path:
    """Return the folder of a run that is named by a path or by a URL such as s3://bucket/run."""
    from cwm_cli.runs.storage import located

    with boundary():
        return located(place)


def shown(path: Path) -> str:
    """Return the name of a path for users: its URL if it is a copy of a remote one."""
    from cwm_cli.runs.storage import named

    return named(path)


# Single options


ENV = basic_option(
    "--env",
    metavar="ID",
    help="Environment ID, e.g. CartPole-v1.",
    autocompletion=names_of("environment"),
)
EnvOption = Annotated[str, ENV]
RunEnvOption = Annotated[
    str | None,
    basic_option(
        "--env",
        metavar="ID",
        help="Environment ID. Default: the environment of the run or of --dataset.",
        autocompletion=names_of("environment"),
    ),
]
RewardExpressionOption = Annotated[
    str | None,
    data_option(
        "--reward-expression",
        metavar="TEXT",
        help="Reward of a step, over columns after the step and the action: '-abs(level - 1.2)'. "
        "Default: the own reward.",
    ),
]
SeedOption = Annotated[int, basic_option("--seed", min=0, help="Random seed.")]
JsonOption = Annotated[
    bool, advanced_option("--json", help="Print one JSON object to stdout, the rest to stderr.")
]
RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        help="Run whose world model is used.",
        parser=run_folder,
        autocompletion=complete_run,
    ),
]
OneRunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run folder.", parser=run_folder, autocompletion=complete_run
    ),
]
ProgramOption = Annotated[
    Path | None, basic_option("--program", help="World model in a file, e.g. best.py.")
]
EnvArgOption = Annotated[
    list[str],
    data_option(
        "--env-arg",
        metavar="KEY=VALUE",
        help="Argument of the environment, e.g. is_slippery=false; repeatable.",
    ),
]
SHIFT_HELP = (
    "Change constants and rules of the environment, so that no language model knows it by heart."
)
ShiftOption = Annotated[
    int | None,
    data_option(
        "--shift",
        metavar="SEED",
        min=0,
        help=f"{SHIFT_HELP} Short for --env-arg shift=SEED.",
    ),
]
ShiftsOption = Annotated[
    list[str],
    data_option(
        "--shift",
        metavar="SEED,...|KEY=VALUE",
        help="Compare with shifted environments: seeds (1,2,3) that change constants and rules, or "
        "arguments of the environment (g=5); repeatable. For a program file, a single seed is an "
        "argument of its environment instead.",
    ),
]
HideOption = Annotated[
    list[str],
    data_option(
        "--hide",
        metavar="NAME",
        help="Hide a component of the observation, by name or number, or all velocities; "
        "repeatable.",
    ),
]
NoiseOption = Annotated[
    list[str],
    data_option(
        "--noise",
        metavar="NAME=STD",
        help="Add Gaussian noise at every step to a component of the observation, to the action "
        "(action=0.1) or to a number of the environment (force_mag=1); repeatable.",
    ),
]
DatasetOption = Annotated[
    Path | None,
    data_option(
        "--dataset",
        help="Recorded transitions (.npz). Default: collected once and cached.",
        autocompletion=complete_dataset,
    ),
]
DataSeedOption = Annotated[
    int, data_option("--data-seed", min=0, help="Random seed of data collected by default.")
]
ToleranceOption = Annotated[
    list[str] | None,
    data_option(
        "--tolerance",
        metavar="[NAME=]VALUE",
        help="Absolute tolerance of exact values, of one component or all; repeatable.",
        show_default="1e-5, absolute and relative",
    ),
]
METRICS = "Score: accuracy, explained (noise), skill (chance), paper (as published) or a plugin's."
MetricOption = Annotated[
    str | None,
    data_option(
        "--metric",
        metavar="NAME",
        help=METRICS,
        show_default="explained for tables with noise, skill if outcomes are random or partly "
        "hidden, else accuracy",
        autocompletion=names_of("metric"),
    ),
]
ModelOption = Annotated[
    str | None,
    basic_option(
        "--model",
        metavar="PROVIDER/NAME",
        help="LiteLLM model. Default: $CWM_MODEL.",
        autocompletion=complete_model,
    ),
]
StrategyOption = Annotated[
    str | None,
    model_option(
        "--strategy",
        metavar="NAME",
        help="Search strategy; `cwm plugins` lists them.",
        autocompletion=names_of("strategy"),
    ),
]
BackendOption = Annotated[
    str | None,
    model_option(
        "--backend",
        metavar="NAME",
        help="Backend that writes programs. Default: the language model if one is named, else "
        "induction from data.",
        autocompletion=names_of("backend"),
    ),
]
ApiBaseOption = Annotated[
    str | None, model_option("--api-base", metavar="URL", help="Address of the model's server.")
]
TemperatureOption = Annotated[
    float | None, model_option("--temperature", min=0.0, help="Sampling temperature.")
]
CacheOption = Annotated[
    bool,
    limit_option(
        "--cache/--no-cache",
        show_default=False,
        help="Keep completions, and reuse them for equal prompts (see `cwm cache`).",
    ),
]
StartOption = Annotated[
    str | None,
    model_option(
        "--start",
        metavar="NAME|FILE|DIR",
        help="Start program, which costs no completion: induction (from data alone), a file, the "
        "best program of a run, or none. Default: induction for synthesize with a language model, "
        "none for benchmark.",
        autocompletion=complete_start,
    ),
]
ContractOption = Annotated[
    str,
    model_option(
        "--contract",
        metavar="FORM",
        help="Form of programs: plain (deterministic), chance (probabilities or draws), memory "
        "(of the episode), game (of two players), or auto (chosen from the data).",
        autocompletion=one_of("auto", "plain", "chance", "memory", "game"),
    ),
]
DescriptionOption = Annotated[
    Path | None,
    model_option(
        "--description",
        metavar="FILE",
        help="Text file with a description of the environment for prompts, instead of its own.",
    ),
]
PlannerOption = Annotated[
    str,
    model_option(
        "--planner",
        metavar="NAME",
        help="mcts or tabular for discrete actions, icem or cem for continuous ones, a planner of "
        "a plugin (see `cwm plugins`), or auto.",
        autocompletion=names_of("planner"),
    ),
]
MaxCostOption = Annotated[
    float | None,
    limit_option(
        "--max-cost",
        metavar="USD",
        min=0.0,
        help="Stop before the total cost of language models exceeds this.",
    ),
]
MaxStepsOption = Annotated[
    int | None,
    limit_option(
        "--max-steps",
        min=1,
        help="Maximum number of steps in an episode. Default: the environment's limit, or 1000.",
    ),
]
EpisodeStepsOption = Annotated[
    int, limit_option("--max-steps", min=1, help="Maximum number of steps in an episode.")
]
ParallelOption = Annotated[
    int, limit_option("--parallel", min=1, help="Maximum number of simultaneous completions.")
]
OptionsOption = Annotated[
    list[str],
    advanced_option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="Set an option of the strategy, backend, planner or sandbox, e.g. memory_mb=1024; "
        "repeatable. `cwm options NAME` lists the options of NAME.",
        autocompletion=complete_option,
    ),
]
AllowGapOption = Annotated[
    list[str],
    advanced_option(
        "--allow-gap",
        metavar="NAME",
        envvar=ALLOW_GAP,
        help="Run generated programs without this protection (see `cwm doctor`); all accepts "
        "every gap; repeatable.",
        autocompletion=complete_gap,
    ),
]
NewOption = Annotated[
    bool, advanced_option("--new", help="Start a new run, even if an old one can be continued.")
]
ForceOption = Annotated[
    bool, advanced_option("--force", help="Replace an existing file with other content.")
]


# Groups of options


class ProgramOptions(TypedDict):
    """Options of commands that run programs."""

    options: OptionsOption
    allow_gap: AllowGapOption
    tools: Annotated[
        list[str],
        advanced_option(
            "--tool",
            metavar="NAME",
            help="Module that programs may import, e.g. mujoco; repeatable.",
        ),
    ]


class ModelOptions(TypedDict):
    """Options of commands that ask language models to write programs."""

    model: Annotated[
        list[str],
        basic_option(
            "--model",
            metavar="PROVIDER/NAME",
            help="LiteLLM model; repeatable: several models share the completions, by weight with "
            "NAME=3. Default: $CWM_MODEL.",
            autocompletion=complete_model,
        ),
    ]
    backend: BackendOption
    api_base: ApiBaseOption
    temperature: TemperatureOption
    cache: CacheOption
    max_cost: MaxCostOption


class RunOptions(TypedDict):
    """The folder that a command writes its run to."""

    run: Annotated[
        Path | None,
        basic_option(
            "--run",
            metavar="DIR",
            help="Folder or URL of the run; an existing run continues.",
            parser=run_folder,
            autocompletion=complete_run,
        ),
    ]
    new: NewOption


@dataclass(frozen=True)
class EnvironmentOptions:
    """Arguments of an environment, and changes to it."""

    env_arg: EnvArgOption
    shift: ShiftOption
    hide: HideOption
    noise: NoiseOption

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that make the environment."""
        return parse_env_args(self.env_arg, self.shift, self.hide, self.noise)


@dataclass(frozen=True)
class ShiftableOptions:
    """Arguments of an environment, and shifted environments to compare with."""

    env_arg: EnvArgOption
    shift: ShiftsOption
    hide: HideOption
    noise: NoiseOption

    def read(self, *, of_run: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the arguments of the environment, and the changes of each shifted one.

        Args:
            of_run: Whether the subject is a run. Only a run has an environment of its own, so
                for a program a single seed is an argument of the environment.
        """
        shifts = parse_shifts(self.shift)
        seed = None
        if not of_run and len(shifts) == 1 and shifts[0].keys() == {SHIFT}:
            seed, shifts = shifts[0][SHIFT], []
        return parse_env_args(self.env_arg, seed, self.hide, self.noise), shifts


@dataclass(frozen=True)
class WorldModelOptions:
    """The world model that a command uses, from a run or a file."""

    run: RunArgument
    run_option: Annotated[
        Path | None,
        basic_option(
            "--run",
            metavar="DIR",
            help="Run whose world model is used, same as RUN.",
            parser=run_folder,
            autocompletion=complete_run,
        ),
    ]
    program: ProgramOption

    @property
    def folder(self) -> Path | None:
        """The folder of the run.

        Raises:
            CwmError: if the argument and the option name two runs.
        """
        if self.run and self.run_option and self.run != self.run_option:
            raise CwmError(f"{self.run} and {self.run_option} are two runs: name one")
        return self.run or self.run_option


@dataclass(frozen=True)
class TrackingOptions:
    """The experiment tracker of a run."""

    track: Annotated[
        str | None,
        advanced_option(
            "--track", metavar="PROJECT", help="Log metrics to this project of a tracker."
        ),
    ]
    tracker: Annotated[
        str | None,
        advanced_option(
            "--tracker",
            metavar="NAME",
            help="Tracker for --track: trackio, wandb or a plugin's. Default: the installed one.",
            autocompletion=names_of("tracker"),
        ),
    ]

    def beside(self, view: "Observer") -> "Observer":
        """Return an observer that informs the tracker, if one is chosen, and a view."""
        if self.track is None:
            if self.tracker is not None:
                raise CwmError(f"--tracker {self.tracker} needs a project: add --track PROJECT")
            return view
        from cwm_cli.commands.trackers import Tracking

        return Tracking(self.track, self.tracker, beside=view)


@dataclass(frozen=True)
class CostOptions:
    """The confirmation of expected costs."""

    yes: Annotated[
        bool, limit_option("--yes", help="Start without a question, at any expected cost.")
    ]
    ask_above: Annotated[
        float,
        limit_option(
            "--ask-above",
            metavar="USD",
            min=0.0,
            envvar="CWM_ASK_ABOVE",
            help="Ask before starting if the expected cost exceeds this.",
        ),
    ] = 5.0

    def confirm(self, estimate: "CostEstimate") -> bool:
        """Return whether to start at an expected cost; ask the user if it is high."""
        if self.yes or estimate.expected <= self.ask_above:
            return True
        cost = f"${estimate.expected:,.2f}"
        words = f"the expected cost of {cost} exceeds --ask-above {self.ask_above:g}"
        if not can_ask():
            raise CwmError(f"{words}: add --yes to start, or limit it with --max-cost")
        try:
            return confirm(f"{words}: start?")
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted: nothing was started or paid") from None


def parse_env_args(
    pairs: list[str] | None,
    shift: int | None = None,
    hide: list[str] | None = None,
    noise: list[str] | None = None,
) -> dict[str, Any]:
    """Return the arguments of an environment from KEY=VALUE pairs and the short options."""
    arguments = dict(_parse_pair("--env-arg", pair) for pair in pairs or [])
    short = {SHIFT: shift, HIDE: sorted(set(hide or ())) or None, NOISE: _noise(noise) or None}
    for name, value in short.items():
        if value is not None and arguments.setdefault(name, value) != value:
            words = f"--{name} {value} and --env-arg {name}={arguments[name]}"
            raise CwmError(f"{words}: name one")
    return arguments


def parse_shifts(texts: list[str] | None) -> list[dict[str, Any]]:
    """Return the changes of each shifted environment, in the order of the command line.

    A text with numbers, such as `1,2,3`, is several environments. A text with pairs, such as
    `g=5,m=2`, is one environment. A comma inside a value separates nothing.
    """
    shifts: list[dict[str, Any]] = []
    for text in texts or []:
        if "=" in text:
            pairs = re.split(r",(?=\s*\w+=)", text)
            shifts.append(dict(_parse_pair("--shift", pair.strip()) for pair in pairs))
            continue
        seeds = [part.strip() for part in text.split(",")]
        if not all(seed.isdecimal() for seed in seeds):
            raise CwmError(f"--shift {text!r} is neither seeds (1,2,3) nor KEY=VALUE: write one")
        shifts += [{SHIFT: int(seed)} for seed in seeds]
    return shifts


def _parse_pair(option: str, pair: str) -> tuple[str, Any]:
    """Return the name and the value of a KEY=VALUE pair of an option."""
    key, separator, text = pair.partition("=")
    if not separator or not key:
        raise CwmError(f"{option} {pair!r} has no value: write {option} KEY=VALUE")
    try:
        return key, read_value(text)
    except ValueError as error:
        quoted = shlex.quote(f"{key}={jsonlib.dumps(text, ensure_ascii=False)}")
        raise CwmError(f"{error}: write text in quotes, {option} {quoted}") from error


def _noise(pairs: list[str] | None) -> dict[str, float]:
    """Return standard deviations from NAME=STD pairs; a name may contain `=`."""
    deviations: dict[str, float] = {}
    for pair in pairs or []:
        name, _, text = pair.rpartition("=")
        try:
            deviation = float(text)
        except ValueError:
            deviation = nan
        if not name or not isfinite(deviation):
            raise CwmError(f"--noise {pair!r} has no standard deviation: write --noise NAME=0.1")
        if name in deviations:
            raise CwmError(f"--noise names {name!r} twice: name it once")
        deviations[name] = deviation
    return dict(sorted(deviations.items()))


# Questions and output


def can_ask() -> bool:
    """Return whether a user at a terminal can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask a question on the terminal and return whether the answer is yes; Ctrl-D is no."""
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        typer.echo(err=True)
    return answer.strip().lower() in ("y", "yes")


def emit_json(facts: Mapping[str, Any]) -> None:
    """Print the one JSON object of a command."""
    typer.echo(jsonlib.dumps(facts))


def emit(facts: Mapping[str, Any], *, json: bool) -> None:
    """Print facts as one JSON object, or one line per fact."""
    if json:
        typer.echo(jsonlib.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {clean(str(value))}")


def console(*, json: bool) -> "Console":
    """Return the console for text: stdout, or stderr if stdout is for JSON."""
    from rich.console import Console

    return Console(stderr=json)


def print_parts(parts: "Iterable[RenderableType]", *, json: bool) -> None:
    """Print the end of a command: sentences wrap between words, and paths not at all."""
    out = console(json=json)
    for part in parts:
        whole = bool(getattr(part, "no_wrap", False))  # rich joins texts, which forgets it
        out.print(part, highlight=False, soft_wrap=whole)


def print_report(report: "RunReport", *, json: bool) -> None:
    """Print the tables of a report, or one JSON object."""
    from cwm_cli.views.tables import report_parts

    out = console(json=json)
    for part in report_parts(report):
        out.print(part)
    if json:
        emit_json(report.as_json())
