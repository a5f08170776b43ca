"""The `cwm` command line."""

import sys
from functools import cache as once
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cwm_cli._version import __version__, code_version
from cwm_cli.cli import shared
from cwm_cli.cli.bench_speed import bench_speed
from cwm_cli.cli.cache import cache
from cwm_cli.cli.collect import collect
from cwm_cli.cli.completion import complete, for_shell, is_asked
from cwm_cli.cli.configuration import FILE, VARIABLE, read_configuration
from cwm_cli.cli.data import data
from cwm_cli.cli.doctor import doctor
from cwm_cli.cli.evaluate import evaluate
from cwm_cli.cli.next_steps import next_steps
from cwm_cli.cli.options import options
from cwm_cli.cli.plan import plan
from cwm_cli.cli.plugins import plugins
from cwm_cli.cli.runs import runs
from cwm_cli.cli.shared import boundary, guarded
from cwm_cli.cli.synthesize import synthesize
from cwm_cli.errors import CwmError
from cwm_cli.text import wanted_instead
from cwm_cli.views.lines import complain, speak

ANYWHERE = ("--quiet", "--verbose")
"""Options that may stand behind the command, too."""


class Commands(TyperGroup):
    """All commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the options that are allowed anywhere in front of the command."""
        hide_flag_types(self, ctx)
        end = args.index("--") if "--" in args else len(args)
        before = [word for word in args[:end] if word in ANYWHERE]
        rest = [word for word in args[:end] if word not in ANYWHERE]
        return super().parse_args(ctx, [*before, *rest, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; wrong values of options are reported in our own words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if reasons := getattr(
                error.__cause__, "errors", None
            ):  # pydantic's, from some Typer on
                error.message = wanted_instead(reasons()[0])
            raise


def hide_flag_types(command: Any, ctx: Any) -> None:
    """Remove the type from the help of all flags: recent versions of Typer show `<bool>` there."""
    for param in filter(None, (*command.params, command.get_help_option(ctx))):
        if getattr(param, "is_flag", False):
            param.metavar = ""
    for each in getattr(command, "commands", {}).values():
        hide_flag_types(each, ctx)


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    help="Write a Python model of an environment, from recorded transitions or while acting in it.",
)
FIRST = ("collect", "synthesize", "evaluate", "calibrate", "plan", "bench-speed", "benchmark")
"""Commands that the help lists first, in this order, whether the core or a plugin adds them."""

LAST = ("options", "cache", "doctor")
"""Commands that the help lists last."""

COMMANDS = (
    collect,
    synthesize,
    evaluate,
    plan,
    bench_speed,
    options,
    cache,
    doctor,
)
for command in COMMANDS:
    app.command(command.__name__.replace("_", "-"))(guarded(command))
app.add_typer(runs, name="runs")
app.add_typer(data, name="data")
app.add_typer(plugins, name="plugins")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"cwm {__version__} ({code_version()})")
        raise typer.Exit


@app.callback()
@guarded
def _options(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar=VARIABLE,
            help=f"Defaults of options. Default: {FILE} of the working folder, if there is one.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Say nothing but results, warnings and errors.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Say in more detail what is done, and when.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if quiet and verbose:
        raise CwmError("--quiet and --verbose contradict each other: name one")
    speak("quiet" if quiet else "verbose" if verbose else "usual")
    ctx.obj = read_configuration(app, config)
    ctx.default_map = dict(ctx.obj.defaults)
    if ctx.invoked_subcommand is None:
        for line in next_steps():
            typer.echo(line)
        typer.echo(ctx.get_help())
        raise typer.Exit(NO_COMMAND)


NO_COMMAND = 2
"""The exit code where no command is named, as Click has it."""


def _place_in_help(command: str) -> int:
    if command in FIRST:
        return FIRST.index(command)
    return len(FIRST) + (command in LAST)


@once
def command_line() -> typer.Typer:
    """Return the command line with the commands of every plugin."""
    from cwm_cli.registry import plugins as load

    found = load()
    found.manager.hook.cwm_commands(app=app, api=shared)
    app.registered_commands.sort(key=lambda command: _place_in_help(command.name or ""))
    if is_asked():
        complete(app)
        return app
    for warning in found.warnings:
        complain(warning, kind="Warning")
    return app


def main() -> None:
    """Run the command line."""
    if sys.platform == "win32":  # there is no fcntl and no fork
        told = CwmError(
            "cwm does not run on Windows itself: use WSL2 or the container (docs/docker.md)"
        )
        sys.exit(f"Error: {told}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character gets another
            stream.reconfigure(errors="replace")
    try:
        with boundary(), for_shell():
            command_line()()
    except typer.Exit as end:  # of what went wrong before there was a command
        sys.exit(end.exit_code)
