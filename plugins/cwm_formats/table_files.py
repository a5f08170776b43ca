"""Tables in files: CSV, which may be compressed with gzip, and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cwm_cli.commands.data import (
    Exporter,
    Importer,
    Origin,
    TableColumns,
    TransitionShape,
    written_whole,
)
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import parse_json, read_json, read_text
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError, install_command
from cwm_cli.runs.observer import Observer
from cwm_cli.text import clean
from cwm_formats.columns import note_out_of_bounds, too_many
from cwm_formats.csv_text import read_csv, refuse_twice
from cwm_formats.inferred import infer_dataset
from cwm_formats.tables import Cells, ReadTable, choose, recorded_rows, written_columns

KEY = b"cwm"
"""The key in a Parquet file's metadata for the metadata of the dataset."""


@dataclass
class TableImporter(Importer):
    """Reads a table with a row for each transition; `read_table` reads its format."""

    columns: dict[str, Any] = field(default_factory=dict)
    """Columns of each part, as JSON: '{"observation": ["x", "v"], "action": "a"}'. The parts are
    observation, next_observation, action, reward, terminated, truncated, done, episode, step, split
    and valid_action."""

    map: Path | None = None
    """TOML or JSON file with the same mapping as `columns`."""

    def read_table(self, file: Path) -> ReadTable:
        """Read the cells of a file."""
        raise NotImplementedError

    def read(
        self, file: Path, spec: EnvironmentSpec, env_args: Mapping[str, Any], observer: Observer
    ) -> Dataset:
        """Read the rows, and note omitted rows."""
        columns = _read_map(self.map) | self.columns if self.map else self.columns
        shape = TransitionShape.of(spec, env_args)
        table = self.read_table(file)
        if too_many(table.rows, shape):
            raise CwmError(f"{file} has too many rows ({table.rows:,}): import a part of it")
        chosen = choose(table, shape, columns, spec.id)
        rows = recorded_rows(table, chosen, shape, spec.id, observer)
        about = {"env": spec.id, "env_args": dict(env_args), "source": file.name}
        dataset = rows.dataset(shape, {**self.stored_metadata(file, spec.id), **about})
        places = np.arange(table.rows) if rows.kept is None else rows.kept
        note_out_of_bounds(dataset, observer, lambda row: table.place(int(places[row])))
        return dataset

    def infer(self, file: Path, columns: TableColumns, observer: Observer) -> Dataset:
        """Return the rows as a dataset without an environment."""
        if self.columns or self.map:
            raise CwmError("-o columns=... needs --env: name the columns with --action and others")
        name = self.title(file)
        return infer_dataset(self.read_damaged(file), columns, name, file.name, observer)

    def read_damaged(self, file: Path) -> ReadTable:
        """Read the cells of a file that may be damaged in places."""
        return self.read_table(file)

    def stored_metadata(self, file: Path, env: str) -> Mapping[str, Any]:
        """Return the metadata of a dataset of an environment, if the file contains them."""
        return {}


def _read_map(file: Path) -> dict[str, Any]:
    """Read a map of columns from a TOML or JSON file."""
    if file.suffix == ".toml":
        try:
            found: Any = tomllib.loads(read_text(file))
        except (ValueError, RecursionError) as error:
            reason = clean(str(error), limit=120)
            raise CwmError(f"{file} is not valid TOML ({reason}): correct it") from error
    else:
        found = read_json(file)
    found = found.get("columns", found) if isinstance(found, dict) else found
    if not isinstance(found, dict):
        raise CwmError(f"{file} contains no map of columns: write observation = [...], and so on")
    return found


@dataclass
class CsvImporter(TableImporter):
    """Reads a CSV with a header; commas, semicolons, tabs, bars or spaces separate cells."""

    def reads(self, file: Path) -> bool:
        """Return whether the file name has a known ending."""
        # endings of the names of files with a table as text
        text_tables = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".dat", ".txt")
        return file.name.lower().endswith(text_tables)

    def title(self, file: Path) -> str:
        """Return the name without both endings."""
        return Path(file.stem).stem if file.suffix == ".gz" else file.stem

    def read_table(self, file: Path) -> ReadTable:
        """Read all cells as texts, with the first line of each row."""
        return read_csv(file)

    def read_damaged(self, file: Path) -> ReadTable:
        """Read all cells; lines with a wrong number of cells become blank rows."""
        return read_csv(file, damaged=True)


@dataclass
class ParquetImporter(TableImporter):
    """Reads a Parquet file; a column of lists of equal length becomes one column per element."""

    def reads(self, file: Path) -> bool:
        """Return whether the file name has a known ending."""
        return file.suffix.lower() in (".parquet", ".pq")

    def origin(self, file: Path) -> Origin | None:
        """Return the environment in the metadata of an export."""
        about = _metadata_of(file)
        return Origin(about["env"], about.get("env_args", {})) if about else None

    def stored_metadata(self, file: Path, env: str) -> Mapping[str, Any]:
        """Return the metadata of an export."""
        about = _metadata_of(file)
        return about if about.get("env") == env else {}

    def read_table(self, file: Path) -> ReadTable:
        """Read all columns."""
        with _opened(file) as source:
            rows = source.metadata.num_rows
            max_cells = 100_000_000  # maximum number of cells of a table
            if rows * max(1, source.metadata.num_columns) > max_cells:
                raise CwmError(f"{file} has too many rows ({rows:,}): import a part of it")
            names = list(source.schema_arrow.names)
            refuse_twice(names, file)
            try:
                found = source.read()
            except Exception as error:
                raise _unreadable(file, error) from error
        if not rows:
            raise CwmError(f"{file} has columns but no rows: there is nothing to import")
        cells: dict[str, Cells] = {}
        for name in names:
            cells |= _cells(name, found.column(name), file)
        return ReadTable(str(file), cells, rows, lambda row: f"row {row} (counted from 0)")


def _arrow() -> Any:
    """Import pyarrow, which needs an extra."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise CwmError(f"Parquet needs pyarrow: {install_command('cwm-cli[parquet]')}") from error
    return pyarrow


def _opened(file: Path) -> Any:
    """Open a Parquet file; this reads only its end."""
    arrow = _arrow()
    if not file.is_file():
        raise CwmError(f"there is no file {file}: give the path of a table")
    try:
        return arrow.parquet.ParquetFile(file)
    except Exception as error:  # pyarrow raises many types for damaged files
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception | str) -> CwmError:
    reason = " ".join(str(error).split())[:120]
    return CwmError(f"{file} is not a Parquet file, or it is damaged ({reason}): restore it")


def _metadata_of(file: Path) -> dict[str, Any]:
    """Return the metadata of the dataset in a file, if they name an environment."""
    with _opened(file) as source:
        kept = (source.schema_arrow.metadata or {}).get(KEY)
    try:
        about = parse_json(kept, finite=True) if kept else {}
    except ValueError as error:
        raise _unreadable(file, f"metadata {KEY.decode()!r}: {error}") from error
    kinds = {"env": str, "env_args": dict, "note": str}
    if not isinstance(about, dict) or "env" not in about:
        return {}
    right = all(isinstance(about.get(name, kind()), kind) for name, kind in kinds.items())
    return about if right else {}


def _cells(name: str, column: Any, file: Path) -> dict[str, Cells]:
    """Return a column, or one per element of its lists; missing cells are empty texts."""
    arrow = _arrow()
    kind = column.type
    if arrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if (
        arrow.types.is_list(kind)
        or arrow.types.is_large_list(kind)
        or (arrow.types.is_fixed_size_list(kind))
    ):
        lists = column.to_pylist()
        lengths = {len(each) if each is not None else -1 for each in lists}
        if len(lengths) != 1 or -1 in lengths:
            raise CwmError(
                f"{file}: the lists of column {name} have different lengths; choose another column"
            )
        parts = [np.array([each[n] for each in lists]) for n in range(lengths.pop())]
        return {f"{name}_{n}": part for n, part in enumerate(parts)}
    is_number = arrow.types.is_integer(kind) or arrow.types.is_floating(kind)
    if (is_number or arrow.types.is_boolean(kind)) and not column.null_count:
        return {name: column.to_numpy()}
    return {name: ["" if each is None else str(each) for each in column.to_pylist()]}


@dataclass
class CsvExporter(Exporter):
    """Writes a CSV with a header, which pandas, DuckDB and spreadsheets read.

    A file name that ends with .gz is compressed. A CSV contains no spaces and metadata, so its
    import needs `--env`.
    """

    suffix: ClassVar[str] = ".csv"

    def write(self, dataset: Dataset, target: Path, observer: Observer) -> None:
        """Write a line for each row; numbers have enough digits to be restored exactly."""
        columns = dict(written_columns(dataset))
        texts = [_digits(column) for column in columns.values()]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*texts, strict=True))
        data = text.getvalue().encode()
        if target.suffix == ".gz":
            data = gzip.compress(data, mtime=0)  # no date, so that equal rows give equal bytes
        with written_whole(target) as partial:
            partial.write_bytes(data)


def _digits(column: np.ndarray) -> list[str]:
    """Format values so that reading restores them exactly."""
    if column.dtype.kind == "b":
        return ["true" if value else "false" for value in column.tolist()]
    texts: list[str] = column.astype(np.str_).tolist()
    return texts


@dataclass
class ParquetExporter(Exporter):
    """Writes a Parquet file with the metadata of the dataset, so its import needs no `--env`."""

    suffix: ClassVar[str] = ".parquet"

    def write(self, dataset: Dataset, target: Path, observer: Observer) -> None:
        """Write all columns with their types."""
        arrow = _arrow()
        columns = {name: arrow.array(column) for name, column in written_columns(dataset)}
        metadata = {KEY: json.dumps(dataset.metadata)}
        with written_whole(target) as partial:
            arrow.parquet.write_table(
                arrow.table(columns).replace_schema_metadata(metadata), partial
            )
