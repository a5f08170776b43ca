"""The choice of remembered quantities: counters, latches and delays that explain outcomes.

The search adds the quantity with the largest gain, until no quantity has enough gain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.memory.contexts import Contexts, total_gain, whole
from cwm_induction.memory.events import events_of, places_of
from cwm_induction.memory.history import Event, RecordedHistory, RememberedQuantity, either
from cwm_induction.writing.rounding import literal

MAX_QUANTITIES = 6
"""Quantities in one program."""

LEAST_GAIN = 5.0
"""Minimum gain of a quantity in nats, beyond its cost: smaller gains are often chance."""

FOLLOWED = 40
"""Best latches whose event is also counted."""

EXTENDED = 8
"""The search tries a second reset event for this number of best counters."""

MAX_COUNT = 12
"""Largest value of a counter."""

MAX_PERIOD = 12
"""Longest period of a clock that the start of an episode sets."""

MAX_LEVELS = (2, 3, 4)
"""Capacities of a stock that events raise and lower."""


def contexts_of(history: RecordedHistory) -> list[Contexts]:
    """Return the contexts of every output: components of the observation, reward and end."""
    pairs = np.column_stack([history.now, history.actions])
    _, labels = np.unique(pairs, axis=0, return_inverse=True)
    rows = np.flatnonzero(history.learn)
    going = rows[~history.terminated[rows]]
    found = [Contexts.of(labels.ravel(), whole(part), going) for part in history.after.T]
    for part in (history.rewards, history.terminated):
        found.append(Contexts.of(labels.ravel(), whole(part), rows))
    return [part for part in found if part.rows.size]


def chosen_quantities(history: RecordedHistory, effort: Effort) -> list[RememberedQuantity]:
    """Return the quantities that explain outcomes best, or none if nothing has to be remembered.

    The search adds one quantity after another. Then it replaces each quantity if another one is
    better in the presence of the remaining quantities.
    """
    search = QuantitySearch(history, contexts_of(history), effort)
    found = list[RememberedQuantity]()
    while len(found) < MAX_QUANTITIES and (best := search.best(found)) is not None:
        found.append(best)
    for place in range(len(found) if len(found) > 1 else 0):
        others = found[:place] + found[place + 1 :]
        best = search.best(others)
        if best is not None and search.score([*others, best]) > search.score(found):
            found[place] = best
    return [quantity.named(f"{quantity.name}_{place}") for place, quantity in enumerate(found)]


@dataclass(frozen=True)
class QuantitySearch:
    """A search for the best quantity in the presence of other quantities."""

    history: RecordedHistory
    contexts: Sequence[Contexts]
    effort: Effort

    @cached_property
    def simple(self) -> list[Event]:
        """The simple events."""
        return events_of(self.history)

    @cached_property
    def places(self) -> list[Event]:
        """The events of one action at one observation."""
        return places_of(self.history)

    def score(self, quantities: Sequence[RememberedQuantity]) -> float:
        """Return the gain of quantities in nats beyond their cost."""
        left = sum(float(part.evidence.sum()) for part in self._after(quantities))
        start = sum(float(part.evidence.sum()) for part in self.contexts)
        return left - start - sum(quantity.cost for quantity in quantities)

    def best(self, others: Sequence[RememberedQuantity]) -> RememberedQuantity | None:
        """Return the quantity with the largest gain beyond its cost, if that is enough."""
        contexts = [part for part in self._after(others) if part.rows.size]
        if not contexts:
            return None
        ranked = self._ranked(contexts, self._proposals())
        for most, variants in ((FOLLOWED, self._counters), (EXTENDED, self._longer)):
            counters = [quantity for _, quantity in ranked if quantity.events]
            placed = [quantity for quantity in counters if quantity.events[0] in self.places]
            leading = dict.fromkeys([*counters[:most], *placed[: most // 4]])
            more = (new for quantity in leading for new in variants(quantity))
            ranked = sorted([*ranked, *self._ranked(contexts, more)], key=lambda pair: -pair[0])
        gain, best = ranked[0] if ranked else (0.0, None)
        return best if gain > LEAST_GAIN else None

    def _after(self, quantities: Sequence[RememberedQuantity]) -> list[Contexts]:
        """Return the contexts, split by quantities."""
        contexts = list(self.contexts)
        for quantity in quantities:
            contexts = [part.split(quantity.labels) for part in contexts]
        return contexts

    def _ranked(
        self, contexts: Sequence[Contexts], proposals: Iterable[RememberedQuantity]
    ) -> list[tuple[float, RememberedQuantity]]:
        """Return quantities with their gain, the best one first."""
        rows = sum(len(part.rows) for part in contexts)
        found = []
        for quantity in proposals:
            if not self.effort.spend(40 * rows + 20 * len(self.history)):
                break
            found.append((total_gain(contexts, quantity.labels) - quantity.cost, quantity))
        return sorted(found, key=lambda pair: -pair[0])

    def _proposals(self) -> Iterator[RememberedQuantity]:
        """Yield simple quantities: delays, times, what happened last, and latches."""
        history, never = self.history, Event("", np.zeros(len(self.history), bool), 0.0)
        yield from _delays(history)
        yield from (_phase(history, period) for period in range(2, MAX_PERIOD + 1))
        for event in self.simple:
            yield elapsed(history, event)
        for pair in combinations(self.simple, 2):
            if not (pair[0].mask & pair[1].mask).any():
                yield latest(history, *pair)
        for event in [*self.simple, *self.places]:
            yield latch(history, event, never)
        for event, reset in permutations(self.simple, 2):
            yield latch(history, event, reset)

    def _counters(self, found: RememberedQuantity) -> Iterator[RememberedQuantity]:
        """Yield counters of the event of a latch, with other resets if it has none."""
        event, reset = found.events
        yield count(self.history, event, reset)
        for other in self.simple if not reset.text and event not in self.simple else ():
            yield latch(self.history, event, other)
            yield count(self.history, event, other)

    def _longer(self, found: RememberedQuantity) -> Iterator[RememberedQuantity]:
        """Yield counters of the same event that one more event resets, and levels."""
        event, reset = found.events
        if not reset.text:
            return
        yield from _levels(self.history, event, reset)
        for other in self.simple:
            both = either(reset, other)
            yield latch(self.history, event, both)
            yield count(self.history, event, both)


def _delays(history: RecordedHistory) -> Iterator[RememberedQuantity]:
    """Yield the last reward and earlier observations."""
    start = float(np.median(history.rewards))
    yield RememberedQuantity(
        "last_reward",
        literal(start),
        "reward",
        history.before(history.rewards, start),
        "the reward of the last step",
    )
    for index in range(history.now.shape[1]):
        values = history.before(history.now[:, index], history.now[:, index])
        yield RememberedQuantity(
            "earlier", f"now[{index}]", f"now[{index}]", values, f"component {index} one step ago"
        )


def _phase(history: RecordedHistory, period: int) -> RememberedQuantity:
    """Return the phase of a clock that each episode starts."""
    update = f"(phase + 1) % {period}"
    meaning = f"number of steps since the start, modulo {period}"
    return RememberedQuantity("phase", "0", update, history.age % period, meaning)


def latch(history: RecordedHistory, event: Event, reset: Event) -> RememberedQuantity:
    """Return whether an event happened since another one."""
    zero, since = _reset(reset)
    return RememberedQuantity(
        "latch",
        "0",
        f"{zero}1 if {event.text} else latch",
        np.minimum(counted(history, event.mask, reset.mask), 1),
        f"whether there was a step with {event.text}{since}",
        2.0 + event.cost + reset.cost,
        (event, reset),
    )


def count(history: RecordedHistory, event: Event, reset: Event) -> RememberedQuantity:
    """Return the number of events since another one."""
    counts = np.minimum(counted(history, event.mask, reset.mask), MAX_COUNT)
    zero, since = _reset(reset)
    return RememberedQuantity(
        "count",
        "0",
        f"{zero}min(count + 1, {int(counts.max())}) if {event.text} else count",
        counts,
        f"number of steps with {event.text}{since}",
        3.0 + event.cost + reset.cost,
        (event, reset),
    )


def _levels(
    history: RecordedHistory, event: Event, lowering: Event
) -> Iterator[RememberedQuantity]:
    """Yield levels that one event raises and another one lowers."""
    for limit in MAX_LEVELS:
        yield RememberedQuantity(
            "level",
            "0",
            f"max(level - 1, 0) if {lowering.text} else "
            f"min(level + 1, {limit}) if {event.text} else level",
            balanced(history, event.mask, lowering.mask, limit),
            f"level that rises with {event.text}, and falls with {lowering.text}",
            4.0 + event.cost + lowering.cost,
            (event, lowering),
        )


def _reset(event: Event) -> tuple[str, str]:
    """Return the start of an update that an event resets, and a description."""
    if not event.text:
        return "", ""
    return f"0 if {event.text} else ", f" since the last step with {event.text}"


def elapsed(history: RecordedHistory, event: Event) -> RememberedQuantity:
    """Return the number of steps since an event."""
    values = np.minimum(counted(history, np.ones(len(history), bool), event.mask), MAX_COUNT)
    return RememberedQuantity(
        "elapsed",
        "0",
        f"0 if {event.text} else min(elapsed + 1, {MAX_COUNT})",
        values,
        f"number of steps since the last one with {event.text}",
        2.0 + event.cost,
    )


def latest(history: RecordedHistory, event: Event, other: Event) -> RememberedQuantity:
    """Return which of two events happened last: 1, 2, or 0 for none."""
    marks = np.where(event.mask, 1, np.where(other.mask, 2, 0))
    rows = np.where((marks != 0) | history.first, np.arange(len(history)), 0)
    ended = counted(history, event.mask | other.mask, np.zeros(len(history), bool)) > 0
    values = np.where(ended, np.roll(marks[np.maximum.accumulate(rows)], 1), 0)
    return RememberedQuantity(
        "latest",
        "0",
        f"1 if {event.text} else 2 if {other.text} else latest",
        values,
        f"1 after {event.text}, 2 after {other.text}, 0 before both",
        3.0 + event.cost + other.cost,
    )


def counted(history: RecordedHistory, event: Array, reset: Array) -> Array:
    """Return before each row the number of events since a reset, or since the first row."""
    total = np.concatenate([[0], np.cumsum(event & ~reset)])
    rows = np.arange(len(history))
    marks = np.where(history.first, rows, 0)
    later = np.flatnonzero(reset[:-1]) + 1
    marks[later] = later
    counts: Array = total[rows] - total[np.maximum.accumulate(marks)]
    return counts


def balanced(history: RecordedHistory, up: Array, down: Array, limit: int) -> Array:
    """Return before each row a level in 0..limit that events raise and lower."""
    found, level = [], 0
    for first, rises, falls in zip(history.first.tolist(), up.tolist(), down.tolist(), strict=True):
        level = 0 if first else level
        found.append(level)
        level = max(level - 1, 0) if falls else min(level + 1, limit) if rises else level
    return np.array(found)
