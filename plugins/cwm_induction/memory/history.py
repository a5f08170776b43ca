"""Recorded episodes, their events, and quantities that a program can remember."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.continuous.samples import Array, Remembered, Samples
from cwm_induction.writing.rounding import literal, simplest_between

MAX_LEVELS = 12
"""A number with at most this many values has an event per value."""

MAX_PLACES = 200
"""With at most this many pairs of observation and action, each pair is an event."""

MIN_ROWS = 3
"""Minimum number of rows with an event, and of rows without it."""


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

    @property
    def never(self) -> "Event":
        """The event that never happens."""
        return Event("", np.zeros(len(self), bool), 0.0)

    def before(self, values: Array, start: float | Array) -> Array:
        """Return the value that each row's predecessor has, or the start value."""
        earlier: Array = np.roll(values, 1)
        earlier[self.first] = start[self.first] if isinstance(start, np.ndarray) else start
        return earlier


@dataclass(frozen=True, eq=False)
class Event:
    """A condition on a step: a Python expression, and the mask of the rows that meet it.

    The expression reads `now` and `after` (rows of numbers), `action` and `reward`; it is empty for
    an event that never happens. `cost` is the description length in nats.
    """

    text: str
    mask: Array
    cost: float = 3.0

    def either(self, other: Self) -> Self:
        """Return the event that this event or another one happens."""
        if not self.text:
            return other
        text = f"{self.text} or {other.text}"
        return replace(self, text=text, mask=self.mask | other.mask, cost=self.cost + other.cost)


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
        return self.values if self.values.dtype.kind == "i" else whole(self.values)

    def named(self, name: str) -> Self:
        """Return the quantity under another name."""
        return replace(self, name=name, update=self.update.replace(self.name, name))


def whole(values: Array) -> Array:
    """Return numbers as labels from 0, in their order."""
    return np.asarray(np.unique(values, return_inverse=True)[1]).ravel()


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


def events_of(history: RecordedHistory) -> list[Event]:
    """Return simple events: actions, rewards, values of components, and components that change."""
    found = [*_actions(history), *_rewards(history), *_components(history)]
    return _distinct(found)


def places_of(history: RecordedHistory) -> list[Event]:
    """Return the events of one action at one observation."""
    pairs = np.column_stack([history.now, history.actions])
    unique, labels = np.unique(pairs, axis=0, return_inverse=True)
    if len(unique) > MAX_PLACES:
        return []
    size, found = history.now.shape[1], []
    for label, pair in enumerate(unique.tolist()):
        place = ", ".join(literal(value) for value in pair[:size])
        text = f"(*now, action) == ({place}, {literal(pair[size])})"
        found.append(Event(text, labels.ravel() == label, 5.0))
    return _distinct(found)


def level_text(name: str, levels: Array, index: int) -> str:
    """Write that a number has one of its levels, with thresholds in the gaps if it is not whole."""
    if (levels == np.round(levels)).all():
        return f"{name} == {literal(levels[index])}"
    low = simplest_between(*levels[index - 1 : index + 1]) if index else None
    high = simplest_between(*levels[index : index + 2]) if index + 1 < len(levels) else None
    if low is None:
        return f"{name} < {high!r}"
    return f"{name} > {low!r}" if high is None else f"{low!r} < {name} < {high!r}"


def _levels(name: str, values: Array) -> Iterator[Event]:
    """Yield that a number has a level, or exceeds one, unless it has many levels."""
    levels = np.unique(values)
    if not 1 < len(levels) <= MAX_LEVELS:
        return
    for index, level in enumerate(levels):
        yield Event(level_text(name, levels, index), values == level)
    for low, high in pairwise(levels[1:-1]):
        threshold = simplest_between(low, high)
        yield Event(f"{name} > {threshold!r}", values > threshold, 3.5)


def _actions(history: RecordedHistory) -> Iterator[Event]:
    if history.actions.shape[1] == 1:
        yield from _levels("action", history.actions[:, 0])


def _rewards(history: RecordedHistory) -> Iterator[Event]:
    yield from _levels("reward", history.rewards)
    sizes = np.unique(np.abs(history.rewards))
    gaps = np.diff(sizes)
    for place in np.argsort(-gaps, kind="stable")[:2].tolist():
        threshold = simplest_between(sizes[place], sizes[place + 1])
        mask = np.abs(history.rewards) > threshold
        yield Event(f"abs(reward) > {threshold!r}", mask, 3.5)


def _components(history: RecordedHistory) -> Iterator[Event]:
    for index in range(history.now.shape[1]):
        now, after = history.now[:, index], history.after[:, index]
        yield from _levels(f"after[{index}]", after)
        if len(np.unique(now)) <= MAX_LEVELS:
            yield Event(f"after[{index}] != now[{index}]", after != now)
            yield Event(f"after[{index}] > now[{index}]", after > now, 3.5)
            yield Event(f"after[{index}] < now[{index}]", after < now, 3.5)


def _distinct(events: Sequence[Event]) -> list[Event]:
    """Drop events that are rare, almost always true, or equal to a simpler event."""
    found: dict[bytes, Event] = {}
    for event in sorted(events, key=lambda event: event.cost):
        if MIN_ROWS <= event.mask.sum() <= len(event.mask) - MIN_ROWS:
            found.setdefault(event.mask.tobytes(), event)
    return list(found.values())
