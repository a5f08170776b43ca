"""The rows of a table in the order of time, without rows with bad cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data import TableColumns
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import Observer
from cwm_cli.text import clean, first_few
from cwm_formats.cells import TypedColumn, shown
from cwm_formats.clock import TableClock, are_gaps, is_regular, out_of_order, usual_step
from cwm_formats.roles import Roles, episode_numbers, restarts
from cwm_formats.tables import ReadTable


@dataclass(frozen=True)
class TypedParts:
    """The columns of a table by their part in a transition.

    `following` has the columns of the next observation, or is empty if the next row has it.
    """

    observed: tuple[TypedColumn, ...]
    acted: tuple[TypedColumn, ...]
    reward: TypedColumn | None
    following: tuple[TypedColumn, ...] = ()


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
        following: Next observations, shape (rows, columns), None if the next row has them.
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
    following: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.places)

    def take(self, order: np.ndarray) -> TableRows:
        """Return rows by their numbers."""
        arrays: dict[str, Any] = {
            name: None if array is None else array[order] for name, array in vars(self).items()
        }
        return TableRows(**arrays)

    def where(self, mask: np.ndarray) -> TableRows:
        """Return some rows; the row after an omitted one follows no row."""
        picked = np.flatnonzero(mask)
        chosen = self.take(picked)
        return replace(chosen, follows=chosen.follows & np.append(False, np.diff(picked) == 1))


def ordered_rows(
    table: ReadTable,
    roles: Roles,
    typed: Mapping[str, TypedColumn],
    parts: TypedParts,
    asked: TableColumns,
    observer: Observer,
) -> tuple[TableRows, str]:
    """Return the usable rows in the order of time, and the length of a step in words.

    Args:
        table: The cells.
        roles: The columns by role, and the time of the rows.
        typed: All columns as numbers.
        parts: The columns of observations, actions and rewards.
        asked: How to treat bad cells and unequal steps.
        observer: Receives notes.

    Raises:
        CwmError: There are bad cells, and `asked` does not leave them out.
    """
    rows, bad = _rows(table, roles, typed, parts, observer)
    rows = _without_bad(table, rows, bad, asked, observer)
    if asked.resample is not None:
        rows = _resampled(rows, parts.observed, asked.resample, roles.clock, table.name)
    if roles.clock is None or not len(rows):
        return rows, ""
    return _parted_by_time(rows, roles.clock, observer, resampled=asked.resample is not None)


def _rows(
    table: ReadTable,
    roles: Roles,
    typed: Mapping[str, TypedColumn],
    parts: TypedParts,
    observer: Observer,
) -> tuple[TableRows, list[BadCell]]:
    """Return the rows in the order of time, and the cells that cannot be placed in it."""
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
        np.stack([column.values for column in parts.observed], axis=1),
        np.stack([column.values for column in parts.acted], axis=1),
        parts.reward.values if parts.reward else np.zeros(table.rows),
        marks["terminated"],
        marks["truncated"],
        _filled(episodes, episodes < 0),
        None if times is None else _filled(times, np.isnan(times)),
        follows,
        np.stack([c.values for c in parts.following], axis=1) if parts.following else None,
    )
    if times is not None:
        rows, repeated = _in_time(table, rows, unplaced, roles, observer)
        bad += repeated
    elif roles.episode is not None:
        rows = rows.take(np.argsort(rows.episodes, kind="stable"))
    bad += _bad_values(rows, parts, {cell.row for cell in bad})
    return rows, bad


def _filled(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Replace missing values by the value of the row before, so that a row keeps its place."""
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
    late = _late(times, episodes)[order] & ~unplaced[order]
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


def _late(times: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Return the rows that break the order of a table that is in order for the most part."""
    late = np.zeros(len(times), bool)
    for number in np.unique(episodes):
        rows = np.flatnonzero(episodes == number)
        outside = out_of_order(times[rows])
        if outside.mean() <= 0.1:
            late[rows[outside]] = True
    return late


def _bad_values(rows: TableRows, parts: TypedParts, known: set[int]) -> list[BadCell]:
    """Return the cells without a value that a transition would need.

    The action and the reward of the last row of an episode have no effect.
    """
    continues = np.append(rows.episodes[1:] == rows.episodes[:-1], False)
    continues &= ~rows.terminated | (np.append(rows.terminated[1:], False) & continues)
    if rows.following is not None:
        continues[:] = True
    columns = [(c.name, np.isnan(rows.observed[:, n]), True) for n, c in enumerate(parts.observed)]
    of_step = [(column, rows.acted[:, n]) for n, column in enumerate(parts.acted)]
    if parts.reward is not None:
        of_step.append((parts.reward, rows.rewards))
    if rows.following is not None:
        of_step += [(column, rows.following[:, n]) for n, column in enumerate(parts.following)]
    columns += [(column.name, np.isnan(values) & continues, False) for column, values in of_step]
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
    max_bad_cells = 10  # bad cells that an error lists
    words = first_few([_cell_words(table, cell) for cell in bad], max_bad_cells)
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
    # new rows between recorded ones, and rows with their own next observation, need all values
    is_whole_row = asked.resample is not None or rows.following is not None
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
    if rows.following is not None:
        raise CwmError(f"{name} has columns of the next observation: leave out --resample")
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
        key: np.concatenate([vars(piece)[key] for piece in pieces])
        for key, values in vars(pieces[0]).items()
        if values is not None
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
