"""Forty kinds of damage to a CSV file, with the expected result of an import.

- "equal": the same rows as the source, because the damage concerns the notation only.
- "partial": most rows are usable; the importer reports the damaged ones and leaves them out.
- "error": there are no usable rows, and the importer stops with one line.
- "either": one line or a usable result.
"""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np

Expected = Literal["equal", "partial", "error", "either"]
Rng = np.random.Generator

DAMAGED_SHARE = 0.03
"""Share of the cells or rows that scattered damage affects."""

TIME_NAMES = ("time", "timestamp", "date", "week", "minute", "day")


@dataclass
class Table:
    """The text cells of a CSV file; a damage changes its own copy in place."""

    header: list[str]
    rows: list[list[str]]

    def numeric_columns(self) -> list[int]:
        """Return the indices of columns whose first cell is a number."""
        return [index for index, cell in enumerate(self.rows[0]) if _is_number(cell)]

    def decimal_columns(self) -> list[int]:
        """Return the numeric columns with a decimal point, or all numeric ones."""
        numeric = self.numeric_columns()
        return [index for index in numeric if "." in self.rows[0][index]] or numeric

    def measured_column(self) -> int:
        """Return the index of the first decimal column that is not the time."""
        measured = [i for i in self.decimal_columns() if self.header[i] not in TIME_NAMES]
        return measured[0]

    def insert(self, name: str, cells: list[str], index: int = 0) -> None:
        """Insert a column."""
        self.header.insert(index, name)
        for row, cell in zip(self.rows, cells, strict=True):
            row.insert(index, cell)

    def time_column(self) -> int:
        """Return the index of the time column; insert one with seconds if needed."""
        for name in TIME_NAMES:
            if name in self.header:
                return self.header.index(name)
        self.insert("time", [str(row) for row in range(len(self.rows))])
        return 0

    def damaged_rows(self, rng: Rng) -> list[int]:
        """Return a few random row numbers in order."""
        count = max(1, round(DAMAGED_SHARE * len(self.rows)))
        return sorted(rng.choice(len(self.rows), count, replace=False).tolist())

    def text(self, delimiter: str = ",", line_end: str = "\n", header: bool = True) -> str:
        """Return the table as CSV text."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator=line_end)
        if header:
            writer.writerow(self.header)
        writer.writerows(self.rows)
        return buffer.getvalue()

    def replace_cells(self, columns: list[int], words: list[str], rng: Rng) -> None:
        """Replace scattered cells of the columns with random words."""
        for column in columns:
            for row in self.damaged_rows(rng):
                self.rows[row][column] = str(rng.choice(words))

    def change_columns(self, columns: list[int], change: Callable[[str], str]) -> None:
        """Apply a function to all cells of the columns."""
        for row in self.rows:
            for column in columns:
                row[column] = change(row[column])


@dataclass(frozen=True)
class Mutilation:
    """One kind of damage.

    Attributes:
        name: Start of the file name.
        description: One line about the damage.
        expected: Expected result of the import, see the module docstring.
        damage: Function of a table and a generator that returns the file's content.
    """

    name: str
    description: str
    expected: Expected
    damage: Callable[[Table, Rng], str | bytes]


MUTILATIONS: dict[str, Mutilation] = {}

Damage = Callable[[Table, Rng], str | bytes]


def mutilation(description: str, expected: Expected) -> Callable[[Damage], Damage]:
    """Register a damage under the name of its function, without the underscore."""

    def register(damage: Damage) -> Damage:
        name = damage.__name__.removeprefix("_")
        MUTILATIONS[name] = Mutilation(name, description, expected, damage)
        return damage

    return register


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@mutilation("3 % of the cells of each column are blank", "partial")
def _blank_cells(table: Table, rng: Rng) -> str:
    table.replace_cells(list(range(len(table.header))), ["", " "], rng)
    return table.text()


@mutilation("3 % of the cells of each number column hold a word", "partial")
def _text_in_numbers(table: Table, rng: Rng) -> str:
    table.replace_cells(table.numeric_columns(), ["error", "offline", "?", "see note"], rng)
    return table.text()


@mutilation("semicolons separate the fields", "equal")
def _semicolons(table: Table, rng: Rng) -> str:
    return table.text(";")


@mutilation("tabs separate the fields", "equal")
def _tabs(table: Table, rng: Rng) -> str:
    return table.text("\t")


@mutilation("vertical bars separate the fields", "equal")
def _bars(table: Table, rng: Rng) -> str:
    return table.text("|")


@mutilation("decimal commas and semicolons, as in German spreadsheets", "equal")
def _decimal_commas(table: Table, rng: Rng) -> str:
    table.change_columns(table.decimal_columns(), lambda cell: cell.replace(".", ","))
    return table.text(";")


@mutilation("the header line is missing", "either")
def _no_header(table: Table, rng: Rng) -> str:
    return table.text(header=False)


@mutilation("the last two columns have the same name", "either")
def _duplicate_headers(table: Table, rng: Rng) -> str:
    table.header[-1] = table.header[-2]
    return table.text()


@mutilation("3 % of the rows occur twice, one after the other", "partial")
def _duplicated_rows(table: Table, rng: Rng) -> str:
    table.time_column()
    for row in reversed(table.damaged_rows(rng)):
        table.rows.insert(row, list(table.rows[row]))
    return table.text()


@mutilation("3 % of the cells of each number column hold NaN, inf, None and similar", "partial")
def _missing_words(table: Table, rng: Rng) -> str:
    words = ["NaN", "nan", "inf", "-Infinity", "None", "NULL", "N/A", "-"]
    table.replace_cells(table.numeric_columns(), words, rng)
    return table.text()


@mutilation("the timestamps come in five notations", "either")
def _mixed_timestamps(table: Table, rng: Rng) -> str:
    column = table.time_column()
    formats = [
        "%Y-%m-%dT%H:%M:%SZ",
        "%d.%m.%Y %H:%M:%S",
        "%m/%d/%Y %I:%M:%S %p",
        "%Y%m%d%H%M%S",
        "epoch",
    ]
    start = datetime(2024, 1, 30, 22, 57)
    for number, row in enumerate(table.rows):
        moment = start + timedelta(seconds=60 * number)
        notation = str(rng.choice(formats))
        seconds = (moment - datetime(1970, 1, 1)).total_seconds()
        row[column] = f"{seconds:.0f}" if notation == "epoch" else moment.strftime(notation)
    return table.text()


@mutilation("the rows are in random order; the time column still gives the order", "either")
def _unsorted_time(table: Table, rng: Rng) -> str:
    table.time_column()
    rng.shuffle(table.rows)
    return table.text()


@mutilation("the file has zero bytes", "error")
def _empty_file(table: Table, rng: Rng) -> str:
    return ""


@mutilation("the file has a header and no rows", "error")
def _header_only(table: Table, rng: Rng) -> str:
    return Table(table.header, []).text()


@mutilation("the file has a header and one row, so no transition", "error")
def _single_row(table: Table, rng: Rng) -> str:
    return Table(table.header, table.rows[:1]).text()


@mutilation("the file starts with a UTF-8 byte order mark", "equal")
def _byte_order_mark(table: Table, rng: Rng) -> bytes:
    return table.text().encode("utf-8-sig")


@mutilation("the file is encoded in UTF-16 with a byte order mark", "either")
def _utf16(table: Table, rng: Rng) -> bytes:
    return table.text().encode("utf-16")


@mutilation("the lines end with carriage return and line feed", "equal")
def _windows_line_ends(table: Table, rng: Rng) -> str:
    return table.text(line_end="\r\n")


@mutilation("a note column with quotes, separators and line breaks inside fields", "equal")
def _quoted_fields(table: Table, rng: Rng) -> str:
    notes = ["checked, fine", 'he said "stop"', "first line\nsecond line; a,b", ""]
    table.insert("note", [str(rng.choice(notes)) for _ in table.rows], len(table.header))
    return table.text()


@mutilation("3 % of the rows have one to three additional fields", "partial")
def _extra_fields(table: Table, rng: Rng) -> str:
    for row in table.damaged_rows(rng):
        table.rows[row] += ["7.3"] * int(rng.integers(1, 4))
    return table.text()


@mutilation("3 % of the rows lack their last one or two fields", "partial")
def _missing_fields(table: Table, rng: Rng) -> str:
    for row in table.damaged_rows(rng):
        keep = max(1, len(table.header) - int(rng.integers(1, 3)))
        del table.rows[row][keep:]
    return table.text()


@mutilation("two cells hold 200,000 characters each", "partial")
def _very_long_cells(table: Table, rng: Rng) -> str:
    for row in rng.choice(len(table.rows), 2, replace=False):
        table.rows[row][-1] = "x" * 200_000
    return table.text()


@mutilation("the middle of the file holds 3,000 random bytes, also zero bytes", "either")
def _binary_junk(table: Table, rng: Rng) -> bytes:
    content = table.text().encode()
    middle = len(content) // 2
    return content[:middle] + b"\0" + rng.bytes(3000) + content[middle:]


@mutilation("an additional column has the same number in all rows", "equal")
def _constant_column(table: Table, rng: Rng) -> str:
    table.insert("device_id", ["4711"] * len(table.rows))
    return table.text()


@mutilation("all cells of an additional column are blank", "equal")
def _missing_column(table: Table, rng: Rng) -> str:
    table.insert("humidity", [""] * len(table.rows), 1)
    return table.text()


@mutilation("four comment lines come before the header", "equal")
def _leading_comments(table: Table, rng: Rng) -> str:
    lines = ["# Data logger 3.1", "# site: north hall, unit 7", "#", "# UTC+1; no calibration"]
    return "\n".join([*lines, table.text()])


@mutilation("all lines, also the header, end with a comma", "equal")
def _trailing_commas(table: Table, rng: Rng) -> str:
    return "".join(f"{line},\n" for line in table.text().splitlines())


@mutilation("spaces surround the names and the cells", "equal")
def _surrounding_spaces(table: Table, rng: Rng) -> str:
    table.header = [f" {name}  " for name in table.header]
    table.change_columns(list(range(len(table.header))), lambda cell: f"  {cell} ")
    return table.text()


@mutilation("the names hold umlauts, Greek and Chinese letters and an emoji", "equal")
def _unicode_names(table: Table, rng: Rng) -> str:
    prefixes = ["Füllhöhe", "θ°", "温度", "🚦", "x²", "été"]
    for index, name in enumerate(table.header):
        table.header[index] = f"{prefixes[index % len(prefixes)]} {name}"
    return table.text()


@mutilation("one line in the middle has 10,000 fields", "partial")
def _ten_thousand_fields(table: Table, rng: Rng) -> str:
    table.rows[len(table.rows) // 2] = ["1"] * 10_000
    return table.text()


@mutilation("a boolean column mixes true, False, YES, no, 1, 0, on and off", "equal")
def _mixed_booleans(table: Table, rng: Rng) -> str:
    words = {"true": ["true", "TRUE", "YES", "1", "on"], "false": ["False", "no", "0", "off"]}
    booleans = [i for i, cell in enumerate(table.rows[0]) if cell in words]
    if not booleans:
        cells = [str(rng.choice(["true", "false"])) for _ in table.rows]
        table.insert("ventilator", cells, len(table.header))
        booleans = [len(table.header) - 1]
    table.change_columns(booleans, lambda cell: str(rng.choice(words[cell])))
    return table.text()


@mutilation("the numbers of one column end with a percent sign (factor 1 or 1/100)", "equal")
def _percent_signs(table: Table, rng: Rng) -> str:
    table.change_columns([table.measured_column()], lambda cell: f"{cell}%")
    return table.text()


@mutilation("one number column is multiplied by 10,000 and has thousands separators", "equal")
def _thousands_separators(table: Table, rng: Rng) -> str:
    table.change_columns([table.measured_column()], lambda cell: f"{float(cell) * 1e4:,.2f}")
    return table.text()


@mutilation("the numbers of one column carry a unit", "either")
def _units_in_cells(table: Table, rng: Rng) -> str:
    table.change_columns([table.measured_column()], lambda cell: f"{cell} kW")
    return table.text()


@mutilation("some numbers are huge (1e300) or tiny (1e-300), some overflow (1e999)", "partial")
def _huge_and_tiny(table: Table, rng: Rng) -> str:
    words = ["1e300", "-1e300", "1e-300", "1e999", "9" * 40]
    table.replace_cells(table.decimal_columns(), words, rng)
    return table.text()


@mutilation("the time column repeats the same value in the second half", "either")
def _constant_time(table: Table, rng: Rng) -> str:
    column = table.time_column()
    half = len(table.rows) // 2
    for row in table.rows[half:]:
        row[column] = table.rows[half][column]
    return table.text()


@mutilation("the episode column holds names instead of numbers", "equal")
def _episode_names(table: Table, rng: Rng) -> str:
    words = ["alpha", "beta 2", "Γ-run", "07", "1e5", "no. 6", "true", "zeta"]
    for name in ("episode", "trip", "run", "day"):
        if name in table.header and (name != "day" or "minute" in table.header):
            table.change_columns([table.header.index(name)], lambda cell: f"run-{cell}b")
            return table.text()
    block = -(-len(table.rows) // len(words))
    table.insert("episode", [words[row // block] for row in range(len(table.rows))])
    return table.text()


@mutilation("a quote opens in the middle of the file and never closes", "either")
def _unclosed_quote(table: Table, rng: Rng) -> str:
    lines = table.text().splitlines()
    middle = len(lines) // 2
    lines[middle] = '"' + lines[middle]
    return "\n".join(lines) + "\n"


@mutilation("two files in one: blank lines and the header occur again in the middle", "partial")
def _repeated_header(table: Table, rng: Rng) -> str:
    half = len(table.rows) // 2
    parts = [Table(table.header, rows).text() for rows in (table.rows[:half], table.rows[half:])]
    return "\n\n\n".join(parts)


@mutilation("the file ends in the middle of a row, after 60 % of its bytes", "partial")
def _cut_off(table: Table, rng: Rng) -> str:
    text = table.text()
    cut = text[: round(0.6 * len(text))]
    return cut.rstrip("\n")[:-2]


def damaged(name: str, table: Table) -> bytes:
    """Return the content of a CSV file with one kind of damage."""
    number = list(MUTILATIONS).index(name)
    copy = Table(list(table.header), [list(row) for row in table.rows])
    content = MUTILATIONS[name].damage(copy, np.random.default_rng([1, number]))
    return content.encode() if isinstance(content, str) else content
