"""The roles of the columns of a table without an environment, given or recognised by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cwm_cli.commands.data import TableColumns
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.runs.observer import Observer
from cwm_cli.text import clean
from cwm_formats.cells import read_column
from cwm_formats.clock import TableClock, read_clock
from cwm_formats.tables import SPLITS, Cells, ReadTable

NONE = "none"
"""In place of a column: there is none, also if a column has a usual name."""

EPISODE_WORDS = ("episode", "trajectory", "rollout", "trip", "run", "trial", "session", "batch")
TIME_WORDS = (
    *("timestamp", "datetime", "time", "date", "ts", "t", "clock", "step", "timestep", "tick"),
)
UNIT_WORDS = ("second", "seconds", "minute", "hour", "day", "week", "month", "year")
"""Columns that may be the time, or the episode if each value has several rows."""

_DATE = r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}"


@dataclass(frozen=True)
class Roles:
    """The columns of a table by role, and the time of its rows."""

    actions: tuple[str, ...]
    observations: tuple[str, ...]
    are_observations_given: bool
    reward: str | None
    episode: str | None
    time: tuple[str, ...]
    clock: TableClock | None
    terminated: str | None
    truncated: str | None
    split: str | None
    unused: tuple[str, ...]


def choose_roles(table: ReadTable, asked: TableColumns, observer: Observer) -> Roles:
    """Return the roles of columns: as asked, else by usual names, which a note lists.

    Raises:
        CwmError: A named column is missing, is named for two roles, or cannot have its role.
    """
    actions = _named(table, asked.action, "--action")
    given = _named(table, asked.observation, "--observation")
    taken = [*actions, *given]
    found: dict[str, str] = {}
    reward = _single(table, asked.reward, ("reward", "rewards"), taken, found, "reward")
    marks = _single(
        table, asked.terminated, ("done", "terminated", "terminal"), taken, found, "terminated"
    )
    truncated = _single(table, None, ("truncated", "timeout"), taken, found, "truncated")
    split = next((name for name in table.columns if _is_split(table, name)), None)
    if split:
        found["held-out rows"] = split
    taken += [name for name in (reward, marks, truncated, split) if name]
    episode, time, clock = _order(table, asked, taken, found, observer)
    taken += [name for name in (episode, *time) if name]
    if twice := [name for name in dict.fromkeys(taken) if taken.count(name) > 1]:
        raise CwmError(f"column {twice[0]} is named for two roles: name it for one role")
    if found:
        words = ", ".join(f"{role} = {clean(name, limit=60)}" for role, name in found.items())
        observer.note(f"recognised columns: {words} (set others by option, or `none`)")
    rest = tuple(name for name in table.columns if name not in taken)
    observations = tuple(given) or rest
    if not observations:
        raise CwmError(
            f"{table.name} has no column left for the observation: name fewer for other roles"
        )
    return Roles(
        tuple(actions),
        observations,
        bool(given),
        reward,
        episode,
        time,
        clock,
        marks,
        truncated,
        split,
        rest if given else (),
    )


def _is_split(table: ReadTable, name: str) -> bool:
    """Return whether a column has the words train and test."""
    if name.casefold() != "split":
        return False
    return {str(cell).strip().lower() for cell in table.columns[name]} == SPLITS.keys()


def _named(table: ReadTable, names: Sequence[str], option: str) -> list[str]:
    """Return columns, each given by its name, or several by names with commas between."""
    found: list[str] = []
    for text in names:
        pieces = [text] if text.strip() in table.columns else text.split(",")
        found += [_column(table, piece.strip(), option) for piece in pieces if piece.strip()]
    return list(dict.fromkeys(found))


def _column(table: ReadTable, name: str, option: str) -> str:
    if name in table.columns:
        return name
    numbers = (other for other in table.columns if re.fullmatch(r"[+-]?\d+([.,]\d+)?", other))
    if (first := next(numbers, None)) is not None:
        raise CwmError(
            f"{table.name} has no column {name}, but a column {first!r}: its first line may "
            "contain values; add a line with the names of the columns"
        )
    alike = [other for other in table.columns if other.casefold() == name.casefold()]
    if len(alike) == 1:
        return alike[0]
    raise UnknownNameError(f"column of {table.name} for {option}", name, table.columns)


def _single(
    table: ReadTable,
    asked: str | None,
    words: Sequence[str],
    taken: Sequence[str],
    found: dict[str, str],
    role: str,
) -> str | None:
    """Return the column of a role that at most one column has."""
    if asked is not None:
        return None if asked == NONE else _column(table, asked, f"--{role}")
    names = _candidates(table, words, taken)
    if names:
        found[role] = names[0]
    return names[0] if names else None


def _candidates(table: ReadTable, words: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return columns with a usual name, or with it as a word; exact names come first."""
    ranked = []
    for place, name in enumerate(table.columns):
        tokens = re.findall(r"[^\W_]+", name.casefold())
        hits = [words.index(token) for token in tokens if token in words]
        if hits and name not in taken:
            ranked.append((len(tokens) > 1, min(hits), place, name))
    return [name for *_, name in sorted(ranked)]


def _order(
    table: ReadTable,
    asked: TableColumns,
    taken: Sequence[str],
    found: dict[str, str],
    observer: Observer,
) -> tuple[str | None, tuple[str, ...], TableClock | None]:
    """Return the columns of episode and time, and the time of each row."""
    episode = asked.episode
    if episode not in (None, NONE):
        episode = _column(table, str(episode), "--episode")
    free = [*taken, *([episode] if episode else [])]
    time: tuple[str, ...] = ()
    if asked.time not in (None, NONE):
        time = tuple(_named(table, [str(asked.time)], "--time"))
        free += time
    if episode is None:
        names = _candidates(table, (*EPISODE_WORDS, *UNIT_WORDS), free)
        episode = next((name for name in names if _groups_rows(table, name)), None)
        if episode is not None:
            found["episode"] = episode
            free.append(episode)
    numbers = episode_numbers(table, None if episode == NONE else episode)
    clock = None
    if time:
        clock = _clock(table, time)
        if clock is None:
            raise CwmError(
                f"{table.name}: most cells of column {' and '.join(time)} are no times: "
                "name another column with --time, or --time none"
            )
    elif asked.time is None:
        candidates = _time_candidates(table, free)
        for columns in candidates:
            clock = _clock(table, columns)
            if clock is not None and _is_running(clock.seconds, numbers, columns[0]):
                time = columns
                found["time"] = " and ".join(columns)
                break
            clock = None
        if clock is None and candidates:
            observer.note(
                f"column {clean(candidates[0][0], limit=60)} is not used as the time: its values "
                "are no times, or repeat; choose a column with --time"
            )
    return None if episode == NONE else episode, time, clock


def _time_candidates(table: ReadTable, taken: Sequence[str]) -> list[tuple[str, ...]]:
    """Return columns that may be the time; a date and a time of day may be two columns.

    Columns without a usual name follow: dates, and numbers that rise by the same step.
    """
    names = _candidates(table, (*TIME_WORDS, *UNIT_WORDS), taken)
    others = [name for name in table.columns if name not in (*names, *taken)]
    names += [name for name in others if _begins(table, name, _DATE)]
    names += [name for name in others if name not in names and _counts_up(table, name)]
    pairs = [
        (date, time)
        for date in names
        for time in names
        if _begins(table, date, f"{_DATE}$") and _begins(table, time, r"\d{1,2}:\d{2}")
    ]
    return [*pairs, *((name,) for name in names)]


def _counts_up(table: ReadTable, name: str) -> bool:
    """Return whether a column of numbers always rises, in most rows by the same step."""
    steps = np.diff(read_column(name, table.columns[name], comma=table.comma).values)
    steps = steps[~np.isnan(steps)]
    if not steps.size or (steps <= 0).any():
        return False
    return float(np.isclose(steps, np.median(steps), rtol=1e-3).mean()) >= 0.95


def _begins(table: ReadTable, name: str, pattern: str) -> bool:
    cells = table.columns[name]
    return any(re.match(pattern, str(cell).strip()) for cell in cells[:20])


def _clock(table: ReadTable, names: Sequence[str]) -> TableClock | None:
    cells: Cells = table.columns[names[0]]
    if len(names) > 1:
        columns = (table.columns[name] for name in names)
        cells = [" ".join(map(str, parts)) for parts in zip(*columns, strict=True)]
    return read_clock(names[0], cells, comma=table.comma)


def _groups_rows(table: ReadTable, name: str) -> bool:
    """Return whether a column has each value in several rows, one after the other."""
    numbers = episode_numbers(table, name)
    numbers = numbers[numbers >= 0]
    runs = 1 + int((np.diff(numbers) != 0).sum())
    different = len(np.unique(numbers))
    if not different or 2 * different > len(numbers):
        return False
    # damaged rows divide a few runs; random order divides most runs, and so do weekdays
    shuffled = runs > len(numbers) / 2 and _has_word(name, EPISODE_WORDS)
    return runs <= 1.2 * different + 2 or shuffled


def _has_word(name: str, words: Sequence[str]) -> bool:
    return not set(re.findall(r"[^\W_]+", name.casefold())).isdisjoint(words)


def _is_running(seconds: np.ndarray, episodes: np.ndarray, name: str) -> bool:
    """Return whether a column is a clock: few rows of an episode have the same time.

    Without a column of episodes, the clock may begin again in each episode, unless its name is a
    cycle, such as the hour of a day. A clock that stands still also counts as a clock.
    """
    known = np.isfinite(seconds)
    pairs = np.stack([episodes[known], seconds[known]], axis=1)
    different = len(np.unique(pairs, axis=0))
    if len(pairs) < 2 or different < 2:
        return False
    if different >= 0.9 * len(pairs):
        return True
    steps = np.diff(seconds[known])
    falls = np.flatnonzero(steps < 0)
    if not falls.size:
        changes = np.flatnonzero(np.append(True, steps != 0))
        longest = int(np.diff(np.append(changes, len(steps) + 1)).max()) - 1
        return bool(longest >= 0.9 * (steps == 0).sum())
    begins_again = len(restarts(seconds[known])) > 0
    is_cycle = not _has_word(name, TIME_WORDS)
    return begins_again and not is_cycle and float((steps == 0).mean()) < 0.1


def restarts(times: np.ndarray) -> np.ndarray:
    """Return the rows at which a clock begins again, none if it falls to other times.

    A clock begins again in the first tenth of its range.
    """
    falls = np.flatnonzero(np.diff(times) < 0) + 1
    early = times.min() + 0.1 * np.ptp(times)
    return falls if (times[falls] <= early).all() else falls[:0]


def episode_numbers(table: ReadTable, column: str | None) -> np.ndarray:
    """Return the number of the episode of each row, counted from 0; -1 for a bad cell.

    Episodes with numbers keep their order. Episodes with names are in the order of the table.
    """
    if column is None:
        return np.zeros(table.rows, np.int64)
    cells = table.columns[column]
    typed = read_column(column, cells, comma=table.comma)
    if typed.kind in ("whole", "real") and not typed.unit:
        # 1 and 1.0 are the same episode
        known = np.unique(typed.values[~np.isnan(typed.values)])
        found = np.searchsorted(known, typed.values)
        return np.where(np.isnan(typed.values), -1, found)
    numbers: dict[str, int] = {}
    texts = [str(cell).strip() for cell in cells]
    return np.array([numbers.setdefault(text, len(numbers)) if text else -1 for text in texts])
