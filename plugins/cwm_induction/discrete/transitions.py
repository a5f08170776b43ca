"""Transitions as integer columns, and the layouts that divide columns into factors.

One number may encode several: the cell of a grid is a row and a column. A layout lists the
radices of the digits of each component of an observation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space

Layout = tuple[tuple[int, ...], ...]
"""The radices of the digits of each component of an observation, the highest digit first."""

NOISY = 0.1
"""Transitions are noisy if this share of repeats has an uncommon outcome."""

MAX_STATES = 100_000
"""Largest number of values of an observation of one number."""

MAX_COMPONENTS = 64
"""Largest number of components of an observation; more components would take too long."""

MAX_SPAN = 4_096
"""Largest number of values of one of several components; wider bounds are taken from data."""

MAX_ACTIONS = 512
"""Largest number of actions; with more, most actions are rarely observed."""

MAX_DIGITS = 4
"""Largest number of digits of a component."""

FEWER_DIGITS_ABOVE = 2_000
"""Components with more values have one digit fewer, as they have many factorisations."""

SPLIT_FROM = 48
"""Divide one of several components into digits if it has at least this many values."""

DIGIT_BITS = 3.0
"""Price of a digit of a layout."""


@dataclass(frozen=True)
class IntegerEncoding:
    """An encoding of the values of spaces as integers from 0.

    `lows` and `sizes` have one entry per component of an observation; `action_lows` and
    `action_sizes` have one per component of an action.
    """

    space: Space
    lows: tuple[int, ...]
    sizes: tuple[int, ...]
    action_space: Space
    action_lows: tuple[int, ...]
    action_sizes: tuple[int, ...]

    @property
    def actions(self) -> int:
        """Number of different actions."""
        return prod(self.action_sizes)


@dataclass(frozen=True, eq=False)
class Transitions:
    """The distinct transitions of a dataset with their counts.

    `before` and `after` have a column per component. `rewards` lists the distinct rewards, the
    most frequent first, and `codes` has the index of the reward of each transition. `rows` maps
    each row of the dataset to its transition. If `readings` are given, only these layouts are
    considered.
    """

    encoding: IntegerEncoding
    before: np.ndarray
    action: np.ndarray
    after: np.ndarray
    codes: np.ndarray
    done: np.ndarray
    count: np.ndarray
    rewards: tuple[float, ...]
    rows: np.ndarray
    episodes: int
    readings: tuple[Layout, ...] = ()

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Read a dataset whose spaces `supports` accepts."""
        before = integer_columns(dataset, dataset.observation_space, "observations")
        after = integer_columns(dataset, dataset.observation_space, "next_observations")
        parts = integer_columns(dataset, dataset.action_space, "actions")
        encoding = _encoding(dataset, np.concatenate([before, after]), parts)
        action = _number(parts - np.array(encoding.action_lows), encoding.action_sizes)
        rewards, codes = _by_frequency(dataset.columns["rewards"], np.ones(len(dataset)), 9)
        done = dataset.columns["terminations"].astype(np.int64)
        lows, width = np.array(encoding.lows), before.shape[1]
        table = np.column_stack([before - lows, action, after - lows, codes, done])
        rows, index, count = np.unique(table, axis=0, return_inverse=True, return_counts=True)
        return cls(
            encoding,
            rows[:, :width],
            rows[:, width],
            rows[:, width + 1 : -2],
            rows[:, -2],
            rows[:, -1],
            count,
            rewards,
            index.reshape(-1),
            len(np.unique(dataset.columns["episodes"])),
        )

    @property
    def usual(self) -> Self:
        """The most common outcome of each situation, with `rows` unchanged."""
        situations = np.column_stack([self.before, self.action])
        group = np.unique(situations, axis=0, return_inverse=True)[1].reshape(-1)
        order = np.lexsort((-self.count, group))
        kept = np.sort(order[np.unique(group[order], return_index=True)[1]])
        names = ("before", "action", "after", "codes", "done", "count")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    @property
    def layouts(self) -> list[tuple[Layout, float]]:
        """The candidate layouts with their bits: `readings` if given, otherwise all layouts."""
        sizes = self.encoding.sizes
        given = [
            (layout, DIGIT_BITS * sum(map(len, layout)))
            for layout in self.readings
            if all(prod(radices) >= size for radices, size in zip(layout, sizes, strict=True))
        ]
        return given or list(layouts(sizes))

    def in_factors(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """Return the states before and after in the factors of a layout."""
        return split(self.before, layout), split(self.after, layout)

    @property
    def paid(self) -> np.ndarray:
        """The reward of every transition."""
        paid: np.ndarray = np.array(self.rewards)[self.codes]
        return paid

    def paying(self, rewards: np.ndarray) -> Self:
        """Return the same transitions with other rewards."""
        values, codes = _by_frequency(rewards, self.count)
        return replace(self, codes=codes, rewards=values)

    @property
    def contradicts(self) -> bool:
        """Whether equal situations had different outcomes."""
        situations = np.unique(np.column_stack([self.before, self.action]), axis=0)
        return len(situations) < len(self.count)

    @property
    def is_noisy(self) -> bool:
        """Whether equal situations often had different outcomes."""
        return self.contradicts and self.disagreement(after=False) >= NOISY

    def disagreement(self, *, after: bool) -> float:
        """Estimate the share of repeats without the most common outcome of their situation.

        Without any repeats the estimate is a quarter. A situation is an observation and an
        action, and with `after` also the next observation.
        """
        parts = [self.before, self.action, *([self.after] if after else [])]
        _, group = np.unique(np.column_stack(parts), axis=0, return_inverse=True)
        group = group.reshape(-1)
        most = np.zeros(group.max() + 1)
        np.maximum.at(most, group, self.count)
        repeats = self.count.sum() - len(most)
        return float((self.count.sum() - most.sum() + 0.5) / (repeats + 2))


def integer_columns(dataset: Dataset, space: Space, name: str) -> np.ndarray:
    """Stack the leaves of a field of integers, one column per component."""
    rows = len(dataset)
    columns = [dataset.columns[leaf.name].reshape(rows, -1) for leaf in space.leaves(name)]
    return np.concatenate(columns, axis=1).astype(np.int64)


def supports(dataset: Dataset) -> bool:
    """Return whether observations and actions are integers with few enough values."""
    leaves = list(dataset.observation_space.leaves("observations"))
    flat = dataset.action_space.kind in ("discrete", "multidiscrete", "multibinary")
    if not len(dataset) or not flat or not all(_is_integer(leaf.space) for leaf in leaves):
        return False
    children = dataset.observation_space.children
    if dataset.observation_space.kind == "dict" or any(c.kind != "discrete" for c in children):
        return False
    if not 0 < dataset.observation_space.size <= MAX_COMPONENTS:
        return False
    encoding = Transitions.of(dataset).encoding
    limit = MAX_STATES if len(encoding.sizes) == 1 else MAX_SPAN
    return max(encoding.sizes) <= limit and encoding.actions <= MAX_ACTIONS


def _encoding(dataset: Dataset, seen: np.ndarray, actions: np.ndarray) -> IntegerEncoding:
    """Take bounds from the spaces, or from the data if a space has no or very wide bounds."""
    space, action_space = dataset.observation_space, dataset.action_space
    bounds = _bounds(space, "observations", seen)
    return IntegerEncoding(space, *bounds, action_space, *_bounds(action_space, "actions", actions))


def _bounds(space: Space, name: str, seen: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lowest value and the number of values of every component."""
    low = np.array([bound for leaf in space.leaves(name) for bound in leaf.space.low])
    high = np.array([bound for leaf in space.leaves(name) for bound in leaf.space.high])
    wide = (high - low > MAX_SPAN) if len(low) > 1 or space.kind == "box" else high == inf
    low = np.where(wide, seen.min(axis=0), low)
    high = np.where(wide, seen.max(axis=0), high)
    low, high = np.minimum(low, seen.min(axis=0)), np.maximum(high, seen.max(axis=0))
    return tuple(int(value) for value in low), tuple(int(size) for size in high - low + 1)


def _by_frequency(
    rewards: np.ndarray, count: np.ndarray, digits: int = 6
) -> tuple[tuple[float, ...], np.ndarray]:
    """Return the distinct rewards, the most frequent first, and the index of each reward."""
    values, codes = np.unique(rewards.round(digits) + 0.0, return_inverse=True)
    counts = np.bincount(codes.reshape(-1), weights=count)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return tuple(float(values[index]) for index in order), rank[codes.reshape(-1)]


def _is_integer(space: Space) -> bool:
    """Return whether a leaf contains integers."""
    whole = np.issubdtype(space.dtype, np.integer) or np.issubdtype(space.dtype, np.bool_)
    return space.kind in ("discrete", "multidiscrete", "multibinary", "box") and bool(whole)


def split(values: np.ndarray, layout: Layout) -> np.ndarray:
    """Write every component as the digits of the layout, one column per digit."""
    columns = []
    for component, radices in enumerate(layout):
        rest, digits = values[:, component], []
        for radix in radices[:0:-1]:
            rest, digit = np.divmod(rest, radix)
            digits.append(digit)
        columns += [rest, *digits[::-1]]
    return np.stack(columns, axis=1)


def join(factors: np.ndarray, layout: Layout) -> np.ndarray:
    """Undo `split`."""
    columns, start = [], 0
    for radices in layout:
        digits = factors[:, start : start + len(radices)]
        columns.append(_number(digits, radices))
        start += len(radices)
    return np.stack(columns, axis=1)


def _number(digits: np.ndarray, radices: tuple[int, ...]) -> np.ndarray:
    """Read digits as one number, the highest digit first."""
    total = np.zeros(len(digits), dtype=np.int64)
    for column, radix in enumerate(radices):
        total = total * radix + digits[:, column]
    return total


def layouts(sizes: tuple[int, ...]) -> Iterator[tuple[Layout, float]]:
    """Yield layouts with their description length in bits, the simplest first.

    At most one component has several digits.
    """
    plain: Layout = tuple((size,) for size in sizes)
    yield plain, DIGIT_BITS * len(sizes)
    for component, size in enumerate(sizes):
        if len(sizes) > 1 and size < SPLIT_FROM:
            continue
        digits = MAX_DIGITS if size <= FEWER_DIGITS_ABOVE else MAX_DIGITS - 1
        for radices in _factorisations(size, digits):
            if len(radices) > 1:
                layout = (*plain[:component], radices, *plain[component + 1 :])
                yield layout, DIGIT_BITS * (len(sizes) - 1 + len(radices))


def _factorisations(size: int, digits: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as an ordered product of factors above 1."""
    yield (size,)
    if digits > 1:
        for first in range(2, size // 2 + 1):
            if size % first == 0:
                for rest in _factorisations(size // first, digits - 1):
                    yield (first, *rest)
