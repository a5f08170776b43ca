"""The output of `cwm doctor`: the protection of a machine, its extras and keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cwm_cli.sandbox.protection import ALL_GAPS, GAPS, Protection
from cwm_cli.text import clean

BLOCKED, OPEN, ACCEPTED = "blocked", "OPEN", "accepted"
STYLES = {BLOCKED: "green", OPEN: "bold red", ACCEPTED: "bold yellow"}


def attempts(protection: Protection) -> Iterator[RenderableType]:
    """List the attempts of the probe, each with its result."""
    table = _grid(columns=3)
    for name, blocked in protection.blocked.items():
        verdict = BLOCKED if blocked else ACCEPTED if name in protection.accepted else OPEN
        table.add_row(name, Text(verdict, style=STYLES[verdict]), GAPS[name].danger)
    yield Text("A test program ran in the sandbox. It tried to ...", style="bold")
    yield _indented(table)


def conclusion(protection: Protection, variable: str) -> Iterator[RenderableType]:
    """Summarise the attempts and list the remedies; the environment `variable` accepts gaps."""
    gaps, count = protection.gaps, len(protection.blocked)
    if not gaps:
        yield Text(f"\nNo gaps: all {count} attempts were blocked.", style="bold green")
        return
    yield Text(
        f"\n{len(gaps)} of {count} attempts succeeded. To close these gaps:", style="bold red"
    )
    for remedy, names in _remedies(gaps).items():
        yield _indented(Text(f"{', '.join(names)}:"))
        yield _indented(_indented(Text(remedy)))
    accepted = [name for name in gaps if name in protection.accepted]
    if accepted == gaps:
        yield Text(f"\n{variable} accepts these gaps: generated programs run here.")
        return
    yield Text(
        "\nOr run cwm in its container (docs/docker.md). To run generated programs here with these "
        f"gaps open: --allow-gap {ALL_GAPS} (or {variable}={ALL_GAPS}) accepts all gaps, "
        "--allow-gap NAME one."
    )


def section(title: str, rows: Mapping[str, object]) -> Iterator[RenderableType]:
    """List names and values; control characters in foreign text are removed."""
    table = _grid(columns=2)
    for name, value in rows.items():
        table.add_row(clean(name), Text(clean(str(value))))
    yield Text(f"\n{title}", style="bold")
    yield _indented(table)


def _remedies(gaps: Iterable[str]) -> dict[str, list[str]]:
    """Group gaps by the remedy that they share."""
    remedies: dict[str, list[str]] = {}
    for name in gaps:
        remedies.setdefault(GAPS[name].remedy, []).append(name)
    return remedies


def _grid(columns: int) -> Table:
    """Return a table without lines; only its last column wraps."""
    table = Table.grid(padding=(0, 2))
    for number in range(1, columns + 1):
        table.add_column(no_wrap=number < columns)
    return table


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)


def doctor_report(
    protection: Protection,
    facts: Mapping[str, Any],
    extras: Mapping[str, str],
    defaults: Mapping[str, str],
    variable: str,
) -> Iterator[RenderableType]:
    """Yield the report of `cwm doctor`.

    Args:
        protection: The result of the probe in the sandbox.
        facts: The facts that `--json` prints.
        extras: The state of each extra.
        defaults: The values of `cwm.toml`.
        variable: The environment variable that accepts gaps.
    """
    memory = facts["memory_mb"]
    yield from attempts(protection)
    yield from section("Guards", protection.layers)
    yield from conclusion(protection, variable)
    machine = {
        "kernel": f"{protection.kernel}, {protection.machine}",
        "Landlock": f"version {protection.landlock}" if protection.landlock else "none",
        "Python": protection.python,
        "user": protection.user,
        "cores": facts["cores"] or "unknown",
        "memory": f"{memory / 1024:.1f} GiB" if memory else "unknown",
    }
    yield from section("Machine", machine)
    yield from section("Extras", extras)
    models = {
        "keys": ", ".join(facts["keys"]) or "none (variables that end in _API_KEY)",
        "CWM_MODEL": facts["model"] or "not set",
    }
    yield from section("Language models", models)
    yield from section("Defaults of options", defaults)
