"""What the documentation of an environment says of the components of its observation.

Gymnasium describes a flat observation by a table whose first column counts the components and
whose second names them, and MuJoCo's environments by a list of parts with their sizes as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import accumulate, count
from typing import TYPE_CHECKING, NamedTuple

from cwm_cli.text import clean

if TYPE_CHECKING:
    from cwm_cli.data.spaces import Space

LONGEST_NAME = 40

_PART = re.compile(
    r"^\s*[-*]\s+\*(?P<name>[\w()]+) \((?P<size>\d+) elements?\b[^)]*\):\*(?P<says>.*)"
)
"""A part of an observation in a list: `- *qvel (9 elements):* The velocities of ...`."""


class DocumentedPart(NamedTuple):
    """Components of an observation by number: what they are called, and all that is said there."""

    name: str
    numbers: tuple[int, ...]
    says: str


def documented_names(description: str, space: Space) -> tuple[str, ...]:
    """Return the name of each component as a table of the description has it, or nothing."""
    if len(space.shape) != 1:
        return ()
    rows = _components(description.splitlines(), space.size)
    if len(rows) != space.size:
        return ()
    return tuple(clean(cells[1], limit=LONGEST_NAME) for _, cells in rows)


def documented_parts(description: str, size: int) -> list[DocumentedPart]:
    """Return what a description tells apart in a flat observation of so many components.

    That is the rows of its table, which may leave out the last components, and the items of its
    list, if these are all.
    """
    lines = description.splitlines()
    rows = _components(lines, size)
    parts = [
        DocumentedPart(clean(cells[1]), (number,), " ".join(cells))
        for number, (_, cells) in enumerate(rows)
    ]
    listed = [found for found in map(_PART.match, lines) if found]
    ends = list(accumulate(int(found["size"]) for found in listed))
    if ends and ends[-1] == size:
        for found, end in zip(listed, ends, strict=True):
            numbers = tuple(range(end - int(found["size"]), end))
            parts.append(DocumentedPart(found["name"], numbers, found["says"]))
    return parts


def without_components(description: str, size: int, numbers: Collection[int]) -> str:
    """Leave the rows of some components out of the table, and count the others anew."""
    lines: list[str | None] = list(description.splitlines())
    left = count()
    for number, (place, _) in enumerate(_components(description.splitlines(), size)):
        kept = number not in numbers
        lines[place] = (
            re.sub(r"\d+", str(next(left)), lines[place] or "", count=1) if kept else None
        )
    return "\n".join(line for line in lines if line is not None)


def _components(lines: list[str], size: int) -> list[tuple[int, list[str]]]:
    """Return the line and the cells of each component, from the table that counts most of them."""
    found: list[list[tuple[int, list[str]]]] = [[]]
    for header, *rows in _tables(lines):
        counted = [row for row in rows if len(row[1]) > 1 and row[1][0].isdecimal()]
        in_order = [cells[0] for _, cells in counted] == [str(n) for n in range(len(counted))]
        if in_order and len(counted) <= size and "observation" in " ".join(header[1]).lower():
            found.append(counted)
    return max(found, key=len)


def _tables(lines: list[str]) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield the lines, with their cells, of each run of lines that begin with a bar."""
    table: list[tuple[int, list[str]]] = []
    for place, line in enumerate([*lines, ""]):
        if line.strip().startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            table.append((place, cells))
        elif table:
            yield table
            table = []


def documented_actions(description: str, count: int) -> tuple[str, ...]:
    """Return what actions are called, as a list or a table of a description has it, or nothing.

    That is `- 0: Push cart to the left`, and so on, or a table that is headed Action.
    """
    lines = description.splitlines()
    listed = [re.match(r"^\s*[-*]\s+(\d+)\s*:\s*(.+)", line) for line in lines]
    runs: list[list[str]] = [[]]
    for found in listed:
        if found and int(found[1]) == len(runs[-1]):
            runs[-1].append(found[2])
        elif found or runs[-1]:
            runs.append([found[2]] if found and found[1] == "0" else [])
    for header, *rows in _tables(lines):
        if any(cell.lower() == "action" for cell in header[1]):
            cells = [row[1:] for _, row in rows if row[0].isdecimal()]
            runs.append([row[0] for row in cells if row])
    named = next((run for run in runs if len(run) == count), [])
    return tuple(clean(name, limit=LONGEST_NAME) for name in named)
