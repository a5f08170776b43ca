"""How far each job of a benchmark is, read from the journals while they grow."""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from cwm_cli.bench.configuration import Trial
from cwm_cli.bench.folder import Task
from cwm_cli.bench.running import Benchmark
from cwm_cli.bench.tail import Tail
from cwm_cli.bench.tasks import is_settled, play_of

WORKING = {
    "search": "searching",
    "play": "playing",
    "prepare": "collecting",
    "write": "inducing",
}
"""What a job is doing, by the kind of the task that is at work for it."""

FINISHED, FAILED, WAITING, TO_PLAY = "finished", "failed", "waiting", "to play"


class Standing(NamedTuple):
    """How far a job is; `left_seconds` is what its search may still take at the present pace."""

    trial: Trial
    state: str
    completions: int
    best: float | None
    cost: float | None
    left_seconds: float | None
    reason: str | None

    @property
    def is_working(self) -> bool:
        """Whether a process works on it."""
        return self.state in WORKING.values()

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.state == FINISHED

    @property
    def is_over(self) -> bool:
        """Whether it was finished or failed."""
        return self.state in (FINISHED, FAILED)


@dataclass
class Overview:
    """Knows how far every job is; `saw` has to be called when a task begins or is over."""

    benchmark: Benchmark
    states: dict[Trial, str] = field(default_factory=dict, init=False)
    _tails: dict[Trial, Tail] = field(default_factory=dict, init=False)
    _begun: dict[Trial, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for trial in self.benchmark.trials:
            self._tails[trial] = Tail(self.benchmark.folder.run(trial))
        self.saw()

    def saw(self) -> None:
        """Find out what every job is doing now."""
        for trial in self.benchmark.trials:
            state = self._state(trial)
            if self.states.get(trial) != state:
                self._tails[trial].read()
                self._begun[trial] = self._tails[trial].completions
                self.states[trial] = state

    def standings(self) -> list[Standing]:
        """Return how far every job is."""
        return [self.standing(trial) for trial in self.benchmark.trials]

    def standing(self, trial: Trial) -> Standing:
        """Return how far a job is."""
        state, tail = self.states[trial], self._tails[trial]
        if state == WORKING["search"]:
            tail.read()
        reason = self._reason(trial) if state == FAILED else None
        left_seconds = self._left_seconds(trial)
        return Standing(trial, state, tail.completions, tail.best, tail.cost, left_seconds, reason)

    def _state(self, trial: Trial) -> str:
        """Say what a job is doing."""
        running, terms = self.benchmark.running, self.benchmark.header.terms
        for task in _tasks(trial):
            if task.key in running:
                return WORKING[task.kind]
        if self._reason(trial):
            return FAILED
        folder = self.benchmark.folder
        result = folder.result(folder.run(trial))
        if result is None or not is_settled(result, terms):
            return WAITING
        unplayed = terms.plan and play_of(folder, terms, trial) is None
        play_failed = Task("play", trial.name).key in self.benchmark.failed
        return TO_PLAY if unplayed and result["program"] and not play_failed else FINISHED

    def _reason(self, trial: Trial) -> str | None:
        """Say why a job failed, None if it did not."""
        failed = self.benchmark.failed
        tasks = [task for task in _tasks(trial) if task.kind != "play"]
        return next((failed[task.key] for task in tasks if task.key in failed), None)

    def _left_seconds(self, trial: Trial) -> float | None:
        """Estimate how long a search goes on, once it has made a completion."""
        child = self.benchmark.running.get(Task("search", trial.name).key)
        completions = self._tails[trial].completions
        made = completions - self._begun.get(trial, 0)
        if child is None or made < 1:
            return None
        rest = self.benchmark.header.terms.budget - completions
        return max(0, rest) * (time.monotonic() - child.started) / made


def _tasks(trial: Trial) -> tuple[Task, ...]:
    """Return the tasks that a job consists of or waits for."""
    return (
        Task("search", trial.name),
        Task("play", trial.name),
        Task("prepare", trial.environment),
        Task("write", trial.environment),
    )
