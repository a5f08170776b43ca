"""Recorded steps: their components as numbers, and each step as a short line of text.

Numbers of 32 bits are written so that they can be read back exactly, longer ones with nine digits.
A step on a board of many cells is written by the cells that changed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.text import clean
from cwm_cli.worlds.contract import component_names

MANY_CELLS = 12
"""An observation of more components that are no real numbers is written by its changes."""
LONGEST_TEXT = 1200
"""Longer texts are cut."""
FEW_VALUES = 12
"""A real component of at most this many values, all whole, counts as a whole number (a flag)."""


@dataclass(frozen=True)
class RecordedSteps:
    """A dataset by components: `before` and `after` have a column for each; texts are numbered."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def names(self) -> list[str]:
        """The name of each component: its index, such as `[2]`, if it has one."""
        names = component_names(self.dataset.observation_space, "observation")
        return [
            clean(name.removeprefix("observation"), limit=40) or "observation" for name in names
        ]

    @cached_property
    def before(self) -> np.ndarray:
        """Observations before the step, (rows, components)."""
        return self._numbers[0]

    @cached_property
    def after(self) -> np.ndarray:
        """Observations after the step, (rows, components)."""
        return self._numbers[1]

    @cached_property
    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        space, count = self.dataset.observation_space, len(self)
        parts: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        stems = ("observations", "next_observations")
        for leaves in zip(*(space.leaves(stem) for stem in stems), strict=True):
            columns = [self.dataset.columns[leaf.name].reshape(count, -1) for leaf in leaves]
            if leaves[0].space.kind == "text":
                _, codes = np.unique(np.concatenate(columns), return_inverse=True)
                columns = list(codes.reshape(2, count, -1))
            for part, column in zip(parts, columns, strict=True):
                part.append(column.astype(np.float64))
        before, after = (np.concatenate(part, axis=1) for part in parts)
        return before, after

    @cached_property
    def is_text(self) -> np.ndarray:
        """Mask of the components that are texts."""
        return self._by_leaf(lambda space: space.kind == "text")

    @cached_property
    def whole(self) -> np.ndarray:
        """Mask of the components that are no real numbers, or take only a few whole values."""
        known = ~self._by_leaf(lambda space: space.is_float)
        for index in np.flatnonzero(~known):
            values = np.unique(np.concatenate([self.before[:, index], self.after[:, index]]))
            known[index] = len(values) <= FEW_VALUES and bool((values == np.round(values)).all())
        return known

    def _by_leaf(self, test: Callable[[Space], bool]) -> np.ndarray:
        leaves = [leaf.space for leaf in self.dataset.observation_space.leaves("")]
        return np.concatenate([np.full(space.size, test(space), np.bool_) for space in leaves])

    @cached_property
    def actions(self) -> np.ndarray:
        """Actions, (rows, components); texts are numbered."""
        leaves = self.dataset.action_space.leaves("actions")
        columns = [self.dataset.columns[leaf.name].reshape(len(self), -1) for leaf in leaves]
        numbers = [
            np.unique(c, return_inverse=True)[1].reshape(c.shape) if c.dtype.kind == "U" else c
            for c in columns
        ]
        return np.concatenate(numbers, axis=1).astype(np.float64)

    @cached_property
    def rewards(self) -> np.ndarray:
        """The recorded rewards."""
        return self.dataset.columns["rewards"]

    @cached_property
    def ended(self) -> np.ndarray:
        """Mask of the steps that terminate an episode."""
        return self.dataset.columns["terminations"]

    @cached_property
    def follows(self) -> np.ndarray:
        """Mask of the steps that continue the step above them in the same episode."""
        episodes = self.dataset.columns["episodes"]
        follows = np.zeros(len(self), np.bool_)
        same = (self.before[1:] == self.after[:-1]).all(axis=1)
        follows[1:] = same & (episodes[1:] == episodes[:-1]) & ~self.ended[:-1]
        return follows

    def up_to(self, row: int, most: int) -> range:
        """Return a step and at most `most` steps before it in the same episode."""
        first = row
        while self.follows[first] and row - first < most:
            first -= 1
        return range(first, row + 1)

    @cached_property
    def is_board(self) -> bool:
        """Whether an observation has many cells that are no real numbers."""
        real = self._by_leaf(lambda space: space.is_float)
        return len(self.names) > MANY_CELLS and bool(real.mean() < 1 / 2)

    # --- in words

    def observation(self, row: int, *, after: bool = False) -> str:
        """Write the whole observation before or after a step."""
        stem = "next_observations" if after else "observations"
        return write_cell(self.dataset.observation_space, stem, self.dataset, row)

    def action(self, row: int) -> str:
        """Write an action."""
        return write_cell(self.dataset.action_space, "actions", self.dataset, row)

    def changes(self, row: int) -> str:
        """Write the cells that a step changed."""
        changed = np.flatnonzero(self.before[row] != self.after[row]).tolist()
        if not changed:
            return "unchanged"
        cells = [f"{self.names[i]} {self.cell(row, i)}>{self.cell(row, i, 1)}" for i in changed]
        return ", ".join(cells)

    def cell(self, row: int, index: int, after: int = 0) -> str:
        """Write one component before or after a step."""
        leaf, place = self._places[index]
        stem = "next_observations" if after else "observations"
        value = self.dataset.columns[f"{stem}{leaf}"][row].reshape(-1)[place]
        return number(value) if value.dtype.kind != "U" else repr(str(value))

    @cached_property
    def _places(self) -> list[tuple[str, int]]:
        """The leaf of each component, as the end of its column's name, and its place there."""
        leaves = self.dataset.observation_space.leaves("")
        return [(leaf.name, place) for leaf in leaves for place in range(leaf.space.size)]

    def outcome(self, row: int) -> str:
        """Write the reward, the end, and the valid actions if they are recorded."""
        words = f"{number(self.rewards[row])}{', ended' if self.ended[row] else ''}"
        if self.dataset.has_valid_actions and not self.ended[row]:
            valid = self.dataset.action_space.masked(self.dataset.columns[VALID][row])
            words += f", valid {','.join(map(str, valid))}"
        return words

    def line(self, row: int, *, like: int | None = None) -> str:
        """Write a step: before, action, after, reward.

        On a board, the observation before may be written as its difference from the observation
        of the row `like`.
        """
        before = self.observation(row)
        if like is not None and self.is_board:
            difference = self._apart(row, like)
            before = min(difference, before, key=len)
        after = self.changes(row) if self.is_board else self.observation(row, after=True)
        return f"{before} | {self.action(row)} | {after} | {self.outcome(row)}"

    def _apart(self, row: int, like: int) -> str:
        """Write the differences between the observations before two steps."""
        cells = np.flatnonzero(self.before[row] != self.before[like]).tolist()
        words = ", ".join(f"{self.names[i]} {self.cell(row, i)}" for i in cells)
        return f"first board above, but {words}" if cells else "first board above"

    def chain(self, rows: Sequence[int]) -> list[str]:
        """Write steps that follow each other; each observation is written once."""
        lines = []
        for place, row in enumerate(rows):
            parts = [self.action(row), self.outcome(row)]
            if place == 0 or not self.is_board:
                parts.insert(0, self.observation(row))
            if self.is_board:
                parts.insert(-1, self.changes(row))
            lines.append(" | ".join(parts))
        if not self.is_board and rows:
            lines.append(self.observation(rows[-1], after=True))
        return lines


def write_cell(space: Space, stem: str, dataset: Dataset, row: int) -> str:
    """Write a value of a space as in Python, without spaces; long texts are cut."""
    return write_value(space.unpack(stem, dataset.columns, row))


def write_value(value: Any) -> str:
    """Write a value of any space; `number` writes its numbers."""
    match value:
        case np.ndarray() if value.ndim:
            return f"[{','.join(map(write_value, value))}]"
        case tuple():
            return f"({','.join(map(write_value, value))})"
        case dict():
            return f"{{{','.join(f'{key!r}:{write_value(each)}' for key, each in value.items())}}}"
        case str():
            cut = value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}…"
            plain = json.dumps(clean(cut, newlines=True), ensure_ascii=False)
            return plain if plain.isprintable() else json.dumps(cut)
    return number(value)


def number(value: Any) -> str:
    """Write a number with as few digits as identify it, at most nine."""
    plain = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if not isinstance(plain, float):
        return str(int(plain))
    short = str(np.float32(value)) if _is_single(value) else repr(plain)
    nine = f"{plain:.9g}"
    text = min(short, nine, key=len)
    return text.removesuffix(".0")


def _is_single(value: Any) -> bool:
    return getattr(value, "dtype", None) in (np.dtype(np.float32), np.dtype(np.float16))
