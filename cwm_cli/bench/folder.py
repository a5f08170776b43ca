"""The folder of a benchmark: where everything is, and what is there."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple

from cwm_cli.bench.configuration import Header, Trial, changes, slug
from cwm_cli.errors import CwmError
from cwm_cli.runs.files import read_header, replace

HEADER = "benchmark.json"
LOCK = "lock"
PATIENCE_SECONDS = 10.0
"""For the processes of a benchmark that was killed, which end when they notice."""


class Task(NamedTuple):
    """Something that a process does: for an environment, or for the trial of that name.

    "prepare" makes an environment and records its data, "write" induces a
    program of it, "search" and "play" are for a trial, "ceiling" and "oracle"
    say what can be reached in an environment; `planner` is that of an oracle.
    """

    kind: str
    name: str
    planner: str = ""

    @property
    def key(self) -> str:
        """A name for files."""
        return "-".join((self.kind, slug(self.name), *([self.planner] if self.planner else [])))


class Folder(NamedTuple):
    """Reads and writes what a benchmark keeps beside its runs."""

    path: Path

    @property
    def is_benchmark(self) -> bool:
        """Whether there is a benchmark."""
        return (self.path / HEADER).exists()

    def header(self) -> Header:
        """Read what the benchmark is."""
        missing = f"{self.path} is no benchmark: start one with cwm benchmark"
        return read_header(self.path / HEADER, Header, missing)

    def begin(self, header: Header) -> Header:
        """Start a benchmark here, or go on with the one that is here on the new terms."""
        if self.is_benchmark:
            before = self.header()
            if differing := list(changes(before.configuration, header.configuration)):
                names = "; ".join(differing)
                raise CwmError(
                    f"{self.path} was started with another {names}: choose another --run"
                )
            header = before.model_copy(update={"terms": header.terms})
        elif any(path.name != LOCK for path in self.path.glob("*")):
            raise CwmError(f"{self.path} holds something else: choose another --run")
        self.path.mkdir(parents=True, exist_ok=True)
        replace(self.path / HEADER, header.model_dump_json(indent=2) + "\n")
        return header

    def run(self, trial: Trial) -> Path:
        """Where the run of a trial is."""
        return self.path / trial.name

    def program(self, environment: str) -> Path:
        """Where the run is that writes the program of an environment for a simulation."""
        return self.path / "programs" / slug(environment)

    def data(self, environment: str) -> Path:
        """Where the transitions of an environment are."""
        return self.path / "data" / f"{slug(environment)}.npz"

    def outcome(self, task: Task) -> Path:
        """Where a task leaves what it found, but for searches."""
        return self.path / "outcomes" / f"{task.key}.json"

    def log(self, task: Task) -> Path:
        """Where a process prints."""
        return self.path / "logs" / f"{task.key}.txt"

    def found(self, task: Task) -> dict[str, Any] | None:
        """Read what a task found."""
        return _read(self.outcome(task))

    def keep(self, task: Task, found: Mapping[str, Any]) -> None:
        """Write down what a task found."""
        _write(self.outcome(task), found)

    def result(self, run: Path) -> dict[str, Any] | None:
        """Read what came of a run."""
        return _read(run / "result.json")

    def digest(self, trial: Trial) -> str:
        """Return the hash of the program of a trial, empty if there is none."""
        file = self.run(trial) / "best.py"
        return sha256(file.read_bytes()).hexdigest() if file.exists() else ""

    def failures(self) -> dict[str, str]:
        """Return why tasks failed, by their keys."""
        files = sorted((self.path / "failures").glob("*.json"))
        return {file.stem: str((_read(file) or {}).get("reason")) for file in files}

    def fail(self, task: Task, reason: str) -> None:
        """Write down why a task failed."""
        _write(self.path / "failures" / f"{task.key}.json", {"reason": reason})

    def forgive(self) -> None:
        """Forget what failed, so that it is tried again."""
        for file in (self.path / "failures").glob("*.json"):
            file.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[IO[bytes]]:
        """Keep other processes off; children that have the file open keep them off as well."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("a+b") as file:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not _lock(file):
                if time.monotonic() > deadline:
                    raise CwmError(f"another process is working on {self.path}: wait for it")
                time.sleep(0.05)
            yield file


def _lock(file: IO[bytes]) -> bool:
    """Lock a file, unless another process has it locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; one that is missing or damaged is none."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(file: Path, found: Mapping[str, Any]) -> None:
    """Write a JSON object as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, json.dumps(found, indent=2) + os.linesep)
