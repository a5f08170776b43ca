"""Export transitions to other formats (`cwm data export`), and the base class of exporters."""

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
    """Base class of exporters, which write transitions in another format.

    An exporter is a dataclass. Its fields are its options (`-o exporter.KEY=VALUE`); the
    docstring under each field describes the option. Only `write` is required. If an importer has
    the same name, export and import must give the same columns.

    Example::

        @dataclass
        class Table(Exporter):
            suffix = ".csv"

            def write(self, dataset, target, observer):
                with written_whole(target) as partial:
                    partial.write_text(...)
    """

    suffix: ClassVar[str] = ""
    """Suffix of the default file name."""

    def locate(self, out: str) -> Path:
        """Return the file or folder that `--out` names."""
        return Path(out)

    def owns(self, target: Path) -> bool:
        """Return whether a file or folder has this format, so that `--force` may replace it."""
        return target.is_file()

    def write(self, dataset: Dataset, target: Path, observer: Observer) -> None:
        """Write all rows to a file or folder, atomically.

        Args:
            dataset: The rows.
            target: File or folder, as returned by `locate`.
            observer: Receives a note about all data that the format cannot store.

        Raises:
            CwmError: The format cannot store the dataset.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ExportResult(Result):
    """An exported file or folder and its format."""

    path: Path
    format: str
    dataset: Dataset

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm data export --json`."""
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
    """Write transitions in another format.

    Args:
        dataset: The dataset or its file.
        to: Name of the exporter, e.g. minari, csv or parquet.
        out: File or folder in the notation of the format; by default it has the dataset's name.
        options: Options of the exporter.
        force: Replace an existing export of the same format.
        observer: Receives a note about all data that the format cannot store.

    Raises:
        CwmError: The dataset is empty, the format cannot store it, or `out` cannot be written.
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
    """Create an exporter with its options."""
    factory = find("exporter", name)
    chosen = read_options(options, [Owner("exporter", factory)])["exporter"]
    exporter: Exporter = factory(**chosen)
    return exporter


def check_room(folder: Path, size: int) -> None:
    """Check that a file of `size` bytes fits into a folder by reserving the space temporarily.

    HDF5 crashes the process if it runs out of space. The free space alone does not show quotas
    and limits on the file size.

    Raises:
        OSError: There is not enough space.
    """
    with TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                raise
            # other errors: the file system cannot reserve space


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path next to `target`; replace `target` by it if the body succeeds.

    If the body fails, the temporary file or folder is deleted and `target` is unchanged.
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
