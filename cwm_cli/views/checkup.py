"""What `cwm doctor` shows: what generated code cannot do on a machine, and what the machine has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cwm_cli.sandbox.protection import GAPS, Protection
from cwm_cli.text import clean

BLOCKED, OPEN, ACCEPTED = "blocked", "OPEN", "accepted"
STYLES = {BLOCKED: "green", OPEN: "bold red", ACCEPTED: "bold yellow"}


def attempts(protection: Protection) -> Iterator[RenderableType]:
    """List what a program tried, and whether it was kept from it."""
    table = _grid(columns=3)
    for name, blocked in protection.blocked.items():
        verdict = BLOCKED if blocked else ACCEPTED if name in protection.accepted else OPEN
        table.add_row(name, Text(verdict, style=STYLES[verdict]), GAPS[name].danger)
    yield Text("A program was let loose here. It tried to ...", style="bold")
    yield _indented(table)


def conclusion(protection: Protection, variable: str) -> Iterator[RenderableType]:
    """Say what the attempts come to, and how to close what is open; `variable` accepts gaps."""
    gaps, count = protection.gaps, len(protection.blocked)
    if not gaps:
        yield Text(f"\nNothing is open: it was kept from all {count}.", style="bold green")
        return
    yield Text(f"\n{len(gaps)} of {count} are open. What closes them:", style="bold red")
    for remedy, names in _remedies(gaps).items():
        yield _indented(Text(f"{', '.join(names)}:"))
        yield _indented(_indented(Text(remedy)))
    yield Text(
        f"\nTo run generated code all the same, accept each gap by its name: --allow-gap {gaps[0]} "
        f"and so on, or all of them in the variable {variable}, a space between any two."
    )


def section(title: str, rows: Mapping[str, object]) -> Iterator[RenderableType]:
    """List names and values; foreign text cannot do more than be read."""
    table = _grid(columns=2)
    for name, value in rows.items():
        table.add_row(clean(name), Text(clean(str(value))))
    yield Text(f"\n{title}", style="bold")
    yield _indented(table)


def _remedies(gaps: Iterable[str]) -> dict[str, list[str]]:
    """Gather the gaps that one thing would close."""
    remedies: dict[str, list[str]] = {}
    for name in gaps:
        remedies.setdefault(GAPS[name].remedy, []).append(name)
    return remedies


def _grid(columns: int) -> Table:
    """Make a table without lines, of which the last column may wrap."""
    table = Table.grid(padding=(0, 2))
    for number in range(1, columns + 1):
        table.add_column(no_wrap=number < columns)
    return table


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)
