"""The journal of `cwm plan`: a line per episode, so that nothing played is ever lost."""

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from cwm_cli.agents.contests import Side, SideName
from cwm_cli.agents.episodes import Episode
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import Report


class Identity(BaseModel):
    """The choices that decide how an episode goes; an episode is not played twice under the same.

    `program` is the hash of its text, empty where plans are made in the true
    environment. `planner` is the name that was asked for, `planners` are those
    that it stands for, with their options.
    """

    model_config = ConfigDict(frozen=True)

    env: str
    env_args: dict[str, Any] = {}
    versions: dict[str, str] = {}
    program: str = ""
    planner: str
    planners: list[tuple[str, dict[str, Any]]]
    limit: int
    seed: int
    tools: list[str] = []
    limits: dict[str, float] = {}
    form: str = ""

    @property
    def file_name(self) -> str:
        """A name that people and programs can tell from others."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        env = re.sub(r"[^\w.-]+", "-", self.env)
        return f"{env}-{self.planner}-{self.seed}-{sha256(content).hexdigest()[:12]}.jsonl"


class Line(BaseModel):
    """An episode of a side, and what its plans were made with."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    side: SideName
    episode: Episode
    report: Report | None = None


class Key(NamedTuple):
    """What tells an episode of a journal from the others."""

    side: SideName
    number: int


@dataclass
class Journal:
    """A file with a header and a line per episode, for one process at a time.

    It survives being killed at any moment. While it is open it is locked.
    """

    file: Path
    identity: Identity
    lines: dict[Key, Line] = field(default_factory=dict)
    _open: IO[bytes] | None = field(default=None, repr=False)
    _anew: bool = field(default=False, repr=False)

    @classmethod
    def open(cls, folder: Path, identity: Identity, *, new: bool = False) -> Self:
        """Open the journal of some choices, or begin one; with `new`, what it holds is ignored."""
        file = folder / identity.file_name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            opened = _locked(file)
        except OSError as error:
            raise CwmError(f"{file} cannot be written ({error}): choose another folder") from error
        journal = cls(file, identity, _open=opened)
        try:
            journal._anew = new and opened.seek(0, os.SEEK_END) > 0
            journal.lines = {} if journal._anew else journal._read(opened)
        except BaseException:
            opened.close()
            raise
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the journal; one in which nothing was ever written is removed."""
        if self._open:
            if not self.lines and not self._anew:
                self.file.unlink(missing_ok=True)
            self._open.close()
            self._open = None

    def missing(self, asked: Collection[Key]) -> list[Key]:
        """Return what was not played yet."""
        return [key for key in asked if key not in self.lines]

    def side(self, name: SideName, count: int) -> Side:
        """Return those of the first episodes of a side that were played."""
        keys = [Key(name, number) for number in range(count)]
        episodes = [self.lines[key].episode for key in keys if key in self.lines]
        return Side(episodes, self.report(name))

    def report(self, name: SideName) -> Report | None:
        """Return what the first plans of a side were made with, if that is known."""
        lines = (line for key, line in self.lines.items() if key.side == name)
        return next((line.report for line in lines if line.report), None)

    def forget(self, keys: Collection[Key]) -> None:
        """Have episodes played anew; the file keeps them until the first one is over."""
        self.lines = {key: line for key, line in self.lines.items() if key not in keys}
        self._anew = True

    def append(self, side: SideName, episode: Episode, report: Report | None) -> None:
        """Write an episode down for good: when this returns, no crash can lose it."""
        line = Line(side=side, episode=episode, report=report)
        self.lines[Key(side, episode.number)] = line
        if self._anew:
            self._replace()
        elif self._open is not None:
            _write(self._open, line)

    def _replace(self) -> None:
        """Replace the file by one that holds the known lines only."""
        partial = self.file.with_name(f".{self.file.name}.part")
        partial.unlink(missing_ok=True)
        opened = _locked(partial)
        _write(opened, self.identity, *self.lines.values())
        partial.replace(self.file)
        if self._open:
            self._open.close()
        self._open, self._anew = opened, False

    def _read(self, opened: IO[bytes]) -> dict[Key, Line]:
        """Read the lines; what a crash left of a last one is cut off."""
        opened.seek(0)
        content = opened.read()
        whole = content[: content.rfind(b"\n") + 1]
        opened.truncate(len(whole))
        header, *lines = whole.split(b"\n")[:-1] or [b""]
        if not header:
            _write(opened, self.identity)
        elif not _agrees(header, self.identity):
            raise CwmError(f"{self.file} holds other choices: move it away, or add --new")
        return {Key(line.side, line.episode.number): line for line in self._parsed(lines)}

    def _parsed(self, lines: list[bytes]) -> Iterator[Line]:
        """Parse lines; of an episode that was played twice, the last one counts."""
        for number, line in enumerate(lines, start=2):
            try:
                yield Line.model_validate_json(line)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise CwmError(
                    f"{self.file}, line {number}: {reason}; restore it or add --new"
                ) from error


def _locked(file: Path) -> IO[bytes]:
    """Open a file that no other process has open; it is made if there is none."""
    while True:
        opened = file.open("a+b")
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            opened.close()
            raise CwmError(f"another process is playing for {file}: wait for it") from error
        if file.exists() and file.stat().st_ino == os.fstat(opened.fileno()).st_ino:
            return opened
        opened.close()  # it was replaced before it was locked


def _write(opened: IO[bytes], *models: BaseModel) -> None:
    """Add lines, and wait until they are on the disk."""
    opened.write(b"".join(model.model_dump_json().encode() + b"\n" for model in models))
    opened.flush()
    os.fsync(opened.fileno())


def _agrees(header: bytes, identity: Identity) -> bool:
    """Whether a header is that of an identity."""
    try:
        known: Mapping[str, Any] = json.loads(header)
    except ValueError:
        return False
    return known == identity.model_dump(mode="json")
