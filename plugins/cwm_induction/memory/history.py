"""Recorded episodes, their events, and quantities that a program can remember."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.continuous.samples import Array, Remembered, Samples


@dataclass(frozen=True)
class RecordedHistory:
    """The rows of whole episodes, in order, with observations as rows of numbers.

    `first` marks the rows that begin an episode.
    """

    now: Array
    after: Array
    actions: Array
    rewards: Array
    terminated: Array
    first: Array
    learn: Array

    @classmethod
    def of(cls, data: Dataset, held_back: Array) -> Self:
        """Return the history of a dataset whose observations are one vector of numbers.

        A row that does not follow from the row before begins another episode.
        """
        columns, count = data.columns, len(data)
        now = columns["observations"].reshape(count, -1).astype(float)
        after = columns["next_observations"].reshape(count, -1).astype(float)
        first = np.ones(count, bool)
        first[1:] = columns["episodes"][1:] != columns["episodes"][:-1]
        first[1:] |= (after[:-1] != now[1:]).any(1)
        actions = columns["actions"].reshape(count, -1).astype(float)
        rewards = columns["rewards"].astype(float)
        return cls(now, after, actions, rewards, columns["terminations"], first, ~held_back)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def age(self) -> Array:
        """The number of steps since the start of the episode."""
        rows = np.arange(len(self))
        age: Array = rows - np.maximum.accumulate(np.where(self.first, rows, 0))
        return age

    def before(self, values: Array, start: float | Array) -> Array:
        """Return the value that each row's predecessor has, or the start value."""
        earlier: Array = np.roll(values, 1)
        earlier[self.first] = start[self.first] if isinstance(start, np.ndarray) else start
        return earlier


@dataclass(frozen=True, eq=False)
class Event:
    """A condition on a step: a Python expression, and the mask of the rows that meet it.

    The expression reads `now` and `after` (rows of numbers), `action` and `reward`. `cost` is
    the description length in nats.
    """

    text: str
    mask: Array
    cost: float = 3.0


def either(first: Event, second: Event) -> Event:
    """Return the event that one of two events happens."""
    if not first.text:
        return second
    text = f"{first.text} or {second.text}"
    return Event(text, first.mask | second.mask, first.cost + second.cost)


@dataclass(frozen=True, eq=False)
class RememberedQuantity:
    """A number that a program remembers, with its value before each recorded step.

    `start` is an expression of the first observation `now`, `update` one of the old value and of
    the last step.
    """

    name: str
    start: str
    update: str
    values: Array
    meaning: str
    cost: float = 6.0
    events: tuple[Event, ...] = ()
    """The counted event and the event that resets the count, for counters."""

    @property
    def labels(self) -> Array:
        """The values as whole numbers from 0."""
        if self.values.dtype.kind == "i":
            return self.values
        return np.unique(self.values, return_inverse=True)[1].ravel()

    def named(self, name: str) -> Self:
        """Return the quantity under another name."""
        return replace(self, name=name, update=self.update.replace(self.name, name))


def with_quantities(data: Dataset, quantities: Sequence[RememberedQuantity]) -> Dataset:
    """Append remembered quantities to a flat observation, as numbers that a step does not change.

    The program that keeps the quantities updates them, so nothing has to explain their changes.
    """
    if not quantities:
        return data
    space = data.observation_space
    extra = np.stack([quantity.values for quantity in quantities], 1)
    low, high = extra.min(0).tolist(), extra.max(0).tolist()
    columns = dict(data.columns)
    for name in ("observations", "next_observations"):
        seen = columns[name].reshape(len(data), -1)
        columns[name] = np.concatenate([seen, extra.astype(seen.dtype)], 1)
    size = space.size + len(quantities)
    dtype = str(columns["observations"].dtype)
    wide = Space("box", dtype, (size,), (*space.low, *low), (*space.high, *high))
    return replace(data, columns=columns, observation_space=wide)


def remembered_samples(
    data: Dataset, quantities: Sequence[RememberedQuantity], held_back: Array
) -> Samples:
    """Return samples of rows whose last components are remembered quantities, with their names."""
    samples = Samples.of(data, held_back)
    start = data.observation_space.size - len(quantities)
    noise = samples.grain * np.abs(samples.before[:, :start]).max(initial=0.0)
    remembered = {
        start + place: Remembered(quantity.name, float(noise))
        for place, quantity in enumerate(quantities)
    }
    return replace(samples, remembered=remembered)
