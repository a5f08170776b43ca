"""Events of a step: conditions on its observations, action and reward."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.memory.history import Event, RecordedHistory
from cwm_induction.writing.rounding import literal, simplest_between

MAX_LEVELS = 12
"""A number with at most this many values has an event per value."""

MAX_PLACES = 200
"""With at most this many pairs of observation and action, each pair is an event."""

MIN_ROWS = 3
"""Minimum number of rows with an event, and of rows without it."""


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
