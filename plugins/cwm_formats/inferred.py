"""Datasets from tables that belong to no environment: rows, episodes, held-out blocks and spaces.

A row has the observation and the action of a step; the next row of the episode has the next
observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cwm_cli.commands.data import TableColumns
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import Observer
from cwm_cli.text import clean, first_few
from cwm_formats.cells import TypedColumn, far_outside, has_decimal_commas, read_column
from cwm_formats.recorded import PREFIX, RecordedColumn, RecordedTable
from cwm_formats.roles import Roles, choose_roles
from cwm_formats.table_rows import TableRows, TypedParts, ordered_rows
from cwm_formats.tables import SPLITS, Cells, ReadTable, normal


def infer_dataset(
    table: ReadTable, asked: TableColumns, name: str, source: str, observer: Observer
) -> Dataset:
    """Return the transitions of a table as a dataset without an environment.

    Args:
        table: The cells.
        asked: The roles of columns, and how to treat missing cells.
        name: Name of the dataset; the environment is `data/NAME`.
        source: Name of the file, for the description.
        observer: Receives notes on omitted cells and on decisions.

    Raises:
        CwmError: A column is missing or cannot be used, or there are bad cells.
    """
    for note in table.notes:
        observer.note(note)
    comma = has_decimal_commas(table.columns, semicolons=table.comma)
    table = replace(table, comma=comma)
    if table.rows - len(table.damaged) < 2:
        raise CwmError(f"{table.name} has fewer than two rows: a transition needs two")
    roles = choose_roles(table, asked, observer)
    typed = {name: read_column(name, table.columns[name], comma=comma) for name in table.columns}
    following = _following(table, roles)
    _read_alike(table, following, typed)
    observed = _observed(table, roles, typed, set(following.values()), observer)
    if roles.unused and (unused := [n for n in roles.unused if n not in following.values()]):
        observer.note(f"unused columns: {first_few([clean(n, limit=60) for n in unused], 10)}")
    if following and all(column.name in following for column in observed):
        observer.note("the columns of the next observation are used")
    elif following:
        names = first_few(list(following.values()), 10)
        observer.note(f"columns left out: {names} (the next row has the next observation)")
        following = {}
    acted = [_usable(table, typed[name], "--action") for name in roles.actions]
    reward = None
    if roles.reward is not None:
        reward = _usable(table, typed[roles.reward], "--reward")
        if reward.kind == "label":
            raise CwmError(
                f"column {roles.reward} has texts: name a column of numbers for --reward"
            )
    next_columns = tuple(typed[following[column.name]] for column in observed if following)
    parts = TypedParts(tuple(observed), tuple(acted), reward, next_columns)
    _note_far_values(table, [*observed, *acted, *([reward] if reward else [])], observer)
    rows, step = ordered_rows(table, roles, typed, parts, asked, observer)
    kept, ends, breaks = _transitions(rows, roles, observer)
    if not kept.size:
        raise CwmError(
            f"{table.name} has no two usable rows of an episode, one after the other: "
            "a transition needs both"
        )
    for role, found in {"observation": observed, "action": acted}.items():
        observer.note(f"{role}: {first_few([_described(column) for column in found], 10)}")
    columns = _values(rows, kept, observed, acted)
    episodes, last = _episodes(breaks)
    columns |= {
        "rewards": rows.rewards[kept],
        "terminations": ends,
        "truncations": last & ~ends,
        "episodes": episodes,
        "split": _marked_split(table, roles, rows, kept)
        if roles.split
        else held_out(episodes, observer),
    }
    spaces = _observation_space(observed, rows), _action_space(acted, rows)
    described = RecordedTable(
        *spaces,
        tuple(
            # interpolated numbers are not rounded
            replace(_recorded_column(column), resolution=0.0)
            if asked.resample is not None and column.kind == "real"
            else _recorded_column(column)
            for column in observed
        ),
        tuple(_recorded_column(column) for column in acted),
        source,
        step,
        reward=roles.reward or "",
        reward_resolution=reward.resolution if reward else 0.0,
    )
    metadata: dict[str, Any] = {
        "env": f"{PREFIX}{name}",
        "env_args": described.as_arguments(),
        "source": source,
    }
    if reward is None:
        metadata["rewards"] = False
    return Dataset(columns, *spaces, metadata).validate()


def _following(table: ReadTable, roles: Roles) -> dict[str, str]:
    """Return the name of the next observation by observation, such as `next_x` by `x`."""
    known = {normal(name): name for name in table.columns}
    pairs = {}
    for name in roles.observations:
        for other in (f"next_{normal(name)}", f"{normal(name)}_next"):
            if other in known:
                pairs[name] = known[other]
    return pairs


def _read_alike(
    table: ReadTable, following: Mapping[str, str], typed: dict[str, TypedColumn]
) -> None:
    """Read an observation and the next one as one column, so that labels have the same numbers."""
    for name, other in following.items():
        now, later = table.columns[name], table.columns[other]
        if isinstance(now, np.ndarray) and isinstance(later, np.ndarray):
            cells: Cells = np.concatenate([now, later])
        else:
            cells = [*map(str, now), *map(str, later)]
        both = read_column(name, cells, comma=table.comma)
        typed[name] = replace(both, values=both.values[: table.rows])
        typed[other] = replace(both, name=other, values=both.values[table.rows :])


def _observed(
    table: ReadTable,
    roles: Roles,
    typed: Mapping[str, TypedColumn],
    next_columns: set[str],
    observer: Observer,
) -> list[TypedColumn]:
    """Return the columns of the observation, without constant and unusable ones."""
    if roles.are_observations_given:
        return [_usable(table, typed[name], "--observation") for name in roles.observations]
    found, left = [], {}
    for name in [name for name in roles.observations if name not in next_columns]:
        column = typed[name]
        steps = np.diff(column.values[~np.isnan(column.values)])
        if column.kind == "blank":
            reason = "blank"
        elif column.kind == "text":
            reason = "free text"
        elif column.is_constant:
            reason = "constant"
        elif column.kind == "whole" and steps.size and steps[0] != 0 and np.ptp(steps) == 0:
            reason = "row number"
        elif 2 * np.isnan(column.values).sum() > table.rows - len(table.damaged):
            reason = "mostly blank"
        else:
            found.append(column)
            continue
        left[name] = reason
    if left:
        words = first_few([f"{clean(n, limit=60)} ({why})" for n, why in left.items()], 10)
        observer.note(f"columns left out: {words}")
    if not found:
        raise CwmError(
            f"{table.name} has no column that changes and is left for the observation: "
            "name columns with --observation"
        )
    return found


def _usable(table: ReadTable, column: TypedColumn, option: str) -> TypedColumn:
    """Return a column that the user named, if it has values."""
    if column.kind in ("blank", "text"):
        what = "no values" if column.kind == "blank" else "free text or many bad cells"
        raise CwmError(
            f"{table.name}: column {column.name} has {what}: name another column for {option}"
        )
    return column


def _note_far_values(table: ReadTable, columns: Sequence[TypedColumn], observer: Observer) -> None:
    """Note numbers far outside all others of their column, by line and column."""
    for column in columns:
        if column.labels or not (far := far_outside(column.values)):
            continue
        places = [f"{column.values[row]:g} in {table.place(row)}" for row in far]
        observer.note(
            f"column {clean(column.name, limit=60)} has values far outside all others: "
            f"{first_few(places, 3)}; blank these cells and add --drop-missing to leave them out"
        )


# --- transitions and episodes


def _transitions(
    rows: TableRows, roles: Roles, observer: Observer
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows that begin a transition, and which transitions end and begin an episode."""
    same = np.append(rows.episodes[1:] == rows.episodes[:-1], False)
    continues = same & np.append(rows.follows[1:], False)
    if rows.following is not None:
        chained = np.append((rows.following[:-1] == rows.observed[1:]).all(axis=1), False)
        breaks = ~(continues & chained & ~rows.terminated & ~rows.truncated)
        return np.arange(len(rows)), rows.terminated, np.append(True, breaks[:-1])
    done = rows.terminated
    ends = np.zeros(len(rows), bool)
    if roles.terminated is not None and done.any():
        # two usual readings: the marked row is the last one, or one more row follows
        if bool(roles.episode) and (done & continues).sum() > 0.5 * done.sum():
            after_mark = np.append(False, (done & continues)[:-1])
            ends = done & ~after_mark & continues
            continues &= ~after_mark
            reading = "the step from a marked row to the next one ends the episode"
        else:
            continues &= ~done
            ends = continues & np.append(done[1:], False)
            reading = (
                "a marked row has the last observation, so the step into it ends the episode; its "
                "own action and reward have no effect"
            )
        observer.note(f"{roles.terminated}: {reading} ({int(ends.sum())} ends)")
    continues &= ~rows.truncated | ends
    places = np.flatnonzero(continues)
    return places, ends[places], np.append(True, np.diff(places) != 1)[: len(places)]


def _episodes(breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the episodes of transitions, and which transitions are the last of theirs."""
    parts = np.diff(np.append(np.flatnonzero(breaks), len(breaks)))
    lengths: list[int] = []
    size = block_rows(len(breaks))
    # with fewer episodes, long ones are cut into blocks, so that some can be held out
    min_episodes = 10
    for part in parts.tolist():
        pieces = max(1, round(part / size)) if len(parts) < min_episodes else 1
        lengths += [len(piece) for piece in np.array_split(np.arange(part), pieces)]
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    last = np.zeros(len(breaks), bool)
    last[np.cumsum(lengths) - 1] = True
    return episodes, last


def _marked_split(table: ReadTable, roles: Roles, rows: TableRows, kept: np.ndarray) -> np.ndarray:
    """Return the held-out rows that a column of the words train and test marks."""
    words = [str(cell).strip().lower() for cell in table.columns[str(roles.split)]]
    return np.array([SPLITS[words[row]] for row in rows.places[kept].tolist()], np.int8)


def block_rows(rows: int) -> int:
    """Return the number of rows of the blocks into which a recording is cut."""
    # rows of the blocks of a long recording: long enough for programs with a memory
    block_rows = 100
    return max(10, min(max(block_rows, rows // 50), rows // 10))


def held_out(episodes: np.ndarray, observer: Observer) -> np.ndarray:
    """Hold out a fifth of the rows, in whole episodes that are spread over the table."""
    _, lengths = np.unique(episodes, return_counts=True)
    split = np.zeros(len(lengths), np.int8)
    due = 0.0
    test_share = 0.2  # share of the held-out rows
    for number, length in enumerate(lengths.tolist()):
        due += test_share * length
        if due >= length / 2 and number > 0:
            split[number] = 1
            due -= length
    if not split.any():
        observer.note("no row is held out: there are too few rows")
    return np.repeat(split, lengths)


# --- values and spaces


def _values(
    rows: TableRows, kept: np.ndarray, observed: Sequence[TypedColumn], acted: Sequence[TypedColumn]
) -> Columns:
    """Return the columns of observations and actions of a dataset."""
    dtype = np.int64 if all(column.kind != "real" for column in observed) else np.float64
    following = rows.observed[kept + 1] if rows.following is None else rows.following[kept]
    columns = {
        "observations": rows.observed[kept].astype(dtype),
        "next_observations": following.astype(dtype),
    }
    actions = rows.acted[kept]
    are_discrete = [_is_discrete(column, rows.acted[:, n]) for n, column in enumerate(acted)]
    if len(acted) == 1 and are_discrete[0]:
        columns["actions"] = actions[:, 0].astype(np.int64)
    elif all(are_discrete) or not any(are_discrete):
        columns["actions"] = actions.astype(np.int64 if are_discrete[0] else np.float64)
    else:
        keys = Space(
            "dict", keys=tuple(c.name for c in acted), children=(Space("box"),) * len(acted)
        )
        for number, (part, _) in enumerate(keys.parts()):
            values = actions[:, number]
            columns[f"actions.{part}"] = (
                values.astype(np.int64) if are_discrete[number] else values[:, None]
            )
    return columns


def _is_discrete(column: TypedColumn, values: np.ndarray) -> bool:
    known = values[~np.isnan(values)]
    max_discrete = 1000  # whole actions over a wider range are real numbers
    return bool(column.kind != "real" and known.size and np.ptp(known) < max_discrete)


def _observation_space(observed: Sequence[TypedColumn], rows: TableRows) -> Space:
    """Return a flat box with bounds half a range beyond the values; labels have exact bounds."""
    bounds = []
    for number, column in enumerate(observed):
        values = rows.observed[:, number]
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        if column.labels:
            bounds.append((0.0, float(len(column.labels) - 1)))
            continue
        margin = 0.5 * (high - low) or max(1.0, abs(high))
        # rounded outwards to the place of the margin's first digit
        place = 1.0 if column.kind == "whole" else float(f"1e{int(np.floor(np.log10(margin)))}")
        bounds.append(
            (
                round(float(np.floor((low - margin) / place)) * place, 12),
                round(float(np.ceil((high + margin) / place)) * place, 12),
            )
        )
    dtype = "int64" if all(column.kind != "real" for column in observed) else "float64"
    lows, highs = zip(*bounds, strict=True)
    return Space("box", dtype, (len(bounds),), lows, highs)


def _action_space(acted: Sequence[TypedColumn], rows: TableRows) -> Space:
    """Return the space of the recorded actions, with the recorded bounds."""
    parts = []
    for number, column in enumerate(acted):
        values = rows.acted[:, number]
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        if column.labels:
            parts.append(Space("discrete", low=(0,), high=(len(column.labels) - 1,)))
        elif _is_discrete(column, values):
            parts.append(Space("discrete", low=(int(low),), high=(int(high),)))
        else:
            parts.append(Space("box", "float64", (1,), (low,), (high,)))
    if len(parts) == 1:
        return parts[0]
    kinds = {part.kind for part in parts}
    if len(kinds) > 1:
        return Space("dict", keys=tuple(c.name for c in acted), children=tuple(parts))
    lows, highs = tuple(p.low[0] for p in parts), tuple(p.high[0] for p in parts)
    if kinds == {"discrete"}:
        return Space("multidiscrete", "int64", (len(parts),), lows, highs)
    return Space("box", "float64", (len(parts),), lows, highs)


def _described(column: TypedColumn) -> str:
    """Return a column's name and type in words."""
    kind = column.unit or column.kind
    if column.kind == "label":
        kind = first_few([f"{n} = {label}" for n, label in enumerate(column.labels)], 5)
    return f"{clean(column.name, limit=60)} ({kind})"


def _recorded_column(column: TypedColumn) -> RecordedColumn:
    return RecordedColumn(column.name, column.labels, column.unit, column.resolution)
