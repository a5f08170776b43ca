"""The journal of a run, with one JSON record per line; unusable lines are skipped."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from cwm_cli.data.reading import UnreadableError, read_lines
from cwm_cli.runs.files import parse_model
from cwm_cli.runs.places import named

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R", bound=BaseModel)

ROWS_FILE = r"^rows-([0-9]{1,9})\.npz$"
"""Name of a file of added rows, with its number."""


class RowsAdded(BaseModel):
    """A journal line about rows that were added to the dataset, in a file of their own."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["rows"] = "rows"
    file: str = Field(pattern=ROWS_FILE)
    count: int
    digest: str

    @property
    def number(self) -> int:
        """The number of the file, counted from 1."""
        return int(self.file[len("rows-") : -len(".npz")])


class Journal(NamedTuple, Generic[R]):
    """The readable lines of a journal, and the numbers of the skipped lines, counted from 1."""

    file: Path
    events: Sequence[R | RowsAdded]
    left_out: Sequence[int]

    @property
    def damage(self) -> str:
        """Return one line on skipped lines, "" if there are none."""
        if not self.left_out:
            return ""
        count, whole = len(self.left_out), len(self.events) + len(self.left_out)
        lines = f"{count} of the {whole} lines of {named(self.file)}"
        return f"{lines} cannot be used (the first is line {self.left_out[0]}) and were skipped"


def read_journal(
    file: Path,
    record: Any,
    connected: Callable[[Iterable[M | RowsAdded | None]], Iterable[M | RowsAdded | None]] = iter,
) -> Journal[M]:
    """Read the lines of a journal, without an incomplete last line.

    Args:
        file: The journal; a missing file has no lines.
        record: Model of the lines, or a union of models.
        connected: Filter as in `Run.connected`.

    Raises:
        UnreadableError: The file cannot be read.
    """
    try:
        events = list(connected(_line(line, record) for line in read_lines(file)))
    except UnreadableError as error:
        if not error.is_missing:
            raise UnreadableError(file, error.reason, "restore it or choose another run") from error
        events = []
    left_out = [number for number, event in enumerate(events, start=1) if event is None]
    return Journal(file, [event for event in events if event is not None], left_out)


def _line(line: bytes, record: Any) -> Any:
    rows = line.startswith(b'{"kind":"rows"')
    for model in (RowsAdded,) if rows else get_args(record) or (record,):
        with suppress(ValueError):
            return parse_model(model, line)
    return None


def complete_length(journal: IO[bytes]) -> int:
    """Return the length of a journal up to the end of its last complete line."""
    size = journal.seek(0, os.SEEK_END)
    while size > 0:
        start = max(0, size - 65536)
        journal.seek(start)
        newline = journal.read(size - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0
