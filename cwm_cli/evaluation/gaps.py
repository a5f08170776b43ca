"""What the data do not show about an environment, and which rules of a program rest on little.

A program can be right in every row and still be wrong where no row is. What that may be is said
beside each score, and in the docstring of a program that was found from data alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.objects import OBJECTS
from cwm_cli.evaluation.metric import MOST_CLASSES, TOLERANCE, close
from cwm_cli.evaluation.support import ENOUGH, UNKNOWN, ProgramSurvey
from cwm_cli.worlds.contract import component_names
from cwm_cli.worlds.doubt import countable, limits
from cwm_cli.worlds.trails import LOOKUP, SITE

MOST = 6
"""Sentences at most: more would not be read."""

NEAR = 0.05
"""A row comes near a bound within this share of the range: where limits act, they show."""

FEW_ENDS = 10
"""With more ends than this of several causes, another cause would likely have shown."""

MOST_NAMED = 3
"""Components, actions or lines that a sentence names; of more it says how many there are."""


def gaps(
    rows: Dataset,
    names: Sequence[str] = (),
    *,
    found: ProgramSurvey | None = None,
    program: str = "",
) -> list[str]:
    """Say what some rows do not show, the most important first; none where there are no rows.

    `names` are those of the observation's components. With what is `found` of a program, also
    which of its lines have few rows behind them.
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


Components = list[np.ndarray]
"""The numbers of each component, row by row; those of texts are left empty."""


def _columns(rows: Dataset, field: str) -> Components:
    found: Components = []
    for leaf in rows.observation_space.leaves(field):
        column = rows.columns[leaf.name].reshape(len(rows), -1)
        texts = leaf.space.kind == "text"
        found += [np.empty(0)] * column.shape[1] if texts else list(column.T.astype(float))
    return found


def _on_ends(rows: Dataset, names: Sequence[str], columns: tuple[Components, Components]) -> str:
    """Say on how many ends, of how many causes, the rule for the end rests."""
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
    """Name the component which is, at every end, where it is nowhere else."""
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
    """Say that rewards did not vary."""
    rewards = np.unique(rows.columns["rewards"])
    if len(rewards) > 1:
        return ""
    return f"Every reward seen was the same ({rewards[0]:g})."


def _on_bounds(rows: Dataset, names: Sequence[str], after: Components) -> str:
    """Name the bounds of real numbers that no row came near."""
    far = []
    for name, (low, high), seen in zip(names, limits(rows.observation_space), after, strict=False):
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
    """Name the lines that few rows went through, or all in the same way."""
    if found is None or found.rows is None or found.lines is None:
        return
    lines = program.splitlines()
    known = found.rows[(found.rows[:, 0] != UNKNOWN) & found.right]
    arms, counts = np.unique(known[(known != 0) & (known < LOOKUP)], return_counts=True)
    ways: dict[int, int] = {}
    behind: dict[int, int] = {}
    for arm, count in zip(arms.tolist(), counts.tolist(), strict=True):
        line = int(found.lines[arm >> SITE])
        ways[arm >> SITE] = ways.get(arm >> SITE, 0) + 1
        behind[line] = min(count, behind.get(line, count))
    few = [f"line {line} ({_rows(count)})" for line, count in behind.items() if count < ENOUGH]
    if few:
        yield f"Few rows are behind a rule: {_listed(few)}."
    one_way = {int(found.lines[site]) for site, count in ways.items() if count == 1}
    untried = [str(line) for line in sorted(one_way) if 0 < line <= len(lines)]
    if untried:
        word = "line" if len(untried) == 1 else "lines"
        yield f"Every row decides alike in {word} {_listed(untried)}: the other way is untried."


def _on_what_stays(names: Sequence[str], columns: tuple[Components, Components]) -> str:
    """Name the components that never changed."""
    still = [
        name
        for name, before, after in zip(names, *columns, strict=True)
        if len(before) and before.min() == before.max() == after.min() == after.max()
    ]
    return f"{_listed(still)} never changed." if still else ""


def _on_coverage(rows: Dataset) -> str:
    """Say how many of the situations there are were recorded, with each action, if not all."""
    spaces = rows.observation_space, rows.action_space
    if not countable(*spaces):
        return ""
    names = [leaf.name for leaf in spaces[0].leaves("observations")]
    names += [leaf.name for leaf in spaces[1].leaves("actions")]
    pairs = np.hstack([rows.columns[name].reshape(len(rows), -1) for name in names])
    seen = len(np.unique(pairs, axis=0))
    every = prod(int(high - low) + 1 for space in spaces for low, high in limits(space))
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
