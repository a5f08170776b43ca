"""Judge programs from elsewhere: several of each problem, a line for each that is judged."""

import fcntl
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from cwm_apps.configuration import cores
from cwm_apps.folder import Folder
from cwm_apps.overview import JUDGING, SKIPPED, SOLVED, UNSOLVED, Standing
from cwm_apps.reading import Malformed, Tasks
from cwm_apps.running import counts, verdicts
from cwm_apps.scoring import Outcome
from cwm_apps.threads import stream
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import Sandbox

JUDGED = "judged.jsonl"
FORM = "write a JSON object of ids, each with a program or a list of programs"


class Judged(BaseModel):
    """A line of the file of results: what the `number`th program of a problem passes."""

    model_config = ConfigDict(frozen=True)

    number: int
    outcome: Outcome

    @property
    def key(self) -> tuple[int, int]:
        """Which program of which problem it is."""
        return self.outcome.id, self.number


class Item(NamedTuple):
    """A program to judge: the position of its problem, and its number among the programs."""

    position: int
    number: int


def read_solutions(file: Path) -> dict[int, list[str]]:
    """Read the programs of each problem."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CwmError(f"there is no {file}: {FORM}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CwmError(f"{file} cannot be read ({error}): {FORM}") from error
    if not isinstance(found, dict):
        raise CwmError(f"{file} is no object: {FORM}")
    return {_number(name, file): _programs(name, value, file) for name, value in found.items()}


def read_judged(folder: Folder) -> dict[tuple[int, int], Judged]:
    """Read what was judged so far; lines that a crash cut short are left out."""
    file = folder.path / JUDGED
    found: dict[tuple[int, int], Judged] = {}
    for text in file.read_bytes().splitlines() if file.exists() else []:
        try:
            line = Judged.model_validate_json(text)
        except ValidationError:
            continue
        found.setdefault(line.key, line)
    return found


@dataclass
class Judging:
    """The programs of a run over solutions; `skipped` says which problems cannot be used."""

    folder: Folder
    tasks: Tasks
    positions: Sequence[int]
    programs: Mapping[int, Sequence[str]]
    sandbox: Sandbox
    seed: int
    skipped: dict[int, str] = field(default_factory=dict, init=False)
    _firsts: dict[int, bool] = field(default_factory=dict, init=False)
    _done: Counter[int] = field(default_factory=Counter, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self) -> Iterator[Standing]:
        """Yield how far problems are."""
        done = read_judged(self.folder)
        self._firsts = {key[0]: one.outcome.strict for key, one in done.items() if key[1] == 0}
        self._done = Counter(number for number, _ in done)
        self._task = lru_cache(maxsize=cores())(self.tasks.__getitem__)
        every = [Item(p, n) for p in self.positions for n in range(len(self._of(p)))]
        items = [item for item in every if (self._id(item.position), item.number) not in done]
        left = {item.position for item in items}
        yield from (self._over(p) for p in self.positions if p not in left and self._of(p))
        yield from stream(self._judge, items, threads=cores(), stopping=threading.Event())

    def _judge(self, item: Item) -> Iterator[Standing]:
        """Judge a program, and write down what it passes."""
        number, difficulty = self.tasks.ids[item.position]
        total = len(self._of(item.position))
        standing = Standing(number, difficulty, JUDGING, budget=total, unit="program")
        task = self._task(item.position)
        if isinstance(task, Malformed):
            if item.number == 0:
                self.skipped[number] = task.reason
                yield standing._replace(state=SKIPPED, reason=task.reason)
            return
        yield standing._replace(completions=self._done[number])
        program = self._of(item.position)[item.number]
        passed = verdicts(program, task, self.sandbox, seed=self.seed)
        outcome = Outcome(id=number, difficulty=task.difficulty, **counts(passed, task))
        self._append(Judged(number=item.number, outcome=outcome))
        with self._lock:
            self._done[number] += 1
            is_over = self._done[number] == total
            if item.number == 0:
                self._firsts[number] = outcome.strict
        if is_over:
            yield self._over(item.position)

    def _of(self, position: int) -> Sequence[str]:
        """Return the programs of a problem."""
        return self.programs.get(self._id(position), ())

    def _id(self, position: int) -> int:
        """Return the id of a problem."""
        return self.tasks.ids[position][0]

    def _over(self, position: int) -> Standing:
        """Say how the first program of a problem fares."""
        number, difficulty = self.tasks.ids[position]
        total = len(self._of(position))
        state = SOLVED if self._firsts[number] else UNSOLVED
        return Standing(number, difficulty, state, total, total, unit="program")

    def _append(self, line: Judged) -> None:
        """Write a line down, below one that a crash cut short if need be."""
        with self._lock, (self.folder.path / JUDGED).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, 2)
            file.seek(max(0, end - 1))
            torn = end > 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + line.model_dump_json().encode() + b"\n")


def _number(name: str, file: Path) -> int:
    """Read the id of a problem."""
    try:
        return int(name)
    except ValueError as error:
        raise CwmError(f"{file} has {name!r} for an id: {FORM}") from error


def _programs(name: str, value: object, file: Path) -> list[str]:
    """Read the programs of a problem."""
    programs = [value] if isinstance(value, str) else value
    if not isinstance(programs, list) or not all(isinstance(each, str) for each in programs):
        raise CwmError(f"{file} has no programs for problem {name}: {FORM}")
    return [each.encode("utf-8", "replace").decode() for each in programs]
