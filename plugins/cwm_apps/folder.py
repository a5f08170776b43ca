"""The folder of a run over coding problems: what was asked, and what is there of each problem."""

import dataclasses
import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from cwm_apps.scoring import Outcome
from cwm_apps.tasks import CodingTask, digest, from_record, to_record
from cwm_cli.errors import CwmError
from cwm_cli.runs.files import read_header, replace
from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun, read_answers
from cwm_cli.runs.store import differences, is_free
from cwm_cli.sandbox.protection import Protection

HEADER = "apps.json"
TASK = "task.json"
LOCK = "lock"


class Header(BaseModel):
    """What `apps.json` holds: the choices, the problems asked for so far, and the circumstances.

    `skipped` says of problems why they cannot be used.
    """

    model_config = ConfigDict(frozen=True)

    config: SearchConfig
    problems: tuple[int, ...]
    version: str
    created: str
    protection: Protection | None = None
    skipped: dict[int, str] = {}


class Found(Outcome):
    """What `result.json` of a problem holds; `solved` is a program that passes the public tests."""

    run: str
    program: str | None
    solved: bool
    given_up: bool
    digest: str

    def enough(self, budget: int) -> bool:
        """Whether a search with this budget would not go on."""
        return self.solved or self.given_up or self.completions >= budget


class Material(NamedTuple):
    """A task as it is kept beside its run, without the known solutions."""

    task: CodingTask

    def save(self, path: Path) -> None:
        """Write the task down."""
        record = to_record(dataclasses.replace(self.task, solutions=()))
        replace(path, json.dumps(record) + "\n")


class Folder(NamedTuple):
    """Reads and writes what a run over problems keeps."""

    path: Path

    @property
    def is_apps(self) -> bool:
        """Whether there is such a run."""
        return (self.path / HEADER).exists()

    def header(self) -> Header:
        """Read what the run is."""
        missing = f"{self.path} is no run of cwm apps: choose another folder"
        return read_header(self.path / HEADER, Header, missing)

    def begin(self, header: Header) -> Header:
        """Start a run here, or go on with the one that is here, perhaps with further problems."""
        with self.locked():
            if self.is_apps:
                before = self.header()
                check_equal(self.path, before.config, header.config)
                problems = tuple(sorted({*before.problems, *header.problems}))
                header = before.model_copy(update={"problems": problems})
            elif any(path.name != LOCK for path in self.path.iterdir()):
                raise CwmError(f"{self.path} holds something else: choose another --run")
            self._write(header)
        return header

    def skip(self, skipped: Mapping[int, str]) -> None:
        """Write down which problems cannot be used, and why."""
        if skipped:
            with self.locked():
                header = self.header()
                self._write(header.model_copy(update={"skipped": {**header.skipped, **skipped}}))

    def run(self, task: CodingTask, header: Header) -> SearchRun:
        """Return the run of a problem, started if it is not there yet."""
        folder = self.problem(task.id)
        config = header.config.model_copy(
            update={"env": f"{header.config.env}/{task.id:04}", "dataset": digest(task)}
        )
        with self.locked():
            if (folder / "run.json").exists():
                run = SearchRun.load(folder)
                _check_task(run, config)
                return run
            if not is_free(folder, [TASK]):
                raise CwmError(f"{folder} holds something else: choose another --run")
            about = SearchHeader(
                config=config,
                description=task.question,
                versions={},
                source=header.config.dataset,
                created=header.created,
                protection=header.protection,
            )
            return SearchRun.start(folder, about, {TASK: Material(task)})

    def problem(self, number: int) -> Path:
        """Where the run of a problem is."""
        return self.path / "problems" / f"{number:04}"

    def started(self) -> list[Path]:
        """Return the runs of problems, in the order of their ids."""
        files = (self.path / "problems").glob("*/run.json")
        return sorted((file.parent for file in files), key=lambda path: int(path.name))

    def found(self, run: Path) -> Found | None:
        """Read what came of a problem; a result that is missing or damaged is none."""
        try:
            return Found.model_validate_json((run / "result.json").read_bytes())
        except (OSError, ValueError):
            return None

    def every_found(self) -> Iterator[Found]:
        """Yield what came of problems, as far as it did."""
        return (found for run in self.started() if (found := self.found(run)))

    def spent(self, number: int) -> float:
        """Return what the completions of a problem have cost so far, as far as it is known."""
        folder = self.problem(number)
        if found := self.found(folder):
            return found.cost or 0.0
        return sum(line.node.usage.cost or 0.0 for line in read_answers(folder))

    def task(self, run: Path) -> CodingTask:
        """Read the task of a problem."""
        try:
            return from_record(json.loads((run / TASK).read_text()))
        except (OSError, ValueError, CwmError) as error:
            raise CwmError(f"{run / TASK} cannot be read: choose another --run") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait for other processes that change what all problems share."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, header: Header) -> None:
        replace(self.path / HEADER, header.model_dump_json(indent=2) + "\n")


def save(run: SearchRun, found: Found) -> None:
    """Write down what came of a problem."""
    more = {"strict": found.strict, "share": found.share, "no_hidden_tests": not found.has_hidden}
    run.save_result(found.model_dump() | more)


def check_equal(path: Path, before: SearchConfig, now: SearchConfig) -> None:
    """Refuse to go on with other choices, naming them."""
    if names := changes(before, now):
        raise CwmError(f"{path} was started with another {names}: choose another --run")


def changes(before: SearchConfig, now: SearchConfig) -> str:
    """Name the settings in which two runs differ, in the words of the command."""
    names = [change.name for change in differences(before, now)]
    return ", ".join("data" if name == "dataset" else name for name in names)


def folders_in(parent: Path) -> Iterator[Folder]:
    """Yield the runs over problems below a folder, the newest first."""
    files = parent.glob(f"*/{HEADER}")
    for file in sorted(files, key=lambda file: (file.stat().st_mtime, file), reverse=True):
        yield Folder(file.parent)


def _check_task(run: SearchRun, config: SearchConfig) -> None:
    """Refuse a task that is not the one that the run was started with."""
    if run.config.dataset != config.dataset:
        raise CwmError(f"{run.folder} was started with another text or tests: choose another --run")
    check_equal(run.folder, run.config, config)
