"""Judge programs from elsewhere: several of each problem, a line for each that is judged."""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cwm_apps.reading import Malformed
from cwm_apps.runs import JudgedSolution
from cwm_apps.scoring import ProblemOutcome
from cwm_apps.searching import (
    JUDGING,
    SKIPPED,
    SOLVED,
    UNSOLVED,
    ProblemState,
    ProblemWork,
    passed_tests,
    stream,
)
from cwm_cli.errors import CwmError

FORM = "write a JSON object of ids, each with a program or a list of programs"


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
    programs: dict[int, list[str]] = {}
    for name, value in found.items():
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise CwmError(f"{file} has no programs for problem {name}: {FORM}")
        try:
            number = int(name)
        except ValueError as error:
            raise CwmError(f"{file} has {name!r} for an id: {FORM}") from error
        programs[number] = [each.encode("utf-8", "replace").decode() for each in listed]
    return programs


class UnjudgedSolution(NamedTuple):
    """A program to judge: the position of its problem, and its number among the programs."""

    position: int
    number: int


@dataclass(kw_only=True)
class SolutionsJudging(ProblemWork):
    """The judging of programs from elsewhere."""

    programs: Mapping[int, Sequence[str]]
    seed: int
    _firsts: dict[int, bool] = field(default_factory=dict, init=False)
    _done: Counter[int] = field(default_factory=Counter, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def is_left(self) -> bool:
        """Whether a program is not judged yet."""
        return bool(self.left())

    def left(self) -> list[UnjudgedSolution]:
        """Return the programs that are not judged yet, without those of unusable problems."""
        done, skipped = self.run.judged(), self.run.header.skipped
        every = (
            UnjudgedSolution(p, n) for p in self.positions for n in range(len(self._programs(p)))
        )
        named = ((place, self.tasks.ids[place.position][0]) for place in every)
        return [p for p, id in named if (id, p.number) not in done and id not in skipped]

    def work(self) -> Iterator[ProblemState]:
        """Yield how far problems are."""
        done, items = self.run.judged(), self.left()
        self._firsts = {key[0]: one.outcome.strict for key, one in done.items() if key[1] == 0}
        self._done = Counter(number for number, _ in done)
        self._task = lru_cache(maxsize=self.sandbox.workers)(self.tasks.__getitem__)
        left = {item.position for item in items}
        for position in self.positions:
            if position not in left:
                yield self._over(position)
        stopping = threading.Event()
        yield from stream(self._judge, items, threads=self.sandbox.workers, stopping=stopping)

    def _judge(self, place: UnjudgedSolution) -> Iterator[ProblemState]:
        """Judge a program, and write down what it passes."""
        number, difficulty = self.tasks.ids[place.position]
        programs = self._programs(place.position)
        state = ProblemState(number, difficulty, JUDGING, budget=len(programs), unit="program")
        task = self._task(place.position)
        if isinstance(task, Malformed):
            if place.number == 0:
                self.skipped[number] = task.reason
                yield state._replace(state=SKIPPED, reason=task.reason)
            return
        yield state._replace(completions=self._done[number])
        passed = passed_tests(programs[place.number], task, self.sandbox, seed=self.seed)
        outcome = ProblemOutcome(id=number, difficulty=task.difficulty, **passed)
        with self._lock:
            with self.run:
                self.run.append(JudgedSolution(number=place.number, outcome=outcome))
            self._done[number] += 1
            is_over = self._done[number] == len(programs)
            if place.number == 0:
                self._firsts[number] = outcome.strict
        if is_over:
            yield self._over(place.position)

    def _programs(self, position: int) -> Sequence[str]:
        """Return the programs of a problem."""
        return self.programs.get(self.tasks.ids[position][0], ())

    def _over(self, position: int) -> ProblemState:
        """Say how the first program of a problem fares."""
        number, difficulty = self.tasks.ids[position]
        if reason := self.run.header.skipped.get(number):
            return ProblemState(number, difficulty, SKIPPED, reason=reason)
        total = len(self._programs(position))
        state = SOLVED if self._firsts[number] else UNSOLVED
        return ProblemState(number, difficulty, state, total, total, unit="program")
