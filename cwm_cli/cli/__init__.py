"""The `cwm` command line."""

import sys
from collections.abc import Mapping
from functools import cache as once
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo, TyperInfo

from cwm_cli._version import __version__, code_version
from cwm_cli.cli import shared
from cwm_cli.cli.bench_speed import bench_speed
from cwm_cli.cli.boundary import boundary, next_steps
from cwm_cli.cli.collect import collect
from cwm_cli.cli.completion import bash_words, is_completing
from cwm_cli.cli.configuration import FILE, VARIABLE, read_configuration
from cwm_cli.cli.data import data
from cwm_cli.cli.declarations import PANELS, guarded
from cwm_cli.cli.evaluate import evaluate
from cwm_cli.cli.installation import cache, doctor, options, plugins
from cwm_cli.cli.plan import plan
from cwm_cli.cli.runs import runs
from cwm_cli.cli.synthesize import synthesize
from cwm_cli.errors import CwmError
from cwm_cli.text import describe_requirement
from cwm_cli.views.lines import complain, speak

COMMAND_PANELS: Mapping[str, tuple[str, ...]] = {
    "Start": ("synthesize", "collect", "evaluate", "plan", "play", "serve"),
    "Learn and train": ("learn", "train", "theorize", "calibrate", "mcp"),
    "Compare": ("benchmark", "bench-speed", "score", "apps"),
    "Look": ("runs", "data", "options", "plugins", "cache", "doctor"),
}
"""The panels of `cwm --help`, with the order of their commands, of core and plugins."""

OTHER_COMMANDS = "More"
"""The panel of all other commands."""

ANYWHERE = ("--quiet", "--verbose")
"""Options of `cwm` that are also accepted after the command."""


class Commands(TyperGroup):
    """All commands, in the order of their panels."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        order = [name for names in COMMAND_PANELS.values() for name in names]
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the options that are accepted anywhere in front of the command."""
        tidy_help(self, ctx)
        end = args.index("--") if "--" in args else len(args)
        before = [word for word in args[:end] if word in ANYWHERE]
        rest = [word for word in args[:end] if word not in ANYWHERE]
        return super().parse_args(ctx, [*before, *rest, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; describe wrong values of options in our own words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if reasons := getattr(error.__cause__, "errors", None):  # from pydantic
                error.message = describe_requirement(reasons()[0])
            raise


def tidy_help(command: Any, ctx: Any) -> None:
    """Move `--help` to the last panel, and remove `<bool>` from the options that Typer adds."""
    for param in filter(None, (*command.params, command.get_help_option(ctx))):
        if getattr(param, "is_flag", False):
            param.metavar = ""
    if (option := command.get_help_option(ctx)) and not isinstance(command, Commands):
        option.rich_help_panel = PANELS[-1]
    for each in getattr(command, "commands", {}).values():
        tidy_help(each, ctx)


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    help="Write a Python model of an environment, from recorded transitions or by acting in it.",
)
for command in (collect, synthesize, evaluate, plan, bench_speed, options, cache, doctor):
    app.command(command.__name__.replace("_", "-"))(guarded(command))
app.add_typer(runs, name="runs")
app.add_typer(data, name="data")
app.add_typer(plugins, name="plugins")


def _print_version(wanted: bool) -> None:
    if wanted:
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
            envvar=VARIABLE,
            help=f"File with defaults of options. Default: {FILE} in this folder.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print only results, warnings and errors.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print more details, with times.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
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
        raise typer.Exit(2)  # as Click does if no command is named


@once
def command_line() -> typer.Typer:
    """Return the command line with the commands of every plugin."""
    from cwm_cli.registry import plugins as load

    found = load()
    found.manager.hook.cwm_commands(app=app, api=shared)
    panels = {name: panel for panel, names in COMMAND_PANELS.items() for name in names}
    entries: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for command in entries:
        if panel := panels.get(str(command.name)):
            command.rich_help_panel = panel
        elif not isinstance(command.rich_help_panel, str):
            command.rich_help_panel = OTHER_COMMANDS
    for warning in () if is_completing() else found.warnings:
        complain(warning, kind="Warning")
    return app


def main() -> None:
    """Run the command line."""
    if sys.platform == "win32":  # there is no fcntl and no fork
        error = CwmError(
            "cwm does not run on Windows itself: use WSL2 or the container (docs/docker.md)"
        )
        sys.exit(f"Error: {error}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # replace characters that the terminal lacks
            stream.reconfigure(errors="replace")
    try:
        with boundary(), bash_words():
            if "--verbose" in sys.argv:  # a plugin may fail before the options are read
                speak("verbose")
            command_line()()
    except typer.Exit as end:  # raised before there was a command
        sys.exit(end.exit_code)
