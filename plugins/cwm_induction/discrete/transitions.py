"""Transitions as integer columns."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf, prod
from typing import Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.discrete.factors import number

NOISY = 0.1
MAX_STATES = 100_000
MAX_COMPONENTS = 64
MAX_SPAN = 4_096
MAX_ACTIONS = 512


@dataclass(frozen=True)
class Frame:
    """How values of the spaces become integers that count from 0.

    `lows` and `sizes` have one entry per component of an observation,
    `action_lows` and `action_sizes` one per component of an action.
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
    """The different transitions of a dataset and how often each was seen; equal if all is.

    `before` and `after` have a column per component; `codes` numbers the
    different rewards, the most frequent first, which `rewards` lists. `rows`
    holds the number of the transition that each row of the dataset is.
    """

    frame: Frame
    before: np.ndarray
    action: np.ndarray
    after: np.ndarray
    codes: np.ndarray
    done: np.ndarray
    count: np.ndarray
    rewards: tuple[float, ...]
    rows: np.ndarray
    episodes: int

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Read a dataset whose spaces `supports` accepts."""
        before = _matrix(dataset.observation_space, "observations", dataset)
        after = _matrix(dataset.observation_space, "next_observations", dataset)
        parts = _matrix(dataset.action_space, "actions", dataset)
        frame = _frame(dataset, np.concatenate([before, after]), parts)
        action = number(parts - np.array(frame.action_lows), frame.action_sizes)
        rewards, codes = _by_frequency(dataset.columns["rewards"], np.ones(len(dataset)), 9)
        done = dataset.columns["terminations"].astype(np.int64)
        lows, width = np.array(frame.lows), before.shape[1]
        table = np.column_stack([before - lows, action, after - lows, codes, done])
        rows, index, count = np.unique(table, axis=0, return_inverse=True, return_counts=True)
        return cls(
            frame,
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

    @cached_property
    def _content(self) -> tuple[object, ...]:
        """All that it is made of, to compare."""
        parts = [getattr(self, field.name) for field in fields(self)]
        return tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transitions) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def part(self, mask: np.ndarray) -> Self:
        """Return the transitions of some rows of the dataset; `rows` stays that of all."""
        count = np.bincount(self.rows[mask], minlength=len(self.count))
        kept = count > 0
        names = ("before", "action", "after", "codes", "done")
        columns = {name: getattr(self, name)[kept] for name in names}
        return replace(self, count=count[kept], **columns)

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
        """Whether equal situations have had different outcomes, and often."""
        return self.contradicts and self.disagreement(after=False) >= NOISY

    def disagreement(self, *, after: bool) -> float:
        """Estimate how often the same situation has another outcome than its usual one.

        Where nothing was seen twice it is unknown and taken for a quarter.
        The situation is an observation and an action, and with `after` also
        what was observed next.
        """
        parts = [self.before, self.action, *([self.after] if after else [])]
        _, group = np.unique(np.column_stack(parts), axis=0, return_inverse=True)
        group = group.reshape(-1)
        most = np.zeros(group.max() + 1)
        np.maximum.at(most, group, self.count)
        repeats = self.count.sum() - len(most)
        return float((self.count.sum() - most.sum() + 0.5) / (repeats + 2))


def supports(dataset: Dataset) -> bool:
    """Say whether observations and actions are few enough integers to be told apart."""
    leaves = list(dataset.observation_space.leaves("observations"))
    flat = dataset.action_space.kind in ("discrete", "multidiscrete", "multibinary")
    if not len(dataset) or not flat or not all(_is_integer(leaf.space) for leaf in leaves):
        return False
    if dataset.observation_space.kind == "dict" or _nested(dataset.observation_space):
        return False
    if not 0 < dataset.observation_space.size <= MAX_COMPONENTS:
        return False
    frame = Transitions.of(dataset).frame
    limit = MAX_STATES if len(frame.sizes) == 1 else MAX_SPAN
    return max(frame.sizes) <= limit and frame.actions <= MAX_ACTIONS


def _matrix(space: Space, name: str, dataset: Dataset) -> np.ndarray:
    """Stack the leaves of a field, one column per component."""
    rows = len(dataset)
    columns = [dataset.columns[leaf.name].reshape(rows, -1) for leaf in space.leaves(name)]
    return np.concatenate(columns, axis=1).astype(np.int64)


def _frame(dataset: Dataset, seen: np.ndarray, actions: np.ndarray) -> Frame:
    """Take bounds from the spaces, or from the data where a space has none or very wide ones."""
    lows, sizes = _bounds(dataset.observation_space, "observations", seen)
    action_lows, action_sizes = _bounds(dataset.action_space, "actions", actions)
    spaces = dataset.observation_space, dataset.action_space
    return Frame(spaces[0], lows, sizes, spaces[1], action_lows, action_sizes)


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
    """Give the different rewards numbers, the most frequent first."""
    values, codes = np.unique(rewards.round(digits) + 0.0, return_inverse=True)
    counts = np.bincount(codes.reshape(-1), weights=count)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return tuple(float(values[index]) for index in order), rank[codes.reshape(-1)]


def _is_integer(space: Space) -> bool:
    """Say whether a leaf holds integers."""
    whole = np.issubdtype(space.dtype, np.integer) or np.issubdtype(space.dtype, np.bool_)
    return space.kind in ("discrete", "multidiscrete", "multibinary", "box") and bool(whole)


def _nested(space: Space) -> bool:
    """Say whether a tuple holds anything but plain integers."""
    return space.kind == "tuple" and any(child.kind != "discrete" for child in space.children)
