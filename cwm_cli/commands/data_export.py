"""Transitions for elsewhere: the contract of exporters, and what writes with them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile
from typing import Any, ClassVar

from cwm_cli.commands.collect import load_dataset, writing
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import DISK_IS_FULL, CwmError
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer


class Exporter:
    """Writes transitions in a foreign format.

    A dataclass whose fields are its options (`-o exporter.KEY=VALUE`), with their meaning in the
    docstring under each. `write` says in a note what of a dataset its format cannot keep, and
    in a `CwmError` what it cannot write at all. What it wrote may be read by an importer of the
    same name; then a round trip gives the same columns.

    Example::

        @dataclass
        class Table(Exporter):
            suffix = ".csv"

            def write(self, dataset, target, observer):
                with written_whole(target) as partial:
                    partial.write_text(...)
    """

    suffix: ClassVar[str] = ""
    """What the name of a file ends with, where none was given."""

    def locate(self, out: str) -> Path:
        """Return the file or folder that `--out` names."""
        return Path(out)

    def owns(self, target: Path) -> bool:
        """Say whether what is at a place is of this format, so that `--force` may replace it."""
        return target.is_file()

    def write(self, dataset: Dataset, target: Path, observer: Observer) -> None:
        """Write all rows to a file or a folder, at once or not at all."""
        raise NotImplementedError


@dataclass(frozen=True)
class ExportResult(Result):
    """Where transitions were written to, in which format."""

    path: Path
    format: str
    dataset: Dataset

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm data export --json` prints."""
        return {
            "file": str(self.path),
            "format": self.format,
            "environment": self.dataset.metadata.get("env"),
            "transitions": len(self.dataset),
            "episodes": len(set(self.dataset.columns["episodes"].tolist())),
            "digest": self.dataset.digest,
        }


def export_transitions(
    dataset: Dataset | Path | str,
    to: str,
    *,
    out: Path | str | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    force: bool = False,
    observer: Observer = SILENT,
) -> ExportResult:
    """Write transitions in the format of an exporter (`to`), such as minari, csv or parquet.

    `out` names the file or folder, as the format names them; by default it is named like the
    dataset. What is there already is replaced with `force` alone, and only if it is of the format.
    """
    exporter = exporter_of(to, options)
    rows = dataset if isinstance(dataset, Dataset) else load_dataset(Path(dataset))
    name = rows.metadata.get("env", "transitions") if isinstance(dataset, Dataset) else dataset
    target = exporter.locate(str(out or f"{Path(name).stem}{exporter.suffix}"))
    if not len(rows):
        raise CwmError(f"{name} contains no transitions: there is nothing to export")
    with writing(target):
        if os.path.lexists(target):
            if not exporter.owns(target):
                raise CwmError(
                    f"{target} exists and is not an export: choose another place with --out"
                )
            if not force:
                hint = "replace it with --force, or choose another place with --out"
                raise CwmError(f"{target} already exists: {hint}")
        exporter.write(rows, target, observer)
    return ExportResult(target, to.rpartition(":")[2], rows)


def exporter_of(name: str, options: Sequence[str] | Mapping[str, Any] = ()) -> Exporter:
    """Return the exporter of a name, with its options."""
    factory = find("exporter", name)
    chosen = read_options(options, [Owner("exporter", factory)])["exporter"]
    exporter: Exporter = factory(**chosen)
    return exporter


def check_room(folder: Path, size: int) -> None:
    """Check that a file of `size` bytes fits into a folder, by reserving them for a moment.

    HDF5 crashes the process if it runs out of space. Free space alone says nothing of quotas and
    of limits on the size of files.

    Raises:
        OSError: There is not enough space.
    """
    with TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                raise
            # a file system that cannot reserve space


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give a place beside `target` for a file or a folder, which replaces it when it is whole.

    If the body fails nothing is left of what it wrote, and what was at `target` stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (
        target.with_name(f".{target.name}.{os.getpid()}.{word}") for word in ("part", "old")
    )
    try:
        yield partial
        if target.is_dir():  # a folder that is not empty cannot be replaced in one step
            target.rename(old)
        try:
            partial.replace(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
    finally:
        for rest in (partial, old):
            if rest.is_dir() and not rest.is_symlink():
                rmtree(rest, ignore_errors=True)
            else:
                rest.unlink(missing_ok=True)
