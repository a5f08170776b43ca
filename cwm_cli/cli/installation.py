"""Commands on the installation: `cwm doctor`, `cwm options`, `cwm plugins` and `cwm cache`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from cwm_cli.cli.completion import complete_option_owner
from cwm_cli.cli.shared import (
    ALLOW_GAP,
    JsonOption,
    basic_option,
    console,
    emit,
    emit_json,
    guarded,
    print_parts,
)
from cwm_cli.errors import CwmError
from cwm_cli.text import clean, money

# cwm doctor


def doctor(ctx: typer.Context, json: JsonOption = False) -> None:
    """Check the sandbox, and list extras, keys and defaults.

    A test program in the sandbox tries everything that is forbidden. The exit code is 1 if any
    attempt succeeds, even if the gap is accepted.

    Example: cwm doctor
    """
    from cwm_cli.commands.installation import EXTRAS, machine, provider_keys
    from cwm_cli.sandbox import Sandbox, SandboxError
    from cwm_cli.sandbox.protection import GAPS, check_gaps
    from cwm_cli.views.checkup import doctor_report

    accepted = check_gaps(os.environ.get(ALLOW_GAP, "").split())
    try:
        # all gaps are accepted, so that the sandbox starts and its probe reports each one
        with Sandbox(accepted=GAPS) as sandbox:
            protection = sandbox.protection.accepting(accepted)
    except SandboxError as error:
        raise CwmError(f"the sandbox cannot start ({error}): please report this") from error
    configuration = ctx.obj
    facts = {
        "protection": protection.model_dump(mode="json"),
        "gaps": {name: GAPS[name]._asdict() for name in protection.gaps},
        **machine(),
        "extras": {
            name: {"installed": extra.installed, "install": extra.command}
            for name, extra in EXTRAS.items()
        },
        "keys": provider_keys(),
        "model": os.environ.get("CWM_MODEL") or None,
        "configuration": configuration.as_json(),
    }
    if json:
        emit_json(facts)
    else:
        extras = {name: str(extra) for name, extra in EXTRAS.items()}
        parts = doctor_report(protection, facts, extras, configuration.rows(), ALLOW_GAP)
        print_parts(parts, json=False)
    if protection.gaps:
        raise typer.Exit(1)


# cwm options


def options(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A strategy, backend, refiner, problem, planner, policy, importer, exporter, "
            "trainer or agent; or planning, sandbox, search, training or checkpoint. Default: all.",
            autocompletion=complete_option_owner,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the options that -o KEY=VALUE takes.

    If two parts have an option of the same name, put the kind in front: -o strategy.KEY=VALUE.
    For planners it is the name of the planner (-o mcts.KEY=VALUE), for trainers `model`.

    Example: cwm options gif-mcts
    """
    from rich.table import Table
    from rich.text import Text

    from cwm_cli.commands.option_lists import option_owners

    found = [(each, each.owner.describe_options()) for each in option_owners(name)]
    if json:
        rows = [
            {
                "kind": each.kind,
                "name": each.name,
                **option._asdict(),
                # values of other types, such as paths, are not JSON
                "default": option.default
                if isinstance(option.default, str | int | float | bool | None)
                else str(option.default),
            }
            for each, described in found
            for option in described
        ]
        emit_json({"options": rows})
        return
    out = console(json=False)
    for each, described in found:
        title = each.name if each.name == each.kind else f"{each.kind} {each.name}"
        if not described:
            out.print(Text(f"{title} has no options"))
            continue
        table = Table("option", "type", "default", "meaning", title=title, title_justify="left")
        for option in described:
            default = "none" if option.default is None else str(option.default)
            table.add_row(*map(Text, (option.name, option.type, default, option.meaning)))
        out.print(table)


# cwm plugins


plugins = typer.Typer(invoke_without_command=True)


@plugins.callback()
@guarded
def list_(context: typer.Context, json: JsonOption = False) -> None:
    """List installed plugins and their names, or write one.

    Example: cwm plugins
    """
    if context.invoked_subcommand:
        return
    from rich.table import Table
    from rich.text import Text

    rows = list(_rows())
    if json:
        keys = ("kind", "package", "names")
        found = [(kind, package, list(names)) for kind, package, names in rows]
        typer.echo(dumps([dict(zip(keys, row, strict=True)) for row in found]))
        return
    table = Table("kind", "package", "names", show_lines=True)
    for kind, package, names in rows:
        labels = [f"{name} (= {full})" if name != full else name for name, full in names.items()]
        table.add_row(kind, Text(package), Text(", ".join(labels)))
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
    from cwm_cli.export.plugins import PLUGIN_KINDS, PluginNames, new_plugin

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


def _rows() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the parts of the core and each plugin: kind, package, and full names by name."""
    from inspect import signature

    from cwm_cli import registry
    from cwm_cli.cli import shared

    for kind in registry.extension_points():
        for plugin, entries in registry.iterate_parts(kind):
            full_names = {name: registry.without_alias(entries, name) for name in sorted(entries)}
            yield kind, f"{plugin.package} ({plugin.name})", full_names
    for plugin in registry.plugins().loaded:
        if hook := getattr(plugin.module, "cwm_commands", None):
            app = typer.Typer()
            given: dict[str, object] = {"app": app, "api": shared}
            hook(**{name: given[name] for name in signature(hook).parameters})
            names = [command.name or "" for command in app.registered_commands]
            yield (
                "command",
                f"{plugin.package} ({plugin.name})",
                dict(zip(names, names, strict=True)),
            )


# cwm cache


def cache(
    clear: Annotated[bool, basic_option("--clear", help="Remove all completions.")] = False,
    gigabytes: Annotated[
        float | None,
        basic_option(
            "--gigabytes",
            min=0.0,
            help="Set the maximum size, at first 1 GB; the least recently used are removed.",
        ),
    ] = None,
    days: Annotated[
        float | None,
        basic_option("--days", min=0.0, help="Set the maximum age, at first 90 days."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show or limit the cache of completions.

    Commands with --cache keep completions there. The cache stores completions in plain text,
    readable only by you, and only hashes of prompts.

    Example: cwm cache --gigabytes 5
    """
    from cwm_cli.search.answers import AnswerCache

    answers = AnswerCache()
    if clear:
        answers.clear()
    if gigabytes is not None or days is not None:
        answers.limit(gigabytes, days)
    found = answers.summary()
    if json:
        emit(found.as_json(), json=True)
        return
    saved = money(found.saved)
    if found.unpriced:
        saved += f", and the unknown cost of {found.unpriced:,} completions"
    facts = {
        "file": found.file,
        "completions": f"{found.entries:,}",
        "size": f"{found.bytes / 1e6:,.1f} MB of {found.gigabytes:g} GB",
        "maximum age": f"{found.days:g} days",
        "reused": f"{found.reused:,} times",
        "saved": saved,
    }
    emit(facts, json=False)
