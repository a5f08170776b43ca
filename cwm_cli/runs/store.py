"""The run folder: a header, a journal, and further files.

Every kind of run has the same folder. `run.json` is the header: the choices that identify the
run, and the circumstances. The journal has one line of JSON per record, synced to the disk before
it counts, so that a killed run continues from its last record. A lock prevents two processes from
writing to the same run.
"""

import json
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from cwm_cli._version import __version__, code_version, distributions_of
from cwm_cli.credentials import without_credentials
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import open_for_appending
from cwm_cli.errors import CwmError
from cwm_cli.locks import try_lock
from cwm_cli.runs.files import (
    ROWS_FILE,
    Journal,
    RowsAdded,
    complete_length,
    flat,
    read_header,
    read_journal,
    read_object,
    replace,
)
from cwm_cli.runs.observer import Observer
from cwm_cli.runs.report import Grid, RunReport, RunSummary, Section
from cwm_cli.runs.storage import HEADER as HEADER
from cwm_cli.runs.storage import LOCK as LOCK
from cwm_cli.runs.storage import BusyError as BusyError
from cwm_cli.runs.storage import Storage, StorageError, named, storage_of
from cwm_cli.sandbox.protection import Protection

RUNS = Path("runs")
"""The default parent folder of runs."""

RESULT, DATASET, LOG, BEST = "result.json", "dataset.npz", "log.txt", "best.py"
CLOCK = "clock.json"

WRITER = "cwm"
"""Key of the `cwm` version in `RunHeader.versions`."""


log = logging.getLogger("cwm.runs")

C = TypeVar("C", bound=BaseModel)
M = TypeVar("M", bound=BaseModel)


def timestamp() -> str:
    """Return the local time in the format of headers."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def command_words() -> tuple[str, ...]:
    """Return the words after `cwm` without credentials; () in any other program."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    is_ours = program.name in ("cwm", "cwm-cli") or program.parts[-2:] == ("cwm_cli", "__main__.py")
    return tuple(map(without_credentials, sys.argv[1:])) if is_ours else ()


def package_versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages that provide some modules, by package name."""
    tops = {module.partition(".")[0] for module in modules}
    return {name: version(name) for top in sorted(tops) for name in distributions_of(top)}


class RunHeader(BaseModel, Generic[C]):
    """The content of `run.json`: the choices, and the circumstances.

    `config` is the identity of the run, which continues only with equal choices. Options that do
    not change the result, such as a budget, belong elsewhere. `code` is the commit of cwm that
    started the run, or a hash of its files, as `cwm --version` prints it; it is "" in runs of
    cwm 0.1. `protection` lists the protections of the sandbox at the start. `command` holds the
    words after `cwm`; it is empty if no command line started the run.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    config: C
    versions: dict[str, str] = {}
    code: str = ""
    protection: Protection | None = None
    created: str = Field(default_factory=timestamp)
    command: tuple[str, ...] = Field(default_factory=command_words)

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, data: Any, info: ValidationInfo) -> Any:
        """Set `command` to () if a file lacks it: the default is the command of this process."""
        return {"command": ()} | data if info.mode == "json" and isinstance(data, dict) else data

    @field_validator("command")
    @classmethod
    def _without_credentials(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        """Hide the credentials that earlier versions wrote."""
        return tuple(map(without_credentials, words))

    @property
    def openings(self) -> str:
        """Missing protections of the sandbox at the start, on one line, or "unknown"."""
        return openings(self.protection) if self.protection else "unknown"


H = TypeVar("H", bound=RunHeader[Any])
R = TypeVar("R", bound=BaseModel)


class Savable(Protocol):
    """An object that a run needs and stores in its folder, such as a dataset."""

    def save(self, path: Path) -> None:
        """Write the object to a file."""


class Difference(NamedTuple):
    """A setting or a result with different values in two runs."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} ({_short(self.before)}, not {_short(self.now)})"


@dataclass
class Run(Generic[H, R]):
    """A run folder that grows record by record and can be killed at any moment.

    A kind of run derives from this class and names its header and its records::

        class PlayRun(Run[PlayHeader, Episode]):
            kind, header_type, record_type = "plan", PlayHeader, Episode

        with PlayRun.begin(folder, PlayHeader(kind="plan", config=config)) as run:
            done = list(run.records())
            run.append(episode)
            run.save_result({"mean": 1.0})

    `begin` loads or starts a run. The `with` block locks it and releases it at the end. A run that
    fails before its first record leaves no folder. The hook `cwm_run_kinds` registers a kind of run
    with `cwm runs`, which calls `summary` and `report`.
    """

    kind: ClassVar[str]
    header_type: ClassVar[type[Any]]
    record_type: ClassVar[Any]
    """Model of the journal lines, or a union of models."""
    journal_name: ClassVar[str] = "journal.jsonl"
    patience: ClassVar[float] = 0.0
    """Seconds to wait for another process that has locked the run."""

    folder: Path
    header: H
    repair_note: str = field(default="", init=False, repr=False, compare=False)
    """Message about the journal lines that opening the run removed; "" if there were none."""
    version_note: str = field(default="", init=False, repr=False, compare=False)
    """Message about unreadable parts of a run that another version wrote; "" if there are none."""
    _is_whole: bool = field(default=False, init=False, repr=False, compare=False)
    _lock: IO[bytes] | None = field(default=None, repr=False, compare=False)
    _journal: IO[bytes] | None = field(default=None, repr=False, compare=False)
    _storage: Storage | None = field(default=None, init=False, repr=False, compare=False)
    """The storage of the copy in `folder`, while the run is open for writing."""
    _began: float = field(default=0.0, repr=False, compare=False)
    _new: "_Started | None" = field(default=None, repr=False, compare=False)
    _last_rows: int | None = field(default=None, init=False, repr=False, compare=False)
    """Number of the last file of rows in the journal; None until `add_rows` has looked it up."""

    @classmethod
    def begin(cls, folder: Path, header: H, files: Mapping[str, Savable] | None = None) -> Self:
        """Load the run of a folder, or start it if there is none.

        Args:
            folder: The run folder.
            header: The header for a new run.
            files: Files of a new run, by file name.

        Raises:
            CwmError: The run was started with other choices. The message lists the differences.
        """
        if not (folder / HEADER).exists():
            return cls.start(folder, header, files)
        run = cls.load(folder)
        run.check(header.config)
        return run

    @classmethod
    def start(cls, folder: Path, header: H, files: Mapping[str, Savable] | None = None) -> Self:
        """Create a run folder with all files that the run needs; the header is written last.

        Raises:
            CwmError: The folder contains other files.
        """
        files = files or {}
        check_free(folder, files)
        versions = {WRITER: __version__, **header.versions}
        header = header.model_copy(update={"versions": versions, "code": code_version()})
        folders = [path for path in (folder, *folder.parents) if not path.exists()]
        started = _Started(tuple(files), folders)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                content.save(folder / name)
            replace(folder / HEADER, header.model_dump_json(indent=2) + "\n")
        except BaseException:
            started.undo(folder)
            raise
        return cls(folder, header, _new=started)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a run folder.

        Raises:
            CwmError: The folder has no run of this kind, or its header cannot be read.
        """
        if (kind := kind_of(folder)) != cls.kind:
            words = f"a run of kind {kind!r}, not {cls.kind!r}"
            raise CwmError(f"{named(folder)} is {words}: choose another folder")
        return cls(folder, read_header(folder / HEADER, cls.header_type, ""))

    @classmethod
    def find_equal(cls, config: BaseModel) -> Iterator[Self]:
        """Yield the runs in `runs/` with an equal configuration, newest first."""
        files = [(file.stat().st_mtime, file) for file in RUNS.glob(f"*/{HEADER}")]
        for _, file in sorted(files, reverse=True):
            with suppress(CwmError):
                run = cls.load(file.parent)
                if run.header.config == config:
                    yield run

    def check(self, config: BaseModel) -> None:
        """Raise `CwmError` if the settings differ from the settings at the start of the run."""
        if changed := differences(self.header.config, config):
            names = ", ".join(map(str, changed))
            raise CwmError(
                f"{self.place} was started with other settings, {names}: repeat them, or "
                "choose another --run"
            )

    @property
    def config(self) -> Any:
        """The choices that identify the run."""
        return self.header.config

    @property
    def place(self) -> str:
        """Name of the folder for users: its path, or the URL of a copy."""
        return named(self.folder)

    @property
    def is_continued(self) -> bool:
        """Whether the run existed before `begin`."""
        return self._new is None

    def __enter__(self) -> Self:
        """Lock the run, open its journal, and cut off a last line that a crash left incomplete.

        If other lines are unusable, they are removed, and the original journal is kept as a copy.
        A run in an object store is claimed there, and the local copy is updated.
        """
        self._lock = _lock_folder(self.folder, self.patience)
        try:
            if storage := storage_of(self.folder):
                storage.claim(self.patience, fresh=self._new is not None)
                self._storage = storage
                if self._new is not None:
                    storage.send(HEADER)
            self._open_journal()
        except BaseException:
            self._release()
            self._lock.close()
            raise
        self._began = time.monotonic() - self._seconds_before()
        log.info("the run %s is %s", self.place, "continued" if self.is_continued else "started")
        return self

    def _release(self) -> None:
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.release()

    def _open_journal(self) -> None:
        file = self.folder / self.journal_name
        self._journal = open_for_appending(file)
        self._journal.truncate(complete_length(self._journal))
        if self._is_whole:
            return
        journal, self._is_whole = self.read_journal(), True
        if not journal.left_out:
            return
        copies = (file.with_name(f"{file.name}.damaged-{n}") for n in count(1))
        copy = next(path for path in copies if not os.path.lexists(path))
        shutil.copyfile(file, copy)
        self.rewrite(journal.events)
        self.repair_note = f"{journal.damage}; the original is kept as {named(copy)}"

    def report_repair(self, observer: Observer) -> None:
        """Report the journal lines that opening the run removed."""
        if self.repair_note:
            observer.note(self.repair_note, "Warning")

    @property
    def elapsed(self) -> float:
        """Seconds of work on the run, by this process and earlier ones."""
        return time.monotonic() - self._began if self._journal else self._seconds_before()

    def restart_clock(self, seconds: float = 0.0) -> None:
        """Set the elapsed seconds, if work was repeated or will be."""
        self._began = time.monotonic() - seconds

    @property
    def lock_descriptor(self) -> int:
        """File descriptor of the lock; a child process that inherits it keeps the run locked."""
        assert self._lock is not None
        return self._lock.fileno()

    def append(self, *records: R | RowsAdded) -> None:
        """Append records to the journal; after the return no crash can lose them.

        An error leaves the journal unchanged.
        """
        if self._journal is None:
            raise RuntimeError("the run is not open for writing")
        lines = b"".join(record.model_dump_json().encode() + b"\n" for record in records)
        size = self._journal.seek(0, os.SEEK_END)
        try:
            rest = memoryview(lines)
            while rest:  # an unbuffered file may write a part
                rest = rest[self._journal.write(rest) :]
            os.fsync(self._journal.fileno())
            self._send(self.journal_name)
        except (OSError, StorageError):
            self._journal.truncate(size)  # an incomplete line would damage the next one
            raise
        self._save_clock()

    def add_rows(self, rows: Dataset) -> None:
        """Add rows to the dataset of the run, in a new file that the journal names.

        The identity of the run stays: the configuration contains the digest of the first dataset.
        """
        if self._last_rows is None:
            numbers = [event.number for event in self.events() if isinstance(event, RowsAdded)]
            if next(self.folder.glob(f"{self.journal_name}.damaged-*"), None):
                # A damaged line may name a file of rows: do not overwrite any.
                files = (re.fullmatch(ROWS_FILE, path.name) for path in self.folder.iterdir())
                numbers += [int(match[1]) for match in files if match]
            self._last_rows = max(numbers, default=0)
        file = f"rows-{self._last_rows + 1}.npz"
        rows.save(self.folder / file)
        self.append(RowsAdded(file=file, count=len(rows), digest=rows.digest))
        self._last_rows += 1

    def rewrite(self, events: Sequence[R | RowsAdded]) -> None:
        """Replace all lines of the journal."""
        path = self.folder / self.journal_name
        replace(path, "".join(event.model_dump_json() + "\n" for event in events))
        if self._journal:
            self._journal.close()
            self._journal = open_for_appending(path)
        self._send(self.journal_name)

    def update(self, header: H) -> None:
        """Replace the header after a change that does not affect the identity."""
        replace(self.folder / HEADER, header.model_dump_json(indent=2) + "\n")
        self.header = header
        self._send()

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`."""
        replace(self.folder / RESULT, json.dumps(result, indent=2) + "\n")
        self._send(self.journal_name, RESULT)

    def log(self, text: str) -> None:
        """Add a line with the time to the log."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(text.split())}\n"
        with open_for_appending(self.folder / LOG) as file:
            file.write(line.encode("utf-8", "replace"))

    def __exit__(self, kind: object, *_: object) -> None:
        """Release the run; remove it if it failed before its first record."""
        try:
            if self._new and kind is not None and self._is_bare():
                self._new.undo(self.folder)
                if self._storage:
                    self._storage.remove()
            elif self.folder.exists():
                self._save_clock()
                if self._storage:
                    # An error of the store must not hide the error that ends the run.
                    with nullcontext() if kind is None else suppress(CwmError):
                        self._storage.finish(self.journal_name, RESULT)
        finally:
            try:
                self._release()
            finally:
                for file in (self._journal, self._lock):
                    if file:
                        file.close()
                self._journal = self._lock = self._new = None

    def _send(self, *last: str) -> None:
        if self._storage:
            self._storage.send(*last)

    def records(self) -> Iterator[R]:
        """Read the records of the journal, without an incomplete last line."""
        return (event for event in self.events() if not isinstance(event, RowsAdded))

    def events(self) -> Iterator[R | RowsAdded]:
        """Read the records and the added rows of the journal, in the order of writing."""
        return iter(self.read_journal().events)

    def read_journal(self) -> Journal[R]:
        """Read the journal and the numbers of its unusable lines."""
        return read_journal(self.folder / self.journal_name, self.record_type, self.connected)

    def connected(self, events: Iterable[R | RowsAdded | None]) -> Iterator[R | RowsAdded | None]:
        """Replace unusable lines of a journal by None, such as lines that depend on missing ones.

        Args:
            events: The lines of the journal; None for an unreadable line.

        Returns:
            The lines, with None for an unusable line. By default no line depends on another.
        """
        return iter(events)

    def dataset(self) -> Dataset:
        """Return the dataset of the run, with all rows that were added while it ran."""
        added = [self.read_rows(event) for event in self.events() if isinstance(event, RowsAdded)]
        return Dataset.load(self.folder / DATASET).concatenate(*added)

    def read_rows(self, event: RowsAdded) -> Dataset:
        """Return the rows of a file that the journal names.

        Raises:
            CwmError: The file was changed.
        """
        rows = Dataset.load(self.folder / event.file)
        if rows.digest != event.digest:
            raise CwmError(f"{self.folder / event.file} was changed after recording: restore it")
        return rows

    @property
    def damage(self) -> str:
        """Message about unreadable parts of the run, on one line; "" if there are none."""
        return "; ".join(filter(None, (self.version_note, self.read_journal().damage)))

    def grids(self) -> Sequence[Grid]:
        """Return the tables of `cwm runs show`; by default the tables of the report."""
        return self.report([self]).grids

    def result(self) -> dict[str, Any] | None:
        """Read `result.json`; return None if it is missing."""
        return read_object(self.folder / RESULT)

    def summary(self) -> RunSummary:
        """Return the line of the run in `cwm runs list`."""
        return RunSummary(self.place, self.kind, created=self.header.created)

    @classmethod
    def report(cls, runs: Sequence[Self]) -> RunReport:
        """Return the report on one run, or on several runs that belong together.

        Raises:
            CwmError: There are several runs, and this kind of run cannot be merged.
        """
        if len(runs) > 1:
            raise CwmError(f"runs of kind {cls.kind!r} cannot be merged: report them one by one")
        summary = runs[0].summary().as_json()
        return RunReport(runs[0].place, facts=summary | (runs[0].result() or {}))

    @classmethod
    def sections(cls, runs: Sequence[Self]) -> list[Section]:
        """Return the sections of a page about one or several runs; by default of the report."""
        return cls.report(runs).sections()

    def export(self) -> Any:
        """Return the data for `cwm runs export`, or None if there are none."""
        return None

    def _save_clock(self) -> None:
        with suppress(OSError):  # no result depends on the clock
            replace(self.folder / CLOCK, json.dumps({"seconds": round(self.elapsed, 1)}) + "\n")

    def _seconds_before(self) -> float:
        with suppress(CwmError):
            seconds = (read_object(self.folder / CLOCK) or {}).get("seconds")
            if isinstance(seconds, int | float) and 0 <= seconds < math.inf:
                return float(seconds)
        return 0.0

    def _is_bare(self) -> bool:
        """Return whether the folder contains only the files of the start."""
        assert self._new is not None
        expected = {*self._new.files, HEADER, LOG, LOCK, CLOCK, self.journal_name}
        names = {path.name for path in self.folder.iterdir()}
        journal = self.folder / self.journal_name
        return names <= expected and not (journal.exists() and journal.stat().st_size)


class _Started(NamedTuple):
    """Files and folders that a start has created, the innermost folder first."""

    files: tuple[str, ...]
    folders: list[Path]

    def undo(self, folder: Path) -> None:
        """Remove the files and folders, except folders that other files use."""
        for path in folder.glob("*"):
            path.unlink()
        for place in self.folders:
            with suppress(OSError):
                place.rmdir()


class _Kind(BaseModel):
    """The kind in a header; the headers of early searches lack it."""

    kind: str = "search"


def kind_of(folder: Path) -> str:
    """Return the kind of the run in a folder.

    Raises:
        CwmError: The folder is not a run folder, or its header cannot be read.
    """
    missing = f"{named(folder)} is not a run folder: `cwm runs list` lists the runs here"
    if folder.is_file():
        raise CwmError(missing)
    return read_header(folder / HEADER, _Kind, missing).kind


def is_free(folder: Path, files: Mapping[str, Any] | Sequence[str] = ()) -> bool:
    """Return whether a folder is free for a new run, apart from files of an interrupted start."""
    if not folder.exists():
        return True
    names = {path.name for path in folder.iterdir() if not path.name.endswith(".part")}
    return names <= {*files, LOCK}


def check_free(folder: Path, files: Mapping[str, Any] | Sequence[str] = ()) -> None:
    """Raise `CwmError` if no run may start in a folder."""
    if (folder.exists() and not folder.is_dir()) or not is_free(folder, files):
        raise CwmError(f"{named(folder)} contains other files: choose another --run")


def folder_word(word: str) -> str:
    """Return a word without characters that are unsafe in a folder name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in word)


def fresh_folder(*words: str) -> Path:
    """Return the path of a new folder in `runs/`, named after the words and the time."""
    name = f"{'-'.join(map(folder_word, words))}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())


def differences(before: BaseModel, now: BaseModel) -> list[Difference]:
    """Return the different settings of two configurations, one entry per option."""
    return entry_differences(before.model_dump(), now.model_dump())


def entry_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the different entries of two nested objects."""
    old, new = flat(before), flat(now)
    names = dict.fromkeys([*old, *new])
    return [Difference(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


def openings(protection: Protection) -> str:
    """Return the missing protections of the sandbox on one line."""
    return f"open: {', '.join(protection.gaps)}" if protection.gaps else "no gaps"


def remove(folder: Path) -> None:
    """Remove a run with its whole folder.

    Raises:
        BusyError: Another process writes to the run or to a run inside it.
        CwmError: The folder is not a run folder.
    """
    if not (folder / HEADER).exists() or folder.is_symlink():
        raise CwmError(f"{named(folder)} is not a run folder: `cwm runs list` lists the runs here")
    locks = []
    try:
        for file in folder.rglob(LOCK):
            if file.is_file():
                locks.append(_lock_folder(file.parent))
        if storage := storage_of(folder):
            storage.remove()
        else:
            shutil.rmtree(folder)
    finally:
        for lock in locks:
            lock.close()


def _lock_folder(folder: Path, patience: float = 0.0) -> IO[bytes]:
    """Lock a folder; closing the returned file releases the lock."""
    path, deadline = folder / LOCK, time.monotonic() + patience
    while True:
        file = open_for_appending(path)
        try:
            try_lock(file.fileno())
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file  # else another process removed the file before the lock was taken
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                words = f"another process is using {named(folder)}"
                raise BusyError(f"{words}: wait until it ends, or choose another --run") from error
            time.sleep(0.05)
        file.close()


def _short(value: Any) -> str:
    """Return a setting as a short text."""
    values = value if isinstance(value, list | tuple) else (value,)
    words = ", ".join(str(item) for item in values if item not in ("", None)) or "none"
    return words if len(words) <= 40 else f"{words[:39]}…"  # digests are long
