"""The output of `cwm doctor`: the protection of a machine, its extras and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cwm_cli.sandbox.protection import ALL_GAPS, GAPS, Protection
from cwm_cli.text import clean

BLOCKED, OPEN, ACCEPTED = "blocked", "OPEN", "accepted"
STYLES = {BLOCKED: "green", OPEN: "bold red", ACCEPTED: "bold yellow"}


def doctor_report(
    protection: Protection,
    facts: Mapping[str, Any],
    extras: Mapping[str, str],
    defaults: Mapping[str, str],
    variable: str,
) -> Iterator[RenderableType]:
    """Yield the report of `cwm doctor`."""
    yield Text("A test program ran in the sandbox. It tried to ...", style="bold")
    attempts = []
    for name, blocked in protection.blocked.items():
        verdict = BLOCKED if blocked else ACCEPTED if name in protection.accepted else OPEN
        attempts.append((name, Text(verdict, style=STYLES[verdict]), GAPS[name].danger))
    yield _indented_table(attempts)
    memory = facts["memory_mb"]
    machine = {
        "kernel": f"{protection.kernel}, {protection.machine}",
        "Landlock": f"version {protection.landlock}" if protection.landlock else "none",
        "Python": protection.python,
        "user": protection.user,
        "cores": facts["cores"] or "unknown",
        "memory": f"{memory / 1024:.1f} GiB" if memory else "unknown",
    }
    models = {
        "keys": ", ".join(facts["keys"]) or "none (variables that end in _API_KEY)",
        "CWM_MODEL": facts["model"] or "not set",
    }
    yield from _section("Guards", protection.layers)
    yield from conclusion(protection, variable)
    yield from _section("Machine", machine)
    yield from _section("Extras", extras)
    yield from _section("Language models", models)
    yield from _section("Defaults of options", defaults)


def conclusion(protection: Protection, variable: str) -> Iterator[RenderableType]:
    """Summarise the attempts and list the remedies; the environment `variable` accepts gaps."""
    gaps, count = protection.gaps, len(protection.blocked)
    if not gaps:
        yield Text(f"\nNo gaps: all {count} attempts were blocked.", style="bold green")
        return
    yield Text(
        f"\n{len(gaps)} of {count} attempts succeeded. To close these gaps:", style="bold red"
    )
    by_remedy: dict[str, list[str]] = {}
    for name in gaps:
        by_remedy.setdefault(GAPS[name].remedy, []).append(name)
    for remedy, names in by_remedy.items():
        yield Padding(Text(f"{', '.join(names)}:"), (0, 0, 0, 2), expand=False)
        yield Padding(Text(remedy), (0, 0, 0, 4), expand=False)
    accepted = [name for name in gaps if name in protection.accepted]
    if accepted == gaps:
        yield Text(f"\n{variable} accepts these gaps: generated programs run here.")
        return
    yield Text(
        "\nOr run cwm in its container (docs/docker.md). To run generated programs here with these "
        f"gaps open: --allow-gap {ALL_GAPS} (or {variable}={ALL_GAPS}) accepts all gaps, "
        "--allow-gap NAME one."
    )


def _section(title: str, rows: Mapping[str, object]) -> Iterator[RenderableType]:
    """List names and values; control characters in foreign text are removed."""
    yield Text(f"\n{title}", style="bold")
    yield _indented_table([(clean(name), Text(clean(str(rows[name])))) for name in rows])


def _indented_table(rows: Sequence[Sequence[RenderableType]]) -> Padding:
    """Return a table without lines; only its last column wraps."""
    table = Table.grid(padding=(0, 2))
    columns = len(rows[0]) if rows else 1
    for number in range(1, columns + 1):
        table.add_column(no_wrap=number < columns)
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 2), expand=False)
