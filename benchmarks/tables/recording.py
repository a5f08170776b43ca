"""Columns, laws and recordings: the parts that all simulated systems share.

A `Law` is the true rule of a system, vectorised over n copies of its state. The
function `simulate` runs one copy and records it; `observer` runs many copies to
compute the floors.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Kind = Literal["plain", "chance", "memory"]
Form = Literal["decimal", "integer", "boolean", "label"]

MAX_GAP_STEPS = 17


@dataclass(frozen=True)
class Column:
    """One column of an observation or action, and how a sensor records it.

    Attributes:
        name: Header in the CSV file.
        form: Type of the cells.
        decimals: Digits after the point (form "decimal").
        labels: Texts of the codes 0, 1, ... (forms "label" and "boolean").
        noise: Standard deviation of the sensor; for booleans the probability that
            the recorded value is flipped.
        noise_relative: Additional standard deviation per unit of the true value.
        lowest: Lowest value that the sensor records.
    """

    name: str
    form: Form = "decimal"
    decimals: int = 0
    labels: tuple[str, ...] = ("false", "true")
    noise: float = 0.0
    noise_relative: float = 0.0
    lowest: float = -np.inf

    @property
    def is_category(self) -> bool:
        """True for labels and booleans, which have no meaningful mean."""
        return self.form in ("boolean", "label")

    def deviation(self, values: Array) -> Array:
        """Return the sensor's standard deviation at the true `values`."""
        return self.noise + self.noise_relative * np.abs(values)

    def record(self, values: Array, noisy: bool, rng: np.random.Generator) -> Array:
        """Return the recorded values: noise (if `noisy`), lower bound, rounding."""
        if self.is_category:
            flips = rng.random(values.shape) < (self.noise if noisy else 0.0)
            return np.where(flips, 1.0 - values, values)
        if noisy:
            values = values + self.deviation(values) * rng.standard_normal(values.shape)
        rounded = np.round(values, self.decimals if self.form == "decimal" else 0)
        return np.asarray(np.maximum(rounded, self.lowest) + 0.0)

    def text(self, value: float) -> str:
        """Return the CSV cell of a recorded value."""
        if self.is_category:
            return self.labels[round(value)]
        return f"{value:.{self.decimals}f}" if self.form == "decimal" else str(round(value))


@dataclass(frozen=True)
class Clock:
    """The time column of a recording.

    Attributes:
        name: Header in the CSV file.
        step: Duration of one step; seconds if `start` is set, else the column's unit.
        start: Timestamp of the first row; None for a column of numbers.
        decimals: Digits after the point of a numeric time.
        restarts: True if time is 0 at the start of each episode.
    """

    name: str
    step: float
    start: datetime | None = None
    decimals: int = 0
    restarts: bool = False

    def text(self, steps: int) -> str:
        """Return the CSV cell after a number of steps."""
        if self.start is None:
            return f"{steps * self.step:.{self.decimals}f}"
        moment = self.start + timedelta(seconds=steps * self.step)
        if self.step % 86400 == 0:
            return moment.date().isoformat()
        return moment.isoformat(timespec="seconds" if self.step % 1 == 0 else "milliseconds")


class Law(ABC):
    """The true rule of a system, vectorised over n copies of the state.

    States are float arrays of shape (n, state size); an action is a float array with
    one number per action column (labels and booleans as codes 0, 1, ...).
    """

    name: ClassVar[str]
    actions: ClassVar[tuple[Column, ...]]
    observations: ClassVar[tuple[Column, ...]]
    #: State indices of the observed components, for the default `observe` and `place`.
    observed: ClassVar[tuple[int, ...]] = ()
    #: State indices of continuous components, which the particle filter may jitter.
    smooth: ClassVar[tuple[int, ...]] = ()
    reward_name: ClassVar[str | None] = None
    done_name: ClassVar[str | None] = None
    episode_name: ClassVar[str | None] = None
    episode_rows: ClassVar[int] = 2**31
    clock: ClassVar[Clock | None] = None
    gaps: ClassVar[int] = 0
    actions_first: ClassVar[bool] = False
    #: Transitions at the start of a segment that the floors leave out, because the
    #: memory of the system is not yet known from the recorded rows.
    warm_up: int = 0

    @abstractmethod
    def initial(self, n: int, rng: np.random.Generator) -> Array:
        """Return n initial states, shape (n, state size)."""

    @abstractmethod
    def step(self, states: Array, action: Array, rng: np.random.Generator) -> Array:
        """Return the next states, shape (n, state size)."""

    @abstractmethod
    def policy(self, recorded: Array, previous: Array, rng: np.random.Generator) -> Array:
        """Return the next action from the recorded observation and the previous action."""

    def observe(self, states: Array) -> Array:
        """Return the true observations, shape (n, number of observation columns)."""
        return states[:, self.observed]

    def place(self, states: Array, observations: Array) -> Array:
        """Return the states with their observed components replaced.

        Args:
            states: Shape (n, state size); the components that are not observed are kept.
            observations: Shape (n, number of observation columns).
        """
        placed = states.copy()
        placed[:, self.observed] = observations
        return placed

    def reward(self, before: Array, action: Array, after: Array) -> float:
        """Return the reward of one transition between true states of shape (1, size)."""
        return 0.0

    def done(self, state: Array) -> bool:
        """Return whether the episode ends at this true state of shape (1, size)."""
        return False


@dataclass(frozen=True)
class Recording:
    """A recorded run of a system, one entry per row.

    Attributes:
        observations: Recorded observations, shape (rows, observation columns).
        actions: Actions applied in each row, shape (rows, action columns).
        rewards: Reward of the action of the row; 0 in a row with `dones`.
        dones: True in the row that holds the last observation of an ended episode.
        episodes: Episode number, from 0.
        steps: Steps since the start of the episode or of the recording (see `Clock`).
        segments: Number of the uninterrupted segment; it changes at each new episode
            and at each gap, so transitions exist only inside a segment.
    """

    observations: Array
    actions: Array
    rewards: Array
    dones: npt.NDArray[np.bool_]
    episodes: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]


def record_all(
    columns: Sequence[Column], values: Array, noisy: bool, rng: np.random.Generator
) -> Array:
    """Return the recorded form of an array of shape (n, columns)."""
    recorded = [column.record(values[:, index], noisy, rng) for index, column in enumerate(columns)]
    return np.stack(recorded, axis=1)


class _Run:
    """The mutable state of one simulation: true state, counters and generators."""

    def __init__(self, law: Law, noisy: bool, seed: int) -> None:
        self.law, self.noisy = law, noisy
        self.process, self.sensor, self.choice = (
            np.random.default_rng([seed, stream]) for stream in (1, 2, 3)
        )
        self.action = np.zeros(len(law.actions))
        self.episode, self.segment, self.total = 0, 0, 0
        self.begin()

    def begin(self) -> None:
        self.state = self.law.initial(1, self.process)
        self.age = 0

    def advance(self) -> tuple[Array, Array, float, bool]:
        """Record one row and apply its action; return the row's four parts."""
        law = self.law
        recorded = record_all(law.observations, law.observe(self.state), self.noisy, self.sensor)
        self.action = law.policy(recorded[0], self.action, self.choice)
        done = law.done(self.state)
        after = law.step(self.state, self.action, self.process)
        reward = 0.0 if done else law.reward(self.state, self.action, after)
        self.state = after
        self.age += 1
        self.total += 1
        return recorded[0], self.action, reward, done

    def skip(self, steps: int) -> None:
        """Run some steps that are not recorded, which leaves a gap in time."""
        for _ in range(steps):
            self.advance()
        self.segment += 1

    def next_episode(self) -> None:
        self.episode += 1
        self.segment += 1
        self.begin()


def simulate(law: Law, rows: int, noisy: bool, seed: int) -> Recording:
    """Run a law and record it.

    Args:
        law: The true rule.
        rows: Number of recorded rows.
        noisy: Whether the sensors add noise. The policy sees the recorded values, so
            that the actions reveal nothing beyond the recorded rows.
        seed: Seed of the process, the sensors and the policy.
    """
    run = _Run(law, noisy, seed)
    gap_rng = np.random.default_rng([seed, 4])
    gap_rows = set(gap_rng.choice(np.arange(20, max(rows, 60)), law.gaps, replace=False).tolist())
    restarts = law.clock is not None and law.clock.restarts
    kept, counters = [], []
    for row in range(rows):
        if row in gap_rows:
            run.skip(int(gap_rng.integers(2, MAX_GAP_STEPS + 1)))
        counters.append((run.episode, run.age if restarts else run.total, run.segment))
        kept.append(run.advance())
        if kept[-1][3] or run.age >= law.episode_rows:
            run.next_episode()
    observations, actions, rewards, dones = zip(*kept, strict=True)
    episodes, steps, segments = np.array(counters, dtype=np.int64).T
    return Recording(
        np.array(observations),
        np.array(actions),
        np.array(rewards),
        np.array(dones),
        episodes,
        steps,
        segments,
    )


def write_recording(path: Path, law: Law, recording: Recording) -> None:
    """Write a recording as a CSV file with one row per step."""
    columns = _text_columns(law, recording)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _text_columns(law: Law, recording: Recording) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {}
    if law.episode_name:
        columns[law.episode_name] = [str(number + 1) for number in recording.episodes]
    if law.clock:
        columns[law.clock.name] = [law.clock.text(int(step)) for step in recording.steps]
    parts = [(law.observations, recording.observations), (law.actions, recording.actions)]
    for specs, values in reversed(parts) if law.actions_first else parts:
        for index, column in enumerate(specs):
            columns[column.name] = [column.text(value) for value in values[:, index]]
    if law.reward_name:
        columns[law.reward_name] = [f"{reward + 0.0:.4f}" for reward in recording.rewards]
    if law.done_name:
        columns[law.done_name] = ["true" if done else "false" for done in recording.dones]
    return columns
