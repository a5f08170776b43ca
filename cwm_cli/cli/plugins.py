"""`cwm plugins`: list what is installed."""

from collections.abc import Iterator

from cwm_cli.cli.options import JsonOption


def plugins(json: JsonOption = False) -> None:
    """List environments, backends, strategies and commands, and the package each comes from.

    Example: cwm plugins
    """
    import json as jsonlib

    import typer
    from rich.table import Table
    from rich.text import Text

    from cwm_cli.cli.output import console

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
    """Yield what each plugin provides; two that clash are refused."""
    import typer

    from cwm_cli import registry
    from cwm_cli.errors import CwmError

    for kind in registry.HOOKS:
        owners: dict[str, str] = {}
        for plugin, entries in registry.provided(kind):
            names = sorted(entries)
            for name in names:
                other = owners.setdefault(name, plugin.package)
                if other != plugin.package:
                    raise CwmError(
                        f"{other} and {plugin.package} both provide the {kind} {name!r}: "
                        "uninstall one of them"
                    )
            yield kind, f"{plugin.package} ({plugin.name})", names
    for plugin in registry.plugins().loaded:
        if hook := getattr(plugin.module, "cwm_commands", None):
            hook(added := typer.Typer())
            names = [command.name or "" for command in added.registered_commands]
            yield "command", f"{plugin.package} ({plugin.name})", names
