"""Names of observation components, read from the tables of a description."""

from collections.abc import Iterator

from cwm_cli.data.spaces import Space
from cwm_cli.text import clean

LONGEST_NAME = 40


def documented_names(description: str, space: Space) -> tuple[str, ...]:
    """Return the name of each component as a table of the description has it, or nothing.

    Gymnasium describes a flat observation by a table whose first column
    counts the components and whose second names them.
    """
    if len(space.shape) != 1:
        return ()
    numbers = [str(index) for index in range(space.size)]
    for header, *rows in _tables(description):
        counted = [row for row in rows if len(row) > 1 and row[0].isdecimal()]
        if "observation" in " ".join(header).lower() and [row[0] for row in counted] == numbers:
            return tuple(clean(row[1], limit=LONGEST_NAME) for row in counted)
    return ()


def _tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the cells of each run of lines that begin with a bar."""
    table: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.strip().startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif table:
            yield table
            table = []
