"""`cwm plugins`: list the installed plugins, and write a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.shared import JsonOption, basic_option, guarded

plugins = typer.Typer(invoke_without_command=True)


@plugins.callback()
@guarded
def list_(context: typer.Context, json: JsonOption = False) -> None:
    """List installed plugins and their names, or write one.

    Example: cwm plugins
    """
    if context.invoked_subcommand:
        return
    import json as jsonlib

    from rich.table import Table
    from rich.text import Text

    from cwm_cli.cli.shared import console

    rows = list(_rows())
    if json:
        keys = ("kind", "package", "names")
        typer.echo(jsonlib.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return
    table = Table("kind", "package", "names", show_lines=True)
    for kind, package, names in rows:
        table.add_row(kind, Text(package), Text(", ".join(names)))
    console(json=False).print(table)


KindOption = Annotated[
    list[str],
    basic_option(
        "--kind",
        metavar="KIND",
        help="Kind of plugin, given once: environment, backend, strategy, planner, world-model, "
        "policy or command.",
    ),
]
OutOption = Annotated[
    Path | None,
    basic_option("--out", metavar="DIR", help="Output folder. Default: the name."),
]


@plugins.command("new")
@guarded
def new(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the package, e.g. cwm-maze.")],
    kinds: KindOption,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Write the package of a new plugin, ready to run.

    Example: cwm plugins new cwm-maze --kind environment
    """
    from cwm_cli.cli.shared import emit_json
    from cwm_cli.errors import CwmError
    from cwm_cli.export.plugins import PLUGIN_KINDS, PluginNames, new_plugin
    from cwm_cli.text import clean

    if len(kinds) != 1:
        raise CwmError(
            f"a package is written for one kind: give --kind once, {', '.join(PLUGIN_KINDS)}"
        )
    (kind,) = kinds
    known = getattr(context.find_root().command, "commands", ())
    if kind == "command" and (taken := PluginNames.of(name, kind).short) in known:
        raise CwmError(f"there is a command {taken!r} already: choose another name")
    made = new_plugin(name, kind, out=out)
    if json:
        emit_json(made.as_json())
        return
    typer.echo(f"written  {clean(str(made.folder))}: {PLUGIN_KINDS[kind].about}")
    for label, command in zip(("install", "test", "use"), made.commands, strict=True):
        typer.echo(f"{label:<7}  {clean(command)}")


def _rows() -> Iterator[tuple[str, str, list[str]]]:
    """Yield what the core and each plugin provide."""
    from inspect import signature

    from cwm_cli import registry
    from cwm_cli.cli import shared

    for kind in registry.extension_points():
        for plugin, entries in registry.iterate_parts(kind):
            yield kind, f"{plugin.package} ({plugin.name})", sorted(entries)
    for plugin in registry.plugins().loaded:
        if hook := getattr(plugin.module, "cwm_commands", None):
            app = typer.Typer()
            given: dict[str, object] = {"app": app, "api": shared}
            hook(**{name: given[name] for name in signature(hook).parameters})
            names = [command.name or "" for command in app.registered_commands]
            yield "command", f"{plugin.package} ({plugin.name})", names
