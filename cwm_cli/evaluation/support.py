"""How well the rows of some data support what a program says: the rows behind its rules.

A rule is a way through the program's text: the arms of branches that were taken. It holds as far
as the rows reach that took the same way, and looked up the same keys.
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
from cwm_cli.worlds.doubt import DoubtedModel, Mode, Support, countable, doubted, limits, prospect
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.trails import LOOKUP, TrailsJob, trails

ENOUGH = 3
"""Rows behind a rule that say anything about the next one.

By the rule of three, n rows of which none is wrong leave up to 3 / n wrong ones among all others
(with 95 %): with fewer than three that is any share. Of what is looked up one row is enough, as a
table always answers alike.
"""

UNKNOWN = np.iinfo(np.uint64).max
"""Stands in all of a row's events where they are not known."""


class ProgramSurvey(NamedTuple):
    """What a program answers rightly, and by which rules, at rows and at every cell there is.

    `right` is a mask of the rows. `rows` and `cells` are events, None where there are none.
    """

    right: np.ndarray
    rows: np.ndarray | None
    cells: np.ndarray | None
    lines: np.ndarray | None


def doubting(model: ProgramModel, rows: Dataset, mode: Mode) -> DoubtedModel | None:
    """Return a program as it is planned with where rows are known; None if they say nothing."""
    support = supported(survey(model, rows), rows) if len(rows) and _steps_only(model) else None
    if support is None:
        return None
    if mode == "ignore":
        return DoubtedModel(model, model, model, support)
    best = mode == "curious"
    seen = prospect(rows, best=best)
    change = partial(doubted, model.text, support, best=best, valid=rows.has_valid_actions)
    changed = replace(model, text=change(seen))
    if support.cells is not None:
        return DoubtedModel(model, changed, model, support)
    outside = replace(model, text=change(seen._replace(ends=False)))  # where ways back are sought
    return DoubtedModel(model, changed, outside if seen.ends else changed, support)


def survey(model: ProgramModel, rows: Dataset, *, cells: bool = True) -> ProgramSurvey:
    """Ask a program for rows, and follow its ways there and, where they are few, in all cells.

    Nothing is found of one that tells outcomes or remembers: it is asked for more than a step.
    """
    predictions = model.predict(rows) if _steps_only(model) else None
    if predictions is None or predictions.failure is not None:
        return ProgramSurvey(np.zeros(len(rows), bool), None, None, None)
    right = _right(predictions.likeliest(), rows)
    columns, count = rows.select("observations", "actions"), len(rows)
    cells = cells and countable(rows.observation_space, rows.action_space)
    if cells:
        every = every_cell(rows.observation_space, rows.action_space)
        columns = {name: np.concatenate([columns[name], every[name]]) for name in columns}
    job = TrailsJob(
        program=model.text,
        observation_space=rows.observation_space,
        action_space=rows.action_space,
        columns=columns,
        valid=rows.has_valid_actions,
    )
    followed = trails(model.sandbox, job)
    if followed is None:
        return ProgramSurvey(right, None, None, None)
    events = followed.events
    return ProgramSurvey(right, events[:count], events[count:] if cells else None, followed.lines)


def _steps_only(model: ProgramModel) -> bool:
    return not (model.abilities.tells or model.abilities.remembers)


def supported(found: ProgramSurvey, rows: Dataset) -> Support | None:
    """Return which steps are supported; None where that cannot be said, as for texts."""
    spaces = rows.observation_space, rows.action_space
    if any(leaf.space.kind == "text" for space in spaces for leaf in space.leaves("")):
        return None
    if countable(*spaces):
        return None if found.cells is None else Support(*spaces, cells=_cells(found, rows))
    low, high = _range(spaces[0], "observations", rows)
    action_low, action_high = _range(spaces[1], "actions", rows)
    return Support(*spaces, low=low, high=high, action_low=action_low, action_high=action_high)


@dataclass
class RowsBehind:
    """The rows behind a way through a program, or a key that it looks up."""

    right: int = 0
    wrong: int = 0

    def holds(self, least: int, *, chance: bool) -> bool:
        """Whether enough rows were right and none wrong; where chance decides, more were right."""
        return self.right >= least and (self.right > self.wrong if chance else not self.wrong)


class Trail(NamedTuple):
    """The arms that a program took, and the keys that it looked up."""

    arms: tuple[int, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(cls, events: np.ndarray) -> Trail | None:
        """Read a row of events; None where they are not known."""
        if events[0] == UNKNOWN:
            return None
        some = [event for event in events.tolist() if event]
        arms = tuple(event for event in some if not event & LOOKUP)
        return cls(arms, tuple(event for event in some if event & LOOKUP))


@dataclass
class RuleCounts:
    """What rows say of a program's rules; `chance` where equal situations differed."""

    ways: dict[tuple[int, ...], RowsBehind]
    keys: dict[int, RowsBehind]
    chance: bool

    @classmethod
    def of(cls, events: np.ndarray, right: np.ndarray, *, chance: bool) -> RuleCounts:
        """Count the rows behind each."""
        rules = cls({}, {}, chance)
        for row, was_right in zip(events, right.tolist(), strict=True):
            if way := Trail.of(row):
                behind = [rules.ways.setdefault(way.arms, RowsBehind())]
                behind += [rules.keys.setdefault(key, RowsBehind()) for key in way.keys]
                for rule in behind:
                    rule.right += was_right
                    rule.wrong += not was_right
        return rules

    def support(self, way: Trail | None) -> bool:
        """Whether rows support what a way leads to."""
        if way is None or way.arms not in self.ways:
            return False
        return self.ways[way.arms].holds(ENOUGH, chance=self.chance) and all(
            key in self.keys and self.keys[key].holds(1, chance=self.chance) for key in way.keys
        )


def _cells(found: ProgramSurvey, rows: Dataset) -> np.ndarray:
    """Return for every situation and action whether it is supported."""
    assert found.rows is not None and found.cells is not None
    recorded = _places(rows)
    right = np.zeros(len(found.cells), bool)
    right[recorded[found.right]] = True  # of equal situations that differ one may be right
    chance = bool((right[recorded] & ~found.right).any())
    rules = RuleCounts.of(found.rows, right[recorded], chance=chance)
    cells = np.array([rules.support(Trail.of(row)) for row in found.cells])
    cells[recorded] = right[recorded]
    return cells.reshape(-1, rows.action_space.count)


def every_cell(observation_space: Space, action_space: Space) -> Columns:
    """Return columns of every observation with every action, the last component fastest."""
    bounds = [*limits(observation_space), *limits(action_space)]
    counts = [int(high - low) + 1 for low, high in bounds]
    grid = np.indices(counts).reshape(len(counts), -1).T
    grid = grid + np.array([int(low) for low, _ in bounds])
    columns: Columns = {}
    for name, space in (("observations", observation_space), ("actions", action_space)):
        for leaf in space.leaves(name):
            own, grid = grid[:, : leaf.space.size], grid[:, leaf.space.size :]
            columns[leaf.name] = own.reshape(len(own), *leaf.space.shape)
    return columns


def _places(rows: Dataset) -> np.ndarray:
    """Return the place of every row among all cells."""
    place = np.zeros(len(rows), np.int64)
    bounds = iter([*limits(rows.observation_space), *limits(rows.action_space)])
    for name, space in (("observations", rows.observation_space), ("actions", rows.action_space)):
        for column in _flat(space, name, rows):
            low, high = next(bounds)
            place = place * int(high - low + 1) + (column.astype(np.int64) - int(low))
    return place


def _flat(space: Space, name: str, rows: Dataset) -> Iterator[np.ndarray]:
    """Yield the components of a field, row by row."""
    for leaf in space.leaves(name):
        yield from rows.columns[leaf.name].reshape(len(rows), -1).T


def _range(space: Space, name: str, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds within which steps were recorded, but for rounding.

    None beyond: where the track ends, every row lies just inside.
    """
    columns = [column.astype(float) for column in _flat(space, name, rows)]
    low, high = (np.array([pick(column) for column in columns]) for pick in (np.min, np.max))
    return low - TOLERANCE * (1 + np.abs(low)), high + TOLERANCE * (1 + np.abs(high))


def _right(predictions: Columns, rows: Dataset) -> np.ndarray:
    """Return which rows are right in every part that counts."""
    right: np.ndarray = match(predictions, rows).losses(rows.columns["terminations"]) == 0
    return right
