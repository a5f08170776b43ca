"""Recorded rows as parallel sequences, and the quantities that laws may read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.metric import TOLERANCE
from cwm_induction.writing.finishing import identifier

Array = np.ndarray

SEQUENCE_ROWS = 45
"""Longer segments are cut; the pieces are computed in parallel."""

WARM_UP_ROWS = 15
"""Rows before a cut that a sequence repeats, so that its estimates have settled at the cut."""

MAX_DELAY = 5
"""Longest delay of an action, in steps."""

MIN_WIDE_VALUES = 60
"""A whole number with more values may carry sensor noise like a real number."""


@dataclass(frozen=True)
class Column:
    """A column of observations or actions: its name, its labels if it has any, and its values."""

    name: str
    labels: tuple[str, ...]
    values: Array
    is_label: bool
    unit: float
    """Rounding unit of the recorded values; 0 if they have many digits."""


@dataclass(frozen=True)
class GivenQuantity:
    """A number known before a step.

    Attributes:
        text: Its expression in a program.
        values: Its value in each row.
        source: Name of its column.
        delay: Number of steps since it was recorded, 0 for the current row.
        window: Number of rows of a moving average, which ends with the current row.
        pace: Weight of the newest value in an exponential average (first-order lag); 1 without.
        averaged: Expression of the averaged value; "" without an average.
        is_flag: Whether it is 0 or 1.
        later: Its values after the next observation has corrected them, if it is predicted.
    """

    text: str
    values: Array
    source: str
    delay: int = 0
    window: int = 1
    pace: float = 1.0
    averaged: str = ""
    is_flag: bool = False
    later: Array | None = None


@dataclass(frozen=True)
class RecordedSeries:
    """Rows in the order of their segments.

    Attributes:
        observed: Columns of the observation.
        acted: Columns of the action.
        after: Next observations (rows, components).
        follows: Mask of the rows that continue the row above them.
        learn: Mask of the rows that laws are fitted to.
        rewards: Recorded rewards.
        terminated: Mask of the rows that end an episode.
        unknown: Number of first rows of a segment that are not counted, because earlier actions
            are unknown.
    """

    observed: tuple[Column, ...]
    acted: tuple[Column, ...]
    after: Array
    follows: Array
    learn: Array
    rewards: Array
    terminated: Array
    unknown: int = 0

    @classmethod
    def of(cls, data: Dataset, learn: Array, names: Sequence[str] = ()) -> "RecordedSeries":
        """Read a dataset whose observations and actions are flat vectors."""
        count = len(data)
        before = data.columns["observations"].reshape(count, -1).astype(float)
        after = data.columns["next_observations"].reshape(count, -1).astype(float)
        actions = data.columns["actions"].reshape(count, -1).astype(float)
        follows: Array = np.zeros(count, bool)
        follows[1:] = (before[1:] == after[:-1]).all(axis=1)
        follows[1:] &= data.columns["episodes"][1:] == data.columns["episodes"][:-1]
        follows[1:] &= ~data.columns["terminations"][:-1]
        table = data.metadata.get("env_args") or {}
        observed = _columns(before, table.get("observed"), names, "x")
        acted = _columns(actions, table.get("acted"), (), "action")
        return cls(
            observed,
            acted,
            after,
            follows,
            learn,
            data.columns["rewards"].astype(float),
            data.columns["terminations"],
        )

    def __len__(self) -> int:
        return len(self.after)

    @cached_property
    def age(self) -> Array:
        """Number of rows of the same segment above each row."""
        place = np.arange(len(self))
        return place - np.maximum.accumulate(np.where(self.follows, 0, place))

    @cached_property
    def grid(self) -> Array:
        """Row numbers of the sequences (steps, sequences), -1 after their ends."""
        starts = np.flatnonzero(self.age == 0)
        ends = np.append(starts[1:], len(self))
        parts = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            for first in range(start, end, SEQUENCE_ROWS):
                begin = max(start, first - WARM_UP_ROWS)
                parts.append(np.arange(begin, min(first + SEQUENCE_ROWS, end)))
        grid = np.full((max(map(len, parts)), len(parts)), -1)
        for number, part in enumerate(parts):
            grid[: len(part), number] = part
        return grid

    @cached_property
    def counted(self) -> Array:
        """Mask of the grid: each row once, without warm-up rows, ends and first rows."""
        seen, counted = np.zeros(len(self), bool), np.zeros(self.grid.shape, bool)
        # The last sequence that contains a row started long before it; earlier ones are warm-up.
        for number in range(self.grid.shape[1]):
            rows = self.grid[:, number]
            rows = rows[rows >= 0]
            counted[: len(rows), number] = ~seen[rows]
            seen[rows] = True
        known = (self.grid >= 0) & (self.age[self.grid] >= self.unknown)
        return np.asarray(counted & known & ~self.terminated[self.grid])

    @property
    def with_history(self) -> "RecordedSeries":
        """The series without the first rows of its segments, unless segments are short."""
        is_long = len(self) >= 6 * MAX_DELAY * int((self.age == 0).sum())
        return replace(self, unknown=MAX_DELAY) if is_long else self

    def earlier(self, values: Array, steps: int) -> Array:
        """Return the values some steps earlier; in the first rows, the first value."""
        place = np.arange(len(self))
        return np.asarray(values[place - np.minimum(steps, self.age)])

    def windowed(self, values: Array, window: int) -> Array:
        """Return the mean of the last values, including the current row."""
        parts = [self.earlier(values, steps) for steps in range(window)]
        return np.asarray(np.mean(parts, axis=0))

    def smoothed(self, values: Array, pace: float) -> Array:
        """Return the exponential average of values up to the current row (first-order lag)."""
        average = np.array(values, float)
        grid = self.starts
        state = average[grid[0]]
        for rows in grid:
            inside = rows >= 0
            state = state + pace * (values[rows] - state)
            average[rows[inside]] = state[inside]
        return average

    @cached_property
    def starts(self) -> Array:
        """Row numbers of whole segments (steps, segments), -1 after their ends."""
        starts = np.flatnonzero(self.age == 0)
        sizes = np.diff(np.append(starts, len(self)))
        steps = np.arange(sizes.max())[:, None]
        return np.where(steps < sizes, starts + steps, -1)

    def readings(self, column: Column, values: Array, suffix: str = "") -> Iterator[GivenQuantity]:
        """Yield the quantities of a column: its number, or a flag for each label but the first."""
        name = column.name + suffix
        if not column.is_label:
            yield GivenQuantity(name, values, column.name)
        elif len(column.labels) == 2:
            yield GivenQuantity(name, values, column.name, is_flag=True)
        else:
            for code in np.unique(column.values)[1:].astype(int).tolist():
                text = f"({name} == {label_name(column, code)})"
                yield GivenQuantity(text, (values == code) * 1.0, column.name, is_flag=True)


def label_name(column: Column, code: int) -> str:
    """Return the constant that names a label, or its code if it has no name."""
    if not 0 <= code < len(column.labels):
        return str(code)
    return f"{column.name}_{_identifier(column.labels[code])}".upper()


def rounding_unit(values: Array) -> float:
    """Return the power of ten that all values are multiples of; 0 if they have many digits."""
    top = max(1e-12, float(np.abs(values).max(initial=0.0)))
    for digits in range(-3, 8):
        scaled = values * 10.0**digits
        if np.abs(scaled - np.round(scaled)).max(initial=0.0) <= 1e-6 * max(1.0, top):
            return 10.0**-digits
    return 0.0


def has_noise(data: Dataset) -> bool:
    """Return whether some component is a rounded decimal number, too coarse for exact laws."""
    space = data.observation_space
    if space.kind != "box" or not space.is_float or len(space.shape) != 1:
        return False
    values = data.columns["observations"].astype(float)
    for column in values.T:
        unit = rounding_unit(column)
        coarse = 0.2 * TOLERANCE * (1.0 + float(np.median(np.abs(column))))
        if coarse < unit < 1:
            return True
    return False


def has_wide_counts(data: Dataset) -> bool:
    """Return whether some component is a whole number with many values, as counts have."""
    space = data.observation_space
    if space.kind != "box" or len(space.shape) != 1:
        return False
    for column in data.columns["observations"].T:
        codes = np.unique(column)
        if len(codes) > MIN_WIDE_VALUES and (codes == np.round(codes)).all():
            return True
    return False


def _columns(
    values: Array, described: object, names: Sequence[str], stem: str
) -> tuple[Column, ...]:
    """Return the columns with their recorded names and labels, if the dataset contains them."""
    columns = []
    table = described if isinstance(described, list) else []
    for index, column in enumerate(values.T):
        given = table[index] if len(table) == values.shape[1] else []
        plain = names[index] if len(names) == values.shape[1] else ""
        name = _identifier(str(given[0])) if given else _identifier(plain)
        name = name or (f"{stem}{index}" if values.shape[1] > 1 or stem == "x" else stem)
        labels = tuple(str(label) for label in given[1:])
        codes = np.unique(column)
        whole = bool((codes == np.round(codes)).all())
        is_label = bool(labels) or (whole and stem == "action" and len(codes) <= 4)
        unit = 0.0 if is_label else rounding_unit(column)
        columns.append(Column(name, labels, column, is_label, unit))
    taken: dict[str, int] = {}
    for column in columns:
        taken[column.name] = taken.get(column.name, 0) + 1
    if max(taken.values(), default=1) > 1:
        columns = [
            Column(f"{c.name}_{i}", c.labels, c.values, c.is_label, c.unit)
            for i, c in enumerate(columns)
        ]
    return tuple(columns)


def _identifier(text: str) -> str:
    return identifier(text.replace("_", " ")) or identifier(f"value {text}".replace("_", " "))
