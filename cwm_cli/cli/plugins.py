"""`cwm plugins`: list what is installed."""

from collections.abc import Iterator

from cwm_cli.cli.shared import JsonOption


def plugins(json: JsonOption = False) -> None:
    """List what can be named in commands, and the package that each comes from.

    Example: cwm plugins
    """
    import json as jsonlib

    import typer
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


def _rows() -> Iterator[tuple[str, str, list[str]]]:
    """Yield what the core and each plugin provide."""
    from inspect import signature

    import typer

    from cwm_cli import registry
    from cwm_cli.cli import shared

    for kind in registry.HOOKS:
        for plugin, entries in registry.provided(kind):
            yield kind, f"{plugin.package} ({plugin.name})", sorted(entries)
    for plugin in registry.plugins().loaded:
        if hook := getattr(plugin.module, "cwm_commands", None):
            app = typer.Typer()
            given: dict[str, object] = {"app": app, "api": shared}
            hook(**{name: given[name] for name in signature(hook).parameters})
            names = [command.name or "" for command in app.registered_commands]
            yield "command", f"{plugin.package} ({plugin.name})", names
