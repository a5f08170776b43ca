"""Quantities of a transition: what expressions and conditions of a random model may read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.writing.rounding import rounded

Array = np.ndarray

MAX_KINDS = 12
"""Maximum number of values for conditions on equality; other quantities have thresholds only."""

MAX_THRESHOLDS = 32
"""Thresholds of a quantity, so that a condition on a wide range does not take most of the time."""

MAX_PAIRED = 8
"""Maximum number of components for conditions that compare two components."""

OFTEN_AT_BOUND = 0.003
"""Minimum share of the rows with the same extreme value, for that value to be a bound."""

MIN_SIDE = 3
"""Rows on either side of a condition, below which a parameter is not worth its description."""


class KnownQuantity(NamedTuple):
    """An expression of the program and its value in every row."""

    text: str
    values: Array

    def on(self, rows: Array) -> "KnownQuantity":
        """Return the quantity in the rows of a mask only."""
        return self._replace(values=self.values[rows])


class ParameterCondition(NamedTuple):
    """A condition of the program, and the mask of its rows."""

    text: str
    mask: Array


@dataclass(frozen=True)
class OutcomeRows:
    """Transitions as numbers, and the known quantities.

    `low` and `high` are the bounds of the observation, one entry per component. `earlier` are
    outputs that the program has drawn already.
    """

    now: tuple[KnownQuantity, ...]
    after: Array
    actions: tuple[KnownQuantity, ...]
    rewards: Array
    terminated: Array
    low: Array
    high: Array
    earlier: tuple[KnownQuantity, ...] = ()

    @classmethod
    def of(cls, data: Dataset) -> Self:
        """Read the transitions of a flat dataset."""
        count, columns = len(data), data.columns
        before = columns["observations"].reshape(count, -1)
        actions = columns["actions"].reshape(count, -1)
        plain = data.action_space.kind == "discrete"
        names = ["action"] if plain else [f"action[{n}]" for n in range(actions.shape[1])]
        return cls(
            tuple(KnownQuantity(f"x{n}", part.astype(float)) for n, part in enumerate(before.T)),
            columns["next_observations"].reshape(count, -1).astype(float),
            tuple(
                KnownQuantity(*pair) for pair in zip(names, actions.T.astype(float), strict=True)
            ),
            columns["rewards"].astype(float),
            columns["terminations"].astype(bool),
            *_bounds(data, before, columns["next_observations"].reshape(count, -1)),
        )

    def __len__(self) -> int:
        return len(self.rewards)

    def knowing(self, *outputs: KnownQuantity) -> Self:
        """Return the same rows with more outputs that the program has already drawn."""
        return replace(self, earlier=(*self.earlier, *outputs))

    @property
    def known(self) -> tuple[KnownQuantity, ...]:
        """Everything that the next output may depend on."""
        return (*self.actions, *self.now, *self.earlier)

    def groups(self) -> list[Array]:
        """Return masks of rows that may share a rule: all rows, or rows with an action or flag."""
        found = [np.ones(len(self), bool)]
        for place, quantity in enumerate(self.known):
            levels = np.unique(quantity.values)
            if 1 < len(levels) <= (MAX_KINDS if place < len(self.actions) else 2):
                found += [quantity.values == level for level in levels]
        flags = [mask for mask in found[1:] if mask.sum() > MIN_SIDE]
        pairs = [a & b for a, b in combinations(flags, 2)]
        return found + [mask for mask in pairs if mask.sum() > 5 * MIN_SIDE][:60]

    def conditions(self) -> list[ParameterCondition]:
        """Return the conditions that split the rows; of equal conditions only the first one."""
        found: dict[bytes, ParameterCondition] = {}
        for condition in self._conditions():
            size = condition.mask.sum()
            if MIN_SIDE <= size <= len(self) - MIN_SIDE:
                found.setdefault(condition.mask.tobytes(), condition)
                found.setdefault((~condition.mask).tobytes(), condition)
        return list({condition.mask.tobytes(): condition for condition in found.values()}.values())

    def _conditions(self) -> Iterator[ParameterCondition]:
        for quantity in self.known:
            yield from _thresholds(quantity)
        for quantity in self.now:
            following = f"{quantity.text}_next"
            for later in self.earlier:
                if later.text == following:
                    yield ParameterCondition(
                        f"{later.text} == {quantity.text}", later.values == quantity.values
                    )
        if len(self.now) <= MAX_PAIRED:
            whole = [part for part in (*self.now, *self.earlier) if is_whole(part.values)]
            for first, second in combinations(whole, 2):
                difference = first.values - second.values
                yield from _thresholds(KnownQuantity(f"{first.text} - {second.text}", difference))


def _bounds(data: Dataset, before: Array, after: Array) -> tuple[Array, Array]:
    """Return the bounds of every component.

    If no row reaches a bound of the space but many rows have the same extreme value, such as an
    empty stock, this value is the bound.
    """
    low = np.array(data.observation_space.low, float)
    high = np.array(data.observation_space.high, float)
    for place, values in enumerate(after.T):
        both = np.concatenate([before[:, place], values]).astype(float)
        least, most = float(both.min(initial=np.inf)), float(both.max(initial=-np.inf))
        often = max(5.0, OFTEN_AT_BOUND * len(values))
        if low[place] < least and (values == least).sum() >= often:
            low[place] = least
        if high[place] > most and (values == most).sum() >= often:
            high[place] = most
    return low, high


def _thresholds(quantity: KnownQuantity) -> Iterator[ParameterCondition]:
    """Yield conditions on one quantity: equal to a value, or at least a threshold."""
    text, values = quantity
    levels, whole = np.unique(values), is_whole(values)
    plain = " - " not in text
    asked = levels if len(levels) <= MAX_KINDS else levels[[0, -1]]
    for level in asked if plain and (whole or len(levels) <= MAX_KINDS) else ():
        yield ParameterCondition(f"{text} == {number(level)}", values == level)
    if len(levels) == 2 and plain:
        return
    cuts = levels[1:]
    if len(cuts) > MAX_THRESHOLDS:
        cuts = np.quantile(values, np.linspace(0, 1, MAX_THRESHOLDS + 2)[1:-1])
        cuts = np.unique(cuts.round() if whole else [rounded(cut, 3) for cut in cuts.tolist()])
    for cut in cuts:
        if plain:
            yield ParameterCondition(f"{text} >= {number(cut)}", values >= cut)
        else:
            first, second = text.split(" - ")
            yield ParameterCondition(
                f"{first} >= {second}" if not cut else f"{text} >= {number(cut)}", values >= cut
            )


def is_whole(values: Array) -> bool:
    """Whether all values are whole numbers."""
    return bool((values == np.rint(values)).all())


def number(value: float) -> str:
    """Write a whole number without a decimal point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def constant(value: float, like: Array) -> KnownQuantity:
    """Return a constant as a quantity."""
    return KnownQuantity(number(value), np.full(len(like), float(value)))


def plus(first: KnownQuantity, sign: int, second: KnownQuantity) -> KnownQuantity:
    """Return the sum or the difference of two quantities."""
    if first.text == "0":
        text = second.text if sign > 0 else f"-{second.text}"
        return KnownQuantity(text, sign * second.values)
    mark = "+" if sign > 0 else "-"
    return KnownQuantity(f"{first.text} {mark} {second.text}", first.values + sign * second.values)


def shifted(quantity: KnownQuantity, change: float) -> KnownQuantity:
    """Return a quantity plus a constant."""
    if not change:
        return quantity
    return plus(quantity, 1 if change > 0 else -1, constant(abs(change), quantity.values))


def clipped(quantity: KnownQuantity, low: float, high: float) -> KnownQuantity:
    """Limit a quantity to a range; the text has only the limits that matter in some row."""
    text, values = quantity
    if values.max(initial=0) > high:
        text = f"min({text}, {number(high)})"
    if values.min(initial=0) < low:
        text = f"max({text}, {number(low)})"
    return KnownQuantity(text, values.clip(low, high))


def smallest(parts: Sequence[KnownQuantity]) -> KnownQuantity:
    """Return the smallest of several quantities."""
    if len(parts) == 1:
        return parts[0]
    text = f"min({', '.join(part.text for part in parts)})"
    return KnownQuantity(text, np.min([part.values for part in parts], axis=0))


def distinct(quantities: Iterable[KnownQuantity]) -> list[KnownQuantity]:
    """Leave out quantities that equal an earlier one in every row."""
    found: dict[bytes, KnownQuantity] = {}
    for quantity in quantities:
        found.setdefault((quantity.values + 0.0).tobytes(), quantity)
    return list(found.values())


def flows(rows: OutcomeRows, factors: Sequence[int]) -> list[KnownQuantity]:
    """Return amounts that an action may move: the smallest of an action, stocks and rooms.

    `factors` are the numbers that an action may be multiplied by.
    """
    times = [
        KnownQuantity(f"{factor} * {part.text}" if factor != 1 else part.text, factor * part.values)
        for part in rows.actions
        for factor in factors
        if len(np.unique(part.values)) > 2
    ]
    stocks = [part for part in rows.now if is_whole(part.values)]
    rooms = [
        KnownQuantity(f"{number(high)} - {part.text}", high - part.values)
        for part, high in zip(rows.now, rows.high, strict=True)
        if 1 < high <= part.values.max() and is_whole(part.values)
    ]
    amounts = times + stocks + rooms
    groups: list[tuple[KnownQuantity, ...]] = [(part,) for part in amounts]
    if len(rows.now) > MAX_PAIRED:
        return distinct(part for part in times if part.values.min() >= 0)
    groups += combinations(amounts, 2)
    groups += [(part, *pair) for part in times for pair in combinations(stocks + rooms, 2)]
    found = [smallest(group) for group in groups]
    return distinct(part for part in found if part.values.min() >= 0 and part.values.any())
