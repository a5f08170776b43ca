"""Files of a run: JSON files, and the journal with one JSON record per line.

JSON files are read with one-line errors and written atomically. Unusable lines of a journal are
skipped.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError

from cwm_cli.data.reading import (
    LARGEST_TEXT,
    UnreadableError,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
)
from cwm_cli.errors import CwmError
from cwm_cli.runs.storage import named
from cwm_cli.text import clean

M = TypeVar("M", bound=BaseModel)


def read_header(file: Path, header: type[M], missing: str) -> M:
    """Read the file that identifies a folder.

    Raises:
        CwmError: The file is missing (with the message `missing`) or cannot be read.
    """
    try:
        return parse_model(header, read_bytes(file, LARGEST_TEXT))
    except UnreadableError as error:
        if error.is_missing:
            raise CwmError(missing) from error
        raise UnreadableError(file, error.reason, "choose another --run") from error
    except ValueError as error:
        raise UnreadableError(file, str(error), "choose another --run") from error


def parse_model(model: type[M], content: bytes) -> M:
    """Parse JSON into a model.

    Raises:
        ValueError: The content is wrong; the message is short.
    """
    parse_json(content)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = clean(".".join(map(str, wrong["loc"])), limit=60)
        reasons = {"missing": "is missing", "extra_forbidden": "is unknown in this version"}
        raise ValueError(
            f"{place} {reasons.get(wrong['type'], 'has the wrong type')}"
            if place
            else "it is not a JSON object"
        ) from error


def read_found(file: Path, model: type[M]) -> M | None:
    """Read a result file; return None if it is missing or damaged."""
    try:
        return parse_model(model, read_bytes(file, LARGEST_TEXT))
    except (UnreadableError, ValueError):
        return None


def read_object(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; return None if the file is missing."""
    try:
        found = read_json(file)
        if not isinstance(found, dict):
            raise UnreadableError(file, "it is not a JSON object")
    except UnreadableError as error:
        if error.is_missing:
            return None
        hint = "remove it, or continue the run, which writes it again"
        raise UnreadableError(file, error.reason, hint) from error
    return found


def replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.unlink(missing_ok=True)  # opening a pipe of that name would block
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_object(file: Path, found: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, and create the parent folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, json.dumps(found, indent=2) + "\n")


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested objects: `train.accuracy`; options by their owner, `strategy.depth`."""
    if not isinstance(value, Mapping):
        return {name: value}
    name = "" if name == "options" else name
    parts = ((f"{name}.{key}" if name else str(key), item) for key, item in value.items())
    return {key: leaf for part, item in parts for key, leaf in flat(item, part).items()}


R = TypeVar("R", bound=BaseModel)

ROWS_FILE = r"^rows-([0-9]{1,9})\.npz$"
"""Name of a file of added rows, with its number."""


class RowsAdded(BaseModel, frozen=True):
    """A journal line about rows that were added to the dataset, in a file of their own."""

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
