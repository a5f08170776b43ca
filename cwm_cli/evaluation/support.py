"""Data support of a program: the recorded rows behind each rule that it uses.

A rule is a path of branches through the program's text. Rows support a rule if they took the same
path and looked up the same keys. `cwm_cli.worlds.trails` records paths and keys, this module counts
the rows behind them, `cwm_cli.worlds.doubt` plans with the result, and
`cwm_cli.evaluation.missing_data` describes it in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import TOLERANCE, match
from cwm_cli.translation.instrumentation import LOOKUP
from cwm_cli.worlds.doubt import (
    DoubtedModel,
    Mode,
    Support,
    add_doubt,
    component_bounds,
    extreme_return,
    is_enumerable,
)
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.trails import TrailsJob, record_trails

MIN_ROWS = 3
"""Rows that a rule needs as support.

By the rule of three, n correct rows without a wrong one bound the error rate by 3 / n (95 %
confidence). Below three rows the bound is 1. A key of a table needs one row only, because a table
always returns the same value for a key.
"""

UNKNOWN = np.iinfo(np.uint64).max
"""Value of all events of a row whose events are unknown."""


class ProgramSurvey(NamedTuple):
    """The rules that a program uses in recorded rows and in all cells.

    A cell is an observation with an action. An event is a branch that the program takes, or a key
    that it looks up.

    Attributes:
        right: Mask of the rows that the program predicts correctly.
        rows: Events of each row (rows, events), None if unknown.
        cells: Events of each cell, None if unknown or if there are too many cells.
        lines: Line of each branching site, None if unknown.
    """

    right: np.ndarray
    rows: np.ndarray | None
    cells: np.ndarray | None
    lines: np.ndarray | None


def doubting(model: ProgramModel, rows: Dataset, mode: Mode) -> DoubtedModel | None:
    """Return a program that plans with its data support in mind.

    Args:
        model: The program.
        rows: Recorded rows.
        mode: Treatment of unsupported steps: "ignore", "careful" or "curious".

    Returns:
        The program; None if its support cannot be determined.
    """
    support = find_support(survey(model, rows), rows) if len(rows) and _is_plain(model) else None
    if support is None:
        return None
    if mode == "ignore":
        return DoubtedModel(model, model, model, support)
    best = mode == "curious"
    seen = extreme_return(rows, best=best)
    change = partial(add_doubt, model.text, support, best=best, valid=rows.has_valid_actions)
    changed = replace(model, text=change(seen))
    if support.cells is not None:
        return DoubtedModel(model, changed, model, support)
    # From unsupported observations it plans with steps that do not end, to find a way back.
    outside = replace(model, text=change(seen._replace(ends=False)))
    return DoubtedModel(model, changed, outside if seen.ends else changed, support)


def survey(model: ProgramModel, rows: Dataset, *, cells: bool = True) -> ProgramSurvey:
    """Run a program on rows, and on all cells if these are few, and record its events.

    The result is empty for programs with memory or with outcome probabilities.
    """
    predictions = model.predict(rows) if _is_plain(model) else None
    if predictions is None or predictions.failure is not None:
        return ProgramSurvey(np.zeros(len(rows), bool), None, None, None)
    losses = match(predictions.likeliest(), rows).losses(rows.columns["terminations"])
    right: np.ndarray = losses == 0
    columns, count = rows.select("observations", "actions"), len(rows)
    cells = cells and is_enumerable(rows.observation_space, rows.action_space)
    if cells:
        grid = _all_cells(rows.observation_space, rows.action_space)
        columns = {name: np.concatenate([columns[name], grid[name]]) for name in columns}
    followed = record_trails(model.sandbox, TrailsJob.of(model.text, rows, columns=columns))
    if followed is None:
        return ProgramSurvey(right, None, None, None)
    events = followed.events
    return ProgramSurvey(right, events[:count], events[count:] if cells else None, followed.lines)


def _is_plain(model: ProgramModel) -> bool:
    return not (model.abilities.tells or model.abilities.remembers)


def find_support(found: ProgramSurvey, rows: Dataset) -> Support | None:
    """Return the supported cells, or the range of the rows if there are too many cells.

    None if the support is unknown, as for texts.
    """
    spaces = rows.observation_space, rows.action_space
    if any(leaf.space.kind == "text" for space in spaces for leaf in space.leaves("")):
        return None
    if is_enumerable(*spaces):
        return None if found.cells is None else Support(*spaces, cells=_support_cells(found, rows))
    low, high = _range(spaces[0], "observations", rows)
    action_low, action_high = _range(spaces[1], "actions", rows)
    return Support(*spaces, low=low, high=high, action_low=action_low, action_high=action_high)


@dataclass
class RowsBehind:
    """Numbers of correct and wrong rows of a path through a program, or of a key."""

    right: int = 0
    wrong: int = 0

    def are_enough(self, least: int, *, chance: bool) -> bool:
        """Return whether at least `least` rows are correct and none is wrong.

        With `chance` it is enough that more rows are correct than wrong.
        """
        return self.right >= least and (self.right > self.wrong if chance else not self.wrong)


class Trail(NamedTuple):
    """The branches that a program took in a row, and the keys that it looked up."""

    arms: tuple[int, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(cls, events: np.ndarray) -> Trail | None:
        """Return the trail of a row of events; None if they are unknown."""
        if events[0] == UNKNOWN:
            return None
        known = [event for event in events.tolist() if event]
        arms = tuple(event for event in known if not event & LOOKUP)
        return cls(arms, tuple(event for event in known if event & LOOKUP))


@dataclass
class RuleCounts:
    """Row counts of each path and each key; `chance` is set if equal rows had other outcomes."""

    paths: dict[tuple[int, ...], RowsBehind]
    keys: dict[int, RowsBehind]
    chance: bool

    @classmethod
    def of(cls, events: np.ndarray, right: np.ndarray, *, chance: bool) -> RuleCounts:
        """Count the correct and wrong rows of each path and key."""
        rules = cls({}, {}, chance)
        for row, was_right in zip(events, right.tolist(), strict=True):
            if trail := Trail.of(row):
                counts = [rules.paths.setdefault(trail.arms, RowsBehind())]
                counts += [rules.keys.setdefault(key, RowsBehind()) for key in trail.keys]
                for count in counts:
                    count.right += was_right
                    count.wrong += not was_right
        return rules

    def supports(self, trail: Trail | None) -> bool:
        """Return whether enough rows have the same path, and the same keys."""
        if trail is None or trail.arms not in self.paths:
            return False
        return self.paths[trail.arms].are_enough(MIN_ROWS, chance=self.chance) and all(
            key in self.keys and self.keys[key].are_enough(1, chance=self.chance)
            for key in trail.keys
        )


def _support_cells(found: ProgramSurvey, rows: Dataset) -> np.ndarray:
    """Return a mask (observations, actions) of the supported cells."""
    assert found.rows is not None and found.cells is not None
    recorded = _cell_numbers(rows)
    right = np.zeros(len(found.cells), bool)
    right[recorded[found.right]] = True  # a cell is correct if any of its rows is
    chance = bool((right[recorded] & ~found.right).any())
    rules = RuleCounts.of(found.rows, right[recorded], chance=chance)
    cells = np.array([rules.supports(Trail.of(row)) for row in found.cells])
    cells[recorded] = right[recorded]
    return cells.reshape(-1, rows.action_space.count)


def _all_cells(observation_space: Space, action_space: Space) -> Columns:
    """Return columns of every observation with every action; the last component varies fastest."""
    bounds = [*component_bounds(observation_space), *component_bounds(action_space)]
    counts = [int(high - low) + 1 for low, high in bounds]
    grid = np.indices(counts).reshape(len(counts), -1).T
    grid = grid + np.array([int(low) for low, _ in bounds])
    columns: Columns = {}
    for name, space in (("observations", observation_space), ("actions", action_space)):
        for leaf in space.leaves(name):
            own, grid = grid[:, : leaf.space.size], grid[:, leaf.space.size :]
            columns[leaf.name] = own.reshape(len(own), *leaf.space.shape)
    return columns


def _cell_numbers(rows: Dataset) -> np.ndarray:
    """Return for each row the index of its cell in `_all_cells`."""
    number = np.zeros(len(rows), np.int64)
    bounds = iter([*component_bounds(rows.observation_space), *component_bounds(rows.action_space)])
    for name, space in (("observations", rows.observation_space), ("actions", rows.action_space)):
        for column in _flat(space, name, rows):
            low, high = next(bounds)
            number = number * int(high - low + 1) + (column.astype(np.int64) - int(low))
    return number


def _flat(space: Space, name: str, rows: Dataset) -> Iterator[np.ndarray]:
    """Yield the column of each component of a field."""
    for leaf in space.leaves(name):
        yield from rows.columns[leaf.name].reshape(len(rows), -1).T


def _range(space: Space, name: str, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest recorded values, widened by the tolerance only.

    A wider range could leave the track, since rows near its end are just inside.
    """
    columns = [column.astype(float) for column in _flat(space, name, rows)]
    low, high = (np.array([pick(column) for column in columns]) for pick in (np.min, np.max))
    return low - TOLERANCE * (1 + np.abs(low)), high + TOLERANCE * (1 + np.abs(high))
