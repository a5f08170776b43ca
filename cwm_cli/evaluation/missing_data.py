"""Sentences on missing data: events that no row, or too few rows, contain.

A program can be right on every recorded row and still be wrong elsewhere. `find_gaps` describes
the limits of the rows; its sentences are printed with each score and written into the docstring of
programs that were induced from data alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.objects import OBJECTS
from cwm_cli.evaluation.metric import MOST_CLASSES, TOLERANCE, close
from cwm_cli.evaluation.noise import is_table
from cwm_cli.evaluation.support import MIN_ROWS, component_bounds, is_enumerable, survey
from cwm_cli.translation.instrumentation import LOOKUP, SITE_SHIFT
from cwm_cli.worlds.confined_trails import UNKNOWN
from cwm_cli.worlds.contract import component_names
from cwm_cli.worlds.program import ProgramModel

FEW_ENDS = 10
"""With more ends than this, of several causes, another cause would probably have occurred."""


def find_gaps(
    rows: Dataset,
    names: Sequence[str] = (),
    *,
    model: ProgramModel | None = None,
    max_rows: int = 2000,
) -> list[str]:
    """Return up to 6 sentences on missing data, the most important first.

    Args:
        rows: Recorded transitions.
        names: Names of the observation's components.
        model: A program, to report also its lines with few rows as support.
        max_rows: Number of rows, at equal distances, on which to run the program. 1,000 rows are
            enough to find lines that few rows use.

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
    rewards = np.unique(rows.columns["rewards"])
    constant = [
        name
        for name, before, after in zip(names, *columns, strict=True)
        if len(before) and before.min() == before.max() == after.min() == after.max()
    ]
    parts = [
        _on_ends(rows, names, columns) if rows.has_ends else "",
        f"Every reward seen was the same ({rewards[0]:g})."
        if len(rewards) == 1 and rows.has_rewards
        else "",
        # The bounds of a table only enclose its values.
        _on_bounds(rows, names, columns[1]) if not is_table(rows) else "",
        *_on_values(rows, schema),
        *(_on_rules(model, rows, max_rows) if model else ()),
        f"{_join(constant)} never changed." if constant else "",
        _on_coverage(rows),
    ]
    return [part for part in parts if part][:6]


def find_unverified(train: Dataset, test: Dataset) -> list[str]:
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


def find_untested(rows: Dataset) -> list[str]:
    """Return phrases on missing events if no episode terminates.

    Such data cannot refute a program that never ends an episode. If all rewards are equal as well,
    the data cannot refute a program that never rewards a goal. Equal rewards alone are usual: many
    environments pay one per step until the episode ends.
    """
    if not len(rows) or not rows.has_ends or rows.columns["terminations"].any():
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


def _on_values(rows: Dataset, schema: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield sentences on actions, and on classes of objects, that no row has."""
    if rows.action_space.kind == "discrete":
        low, count = int(rows.action_space.low[0]), rows.action_space.count
        missing = sorted(set(range(low, low + count)) - set(rows.columns["actions"].tolist()))
        if missing:
            yield f"No row takes the action {_join(list(map(str, missing)))}."
    if schema is not None:
        seen = np.unique(rows.columns[f"observations.{OBJECTS}"][..., 0])
        # class 0 is the empty slot of a table
        unseen = [name for n, name in enumerate(schema["classes"]) if n and n not in seen]
        if unseen:
            yield f"No row shows an object of class {_join(unseen)}."


def _on_rules(model: ProgramModel, rows: Dataset, max_rows: int) -> Iterator[str]:
    """Yield sentences on lines that few rows executed, and on branches that no row took."""
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), max_rows)).astype(int)
    found = survey(model, rows[np.unique(chosen)], cells=False)
    if found.rows is None or found.lines is None:
        return
    lines = model.text.splitlines()
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


def _on_coverage(rows: Dataset) -> str:
    """Return a sentence on the number of recorded cells, unless all are recorded."""
    spaces = rows.observation_space, rows.action_space
    if not is_enumerable(*spaces):
        return ""
    columns = rows.select("observations", "actions").values()
    pairs = np.hstack([column.reshape(len(rows), -1) for column in columns])
    seen = len(np.unique(pairs, axis=0))
    every = prod(int(high - low) + 1 for low, high in component_bounds(*spaces))
    if seen == every:
        return ""
    return f"{seen:,} of {every:,} (observation, action) pairs were recorded."


def _join(parts: Sequence[str]) -> str:
    """Return an enumeration of at most 3 parts; further parts are only counted."""
    if len(parts) > 3:
        parts = [*parts[:2], f"{len(parts) - 2} more"]
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
