"""`cwm options`: what `-o` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cwm_cli.cli.shared import JsonOption, console, emit_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cwm_cli.registry import Option, Owner


class NamedOwner(NamedTuple):
    """Something with options, by kind and name."""

    kind: str
    name: str
    owner: Owner


def options(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A strategy, backend, refiner, problem, planner, policy, importer, "
            "exporter, trainer, agent, `planning`, `sandbox`, `search`, `training` or "
            "`checkpoint`; else all.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List what -o KEY=VALUE takes, with types, defaults and meanings.

    Where two of them have an option of one name, its kind goes before it, as in
    -o strategy.KEY=VALUE (a planner's own name, as in -o mcts.KEY=VALUE, and `model` before that of
    a trainer).

    Example: cwm options gif-mcts
    """
    found = list(named_owners(name))
    if json:
        emit_json(
            {
                "options": [
                    {"kind": each.kind, "name": each.name, **_plain(option)}
                    for each in found
                    for option in each.owner.described()
                ]
            }
        )
        return
    _draw(found)


def named_owners(name: str | None, kind: str | None = None) -> Iterator[NamedOwner]:
    """Yield what is called by a name, or all that has options, or all of a kind."""
    from cwm_cli import registry
    from cwm_cli.commands.unasked import SearchOptions
    from cwm_cli.errors import UnknownNameError
    from cwm_cli.sandbox import Limits
    from cwm_cli.worlds.doubt import Doubt

    known = {
        each: registry.names(each)
        for each, point in registry.extension_points().items()
        if point.has_options and kind in (None, each)
    }
    others = {
        "planning": Doubt,
        "sandbox": Limits,
        "search": SearchOptions,
        **registry.option_groups(),
    }
    others = {one: factory for one, factory in others.items() if kind in (None, one)}
    wanted = [(each, n) for each, names in known.items() for n in names if name in (None, n)]
    for each, one in wanted:
        yield NamedOwner(each, one, registry.Owner(each, registry.find(each, one)))
    for one, factory in others.items():
        if name in (None, one):
            yield NamedOwner(one, one, registry.Owner(one, factory))
    if name is not None and not wanted and name not in others:
        every = [*others, *(n for names in known.values() for n in names)]
        raise UnknownNameError("name", name, every)


def _plain(option: Option) -> dict[str, object]:
    """Return an option in plain data."""
    plain = isinstance(option.default, str | int | float | bool | None)
    return option._asdict() | {"default": option.default if plain else str(option.default)}


def _draw(found: list[NamedOwner]) -> None:
    """Print a table for each."""
    from rich.table import Table
    from rich.text import Text

    out = console(json=False)
    for kind, name, owner in found:
        rows = owner.described()
        title = name if name == kind else f"{kind} {name}"
        if not rows:
            out.print(Text(f"{title} has no options"))
            continue
        table = Table("option", "type", "default", "meaning", title=title, title_justify="left")
        for option in rows:
            default = "none" if option.default is None else str(option.default)
            cells = (option.name, option.type, default, option.meaning)
            table.add_row(*(Text(cell) for cell in cells))
        out.print(table)
