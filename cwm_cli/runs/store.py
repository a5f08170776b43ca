"""A run is a folder: what was asked, every node found, and the best program."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.runs.files import read_header, replace
from cwm_cli.sandbox.protection import Protection
from cwm_cli.search.contracts import Node, Record

JOURNAL = "nodes.jsonl"
DATASET = "dataset.npz"


class RunConfig(BaseModel):
    """The choices that make a run what it is; a run is continued only under the same ones.

    `dataset` is the digest of the transitions, `tools` are the modules that
    programs may import beside the usual ones, and `options` holds every option
    of strategy, backend, problem and sandbox. Budget, parallelism, cost limit
    and the address of the model are no part of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str
    env_args: dict[str, Any] = {}
    dataset: str
    strategy: str
    backend: str
    model: str = ""
    options: dict[str, dict[str, Any]] = {}
    tools: tuple[str, ...] = ()
    metric: str = "accuracy"
    seed: int = 0


class Header(BaseModel):
    """What `run.json` holds: the choices, and the circumstances that the run depends on.

    `protection` is what programs could not do when the run was started.
    """

    model_config = ConfigDict(frozen=True)

    config: RunConfig
    description: str
    versions: dict[str, str]
    source: str
    created: str
    protection: Protection | None = None

    @property
    def openings(self) -> str:
        """Say what programs could do when the run was started, as far as it is known."""
        return openings(self.protection) if self.protection else "unknown"


class Material(Protocol):
    """What the programs of a run are judged by."""

    def save(self, path: Path) -> None:
        """Write it to a file."""
        ...


class BusyError(CwmError):
    """Another process works on what is asked for."""


@dataclass
class Run:
    """A folder that grows by one line per node and survives being killed at any moment.

    While it is open for writing the journal is locked, so that two processes
    never continue the same run.
    """

    folder: Path
    header: Header
    _journal: IO[bytes] | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls, folder: Path, header: Header, material: Material, *, name: str = DATASET
    ) -> Self:
        """Make a new run folder with everything that the run depends on."""
        folder.mkdir(parents=True, exist_ok=True)
        material.save(folder / name)
        replace(folder / "run.json", header.model_dump_json(indent=2) + "\n")
        return cls(folder, header)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a run folder."""
        missing = f"{folder} is no run: `cwm runs list` shows the runs here"
        return cls(folder, read_header(folder / "run.json", Header, missing))

    @property
    def config(self) -> RunConfig:
        """The choices of this run."""
        return self.header.config

    def dataset(self) -> Dataset:
        """Return the transitions of this run, train and held-out."""
        return Dataset.load(self.folder / DATASET)

    def best_program(self) -> str:
        """Return the text of `best.py`."""
        try:
            return (self.folder / "best.py").read_text()
        except FileNotFoundError as error:
            raise CwmError(f"{self.folder} has no program yet: continue it first") from error

    def nodes(self) -> Iterator[Node]:
        """Read the journal; a last line that a crash cut short is dropped."""
        return (line.node for line in read_journal(self.folder))

    def __enter__(self) -> Self:
        """Lock the journal and cut off what a crash left of its last line."""
        journal = (self.folder / JOURNAL).open("a+b")
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            journal.close()
            raise BusyError(
                f"another process is working on {self.folder}: wait for it or choose another --run"
            ) from error
        journal.truncate(_complete(journal))
        self._journal = journal
        return self

    def __exit__(self, *_: object) -> None:
        """Release the journal."""
        if self._journal:
            self._journal.close()
            self._journal = None

    def append(self, record: Record) -> None:
        """Write a record down for good: when this returns, no crash can lose it."""
        if self._journal is None:
            raise RuntimeError("the run is not open for writing")
        line = Line(node=record.node, text=record.text).model_dump_json() + "\n"
        self._journal.write(line.encode())
        self._journal.flush()
        os.fsync(self._journal.fileno())

    def save_best(self, node: Node) -> None:
        """Write the best program to where the other commands look for it."""
        replace(self.folder / "best.py", node.program)

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write what `--json` prints."""
        replace(self.folder / "result.json", json.dumps(result, indent=2) + "\n")

    def log(self, text: str) -> None:
        """Add a line to the log, with the time."""
        with (self.folder / "log.txt").open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(text.split())}\n")


class Line(BaseModel):
    """One line of the journal."""

    node: Node
    text: str


def read_journal(folder: Path) -> Iterator[Line]:
    """Read the journal of a run folder; a last line that a crash cut short is dropped."""
    file = folder / JOURNAL
    lines = file.read_bytes().split(b"\n") if file.exists() else [b""]
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield Line.model_validate_json(line)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise CwmError(
                f"{file}, line {number}: {reason}; restore it or choose another run"
            ) from error


def runs_in(parent: Path) -> Iterator[Run]:
    """Yield the runs below a folder, the newest first."""
    files = [file for file in parent.glob("*/run.json") if file.is_file()]
    for file in sorted(files, key=lambda file: (file.stat().st_mtime, file), reverse=True):
        try:
            yield Run.load(file.parent)
        except CwmError:
            continue


def is_free(folder: Path, *, name: str = DATASET) -> bool:
    """Whether a run may start in a folder: there is nothing, or a start that was cut short."""
    if not folder.exists():
        return True
    names = {path.name for path in folder.iterdir() if not path.name.endswith(".part")}
    return names <= {name}


def differences(before: RunConfig, now: RunConfig) -> list[str]:
    """Name the settings in which two configurations differ, options one by one."""
    names = [name for name in RunConfig.model_fields if name != "options"]
    changed = [name for name in names if getattr(before, name) != getattr(now, name)]
    for owner in sorted(before.options.keys() | now.options.keys()):
        old, new = before.options.get(owner, {}), now.options.get(owner, {})
        changed += [
            f"{owner}.{k}" for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)
        ]
    return changed


def openings(protection: Protection) -> str:
    """Say what programs can do that they should not, in one line."""
    return f"open: {', '.join(protection.gaps)}" if protection.gaps else "nothing open"


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
