"""`cwm options`: the options that `-o` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cwm_cli.cli.completion import complete_option_owner
from cwm_cli.cli.shared import JsonOption, console, emit_json

if TYPE_CHECKING:
    from cwm_cli.registry import Option


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
            {"kind": each.kind, "name": each.name, **_json(option)}
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


def _json(option: Option) -> dict[str, object]:
    plain = isinstance(option.default, str | int | float | bool | None)
    return option._asdict() | {"default": option.default if plain else str(option.default)}
