"""Remembered counters, latches, levels and delays that explain different outcomes of equal steps.

Steps with equal observation and action are in one context. If outcomes differ within a context,
a remembered quantity must separate the steps. The score of a quantity is the gain in marginal
likelihood if each context is split by the quantity if this helps (a context tree of depth one;
Willems et al., 1995, "The context-tree weighting method"). The search adds the quantity with the
largest gain, until no quantity has enough gain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations
from typing import Self

import numpy as np
from scipy.special import gammaln

from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.memory.history import (
    Event,
    RecordedHistory,
    RememberedQuantity,
    events_of,
    places_of,
    whole,
)
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

MAX_VALUES = 64
"""Maximum number of different values of a quantity; larger values count as the largest."""

PRIOR = 0.1
"""Pseudo-count of each outcome; small, because outcomes in the right context are certain."""


def chosen_quantities(history: RecordedHistory, effort: Effort) -> list[RememberedQuantity]:
    """Return the quantities that explain outcomes best, or none if nothing has to be remembered."""
    search = QuantitySearch(history, _contexts_of(history), effort)
    found = list[RememberedQuantity]()
    while len(found) < MAX_QUANTITIES and (best := search.best(found)) is not None:
        found.append(best)
    return [quantity.named(f"{quantity.name}_{place}") for place, quantity in enumerate(found)]


@dataclass(frozen=True)
class Contexts:
    """Rows of contexts with different values of one output; contexts and outcomes are numbers."""

    rows: Array
    labels: Array
    outcomes: Array

    @classmethod
    def of(cls, labels: Array, outcomes: Array, rows: Array) -> Self:
        """Keep the rows whose context has different outcomes."""
        labels, outcomes = whole(labels[rows]), whole(outcomes[rows])
        pairs = np.unique(np.column_stack([labels, outcomes]), axis=0)
        kinds = np.bincount(pairs[:, 0], minlength=labels.max(initial=-1) + 1)
        is_open = kinds[labels] > 1
        return cls(rows[is_open], whole(labels[is_open]), whole(outcomes[is_open]))

    @cached_property
    def evidence(self) -> Array:
        """The marginal log-likelihood of each context."""
        if not self.rows.size:
            return np.zeros(0)
        return self._evidence(np.zeros(len(self.rows), int), 1)[:, 0]

    def _evidence(self, values: Array, count: int) -> Array:
        """Return the log-likelihood (contexts, values) of the outcomes, by context and value."""
        kinds, size = self.outcomes.max() + 1, self.labels.max() + 1
        codes = (self.labels * count + values) * kinds + self.outcomes
        counts = np.bincount(codes, minlength=size * count * kinds).reshape(size, count, kinds)
        seen = (counts.sum(1) > 0).sum(1)[:, None]
        single, total = _tables(len(self.rows), int(kinds))
        evidence: Array = single[counts].sum(2) - total[seen, counts.sum(2)]
        return evidence

    def gains(self, values: Array) -> Array:
        """Return the gain of each context in nats if a quantity (of whole numbers) splits it."""
        if not self.rows.size:
            return np.zeros(0)
        part = np.minimum(values[self.rows], MAX_VALUES)
        split = self._evidence(part, int(part.max()) + 1).sum(1)
        gains: Array = np.maximum(split - self.evidence - np.log(2), 0.0)
        return gains

    def split(self, values: Array) -> Self:
        """Split each context if the quantity helps there."""
        helps = self.gains(values) > 0
        part = np.minimum(values[self.rows], MAX_VALUES)
        labels = self.labels * (MAX_VALUES + 1) + np.where(helps[self.labels], part, 0)
        every = np.zeros(int(self.rows.max(initial=-1)) + 1, int)
        outcomes = every.copy()
        every[self.rows], outcomes[self.rows] = labels, self.outcomes
        return type(self).of(every, outcomes, self.rows)


@lru_cache(maxsize=64)
def _tables(rows: int, kinds: int) -> tuple[Array, Array]:
    """Return the terms of the Dirichlet-multinomial likelihood, by count and by (kinds, count)."""
    counts, seen = np.arange(rows + 1), PRIOR * np.arange(1, kinds + 1)[:, None]
    single = gammaln(counts + PRIOR) - gammaln(PRIOR)
    total = gammaln(counts + seen) - gammaln(seen)
    return single, np.concatenate([np.zeros((1, rows + 1)), total])


def _contexts_of(history: RecordedHistory) -> list[Contexts]:
    """Return the contexts of every output: components of the observation, reward and end."""
    pairs = np.column_stack([history.now, history.actions])
    _, labels = np.unique(pairs, axis=0, return_inverse=True)
    rows = np.flatnonzero(history.learn)
    going = rows[~history.terminated[rows]]
    found = [Contexts.of(labels.ravel(), whole(part), going) for part in history.after.T]
    for part in (history.rewards, history.terminated):
        found.append(Contexts.of(labels.ravel(), whole(part), rows))
    return [part for part in found if part.rows.size]


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
            gain = sum(float(part.gains(quantity.labels).sum()) for part in contexts)
            found.append((gain - quantity.cost, quantity))
        return sorted(found, key=lambda pair: -pair[0])

    def _proposals(self) -> Iterator[RememberedQuantity]:
        """Yield simple quantities: delays, times and latches."""
        history = self.history
        yield from _delays(history)
        yield from (_phase(history, period) for period in range(2, MAX_PERIOD + 1))
        yield from (elapsed(history, event) for event in self.simple)
        yield from (latch(history, event, history.never) for event in [*self.simple, *self.places])
        yield from (latch(history, *pair) for pair in permutations(self.simple, 2))

    def _counters(self, found: RememberedQuantity) -> Iterator[RememberedQuantity]:
        """Yield counters of the event of a latch, with other resets if it has none."""
        event, reset = found.events
        yield counter(self.history, event, reset)
        for other in self.simple if not reset.text and event not in self.simple else ():
            yield latch(self.history, event, other)
            yield counter(self.history, event, other)

    def _longer(self, found: RememberedQuantity) -> Iterator[RememberedQuantity]:
        """Yield counters of the same event that one more event resets, and levels."""
        event, reset = found.events
        if reset.text:
            yield from (_level(self.history, event, reset, limit) for limit in MAX_LEVELS)
        for other in self.simple if reset.text else ():
            both = reset.either(other)
            yield latch(self.history, event, both)
            yield counter(self.history, event, both)


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


def counter(
    history: RecordedHistory, event: Event, reset: Event, most: int = MAX_COUNT
) -> RememberedQuantity:
    """Return the number of events since a reset, at most `most`.

    With a maximum of 1, the quantity is a latch: whether the event happened.
    """
    counts = np.minimum(counted(history, event.mask, reset.mask), most)
    name, added, meaning = "latch", "1", "whether there was a step"
    if most > 1:
        name, added = "count", f"min(count + 1, {int(counts.max())})"
        meaning = "number of steps"
    zero, since = "", ""
    if reset.text:
        zero, since = f"0 if {reset.text} else ", f" since the last step with {reset.text}"
    return RememberedQuantity(
        name,
        "0",
        f"{zero}{added} if {event.text} else {name}",
        counts,
        f"{meaning} with {event.text}{since}",
        2.0 + (most > 1) + event.cost + reset.cost,
        (event, reset),
    )


def latch(history: RecordedHistory, event: Event, reset: Event) -> RememberedQuantity:
    """Return whether an event happened since a reset."""
    return counter(history, event, reset, 1)


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


def _level(
    history: RecordedHistory, event: Event, lowering: Event, limit: int
) -> RememberedQuantity:
    """Return a level that one event raises and another one lowers."""
    return RememberedQuantity(
        "level",
        "0",
        f"max(level - 1, 0) if {lowering.text} else "
        f"min(level + 1, {limit}) if {event.text} else level",
        balanced(history, event.mask, lowering.mask, limit),
        f"level that rises with {event.text}, and falls with {lowering.text}",
        4.0 + event.cost + lowering.cost,
        (event, lowering),
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
