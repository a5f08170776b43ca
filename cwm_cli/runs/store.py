"""The folder of a run: what was asked, a journal of what was found, and files beside it.

Every kind of run has the same folder. `run.json` holds the choices that make the
run what it is, and the circumstances. The journal has a line of JSON per record,
synced to the disk before it counts, so that a run that is killed at any moment goes
on where it was. One lock keeps two processes from writing to the same run.
"""

import fcntl
import json
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from itertools import count
from pathlib import Path
from typing import (
    IO,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    get_args,
)

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from cwm_cli._version import __version__, code_version
from cwm_cli.credentials import without_credentials
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import UnreadableError, open_for_appending, read_lines
from cwm_cli.errors import CwmError
from cwm_cli.runs.files import flat, modelled, read_header, read_object, replace
from cwm_cli.runs.observer import Observer
from cwm_cli.runs.places import named, storage_of
from cwm_cli.runs.report import Grid, RunReport, RunSummary, Section
from cwm_cli.runs.storage import HEADER as HEADER
from cwm_cli.runs.storage import LOCK as LOCK
from cwm_cli.runs.storage import BusyError as BusyError
from cwm_cli.runs.storage import Storage, StorageError
from cwm_cli.sandbox.protection import Protection

RUNS = Path("runs")
"""Where runs are kept that were given no folder."""

RESULT, DATASET, LOG, BEST = "result.json", "dataset.npz", "log.txt", "best.py"
CLOCK = "clock.json"

WRITER = "cwm"
"""By what name the version of cwm that wrote a run stands among the versions of its header."""

LONGEST_VALUE = 40
"""Characters of a setting that are told where two runs differ: digests are long."""

log = logging.getLogger("cwm.runs")

C = TypeVar("C", bound=BaseModel)
M = TypeVar("M", bound=BaseModel)


def now() -> str:
    """Return the time as headers have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def typed() -> tuple[str, ...]:
    """Return the words after `cwm` without credentials, if this process was started by it."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    is_ours = program.name in ("cwm", "cwm-cli") or program.parts[-2:] == ("cwm_cli", "__main__.py")
    return tuple(map(without_credentials, sys.argv[1:])) if is_ours else ()


def package_versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that modules come from, where they come from one."""
    tops = {module.partition(".")[0] for module in modules}
    owners = packages_distributions() if tops else {}
    return {name: version(name) for top in sorted(tops) for name in owners.get(top, ())}


class RunHeader(BaseModel, Generic[C]):
    """What `run.json` holds: the choices, and the circumstances.

    `config` is the identity of the run: it is continued only under the same choices.
    What does not decide what is found, such as a budget, belongs elsewhere.
    `code` is the commit of cwm that started the run, or a hash of its files, as
    `cwm --version` prints it; "" in runs that cwm 0.1 started. It is not part of the identity.
    `protection` is what programs could not do when the run was started, `command` what was typed
    after `cwm` to start it, empty where no command line did.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    config: C
    versions: dict[str, str] = {}
    code: str = ""
    protection: Protection | None = None
    created: str = Field(default_factory=now)
    command: tuple[str, ...] = Field(default_factory=typed)

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, data: Any, info: ValidationInfo) -> Any:
        """Leave out of what is read from a file what only this process knows of itself."""
        return {"command": ()} | data if info.mode == "json" and isinstance(data, dict) else data

    @field_validator("command")
    @classmethod
    def _without_credentials(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        """Hide credentials in the command of a run that an earlier version started."""
        return tuple(map(without_credentials, words))

    @property
    def openings(self) -> str:
        """Say what programs could do when the run was started, as far as it is known."""
        return openings(self.protection) if self.protection else "unknown"


H = TypeVar("H", bound=RunHeader[Any])
R = TypeVar("R", bound=BaseModel)


ROWS_FILE = r"^rows-([0-9]{1,9})\.npz$"
"""The name of a file of rows that a run added, with its number."""


class RowsAdded(BaseModel):
    """A line of the journal: from here on the dataset has further rows, which are in a file."""

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
    """What can be read of a journal, and the numbers of the lines that are left out."""

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


class Savable(Protocol):
    """What a run depends on, and keeps beside its header."""

    def save(self, path: Path) -> None:
        """Write it to a file."""


class Difference(NamedTuple):
    """A setting or a result in which two runs differ."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} ({_words(self.before)}, not {_words(self.now)})"


@dataclass
class Run(Generic[H, R]):
    """A folder that grows record by record and survives being killed at any moment.

    A kind of run derives from this class and names its header and its records::

        class PlayRun(Run[PlayHeader, Episode]):
            kind, header_type, record_type = "plan", PlayHeader, Episode

        with PlayRun.begin(folder, PlayHeader(kind="plan", config=config)) as run:
            done = list(run.records())
            run.append(episode)
            run.save_result({"mean": 1.0})

    A life: `begin` starts a run or finds one of the same choices, entering it locks
    it, `append` and `grow` add to the journal, leaving it releases it. A run that was
    started and then failed before anything was found leaves no folder. The hook
    `cwm_run_kinds` makes a kind known to `cwm runs`, which asks it for `summary`
    and `report`.
    """

    kind: ClassVar[str]
    header_type: ClassVar[type[Any]]
    record_type: ClassVar[Any]
    """What a line of the journal holds: a model, or a union of them."""
    journal_name: ClassVar[str] = "journal.jsonl"
    patience: ClassVar[float] = 0.0
    """Seconds that a process waits for another one that has locked the run."""

    folder: Path
    header: H
    mended: str = field(default="", init=False, repr=False, compare=False)
    """What was left out of the journal when the run was opened for writing, in a line."""
    foreign: str = field(default="", init=False, repr=False, compare=False)
    """What of a run that another version wrote cannot be read here, in a line."""
    _is_whole: bool = field(default=False, init=False, repr=False, compare=False)
    _lock: IO[bytes] | None = field(default=None, repr=False, compare=False)
    _journal: IO[bytes] | None = field(default=None, repr=False, compare=False)
    _storage: Storage | None = field(default=None, init=False, repr=False, compare=False)
    """What the folder is a copy of, while the run is open for writing."""
    _began: float = field(default=0.0, repr=False, compare=False)
    _new: "_Started | None" = field(default=None, repr=False, compare=False)
    _grown: int | None = field(default=None, init=False, repr=False, compare=False)
    """The number of the last file of rows that the journal names, once it was looked for."""

    @classmethod
    def begin(cls, folder: Path, header: H, files: Mapping[str, Savable] | None = None) -> Self:
        """Return the run of a folder, started if there is none yet.

        One that was started with other choices is refused, naming them.
        """
        if not (folder / HEADER).exists():
            return cls.start(folder, header, files)
        run = cls.load(folder)
        run.check(header.config)
        return run

    @classmethod
    def start(cls, folder: Path, header: H, files: Mapping[str, Savable] | None = None) -> Self:
        """Make a run folder with everything that the run depends on; the header comes last."""
        files = files or {}
        check_free(folder, files)
        versions = {WRITER: __version__, **header.versions}
        header = header.model_copy(update={"versions": versions, "code": code_version()})
        places = (folder, *folder.parents)
        started = _Started(tuple(files), [place for place in places if not place.exists()])
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
        """Read a run folder."""
        if (kind := kind_of(folder)) != cls.kind:
            words = f"a run of kind {kind!r}, not {cls.kind!r}"
            raise CwmError(f"{named(folder)} is {words}: choose another folder")
        return cls(folder, read_header(folder / HEADER, cls.header_type, ""))

    @classmethod
    def alike(cls, config: BaseModel) -> Iterator[Self]:
        """Yield the runs of equal choices in the usual place, the newest first."""
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
        """The choices that make the run what it is."""
        return self.header.config

    @property
    def place(self) -> str:
        """What a user calls the folder: its path, or the URL that it is a copy of."""
        return named(self.folder)

    @property
    def is_continued(self) -> bool:
        """Whether the run was there before."""
        return self._new is None

    def __enter__(self) -> Self:
        """Lock the run and cut off what a crash left of the last line of its journal.

        Where other lines cannot be used, a copy of the journal is kept beside it. A run on an
        object store is claimed there, and brought as it is now.
        """
        self._lock = _locked(self.folder, self.patience)
        try:
            self._claim()
            self._open()
        except BaseException:
            self._release()
            self._lock.close()
            raise
        self._began = time.monotonic() - self._seconds_before()
        log.info("the run %s is %s", self.place, "continued" if self.is_continued else "begun")
        return self

    def _claim(self) -> None:
        """Claim the run where it is, if that is not on this machine."""
        storage = storage_of(self.folder)
        if storage is None:
            return
        storage.claim(self.patience, fresh=self._new is not None)
        self._storage = storage
        if self._new is not None:
            storage.send(HEADER)

    def _release(self) -> None:
        """Let other machines claim the run."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.release()

    def _open(self) -> None:
        """Open the journal for writing, once it is whole."""
        file = self.folder / self.journal_name
        self._journal = open_for_appending(file)
        self._journal.truncate(_complete(self._journal))
        if self._is_whole:
            return
        found, self._is_whole = self.recorded(), True
        if not found.left_out:
            return
        places = (file.with_name(f"{file.name}.damaged-{n}") for n in count(1))
        copy = next(place for place in places if not os.path.lexists(place))
        shutil.copyfile(file, copy)
        self.rewrite(found.events)
        self.mended = f"{found.damage}; the original is kept as {named(copy)}"

    def tell(self, observer: Observer) -> None:
        """Say what was left out of the journal when the run was opened for writing."""
        if self.mended:
            observer.note(self.mended, "Warning")

    @property
    def elapsed(self) -> float:
        """Seconds that processes have worked on the run, this one and those before it."""
        return time.monotonic() - self._began if self._journal else self._seconds_before()

    def restart_clock(self, seconds: float = 0.0) -> None:
        """Restart the clock at `seconds`, since later work was repeated or will be."""
        self._began = time.monotonic() - seconds

    @property
    def lock_descriptor(self) -> int:
        """The descriptor of the lock: a child that has it open keeps the run locked."""
        assert self._lock is not None
        return self._lock.fileno()

    def append(self, *records: R) -> None:
        """Write records down for good: when this returns, no crash can lose them."""
        self._write(*records)

    def grow(self, rows: Dataset) -> None:
        """Add rows to the dataset of the run; the journal says when they came.

        The run keeps its identity: the dataset that it began with.
        """
        if self._grown is None:
            known = [event.number for event in self.events() if isinstance(event, RowsAdded)]
            if next(self.folder.glob(f"{self.journal_name}.damaged-*"), None):
                # Damaged lines may name files: keep these.
                files = (re.fullmatch(ROWS_FILE, path.name) for path in self.folder.iterdir())
                known += [int(found[1]) for found in files if found]
            self._grown = max(known, default=0)
        file = f"rows-{self._grown + 1}.npz"
        rows.save(self.folder / file)
        self._write(RowsAdded(file=file, count=len(rows), digest=rows.digest))
        self._grown += 1

    def rewrite(self, events: Sequence[R | RowsAdded]) -> None:
        """Replace the journal by one that holds these lines only."""
        path = self.folder / self.journal_name
        replace(path, "".join(event.model_dump_json() + "\n" for event in events))
        if self._journal:
            self._journal.close()
            self._journal = open_for_appending(path)
        self._send(self.journal_name)

    def update(self, header: H) -> None:
        """Replace the header, where what is no part of the identity has changed."""
        replace(self.folder / HEADER, header.model_dump_json(indent=2) + "\n")
        self.header = header
        self._send()

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write down what the run came to."""
        replace(self.folder / RESULT, json.dumps(result, indent=2) + "\n")
        self._send(self.journal_name, RESULT)

    def log(self, text: str) -> None:
        """Add a line to the log, with the time."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(text.split())}\n"
        with open_for_appending(self.folder / LOG) as file:
            file.write(line.encode("utf-8", "replace"))

    def __exit__(self, kind: object, *_: object) -> None:
        """Release the run; one that failed before anything was found is removed."""
        try:
            if self._new and kind is not None and self._is_bare():
                self._new.undo(self.folder)
                if self._storage:
                    self._storage.remove()
            elif self.folder.exists():
                self._save_clock()
                self._send_rest(failed=kind is not None)
        finally:
            try:
                self._release()
            finally:
                for file in (self._journal, self._lock):
                    if file:
                        file.close()
                self._journal = self._lock = self._new = None

    def _send(self, *last: str) -> None:
        """Send what has changed to where the run is kept, if that is not here."""
        if self._storage:
            self._storage.send(*last)

    def _send_rest(self, *, failed: bool) -> None:
        """Send what is left when the run is released; what has failed before is told instead."""
        if self._storage is None:
            return
        try:
            self._storage.finish(self.journal_name, RESULT)
        except CwmError:
            if not failed:
                raise

    def records(self) -> Iterator[R]:
        """Read the journal; a last line that a crash cut short is left out."""
        return (event for event in self.events() if not isinstance(event, RowsAdded))

    def events(self) -> Iterator[R | RowsAdded]:
        """Read the journal with what it says of the dataset, in the order of writing."""
        return iter(self.recorded().events)

    def recorded(self) -> Journal[R]:
        """Read the journal, and which of its lines cannot be used."""
        return read_journal(self.folder / self.journal_name, self.record_type, self.connected)

    @classmethod
    def connected(cls, events: Iterable[R | RowsAdded | None]) -> Iterator[R | RowsAdded | None]:
        """Yield the lines of a journal as they belong together, None for what can not be used.

        A line that cannot be read is None; a kind of run whose records depend on
        earlier ones makes None of those that have lost them.
        """
        return iter(events)

    def dataset(self) -> Dataset:
        """Return the transitions of this run, with all rows that came while it ran."""
        added = [self.added(event) for event in self.events() if isinstance(event, RowsAdded)]
        return Dataset.load(self.folder / DATASET).concatenate(*added)

    def added(self, event: RowsAdded) -> Dataset:
        """Return the rows that a line of the journal speaks of."""
        rows = Dataset.load(self.folder / event.file)
        if rows.digest != event.digest:
            raise CwmError(f"{self.folder / event.file} was changed after recording: restore it")
        return rows

    @property
    def damage(self) -> str:
        """Say in a line what of the run cannot be read here, empty if nothing is."""
        return "; ".join(filter(None, (self.foreign, self.recorded().damage)))

    def grids(self) -> Sequence[Grid]:
        """Return the tables that `cwm runs show` prints: by default those of the report."""
        return self.report([self]).grids

    def result(self) -> dict[str, Any] | None:
        """Read what the run came to, none if it did not yet."""
        return read_object(self.folder / RESULT)

    def summary(self) -> RunSummary:
        """Say what the run is, and how far it is, in a line of `cwm runs list`."""
        return RunSummary(self.place, self.kind, created=self.header.created)

    @classmethod
    def report(cls, runs: Sequence[Self]) -> RunReport:
        """Return all that one run, or several that belong together, came to."""
        if len(runs) > 1:
            raise CwmError(f"runs of kind {cls.kind!r} cannot be merged: report them one by one")
        summary = runs[0].summary().as_json()
        return RunReport(runs[0].place, facts=summary | (runs[0].result() or {}))

    @classmethod
    def sections(cls, runs: Sequence[Self]) -> list[Section]:
        """Return the parts of the page of one run, or several: by default those of the report."""
        return cls.report(runs).sections()

    def export(self) -> Any:
        """Return what `cwm runs export` writes, None where there is nothing to export."""
        return None

    def _write(self, *records: BaseModel) -> None:
        """Add lines to the journal, and wait until they are on the disk; or add nothing."""
        if self._journal is None:
            raise RuntimeError("the run is not open for writing")
        lines = memoryview(b"".join(each.model_dump_json().encode() + b"\n" for each in records))
        size = self._journal.seek(0, os.SEEK_END)
        try:
            while lines:
                lines = lines[self._journal.write(lines) :]
            os.fsync(self._journal.fileno())
            self._send(self.journal_name)
        except (OSError, StorageError):
            self._journal.truncate(size)  # a line that is there in part would spoil the next
            raise
        self._save_clock()

    def _save_clock(self) -> None:
        """Keep how long the run was worked on, if that can be; nothing depends on it."""
        with suppress(OSError):
            replace(self.folder / CLOCK, json.dumps({"seconds": round(self.elapsed, 1)}) + "\n")

    def _seconds_before(self) -> float:
        """Read how long earlier processes have worked on the run."""
        with suppress(CwmError):
            seconds = (read_object(self.folder / CLOCK) or {}).get("seconds")
            if isinstance(seconds, int | float) and 0 <= seconds < math.inf:
                return float(seconds)
        return 0.0

    def _is_bare(self) -> bool:
        """Whether there is nothing yet but what the run was started with."""
        assert self._new is not None
        usual = {*self._new.files, HEADER, LOG, LOCK, CLOCK, self.journal_name}
        names = {path.name for path in self.folder.iterdir()}
        journal = self.folder / self.journal_name
        return names <= usual and not (journal.exists() and journal.stat().st_size)


class _Started(NamedTuple):
    """What a start has made: files of the run, and folders, the innermost first."""

    files: tuple[str, ...]
    folders: list[Path]

    def undo(self, folder: Path) -> None:
        """Remove all of it, but no folder that was there before or is used by others."""
        for path in folder.glob("*"):
            path.unlink()
        for place in self.folders:
            with suppress(OSError):
                place.rmdir()


class _Kind(BaseModel):
    """As much of a header as says of what kind a run is; searches need not say it."""

    kind: str = "search"


def kind_of(folder: Path) -> str:
    """Return the kind of the run in a folder."""
    missing = f"{named(folder)} is not a run folder: `cwm runs list` lists the runs here"
    if folder.is_file():
        raise CwmError(missing)
    return read_header(folder / HEADER, _Kind, missing).kind


def read_journal(
    file: Path,
    record: Any,
    connected: Callable[[Iterable[M | RowsAdded | None]], Iterable[M | RowsAdded | None]] = iter,
) -> Journal[M]:
    """Read the lines of a journal; a last one that a crash cut short does not count."""
    try:
        events = list(connected(_line(line, record) for line in read_lines(file)))
    except UnreadableError as error:
        if not error.is_missing:
            raise UnreadableError(file, error.reason, "restore it or choose another run") from error
        events = []
    left_out = [number for number, event in enumerate(events, start=1) if event is None]
    return Journal(file, [event for event in events if event is not None], left_out)


def _line(line: bytes, record: Any) -> Any:
    """Read a line of a journal, None if it cannot be."""
    rows = line.startswith(b'{"kind":"rows"')
    for model in (RowsAdded,) if rows else get_args(record) or (record,):
        with suppress(ValueError):
            return modelled(model, line)
    return None


def is_free(folder: Path, files: Mapping[str, Any] | Sequence[str] = ()) -> bool:
    """Whether a run may start in a folder: there is nothing, or a start that was cut short."""
    if not folder.exists():
        return True
    names = {path.name for path in folder.iterdir() if not path.name.endswith(".part")}
    return names <= {*files, LOCK}


def check_free(folder: Path, files: Mapping[str, Any] | Sequence[str] = ()) -> None:
    """Refuse a folder in which no run may start."""
    if (folder.exists() and not folder.is_dir()) or not is_free(folder, files):
        raise CwmError(f"{named(folder)} contains other files: choose another --run")


def folder_word(word: str) -> str:
    """Return a word as it may stand in the name of a folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in word)


def fresh_folder(*words: str) -> Path:
    """Name a folder below `runs` that is not there yet."""
    name = f"{'-'.join(map(folder_word, words))}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [RUNS / name, *(RUNS / f"{name}-{number}" for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())


def differences(before: BaseModel, now: BaseModel) -> list[Difference]:
    """Return the settings in which two configurations differ, options one by one."""
    return changes(before.model_dump(), now.model_dump())


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the entries of nested objects that differ."""
    old, new = flat(before), flat(now)
    names = dict.fromkeys([*old, *new])
    return [Difference(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


def openings(protection: Protection) -> str:
    """Say what programs can do that they should not, in one line."""
    return f"open: {', '.join(protection.gaps)}" if protection.gaps else "no gaps"


def remove(folder: Path) -> None:
    """Remove a run with all that is in its folder, unless a process works on some of it."""
    if not (folder / HEADER).exists() or folder.is_symlink():
        raise CwmError(f"{named(folder)} is not a run folder: `cwm runs list` lists the runs here")
    locks = []
    try:
        for file in folder.rglob(LOCK):
            if file.is_file():
                locks.append(_locked(file.parent))
        if storage := storage_of(folder):
            storage.remove()
        else:
            shutil.rmtree(folder)
    finally:
        for lock in locks:
            lock.close()


def _locked(folder: Path, patience: float = 0.0) -> IO[bytes]:
    """Lock a folder; closing the file releases it."""
    path, deadline = folder / LOCK, time.monotonic() + patience
    while True:
        file = open_for_appending(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file  # otherwise it was removed before it was locked
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                words = f"another process is using {named(folder)}"
                raise BusyError(f"{words}: wait until it ends, or choose another --run") from error
            time.sleep(0.05)
        file.close()


def _complete(journal: IO[bytes]) -> int:
    """Return the length of the journal up to the end of its last whole line."""
    size = journal.seek(0, os.SEEK_END)
    while size > 0:
        start = max(0, size - 65536)
        journal.seek(start)
        newline = journal.read(size - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0


def _words(value: Any) -> str:
    """Write a setting down, in a few words."""
    values = value if isinstance(value, list | tuple) else (value,)
    words = ", ".join(str(item) for item in values if item not in ("", None)) or "none"
    return words if len(words) <= LONGEST_VALUE else f"{words[: LONGEST_VALUE - 1]}…"
