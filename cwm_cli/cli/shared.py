"""What commands are made of: shared options, one line to the user, JSON or text, exit codes.

Commands of plugins get this module as `api`.
"""

import errno
import json as jsonlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cwm_cli.envs.failures import environment_failure
from cwm_cli.envs.own_files import name_in_file
from cwm_cli.envs.variants import HIDE, NOISE, SHIFT
from cwm_cli.errors import CwmError, EnvironmentFailure
from cwm_cli.text import clean, read_value
from cwm_cli.views.lines import complain, is_verbose

if TYPE_CHECKING:
    from rich.console import Console

    from cwm_cli.bench.estimate import Ask, CostEstimate
    from cwm_cli.runs.observer import Observer
    from cwm_cli.runs.report import RunReport

ALLOW_GAP = "CWM_ALLOW_GAP"
"""The environment variable with the gaps that are accepted, a space between any two."""


def run_folder(place: Path | str) -> Path:
    """Read what names the folder of a run: a path, or a URL such as s3://bucket/folder."""
    from cwm_cli.runs.places import located

    with boundary():
        return located(place)


def shown(path: Path) -> str:
    """Return what a user calls a path: the URL that it is a copy of, or the path."""
    from cwm_cli.runs.places import named

    return named(path)


EnvOption = Annotated[
    str, typer.Option("--env", help="Environment id, such as CartPole-v1.", show_default=False)
]
EnvArgOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env-arg",
        metavar="KEY=VALUE",
        help="Argument of the environment, such as is_slippery=false; repeatable.",
        show_default=False,
    ),
]
ShiftOption = Annotated[
    int | None,
    typer.Option(
        "--shift",
        metavar="SEED",
        min=0,
        help="Change constants and rules of the environment by this seed: nobody knows it by heart "
        "then. Short for --env-arg shift=SEED.",
        show_default=False,
    ),
]
HideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hide",
        metavar="NAME",
        help="Leave a component of the observation out, by its name or number, or all velocities: "
        "--hide velocities; repeatable. Short for --env-arg hide='[\"NAME\"]'.",
        show_default=False,
    ),
]
NoiseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--noise",
        metavar="NAME=STD",
        help="Add Gaussian noise at every step to a component of the observation, to the action "
        "(action=0.1), or to a number that the environment holds (force_mag=1); repeatable.",
        show_default=False,
    ),
]
DatasetOption = Annotated[
    Path | None,
    typer.Option(
        "--dataset",
        metavar="FILE",
        help="Recorded transitions (.npz). Default: collected once and cached.",
        show_default=False,
    ),
]
OptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="Option of what does the work, such as memory_mb=1024; repeatable. "
        "`cwm options NAME` lists what NAME takes.",
        show_default=False,
    ),
]
ProgramOption = Annotated[
    Path | None,
    typer.Option("--program", metavar="FILE", help="A world model.", show_default=False),
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="A run; its best program.",
        show_default=False,
        parser=run_folder,
    ),
]
RunFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="Run folder, or its URL; continued if it exists.",
        show_default=False,
        parser=run_folder,
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help="Who answers. Default: the language model that is named, else data alone.",
        show_default=False,
    ),
]
ModelBackendOption = Annotated[
    str | None, typer.Option("--backend", help="Who answers.", show_default=False)
]
ApiBaseOption = Annotated[
    str | None, typer.Option("--api-base", metavar="URL", help="Address of the model's server.")
]
TemperatureOption = Annotated[
    float | None, typer.Option("--temperature", min=0.0, help="Sampling temperature.")
]
ToolOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tool",
        metavar="NAME",
        help="Further module that programs may import, such as mujoco; repeatable.",
        show_default=False,
    ),
]
MaxCostOption = Annotated[
    float | None,
    typer.Option("--max-cost", metavar="USD", min=0.0, help="Stop before this is exceeded."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="PROVIDER/NAME", help="LiteLLM model; default: $CWM_MODEL."),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="PROVIDER/NAME",
        help="LiteLLM model; repeatable: several share the completions, by weight where it is "
        "NAME=3. Default: $CWM_MODEL.",
        show_default=False,
    ),
]
AskAboveOption = Annotated[
    float,
    typer.Option(
        "--ask-above",
        metavar="USD",
        min=0.0,
        envvar="CWM_ASK_ABOVE",
        help="Ask before what is expected to cost more is begun.",
    ),
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Begin whatever it is expected to cost, without a question.")
]
CacheOption = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Keep the answers of language models, and reuse those to what was asked before "
        "(`cwm cache` shows them).",
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy", help="Search strategy; `cwm plugins` lists them.", show_default=False
    ),
]
ExecutorOption = Annotated[
    str, typer.Option("--executor", help="Where jobs run: local, ray, slurm, or a plugin's.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Jobs at a time. Default: half as many as cores.",
        show_default=False,
    ),
]
StartOption = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="NAME|FILE|DIR",
        help="Program to begin with, at no completion: induction (from data alone; default of "
        "synthesize with a language model), a file, the best one of a run, or none (default of "
        "benchmark).",
        show_default=False,
    ),
]
ParallelOption = Annotated[int, typer.Option("--parallel", min=1, help="Completions in flight.")]
NewOption = Annotated[
    bool, typer.Option("--new", help="Start another run even if one can be continued.")
]
AllowGapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-gap",
        metavar="NAME",
        envvar=ALLOW_GAP,
        help="Run generated programs although this protection is missing (see `cwm doctor`): "
        "the name of a gap, or all; repeatable.",
        show_default=False,
    ),
]
TrackOption = Annotated[
    str | None,
    typer.Option(
        "--track",
        metavar="PROJECT",
        help="Keep the numbers of the run in this project of a tracker, such as trackio.",
        show_default=False,
    ),
]
TrackerOption = Annotated[
    str | None,
    typer.Option(
        "--tracker",
        metavar="NAME",
        help="The tracker of --track: trackio, wandb or a plugin's. Default: what is installed.",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
DataSeedOption = Annotated[
    int, typer.Option("--data-seed", min=0, help="Seed of the data that is collected by default.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object to stdout, all else to stderr.")
]
MetricOption = Annotated[
    str,
    typer.Option(
        "--metric",
        help="accuracy; skill: proper scores; paper: the published score; or a plugin's.",
    ),
]


def parse_env_args(
    pairs: list[str] | None,
    shift: int | None = None,
    hide: list[str] | None = None,
    noise: list[str] | None = None,
) -> dict[str, Any]:
    """Read KEY=VALUE pairs, whose values are JSON or Python literals, and add what is short."""
    arguments: dict[str, Any] = {}
    for pair in pairs or []:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise CwmError(f"--env-arg {pair!r} has no value: write --env-arg KEY=VALUE")
        try:
            arguments[key] = read_value(text)
        except ValueError as error:
            quoted = shlex.quote(f"{key}={jsonlib.dumps(text, ensure_ascii=False)}")
            raise CwmError(f"{error}: write text in quotes, --env-arg {quoted}") from error
    short = {SHIFT: shift, HIDE: sorted(set(hide or ())) or None, NOISE: _noise(noise) or None}
    for name, value in short.items():
        if value is not None and arguments.setdefault(name, value) != value:
            said = f"--{name} {value} and --env-arg {name}={arguments[name]}"
            raise CwmError(f"{said}: name one")
    return arguments


def _noise(pairs: list[str] | None) -> dict[str, float]:
    """Read NAME=STD pairs; a name may have a = in it."""
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


def tracked(view: "Observer", track: str | None, tracker: str | None) -> "Observer":
    """Return an observer that tells a tracker what it hears, and a view everything."""
    if track is None:
        if tracker is not None:
            raise CwmError(f"--tracker {tracker} needs a project: add --track PROJECT")
        return view
    from cwm_cli.commands.trackers import Tracking

    return Tracking(track, tracker, beside=view)


def asking(above: float, *, yes: bool) -> "Ask":
    """Return what asks a user whether so much may be paid as is expected, if that is much."""

    def ask(estimate: "CostEstimate") -> bool:
        if yes or estimate.expected <= above:
            return True
        words = f"${estimate.expected:,.2f} are expected, more than --ask-above {above:g}"
        if not can_ask():
            raise CwmError(f"{words}: add --yes to begin, or limit it with --max-cost")
        try:
            return confirm(f"{words}: begin?")
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted: nothing was begun, and nothing paid") from None

    return ask


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


INTERRUPTED = 130


@contextmanager
def boundary() -> Iterator[None]:
    """End a user's mistake in one line and exit code 1, an interruption in 130."""
    try:
        yield
    except CwmError as error:
        _report(error)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interruption:
        complain(str(interruption) or "interrupted", kind="")
        raise typer.Exit(INTERRUPTED) from interruption
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except MemoryError as error:
        complain("there is not enough memory: close something else, or use fewer data")
        raise typer.Exit(1) from error
    except Exception as error:
        if failure := environment_failure(error):
            _report(failure)
        elif isinstance(error, OSError) and error.errno in REFUSALS:
            complain(told(error))
        else:
            raise
        raise typer.Exit(1) from error


def _report(error: CwmError) -> None:
    """Print an error as one line, with --verbose below the traceback of its environment."""
    cause: BaseException | None = error
    while is_verbose() and cause is not None:
        if isinstance(cause, EnvironmentFailure):
            typer.echo(clean(cause.traceback, newlines=True), err=True, nl=False)
            break
        cause = cause.__cause__
    complain(str(error))


REFUSALS = {
    errno.ENOSPC: "make room, then the same command continues",
    errno.EDQUOT: "make room, then the same command continues",
    errno.EFBIG: "raise the limit on the size of files, then the same command continues",
    errno.EROFS: "name another place, or work in another folder",
    errno.EACCES: "name another place, or work in another folder",
    errno.EPERM: "name another place, or work in another folder",
    errno.ENOTDIR: "name another place",
    errno.EISDIR: "name another place",
    errno.ELOOP: "name another place",
    errno.EEXIST: "name another place",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EIO: "look after the disk",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close something else",
    errno.ENOMEM: "close something else",
}
"""What to do when the system refuses something, wherever that happens."""


def told(error: OSError) -> str:
    """Say in a line what the system refuses, of which file, and what to do."""
    file = f" ({error.filename})" if error.filename else ""
    return f"{(error.strerror or str(error)).lower()}{file}: {REFUSALS[error.errno or 0]}"


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Run a command inside the boundary; `--env` may name a Python file."""

    @wraps(command)
    def inside(*args: Any, **kwargs: Any) -> None:
        with boundary():
            match kwargs.get("env"):
                case str(name):
                    kwargs["env"] = name_in_file(name)
                case list(names):
                    kwargs["env"] = [name_in_file(name) for name in names]
            command(*args, **kwargs)

    return inside


def emit_json(facts: Mapping[str, Any]) -> None:
    """Print the one JSON object of a command."""
    typer.echo(jsonlib.dumps(facts))


def emit(facts: Mapping[str, Any], *, json: bool) -> None:
    """Print facts as JSON, or as a line each."""
    if json:
        typer.echo(jsonlib.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {clean(str(value))}")


def console(*, json: bool) -> "Console":
    """Return the console for people: stdout, or stderr when stdout is for JSON."""
    from rich.console import Console

    return Console(stderr=json)


def print_report(report: "RunReport", *, json: bool) -> None:
    """Print the tables of a report, or one JSON object."""
    from cwm_cli.views.tables import report_parts

    out = console(json=json)
    for part in report_parts(report):
        out.print(part)
    if json:
        emit_json(report.as_json())
