"""Data support of a program: the rows behind its rules, and statements about missing data.

A rule is a path of branches through the program's text. Rows support a rule if they took the same
path and looked up the same keys.

A program can be right on every recorded row and still be wrong elsewhere. `gaps` describes what
the rows do not show; the description is printed with each score and written into the docstring of
programs that were induced from data alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.objects import OBJECTS
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import MOST_CLASSES, TOLERANCE, close, match
from cwm_cli.worlds.contract import component_names
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
from cwm_cli.worlds.trails import LOOKUP, SITE_SHIFT, TrailsJob, record_trails

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


FEW_ENDS = 10
"""With more ends than this, of several causes, another cause would probably have occurred."""


def gaps(
    rows: Dataset,
    names: Sequence[str] = (),
    *,
    found: ProgramSurvey | None = None,
    program: str = "",
) -> list[str]:
    """Return up to 6 sentences on missing data, the most important first.

    Args:
        rows: Recorded transitions.
        names: Names of the observation's components.
        found: The survey of a program, to report also its lines with few rows as support.
        program: The text of that program.

    Returns:
        The sentences; none if there are no rows.
    """
    if not len(rows):
        return []
    schema = rows.metadata.get("objects")
    if schema is None:
        names = names or component_names(rows.observation_space, "observation")
        columns = _columns(rows, "observations"), _columns(rows, "next_observations")
    else:  # single numbers of a table of objects have no meaning
        names, columns = (), ([], [])
    parts = [
        _on_ends(rows, names, columns),
        _on_rewards(rows),
        _on_bounds(rows, names, columns[1]),
        _on_actions(rows),
        _on_classes(rows, schema),
        *_on_rules(found, program),
        _on_constants(names, columns),
        _on_coverage(rows),
    ]
    return [part for part in parts if part][:6]


def unverified(train: Dataset, test: Dataset) -> list[str]:
    """Return a phrase for each rare event that no held-out row verifies.

    An event is a reward other than the most frequent one, or the end of an episode. Rules for it
    are fitted to the train rows that have it; if they are few, and no other row has it, a wrong
    rule may be right on all rows. Several rewards of more than three decimals are no events: a
    formula computes them from real numbers, and rows with other values verify the formula.
    """
    fitted = train.fitted
    held_out = [train[~fitted], test]
    events = {
        "an end of the episode": [part.columns["terminations"] for part in (train, *held_out)]
    }
    rewards = train.columns["rewards"]
    values, counts = np.unique(rewards, return_counts=True)
    if 1 < len(values) <= MOST_CLASSES:
        real = np.abs(values - np.round(values, 3)) > TOLERANCE
        others = np.arange(len(values)) != counts.argmax()
        for value in values[others & ~(real & (real.sum() > 1))]:
            columns = [part.columns["rewards"] for part in (train, *held_out)]
            events[f"the reward {value:g}"] = [close(column, value) for column in columns]
    found = []
    for name, (seen, *elsewhere) in events.items():
        times = int(seen[fitted].sum())
        if 0 < times < FEW_ENDS and not any(mask.any() for mask in elsewhere):
            found.append(f"{name} was seen {'once' if times == 1 else f'{times} times'}")
    return found


def untested(rows: Dataset) -> list[str]:
    """Return phrases on missing events if no episode terminates.

    Such data cannot refute a program that never ends an episode. If all rewards are equal as well,
    the data cannot refute a program that never rewards a goal. Equal rewards alone are usual: many
    environments pay one per step until the episode ends.
    """
    if not len(rows) or rows.columns["terminations"].any():
        return []
    rewards = rows.columns["rewards"]
    is_constant = close(rewards, rewards[0]).all()
    constant = [f"every reward was {rewards[0]:g}"] if is_constant else []
    return ["no episode in the data terminated", *constant]


Components = list[np.ndarray]
"""The column of each component as numbers, empty for texts."""


def _columns(rows: Dataset, field: str) -> Components:
    found: Components = []
    for leaf in rows.observation_space.leaves(field):
        column = rows.columns[leaf.name].reshape(len(rows), -1)
        texts = leaf.space.kind == "text"
        found += [np.empty(0)] * column.shape[1] if texts else list(column.T.astype(float))
    return found


def _on_ends(rows: Dataset, names: Sequence[str], columns: tuple[Components, Components]) -> str:
    """Return a sentence on the number of terminal transitions and of their causes."""
    ended = rows.columns["terminations"]
    count = int(ended.sum())
    if not count:
        return "No terminal transition was seen, so when an episode ends is not known."
    times = "one terminal transition" if count == 1 else f"{count} terminal transitions"
    cause = _cause(ended, names, columns) if count > 1 else ""
    if cause:
        return f"All {times} have one cause, it seems ({cause}); other ways to end may exist."
    if count > FEW_ENDS:
        return ""
    return f"The rule for the end rests on {times}; other ways to end may exist."


def _cause(ended: np.ndarray, names: Sequence[str], columns: tuple[Components, Components]) -> str:
    """Return a cause that all ends have in common, such as a component beyond its other values."""
    if columns[1] and all(len(after) and len(np.unique(after[ended])) == 1 for after in columns[1]):
        return "the same observation"
    for name, before, after in zip(names, *columns, strict=True):
        elsewhere = np.concatenate([before, after[~ended]]) if len(after) else after
        if not len(elsewhere):
            continue
        ends = after[ended]
        if ((ends > elsewhere.max()) | (ends < elsewhere.min())).all():
            return f"{name} beyond what it is elsewhere"
    return ""


def _on_rewards(rows: Dataset) -> str:
    rewards = np.unique(rows.columns["rewards"])
    if len(rewards) > 1:
        return ""
    return f"Every reward seen was the same ({rewards[0]:g})."


def _on_bounds(rows: Dataset, names: Sequence[str], after: Components) -> str:
    """Return a sentence on the bounds of real numbers that no row comes near."""
    far = []
    for name, (low, high), seen in zip(
        names, component_bounds(rows.observation_space), after, strict=False
    ):
        if not len(seen) or not (isfinite(low) and isfinite(high)) or high - low <= 1:
            continue
        near = 0.05 * (high - low)  # limits have an effect only near the bound
        least, most = float(np.nanmin(seen)), float(np.nanmax(seen))
        if least > low + near or most < high - near:
            far.append(f"{name} was {least:.3g} to {most:.3g} of {low:.3g} to {high:.3g}")
    if not far:
        return ""
    return f"No row came near these bounds: {_join(far)}."


def _on_actions(rows: Dataset) -> str:
    if rows.action_space.kind != "discrete":
        return ""
    low, count = int(rows.action_space.low[0]), rows.action_space.count
    missing = sorted(set(range(low, low + count)) - set(rows.columns["actions"].tolist()))
    return f"No row takes the action {_join(list(map(str, missing)))}." if missing else ""


def _on_classes(rows: Dataset, schema: Mapping[str, Any] | None) -> str:
    if schema is None:
        return ""
    seen = np.unique(rows.columns[f"observations.{OBJECTS}"][..., 0])
    missing = [name for n, name in enumerate(schema["classes"]) if n and n not in seen]
    return f"No row shows an object of class {_join(missing)}." if missing else ""


def _on_rules(found: ProgramSurvey | None, program: str) -> Iterator[str]:
    """Yield sentences on lines that few rows executed, and on branches that no row took."""
    if found is None or found.rows is None or found.lines is None:
        return
    lines = program.splitlines()
    known = found.rows[(found.rows[:, 0] != UNKNOWN) & found.right]
    arms, counts = np.unique(known[(known != 0) & (known < LOOKUP)], return_counts=True)
    arms_of_site: dict[int, int] = {}
    rows_of_line: dict[int, int] = {}
    for arm, count in zip(arms.tolist(), counts.tolist(), strict=True):
        line = int(found.lines[arm >> SITE_SHIFT])
        arms_of_site[arm >> SITE_SHIFT] = arms_of_site.get(arm >> SITE_SHIFT, 0) + 1
        rows_of_line[line] = min(count, rows_of_line.get(line, count))
    few = [
        f"line {line} ({count} row{'s' * (count != 1)})"
        for line, count in rows_of_line.items()
        if count < MIN_ROWS
    ]
    if few:
        yield f"Few rows support a rule: {_join(few)}."
    one_arm = {int(found.lines[site]) for site, count in arms_of_site.items() if count == 1}
    untried = [str(line) for line in sorted(one_arm) if 0 < line <= len(lines)]
    if untried:
        word = "Line" if len(untried) == 1 else "Lines"
        yield f"{word} {_join(untried)}: the data only ever took one branch."


def _on_constants(names: Sequence[str], columns: tuple[Components, Components]) -> str:
    constant = [
        name
        for name, before, after in zip(names, *columns, strict=True)
        if len(before) and before.min() == before.max() == after.min() == after.max()
    ]
    return f"{_join(constant)} never changed." if constant else ""


def _on_coverage(rows: Dataset) -> str:
    """Return a sentence on the number of recorded cells, unless all are recorded."""
    spaces = rows.observation_space, rows.action_space
    if not is_enumerable(*spaces):
        return ""
    names = [leaf.name for leaf in spaces[0].leaves("observations")]
    names += [leaf.name for leaf in spaces[1].leaves("actions")]
    pairs = np.hstack([rows.columns[name].reshape(len(rows), -1) for name in names])
    seen = len(np.unique(pairs, axis=0))
    every = prod(int(high - low) + 1 for space in spaces for low, high in component_bounds(space))
    if seen == every:
        return ""
    return f"{seen:,} of {every:,} (observation, action) pairs were recorded."


def _join(parts: Sequence[str]) -> str:
    """Return an enumeration of at most 3 parts; further parts are only counted."""
    if len(parts) > 3:
        parts = [*parts[:2], f"{len(parts) - 2} more"]
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
