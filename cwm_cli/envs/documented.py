"""Names of observation components and actions in the documentation of an environment.

Gymnasium describes a flat observation by a table: the first column has the numbers of the
components, the second their names. MuJoCo environments also have a list of parts with sizes.
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
    r"^\s*[-*]\s+\*(?P<name>[\w()]+) \((?P<size>\d+) elements?\b[^)]*\):\*(?P<text>.*)"
)
"""A part of an observation in a list: `- *qvel (9 elements):* The velocities of ...`."""


class DocumentedPart(NamedTuple):
    """A named part of an observation: its components by number, and its description."""

    name: str
    numbers: tuple[int, ...]
    description: str


def documented_names(description: str, space: Space) -> tuple[str, ...]:
    """Return the names of all components from a table of the description, or ()."""
    if len(space.shape) != 1:
        return ()
    rows = _components(description.splitlines(), space.size)
    if len(rows) != space.size:
        return ()
    return tuple(clean(cells[1], limit=LONGEST_NAME) for _, cells in rows)


def documented_parts(description: str, size: int) -> list[DocumentedPart]:
    """Return the parts of a flat observation of `size` components that a description names.

    The parts are the rows of its table, which may lack the last components, and the items of its
    list, if the list is complete.
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
            parts.append(DocumentedPart(found["name"], numbers, found["text"]))
    return parts


def without_components(description: str, size: int, numbers: Collection[int]) -> str:
    """Remove the rows of some components from the table, and renumber the remaining ones."""
    lines: list[str | None] = list(description.splitlines())
    new_numbers = count()
    for number, (place, _) in enumerate(_components(description.splitlines(), size)):
        kept = number not in numbers
        lines[place] = (
            re.sub(r"\d+", str(next(new_numbers)), lines[place] or "", count=1) if kept else None
        )
    return "\n".join(line for line in lines if line is not None)


def _components(lines: list[str], size: int) -> list[tuple[int, list[str]]]:
    """Return line number and cells of each component, from the table with the most components."""
    # Tables of actions and rewards look the same, apart from the word in the header.
    found: list[list[tuple[int, list[str]]]] = [[]]
    for header, *rows in _tables(lines):
        counted = [row for row in rows if len(row[1]) > 1 and row[1][0].isdecimal()]
        in_order = [cells[0] for _, cells in counted] == [str(n) for n in range(len(counted))]
        if in_order and len(counted) <= size and "observation" in " ".join(header[1]).lower():
            found.append(counted)
    return max(found, key=len)


def _tables(lines: list[str]) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield the tables: line number and cells of successive lines that begin with a bar."""
    table: list[tuple[int, list[str]]] = []
    for place, line in enumerate([*lines, ""]):  # the empty line ends a table on the last line
        if line.strip().startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            table.append((place, cells))
        elif table:
            yield table
            table = []


def documented_actions(description: str, count: int) -> tuple[str, ...]:
    """Return the names of the actions, from a list or a table of the description, or ().

    A list has items such as `- 0: Push cart to the left`; a table has a column Action.
    """
    lines = description.splitlines()
    listed = [re.match(r"^\s*[-*]\s+(\d+)\s*:\s*(.+)", line) for line in lines]
    runs: list[list[str]] = [[]]
    # A list may be interrupted by text and start again: each run counts from 0.
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
