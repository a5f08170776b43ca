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
    seen = extreme_return(rows, best=best)
    change = partial(add_doubt, model.text, support, best=best, valid=rows.has_valid_actions)
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
    cells = cells and is_enumerable(rows.observation_space, rows.action_space)
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
    followed = record_trails(model.sandbox, job)
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
    if is_enumerable(*spaces):
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


def _places(rows: Dataset) -> np.ndarray:
    """Return the place of every row among all cells."""
    place = np.zeros(len(rows), np.int64)
    bounds = iter([*component_bounds(rows.observation_space), *component_bounds(rows.action_space)])
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


MOST = 6
"""Sentences at most: more would not be read."""

NEAR = 0.05
"""A row comes near a bound within this share of the range: where limits act, they show."""

FEW_ENDS = 10
"""With more ends than this, of several causes, another cause would likely have occurred."""

MOST_NAMED = 3
"""Components, actions or lines that a sentence names; the number of further ones follows."""


def gaps(
    rows: Dataset,
    names: Sequence[str] = (),
    *,
    found: ProgramSurvey | None = None,
    program: str = "",
) -> list[str]:
    """Return sentences on missing data, the most important first; none if there are no rows.

    Args:
        rows: Recorded transitions.
        names: Names of the observation's components.
        found: The survey of a program, to name also its lines with few rows behind them.
        program: The text of that program.
    """
    if not len(rows):
        return []
    schema = rows.metadata.get("objects")
    if schema is None:
        names = names or component_names(rows.observation_space, "observation")
        columns = _columns(rows, "observations"), _columns(rows, "next_observations")
    else:  # the numbers of a table mean nothing one by one
        names, columns = (), ([], [])
    parts = [
        _on_ends(rows, names, columns),
        _on_rewards(rows),
        _on_bounds(rows, names, columns[1]),
        _on_actions(rows),
        _on_classes(rows, schema),
        *_on_rules(found, program),
        _on_what_stays(names, columns),
        _on_coverage(rows),
    ]
    return [part for part in parts if part][:MOST]


def unverified(train: Dataset, test: Dataset) -> list[str]:
    """Return the rare events that no held-out row verifies, one phrase for each.

    An event is a reward other than the most frequent one, or the end of an episode. Rules for it
    are fitted to the train rows that have it; if they are few, and no other row has it, a wrong
    rule may be right on all rows. Several rewards of more than three decimals are no events: a
    formula computes them from real numbers, and rows with other values verify the formula.
    """
    fitted = train.fitted
    held_out = [train[~fitted], test]
    events = {
        "an end of the episode": [each.columns["terminations"] for each in (train, *held_out)]
    }
    rewards = train.columns["rewards"]
    values, counts = np.unique(rewards, return_counts=True)
    if 1 < len(values) <= MOST_CLASSES:
        real = np.abs(values - np.round(values, 3)) > TOLERANCE
        others = np.arange(len(values)) != counts.argmax()
        for value in values[others & ~(real & (real.sum() > 1))]:
            columns = [each.columns["rewards"] for each in (train, *held_out)]
            events[f"the reward {value:g}"] = [close(column, value) for column in columns]
    found = []
    for name, (seen, *elsewhere) in events.items():
        times = int(seen[fitted].sum())
        if 0 < times < FEW_ENDS and not any(mask.any() for mask in elsewhere):
            found.append(f"{name} was seen {'once' if times == 1 else f'{times} times'}")
    return found


def untested(rows: Dataset) -> list[str]:
    """Return phrases on events that no row contains, if no episode terminates.

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
"""The numbers of each component, row by row. Components that are texts have none."""


def _columns(rows: Dataset, field: str) -> Components:
    found: Components = []
    for leaf in rows.observation_space.leaves(field):
        column = rows.columns[leaf.name].reshape(len(rows), -1)
        texts = leaf.space.kind == "text"
        found += [np.empty(0)] * column.shape[1] if texts else list(column.T.astype(float))
    return found


def _on_ends(rows: Dataset, names: Sequence[str], columns: tuple[Components, Components]) -> str:
    """Return on how many terminal transitions, of how many causes, the rule for the end rests."""
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
    """Return the component whose values at all ends occur nowhere else, if any."""
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
    """Return a sentence if rewards did not vary."""
    rewards = np.unique(rows.columns["rewards"])
    if len(rewards) > 1:
        return ""
    return f"Every reward seen was the same ({rewards[0]:g})."


def _on_bounds(rows: Dataset, names: Sequence[str], after: Components) -> str:
    """Name the bounds of real numbers that no row came near."""
    far = []
    for name, (low, high), seen in zip(
        names, component_bounds(rows.observation_space), after, strict=False
    ):
        if not len(seen) or not (isfinite(low) and isfinite(high)) or high - low <= 1:
            continue
        near = NEAR * (high - low)
        least, most = float(np.nanmin(seen)), float(np.nanmax(seen))
        if least > low + near or most < high - near:
            far.append(f"{name} was {least:.3g} to {most:.3g} of {low:.3g} to {high:.3g}")
    if not far:
        return ""
    return f"No row came near these bounds: {_listed(far)}."


def _on_actions(rows: Dataset) -> str:
    """Name the actions that no row takes."""
    if rows.action_space.kind != "discrete":
        return ""
    low, count = int(rows.action_space.low[0]), rows.action_space.count
    missing = sorted(set(range(low, low + count)) - set(rows.columns["actions"].tolist()))
    return f"No row takes the action {_listed(list(map(str, missing)))}." if missing else ""


def _on_classes(rows: Dataset, schema: Mapping[str, Any] | None) -> str:
    """Name the classes of objects that no row shows, where there are objects."""
    if schema is None:
        return ""
    seen = np.unique(rows.columns[f"observations.{OBJECTS}"][..., 0])
    missing = [name for n, name in enumerate(schema["classes"]) if n and n not in seen]
    return f"No row shows an object of class {_listed(missing)}." if missing else ""


def _on_rules(found: ProgramSurvey | None, program: str) -> Iterator[str]:
    """Yield sentences on lines that few rows executed, and on branches that none took."""
    if found is None or found.rows is None or found.lines is None:
        return
    lines = program.splitlines()
    known = found.rows[(found.rows[:, 0] != UNKNOWN) & found.right]
    arms, counts = np.unique(known[(known != 0) & (known < LOOKUP)], return_counts=True)
    ways: dict[int, int] = {}
    behind: dict[int, int] = {}
    for arm, count in zip(arms.tolist(), counts.tolist(), strict=True):
        line = int(found.lines[arm >> SITE_SHIFT])
        ways[arm >> SITE_SHIFT] = ways.get(arm >> SITE_SHIFT, 0) + 1
        behind[line] = min(count, behind.get(line, count))
    few = [f"line {line} ({_rows(count)})" for line, count in behind.items() if count < ENOUGH]
    if few:
        yield f"Few rows support a rule: {_listed(few)}."
    one_way = {int(found.lines[site]) for site, count in ways.items() if count == 1}
    untried = [str(line) for line in sorted(one_way) if 0 < line <= len(lines)]
    if untried:
        word = "Line" if len(untried) == 1 else "Lines"
        yield f"{word} {_listed(untried)}: the data only ever took one branch."


def _on_what_stays(names: Sequence[str], columns: tuple[Components, Components]) -> str:
    """Name the components that never changed."""
    still = [
        name
        for name, before, after in zip(names, *columns, strict=True)
        if len(before) and before.min() == before.max() == after.min() == after.max()
    ]
    return f"{_listed(still)} never changed." if still else ""


def _on_coverage(rows: Dataset) -> str:
    """Return how many (observation, action) pairs were recorded, if not all."""
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


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _listed(parts: Sequence[str]) -> str:
    """Join some parts; of many, say how many more there are."""
    if len(parts) > MOST_NAMED:
        parts = [*parts[: MOST_NAMED - 1], f"{len(parts) - MOST_NAMED + 1} more"]
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
