"""Datasets from tables that belong to no environment: rows, episodes, held-out blocks and spaces.

A row has the observation and the action of a step; the next row of the episode has the next
observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data import TableColumns
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import Observer
from cwm_cli.text import clean, first_few
from cwm_formats.cells import (
    TypedColumn,
    far_outside,
    has_decimal_commas,
    read_column,
    shown,
)
from cwm_formats.clock import TableClock, are_gaps, is_regular, out_of_order, usual_step
from cwm_formats.recorded import PREFIX, RecordedColumn, RecordedTable
from cwm_formats.roles import Roles, choose_roles, episode_numbers, restarts
from cwm_formats.tables import ReadTable

MAX_BAD_CELLS = 10
"""Bad cells that an error lists."""

MAX_DISCRETE = 1000
"""Whole actions over a wider range are real numbers."""

BLOCK_ROWS = 100
"""TableRows of the blocks of a long recording: long enough for programs with a memory."""

MIN_EPISODES = 10
"""With fewer episodes, long ones are cut into blocks, so that some can be held out."""

TEST_SHARE = 0.2
"""Share of the rows that is held out."""


class BadCell(NamedTuple):
    """A cell without a usable value, by its row and column.

    A bad action or reward spoils the step from its row, but not the observation.
    """

    row: int
    column: str
    reason: str
    is_observed: bool = True


@dataclass(frozen=True)
class TableRows:
    """The rows of a table in the order of time.

    Attributes:
        places: The row of the table that each comes from.
        observed: Observations, shape (rows, columns).
        acted: Actions, shape (rows, columns).
        rewards: Reward of each row.
        terminated: Whether a row is marked as an end.
        truncated: Whether a row is marked as the end of a recording.
        episodes: Number of the episode.
        times: Time in seconds, None without a clock.
        follows: Whether a row is the next one after the row before.
    """

    places: np.ndarray
    observed: np.ndarray
    acted: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episodes: np.ndarray
    times: np.ndarray | None
    follows: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def take(self, order: np.ndarray) -> TableRows:
        """Return rows by their numbers; `follows` is selected like the others."""
        arrays: dict[str, Any] = {
            name: None if array is None else array[order] for name, array in vars(self).items()
        }
        return TableRows(**arrays)

    def where(self, mask: np.ndarray) -> TableRows:
        """Return some rows; a row does not follow one that was left out."""
        picked = np.flatnonzero(mask)
        chosen = self.take(picked)
        return replace(chosen, follows=chosen.follows & np.append(False, np.diff(picked) == 1))


def infer_dataset(
    table: ReadTable, asked: TableColumns, name: str, source: str, observer: Observer
) -> Dataset:
    """Return the transitions of a table as a dataset without an environment.

    Args:
        table: The cells.
        asked: The roles of columns, and how to treat missing cells.
        name: Name of the dataset; the environment is `data/NAME`.
        source: Name of the file, for the description.
        observer: Receives notes on everything that was left out or decided.

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
    observed = _observed(table, roles, typed, observer)
    acted = [_usable(table, typed[name], "--action") for name in roles.actions]
    reward = None
    if roles.reward is not None:
        reward = _usable(table, typed[roles.reward], "--reward")
        if reward.kind == "label":
            raise CwmError(
                f"column {roles.reward} has texts: name a column of numbers for --reward"
            )
    _note_far_values(table, [*observed, *acted, *([reward] if reward else [])], observer)
    rows, bad = _rows(table, roles, typed, (observed, acted, reward), observer)
    rows = _without_bad(table, rows, bad, asked, observer)
    clock, step = roles.clock, ""
    if asked.resample is not None:
        rows = _resampled(rows, [*observed], asked.resample, clock, table.name)
    if clock is not None and rows.times is not None:
        rows, step = _parted_by_time(rows, clock, observer, resampled=asked.resample is not None)
    kept, ends = _transitions(rows, roles, observer)
    if not kept.size:
        raise CwmError(
            f"{table.name} has no two usable rows of an episode, one after the other: "
            "a transition needs both"
        )
    for role, found in {"observation": observed, "action": acted}.items():
        observer.note(f"{role}: {first_few([_described(column) for column in found], 10)}")
    columns = _values(rows, kept, observed, acted)
    episodes, last = _episodes(rows, kept)
    columns |= {
        "rewards": rows.rewards[kept],
        "terminations": ends,
        "truncations": last & ~ends,
        "episodes": episodes,
        "split": held_out(episodes, observer),
    }
    spaces = _observation_space(observed, rows), _action_space(acted, rows, kept)
    described = RecordedTable(
        *spaces,
        tuple(_recorded(column) for column in observed),
        tuple(_recorded(column) for column in acted),
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


def _observed(
    table: ReadTable, roles: Roles, typed: dict[str, TypedColumn], observer: Observer
) -> list[TypedColumn]:
    """Return the columns of the observation, without those that hold no changing values."""
    if roles.are_observations_given:
        return [_usable(table, typed[name], "--observation") for name in roles.observations]
    found, left = [], {}
    for name in roles.observations:
        column = typed[name]
        if column.kind == "blank":
            reason = "blank"
        elif column.kind == "text":
            reason = "free text"
        elif column.is_constant:
            reason = "constant"
        elif _numbers_rows(column):
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


def _numbers_rows(column: TypedColumn) -> bool:
    """Return whether a column without a name, or named as an index, counts the rows."""
    is_index = not column.name or column.name.lower() in (
        "id",
        "index",
        "row",
        "no",
        "nr",
        "number",
    )
    return is_index and bool((np.diff(column.values) == 1).all())


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


# --- rows in the order of time


def _rows(
    table: ReadTable,
    roles: Roles,
    typed: dict[str, TypedColumn],
    parts: tuple[list[TypedColumn], list[TypedColumn], TypedColumn | None],
    observer: Observer,
) -> tuple[TableRows, list[BadCell]]:
    """Return the rows in the order of time, and the cells that cannot be placed in it."""
    observed, acted, reward = parts
    bad = [BadCell(row, "", reason) for row, reason in table.damaged.items()]
    episodes = episode_numbers(table, roles.episode)
    times = None if roles.clock is None else roles.clock.seconds.copy()
    for row in np.flatnonzero(episodes < 0).tolist():
        if row not in table.damaged:
            bad.append(BadCell(row, str(roles.episode), ""))
    unplaced = episodes < 0
    if times is not None:
        for row in np.flatnonzero(np.isnan(times)).tolist():
            if row not in table.damaged and not unplaced[row]:
                bad.append(BadCell(row, roles.time[0], ""))
        unplaced |= np.isnan(times)
    unplaced[list(table.damaged)] = True
    marks = {
        role: _marks(table, typed[name], role, unplaced, bad)
        if name
        else np.zeros(table.rows, bool)
        for role, name in {"terminated": roles.terminated, "truncated": roles.truncated}.items()
    }
    follows = np.arange(table.rows) > 0
    follows[list(table.parted)] = False
    rows = TableRows(
        np.arange(table.rows),
        np.stack([column.values for column in observed], axis=1),
        np.stack([column.values for column in acted], axis=1),
        reward.values if reward else np.zeros(table.rows),
        marks["terminated"],
        marks["truncated"],
        _filled(episodes, episodes < 0),
        None if times is None else _filled(times, np.isnan(times)),
        follows,
    )
    if times is not None:
        rows, repeated = _in_time(table, rows, unplaced, roles, observer)
        bad += repeated
    elif roles.episode is not None:
        rows = _by_episode(rows)
    bad += _bad_values(rows, roles, (observed, acted, reward), {cell.row for cell in bad})
    return rows, bad


def _filled(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Give a row without a value that of the row before, so that it keeps its place."""
    last = np.maximum.accumulate(np.where(missing, -1, np.arange(len(values))))
    first = int(np.flatnonzero(~missing)[0]) if (~missing).any() else 0
    return values[np.where(last < 0, first, last)]


def _marks(
    table: ReadTable, column: TypedColumn, role: str, unplaced: np.ndarray, bad: list[BadCell]
) -> np.ndarray:
    """Return the rows that a column marks; a column with blanks marks where it has a value."""
    values = column.values
    different = set(values[~np.isnan(values)].tolist())
    if column.kind == "blank":
        return np.zeros(table.rows, bool)
    if column.kind == "text" or not different <= {0.0, 1.0} or len(column.labels) > 2:
        raise CwmError(
            f"{table.name}: column {column.name} does not only have true and false: "
            f"name another column with --{role}, or --{role} none"
        )
    for row in np.flatnonzero(np.isnan(values) & ~unplaced).tolist():
        bad.append(BadCell(row, column.name, ""))
    marked: np.ndarray = values == 1
    return marked


def _by_episode(rows: TableRows) -> TableRows:
    """Bring the rows of each episode together."""
    order = np.argsort(rows.episodes, kind="stable")
    return rows.take(order)


def _in_time(
    table: ReadTable, rows: TableRows, unplaced: np.ndarray, roles: Roles, observer: Observer
) -> tuple[TableRows, list[BadCell]]:
    """Return rows in the order of time, and the rows whose time cannot be right."""
    assert rows.times is not None
    column = roles.time[0]
    times, episodes = rows.times, rows.episodes
    if roles.episode is None:
        begins = restarts(times)
        episodes = np.cumsum(np.isin(np.arange(len(rows)), begins))
        if begins.size:
            observer.note(
                f"column {column} begins again in {len(begins)} rows: episodes begin there"
            )
    order = np.lexsort((np.arange(len(rows)), times, episodes))
    placed = replace(rows, episodes=episodes).take(order)
    steps = np.append(np.inf, np.diff(times[order]))
    same = np.append(False, placed.episodes[1:] == placed.episodes[:-1])
    usual = usual_step(steps[same])
    late = _late(times, episodes, roles)[order] & ~unplaced[order]
    # a late row belongs to its place if it is one usual step from both neighbours there
    fits = ~are_gaps(np.where(same, steps, usual), usual) & ~unplaced[order]
    fits &= np.append(fits[1:], True)
    wrong = late & ~fits
    bad = [BadCell(int(placed.places[k]), column, "") for k in np.flatnonzero(wrong)]
    repeats = same & (steps == 0) & ~unplaced[order] & ~np.append(True, unplaced[order][:-1])
    keep = ~wrong
    cells = [table.columns[name] for name in table.columns]
    copies = 0
    for k in np.flatnonzero(repeats & ~wrong).tolist():
        before, row = int(placed.places[k - 1]), int(placed.places[k])
        if all(str(each[before]) == str(each[row]) for each in cells):
            copies += 1
        else:
            bad.append(BadCell(row, column, "repeats the time before"))
        keep[k] = False
    if copies:
        observer.note(f"{copies} rows repeat the row before with its time: left out")
    if repeats.sum() - copies > 0.1 * len(rows):
        first = table.place(int(placed.places[np.flatnonzero(repeats)[0]]))
        raise CwmError(
            f"{table.name}: {int(repeats.sum())} rows have the same {column} as the row before "
            f"(first: {first}): name another column with --time, or --time none to keep the "
            "order of the rows"
        )
    kept = placed.take(np.flatnonzero(keep))
    moved = int(out_of_order(kept.places[~unplaced[kept.places]]).sum())
    if moved:
        observer.note(f"rows are put in the order of {column} ({moved} in another place)")
    # the time shows whether rows are missing between two rows
    return replace(kept, follows=np.arange(len(kept)) > 0), bad


def _late(times: np.ndarray, episodes: np.ndarray, roles: Roles) -> np.ndarray:
    """Return the rows that break the order of a table that is in order for the most part."""
    late = np.zeros(len(times), bool)
    for number in np.unique(episodes):
        rows = np.flatnonzero(episodes == number)
        outside = out_of_order(times[rows])
        if outside.mean() <= 0.1:
            late[rows[outside]] = True
    return late


def _bad_values(
    rows: TableRows,
    roles: Roles,
    parts: tuple[list[TypedColumn], list[TypedColumn], TypedColumn | None],
    known: set[int],
) -> list[BadCell]:
    """Return the cells without a value that a transition would need.

    The action and the reward of the last row of an episode have no effect.
    """
    observed, acted, reward = parts
    goes_on = np.append(rows.episodes[1:] == rows.episodes[:-1], False)
    goes_on &= ~rows.terminated | (np.append(rows.terminated[1:], False) & goes_on)
    columns = [(c.name, np.isnan(rows.observed[:, n]), True) for n, c in enumerate(observed)]
    columns += [(c.name, np.isnan(rows.acted[:, n]) & goes_on, False) for n, c in enumerate(acted)]
    if reward is not None:
        columns.append((reward.name, np.isnan(rows.rewards) & goes_on, False))
    return [
        BadCell(int(rows.places[k]), name, "", is_observed)
        for name, mask, is_observed in columns
        for k in np.flatnonzero(mask).tolist()
        if int(rows.places[k]) not in known
    ]


def _without_bad(
    table: ReadTable, rows: TableRows, bad: list[BadCell], asked: TableColumns, observer: Observer
) -> TableRows:
    """Return rows without those with bad cells, or raise an error that lists the first cells."""
    if not bad:
        return rows
    bad = sorted(bad, key=lambda cell: cell.row)
    words = first_few([_cell_words(table, cell) for cell in bad], MAX_BAD_CELLS)
    count = len({cell.row for cell in bad})
    damaged = f"{count} {'row' if count == 1 else 'rows'} with missing or bad cells"
    if not asked.drop_missing:
        raise CwmError(
            f"{table.name} has {damaged}: {words}; correct them, or leave these rows out with "
            "--drop-missing"
        )
    observer.note(f"left out {damaged}: {words}")
    steps = np.isin(rows.places, [cell.row for cell in bad if not cell.is_observed])
    rows = replace(rows, follows=rows.follows & ~np.append(False, steps[:-1]))
    # new rows between the recorded ones need all values of both
    is_whole_row = asked.resample is not None
    lost = [cell.row for cell in bad if cell.is_observed or is_whole_row]
    return rows.where(~np.isin(rows.places, lost))


def _cell_words(table: ReadTable, cell: BadCell) -> str:
    place = table.place(cell.row)
    if not cell.column:
        return f"{place} ({cell.reason})"
    content = table.columns.get(cell.column, [""] * table.rows)[cell.row]
    is_blank = str(content).strip().lower() in ("", "nan")
    what = cell.reason or ("blank" if is_blank else shown(content))
    return f"{place}, {clean(cell.column, limit=40)}: {what}"


def _resampled(
    rows: TableRows,
    observed: Sequence[TypedColumn],
    step: float,
    clock: TableClock | None,
    name: str,
) -> TableRows:
    """Return rows at equal steps: real observations between two rows, others of the last row."""
    if rows.times is None or clock is None:
        raise CwmError(f"{name} has no time to resample by: name its column with --time")
    if not step > 0:
        raise CwmError("--resample must be positive: give the length of a step in seconds")
    longest = 5 * max(step, usual_step(np.diff(rows.times)))
    new = (np.diff(rows.episodes) != 0) | (np.diff(rows.times) > longest)
    parts = np.split(np.arange(len(rows)), np.flatnonzero(new) + 1)
    pieces = []
    for number, part in enumerate(part for part in parts if len(part)):
        times = rows.times[part]
        grid = times[0] + step * np.arange(int((times[-1] - times[0]) / step + 1e-9) + 1)
        held = part[np.searchsorted(times, grid + 1e-9 * step, side="right") - 1]
        piece = rows.take(held)
        values = piece.observed.copy()
        for place, column in enumerate(observed):
            if column.kind == "real":
                values[:, place] = np.interp(grid, times, rows.observed[part, place])
        marked = [np.zeros(len(grid), bool), np.zeros(len(grid), bool)]
        for mark, source in zip(marked, (rows.terminated, rows.truncated), strict=True):
            mark[-1] = source[part].any()
        pieces.append(
            replace(
                piece,
                observed=values,
                terminated=marked[0],
                truncated=marked[1],
                times=grid,
                episodes=np.full(len(grid), number),
                follows=np.arange(len(grid)) > 0,
            )
        )
    joined = {
        key: np.concatenate([vars(piece)[key] for piece in pieces]) for key in vars(pieces[0])
    }
    return replace(rows, **joined)


def _parted_by_time(
    rows: TableRows, clock: TableClock, observer: Observer, *, resampled: bool
) -> tuple[TableRows, str]:
    """Part episodes at gaps in time; return also the length of a step in words."""
    assert rows.times is not None
    steps = np.diff(rows.times)
    same = (rows.episodes[1:] == rows.episodes[:-1]) & rows.follows[1:]
    usual = usual_step(steps[same])
    gaps = np.append(False, are_gaps(steps, usual) & same)
    if usual and not resampled and not is_regular(steps[same], usual):
        low, high = np.quantile(steps[same], [0.05, 0.95])
        observer.note(
            f"the steps of time differ, from {clock.describe(low)} to {clock.describe(high)}: "
            "resample with --resample SECONDS"
        )
    if gaps.any():
        first = clock.describe(float(steps[np.flatnonzero(gaps)[0] - 1]))
        count = int(gaps.sum())
        ends = "gap in time ends an episode" if count == 1 else "gaps in time end an episode"
        often = ", or keep the order of the rows with --time none" if 10 * count > len(rows) else ""
        observer.note(
            f"{count} {ends}; the usual step is {clock.describe(usual)} (first gap: {first}){often}"
        )
    return replace(rows, follows=rows.follows & ~gaps), clock.describe(usual) if usual else ""


# --- transitions and episodes


def _transitions(
    rows: TableRows, roles: Roles, observer: Observer
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that have a next row, and whether the step to it ends the episode."""
    same = np.append(rows.episodes[1:] == rows.episodes[:-1], False)
    goes_on = same & np.append(rows.follows[1:], False)
    done = rows.terminated
    following = done & goes_on
    if roles.terminated is not None and done.any():
        marked_before_last = bool(roles.episode) and following.sum() > 0.5 * done.sum()
        if marked_before_last:
            first = done & ~np.append(False, (done & goes_on)[:-1])
            ends = first & goes_on
            kept = goes_on & ~np.append(False, ends[:-1] | (done & goes_on)[:-1])
            reading = "the step from a marked row to the next one ends the episode"
        else:
            goes_on &= ~done
            kept, ends = goes_on, goes_on & np.append(done[1:], False)
            reading = (
                "a marked row holds the last observation, so the step into it ends the episode"
            )
        observer.note(f"{roles.terminated}: {reading} ({int((ends & kept).sum())} ends)")
    else:
        kept, ends = goes_on, np.zeros(len(rows), bool)
    kept &= ~(rows.truncated & ~ends) | np.append(rows.truncated[1:], False)
    places = np.flatnonzero(kept)
    return places, ends[places]


def _episodes(rows: TableRows, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the episodes of transitions, and which transitions are the last of theirs."""
    breaks = np.append(True, np.diff(kept) != 1)
    parts = np.diff(np.append(np.flatnonzero(breaks), len(kept)))
    lengths: list[int] = []
    size = block_rows(len(kept))
    for part in parts.tolist():
        pieces = max(1, round(part / size)) if len(parts) < MIN_EPISODES else 1
        lengths += [len(piece) for piece in np.array_split(np.arange(part), pieces)]
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    last = np.zeros(len(kept), bool)
    last[np.cumsum(lengths) - 1] = True
    return episodes, last


def block_rows(rows: int) -> int:
    """Return the number of rows of the blocks into which a recording is cut."""
    return max(10, min(max(BLOCK_ROWS, rows // 50), rows // 10))


def held_out(episodes: np.ndarray, observer: Observer) -> np.ndarray:
    """Hold out a fifth of the rows, in whole episodes that are spread over the table."""
    _, lengths = np.unique(episodes, return_counts=True)
    split = np.zeros(len(lengths), np.int8)
    due = 0.0
    for number, length in enumerate(lengths.tolist()):
        due += TEST_SHARE * length
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
    columns = {
        "observations": rows.observed[kept].astype(dtype),
        "next_observations": rows.observed[kept + 1].astype(dtype),
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
    return bool(column.kind != "real" and known.size and np.ptp(known) < MAX_DISCRETE)


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


def _action_space(acted: Sequence[TypedColumn], rows: TableRows, kept: np.ndarray) -> Space:
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


def _recorded(column: TypedColumn) -> RecordedColumn:
    return RecordedColumn(column.name, column.labels, column.unit, column.resolution)
