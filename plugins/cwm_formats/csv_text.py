"""The rows of a CSV file, including files that a logger or a spreadsheet damaged."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cwm_cli.data.reading import UnreadableError, read_bytes
from cwm_cli.errors import CwmError
from cwm_formats.tables import Cells, ReadTable

MAX_CSV_BYTES = 1 << 28
"""Maximum size of an uncompressed CSV in bytes. As lists of texts it needs ten times the memory."""

MARKS = ",;\t|"


@dataclass
class _Rows:
    """The rows of a file, with the line that each begins on."""

    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    parted: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def read_csv(file: Path, *, damaged: bool = False) -> ReadTable:
    """Return the cells of a CSV file as texts, with the line that each row begins on.

    Args:
        file: A file with a header, which may be packed with gzip.
        damaged: Keep lines with a wrong number of cells as blank rows, and read texts that are
            not UTF-8 as Windows-1252.

    Raises:
        CwmError: The file cannot be read, or has no rows.
    """
    text, notes = _text(file, damaged=damaged)
    mark = _mark(text)
    if mark == " ":  # any number of spaces and tabs
        text = "\n".join(" ".join(line.split()) for line in text.splitlines())
    found = _read_rows(text, mark, file)
    found.notes[:0] = notes
    if found.damaged and not damaged:
        row, reason = next(iter(found.damaged.items()))
        raise CwmError(f"{file}: {reason} (line {found.lines[row]}); correct that line")
    _drop_cut_line(found, text)
    if not found.header or not found.rows:
        what = "has a header but no rows" if found.header else "is empty"
        raise CwmError(f"{file} {what}: there is nothing to import")
    cells: dict[str, Cells] = dict(zip(found.header, zip(*found.rows, strict=True), strict=True))
    lines = found.lines
    return ReadTable(
        str(file),
        cells,
        len(found.rows),
        lambda row: f"line {lines[row]}",
        comma=mark == ";",
        damaged=found.damaged,
        parted=frozenset(found.parted),
        notes=tuple(found.notes),
    )


def _read_rows(text: str, mark: str, file: Path) -> _Rows:
    """Read all lines; a line with a wrong number of cells becomes a blank row."""
    found = _Rows()
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
    width, before, repeated = 0, 0, 0
    try:
        with _long_cells():
            max_lines_of_row = 100  # a row with more lines has a quote without an end
            for row in reader:
                first_line, before = before + 1, reader.line_num
                if before - first_line >= max_lines_of_row:
                    raise CwmError(
                        f"{file}: a quote opens in line {first_line} and does not close: "
                        "correct that line"
                    )
                if not any(cell.strip() for cell in row):
                    continue
                if not found.header:
                    if _is_preamble(row):
                        continue
                    found.header = _header(row, file)
                    width = len(found.header)
                    continue
                names = [cell.strip() for cell in row]
                if names[:width] == found.header and not any(names[width:]):
                    repeated += 1
                    found.parted.add(len(found.rows))
                    continue
                while len(row) > width and not row[-1].strip():
                    row.pop()  # a separator at the end of the line
                found.lines.append(first_line)
                if len(row) != width:
                    reason = f"expected {width} cells, found {len(row)}"
                    if before > first_line:
                        reason += f", in {before - first_line + 1} lines"
                    found.damaged[len(found.rows)] = reason
                    row = [""] * width
                found.rows.append(row)
    except csv.Error as error:
        raise CwmError(f"{file}: {error} (line {reader.line_num}); correct that line") from error
    if repeated:
        lines = "line repeats" if repeated == 1 else "lines repeat"
        found.notes.append(f"{repeated} {lines} the header: left out")
    return found


@contextmanager
def _long_cells() -> Iterator[None]:
    """Allow cells as long as the file, so that a long one is a bad cell of one row."""
    limit = csv.field_size_limit(MAX_CSV_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _is_preamble(row: Sequence[str]) -> bool:
    """Return whether a line before the header is a comment or names the separator (`sep=;`)."""
    first = row[0].strip()
    return first.startswith(("#", "//", "%")) or bool(re.fullmatch(r"sep=.?", first))


def _header(row: list[str], file: Path) -> list[str]:
    """Return the unique column names; a separator at the end of the line names no column."""
    names = [name.strip() for name in row]
    while len(names) > 1 and not names[-1]:
        names.pop()
    refuse_twice(names, file)
    return names


def refuse_twice(names: list[str], file: Path) -> None:
    """Raise an error if two columns have the same name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        words = ", ".join(repr(name) for name in twice[:5])
        if any(name.replace(".", "").isdigit() for name in twice):
            raise CwmError(
                f"{file} has two columns called {words}: if its first line contains values, add a "
                "line with the names of the columns; if not, rename one"
            )
        raise CwmError(f"{file} has two columns called {words}: rename one")


def _drop_cut_line(found: _Rows, text: str) -> None:
    """Leave out a last line that was cut off: it has no line end, and its last cell is unusual."""
    if text.endswith(("\n", "\r")) or len(found.rows) < 3:
        return
    *others, last = found.rows
    row = len(found.rows) - 1
    forms = {_form(each[-1]) for number, each in enumerate(others) if number not in found.damaged}
    if row in found.damaged or (len(forms) <= 30 and _form(last[-1]) not in forms):
        found.rows.pop()
        found.damaged.pop(row, None)
        line = found.lines.pop()
        found.notes.append(f"line {line} is cut off: left out")


def _form(cell: str) -> str:
    """Return how a cell is written: a text itself, or a number's decimals."""
    text = cell.strip()
    number = re.fullmatch(r"[+-]?\d+(?:[.,](\d*))?", text)
    return text if number is None else f"{len(number[1] or '')} decimals"


def _text(file: Path, *, damaged: bool) -> tuple[str, list[str]]:
    """Return the text of a file, decompressed if necessary, and notes on how it was read."""
    try:
        data = read_bytes(file, MAX_CSV_BYTES)
    except UnreadableError as error:
        if error.is_missing:
            raise CwmError(f"there is no {file}: give the path of a table") from error
        raise
    if data.startswith(b"\x1f\x8b"):
        data = _unpacked(data, file)
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    notes = []
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if not damaged or encoding == "utf-16" or b"\0" in data:
            raise CwmError(f"{file} is not UTF-8 text: save it as UTF-8") from error
        text = data.decode("cp1252", "replace")
        notes.append("the text is not UTF-8: read as Windows-1252")
    if "\0" in text:
        raise CwmError(f"{file} is not a text file: give the path of a table")
    return text, notes


def _unpacked(data: bytes, file: Path) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = packed.read(MAX_CSV_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise CwmError(f"{file} is a damaged gzip file: restore it") from error
    if len(unpacked) > MAX_CSV_BYTES:
        raise CwmError(f"{file} unpacks to more than {MAX_CSV_BYTES:,} bytes: import a part of it")
    return unpacked


def _mark(text: str) -> str:
    """Return the cell separator: it gives most lines the same number of cells as the header."""
    sample_lines = 200  # number of lines to guess the cell separator from
    lines = [line for line in text.splitlines()[: sample_lines + 20] if line.strip()]
    sample = [line for line in lines if not _is_preamble([line])][:sample_lines]
    if not sample:
        return ","

    def fitting(mark: str) -> tuple[float, int]:
        try:
            with _long_cells():
                header, *rows = (len(row) for row in csv.reader(sample, delimiter=mark))
        except (csv.Error, ValueError):
            return 0.0, 0
        if header < 2:
            return 0.0, 0
        same = sum(width == header for width in rows)
        return (same / len(rows) if rows else 1.0), header

    fits = {mark: fitting(mark) for mark in MARKS}
    best = max(MARKS, key=fits.__getitem__)
    header, *rows = (len(line.split()) for line in sample)
    same = sum(width == header for width in rows) / max(len(rows), 1)
    # spaces separate cells only if at least this share of the lines has as many words as the
    # header, and no other separator fits more lines
    min_spaced_fraction = 0.95
    is_spaced = fits[best][0] < min_spaced_fraction <= same and header > 1
    return " " if is_spaced and '"' not in text else best
