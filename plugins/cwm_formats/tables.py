"""Tables with one transition per row: the roles of columns, and the values of cells.

An export names the columns `observation_0`, `action`, `next_observation_0`, `reward`, `terminated`,
`truncated`, `episode`, `step` and `split`; the components of `observations.box` are
`observation.box_0` and so on. An import knows these names, other usual names and the names of the
documentation, and accepts a map for other names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data import TransitionShape
from cwm_cli.data.dataset import DONE, VALID, Dataset
from cwm_cli.data.spaces import Columns, Kind, Leaf, Space, UnfitError
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.runs.observer import Observer
from cwm_cli.text import clean, first_few
from cwm_formats.columns import Ends, RecordedRows, ends_of, fitted, split_of

Cells = Sequence[str] | np.ndarray
"""Texts as in the file, or numbers if the format has types."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "observation": ("observation", "observations", "obs", "state"),
    "next_observation": (
        "next_observation",
        "next_observations",
        "next_obs",
        "next_state",
        "obs_next",
        "observation_next",
        "next",
    ),
    "action": ("action", "actions", "act"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminations", "termination", "terminal"),
    "truncated": ("truncated", "truncations", "truncation", "timeout", "timeouts"),
    "done": ("done", "dones"),
    "episode": ("episode", "episodes", "episode_id", "trajectory", "traj"),
    "step": ("step", "steps", "timestep", "t"),
    "split": ("split",),
    "valid_action": ("valid_action", "valid_actions", "action_mask"),
}
"""Usual names of each role; an export uses the first one."""

SPLITS = {"train": 0, "test": 1}

TRUE, FALSE = ("true", "1", "1.0", "yes", "t"), ("false", "0", "0.0", "no", "f")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|infinity|nan)", re.A | re.I)
"""A number in tables: ASCII digits with a point. `nan` matches, to be named in an error."""

REAL = Space("box", "float64")


@dataclass(frozen=True)
class ReadTable:
    """The columns of a file, all of the same length.

    Attributes:
        name: Name of the file.
        columns: Cells by column.
        rows: Number of rows.
        place: Returns the name of a row as people count it, such as "line 7".
        comma: Whether numbers may have a comma for the point.
        damaged: Lines that are no rows, each with its reason; their cells are blank.
        parted: Rows that do not follow the row before, because something was left out.
        notes: Notes on omitted lines.
    """

    name: str
    columns: Mapping[str, Cells]
    rows: int
    place: Callable[[int], str]
    comma: bool = False
    damaged: Mapping[int, str] = field(default_factory=dict)
    parted: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    def refuse(self, row: int, column: str, reason: str) -> CwmError:
        """Return an error about a cell."""
        place = self.place(row)
        return CwmError(f"{self.name}: {reason} ({place}, column {column}); correct that cell")


class Chosen(NamedTuple):
    """The columns of the components of each leaf, of the other roles, and of valid actions."""

    components: Mapping[str, tuple[str, ...]]
    roles: Mapping[str, str]
    valid: tuple[str, ...]

    @property
    def has_next(self) -> bool:
        """Whether the table has columns for the next observation."""
        return any(name.startswith("next_") for name in self.components)


def normal(name: str) -> str:
    """Return a normal form of a name: `Obs[0]`, `obs.0`, `obs0` and `obs_0` are equal."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)", "_", name)
    return re.sub(r"\W+|_+", "_", parted).strip("_").lower()


def leaves_of(shape: TransitionShape) -> list[Leaf]:
    """Return the leaves that a table may have columns for."""
    observed = [*shape.observations.leaves("observation")]
    following = [Leaf(f"next_{leaf.name}", leaf.space) for leaf in observed]
    return [*observed, *shape.actions.leaves("action"), *following]


def component_names(leaf: Leaf) -> list[str]:
    """Return the names that an export gives to the components of a leaf."""
    if not leaf.space.shape:
        return [leaf.name]
    places = np.ndindex(*leaf.space.shape)
    return [f"{leaf.name}_{'_'.join(map(str, place))}" for place in places]


def choose(
    table: ReadTable, shape: TransitionShape, columns: Mapping[str, Any], env: str
) -> Chosen:
    """Find the columns of a table by a map from roles to names, or by their names."""
    for role in columns:
        if role not in NAMES:
            raise UnknownNameError("part of the map of columns", role, NAMES)
    known: dict[str, str] = {}
    for name in table.columns:
        known.setdefault(normal(name), name)
    missing: list[str] = []
    components: dict[str, tuple[str, ...]] = {}
    for leaf in leaves_of(shape):
        role = leaf.name.partition(".")[0]
        given = _given(columns.get(role), leaf.name.removeprefix(role).strip("."))
        if given is None:
            found = _usual(leaf, role, shape, known)
        else:
            found = given
            if len(given) != leaf.space.size:
                raise CwmError(
                    f"{leaf.name} of {env} has {leaf.space.size} components, but the map of "
                    f"columns has {len(given)} names: give one for each component"
                )
        lacking = [name for name in found if name not in table.columns]
        if not lacking:
            components[leaf.name] = tuple(found)
        elif role != "next_observation" or given is not None:
            missing += lacking
    wanted = {f"next_{leaf.name}" for leaf in shape.observations.leaves("observation")}
    if not wanted <= components.keys():
        components = {k: v for k, v in components.items() if not k.startswith("next_")}
    roles = _roles(table, columns, known, missing)
    if "terminated" not in roles and "done" not in roles and "terminated" not in missing:
        missing.append("terminated")
    valid = _valid_columns(shape, columns, known)
    missing += [name for name in valid if name not in table.columns]
    if missing:
        raise CwmError(_missing(table, missing, shape))
    _refuse_ambiguous(table, columns, [*components.values(), roles.values(), valid])
    return Chosen(components, roles, valid)


def _refuse_ambiguous(
    table: ReadTable, columns: Mapping[str, Any], chosen: Iterable[Iterable[str]]
) -> None:
    """Raise if another column name has the same normal form as a column chosen by name."""
    alike: dict[str, list[str]] = {}
    for name in table.columns:
        alike.setdefault(normal(name), []).append(name)
    for name in (name for names in chosen for name in names):
        same = alike[normal(name)]
        if len(same) > 1 and not columns:
            words = " and ".join(map(repr, same[:3]))
            raise CwmError(
                f"{table.name} has columns {words} with the same meaning: rename one, or "
                "choose with "
                "-o columns=..."
            )


def _given(value: Any, part: str) -> list[str] | None:
    """Return the columns that a map names for a leaf: one name, a list, or either by part."""
    if isinstance(value, Mapping):
        value = value.get(part)
    if value is None:
        return None
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise CwmError(
            f"{value!r:.60} in the map of columns is not a column: write its name, or a list "
            "of names"
        )
    return list(names)


def _usual(leaf: Leaf, role: str, shape: TransitionShape, known: Mapping[str, str]) -> list[str]:
    """Return the columns of a leaf by usual names; a missing one has the name of an export."""
    ours = component_names(leaf)
    part = leaf.name.removeprefix(role)
    documented = shape.names if part == "" and role != "action" else ()
    found = []
    for number, name in enumerate(ours):
        ending = name.removeprefix(role)
        tried = [f"{prefix}{ending}" for prefix in NAMES[role]]
        if documented:
            tried += [f"{prefix}_{documented[number]}" for prefix in NAMES[role]]
            tried += [documented[number]] if role == "observation" else []
        if role == "action" and leaf.space.size == 1:
            tried += [*NAMES[role], *(f"{prefix}_0" for prefix in NAMES[role])]
        if role != "action" and leaf.space.size == 1 and not part:
            tried += NAMES[role]
        found.append(next((known[n] for n in map(normal, tried) if n in known), name))
    if any(name not in known.values() for name in found) and not part:
        return _by_prefix(leaf, role, known) or found
    return found


def _by_prefix(leaf: Leaf, role: str, known: Mapping[str, str]) -> list[str]:
    """Return the columns that start with a role, such as obs.x and obs.v, if their number fits."""
    following = tuple(f"{prefix}_" for prefix in NAMES["next_observation"])
    for prefix in NAMES[role]:
        named = [
            name
            for normed, name in known.items()
            if normed.startswith(f"{prefix}_")
            and (role == "next_observation" or not normed.startswith(following))
        ]
        if len(named) == leaf.space.size:
            return named
    return []


def _roles(
    table: ReadTable, columns: Mapping[str, Any], known: Mapping[str, str], missing: list[str]
) -> dict[str, str]:
    """Return the columns of the other roles, and collect missing columns."""
    roles: dict[str, str] = {}
    for role in ("reward", "terminated", "truncated", "done", "episode", "step", "split"):
        given = _given(columns.get(role), "")
        usual = [known[n] for n in map(normal, NAMES[role]) if n in known]
        if given is not None and (len(given) != 1 or given[0] not in table.columns):
            missing += [name for name in given if name not in table.columns] or [role]
        elif given or usual:
            roles[role] = (given or usual)[0]
        elif role == "reward":
            missing.append(role)
    return roles


def _valid_columns(
    shape: TransitionShape, columns: Mapping[str, Any], known: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the columns that mark each action as valid or not, empty if there are none."""
    if not shape.valid:
        return ()
    given = _given(columns.get("valid_action"), "")
    if given is not None:
        if len(given) != shape.actions.count:
            raise CwmError(
                f"there are {shape.actions.count} actions, but the map of columns has "
                f"{len(given)} names for valid_action: give one for each action"
            )
        return tuple(given)
    for prefix in NAMES["valid_action"]:
        names = [normal(f"{prefix}_{number}") for number in range(shape.actions.count)]
        if all(name in known for name in names):
            return tuple(known[name] for name in names)
    return ()


def _missing(table: ReadTable, missing: Sequence[str], shape: TransitionShape) -> str:
    """Return an error message on missing columns, with similar names of other columns."""
    documented = {f"observation_{n}": name for n, name in enumerate(shape.names)}
    there = list(table.columns)
    shown = ", ".join(there[:40]) + (", ..." if len(there) > 40 else "")
    near = {name: get_close_matches(name, there, n=1) for name in missing[:40]}
    hints = ", ".join(f"{close[0]} for {name}" for name, close in near.items() if close)
    named = (
        f"{clean(documented[name], limit=80)} ({name})"
        if name in documented
        else clean(name, limit=80)
        for name in missing[:40]
    )
    plural = "s" if len(missing) > 1 else ""
    words = ", ".join(named) + (", ..." if len(missing) > 40 else "")
    return (
        f"{table.name} has no column{plural} {words} (its columns: {shown}): "
        "assign columns with -o columns=... or -o map=FILE"
        + (f" (perhaps {hints})" if hints else "")
    )


def recorded_rows(
    table: ReadTable, chosen: Chosen, shape: TransitionShape, env: str, observer: Observer
) -> RecordedRows:
    """Read the rows of a table as transitions; note unused columns and omitted rows."""
    used = {*chosen.roles.values(), *chosen.valid}.union(*chosen.components.values())
    if unused := [name for name in table.columns if name not in used]:
        names = first_few([clean(name, limit=80) for name in unused], 10)
        times = [name for name in unused if "time" in normal(name).split("_")]
        hint = (
            f"""; -o columns='{{"step": "{times[0]}"}}' makes {times[0]} the step"""
            if times
            else ""
        )
        observer.note(f"unused columns: {names}{hint if 'step' not in chosen.roles else ''}")
    order, episodes, marks = _order(table, chosen, observer)
    kept, columns = _observations(table, chosen, shape, (order, episodes, marks), observer)
    if not len(kept):
        raise CwmError(
            f"{table.name} has no two rows of one episode: add columns with the next observation"
        )
    if not chosen.has_next:
        lost = ~np.isin(order, kept)
        ended = int(marks[lost].sum())
        ends = f", with {ended} ends: add columns with the next observation to keep them"
        observer.note(
            "the next row is taken as the next observation: the last row of each of "
            f"{int(lost.sum())} episodes is left out{ends if ended else ''}"
        )
    for leaf in shape.actions.leaves("action"):
        columns[f"actions{leaf.name.removeprefix('action')}"] = _leaf(table, chosen, leaf, kept)
    rewards = _numbers(table, chosen.roles["reward"], kept, REAL)
    numbers = episodes[np.isin(order, kept)]
    split = split_of(numbers, observer) if "split" not in chosen.roles else None
    valid = [_marks(table, name, kept) for name in chosen.valid]
    if shape.valid and not valid:
        raise CwmError(
            f"{table.name} lacks the valid actions of {env}: add columns "
            f"valid_action_0 to valid_action_{shape.actions.count - 1}"
        )
    return RecordedRows(
        columns,
        rewards,
        _read_ends(table, chosen, kept, numbers, shape.limit, observer),
        numbers,
        _splits(table, chosen.roles["split"], kept) if split is None else split,
        np.stack(valid, axis=1) if valid else None,
        kept,
    )


def _order(
    table: ReadTable, chosen: Chosen, observer: Observer
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows in order of time, the episode of each, and whether an episode ends there."""
    rows = np.arange(table.rows)
    marks = np.zeros(table.rows, np.bool_)
    for role in ("terminated", "truncated", "done"):
        if role in chosen.roles:
            marks |= _marks(table, chosen.roles[role], rows)
    if "episode" not in chosen.roles:
        observer.note("no column episode: a new episode begins after each row that ended one")
        return rows, np.append(0, np.cumsum(marks[:-1])), marks
    episodes = _numbers_or_names(table, chosen.roles["episode"])
    if chosen.has_next or "step" not in chosen.roles:
        return rows, episodes, marks
    steps = _numbers(table, chosen.roles["step"], rows, REAL)
    _, first, place = np.unique(episodes, return_index=True, return_inverse=True)
    order = np.lexsort((rows, steps, first[place.reshape(-1)]))
    _check_steps(table, chosen.roles["step"], order, episodes[order], steps[order])
    return order, episodes[order], marks[order]


def _check_steps(
    table: ReadTable, column: str, order: np.ndarray, episodes: np.ndarray, steps: np.ndarray
) -> None:
    """Raise for a step that an episode has twice, or that does not follow the step before.

    The next observation is taken from the next row, so a missing row would join two other rows.
    Steps may be times: only a column that counts by one in most rows has to do so everywhere.
    """
    change = np.diff(steps)[episodes[1:] == episodes[:-1]]
    counts = change.size > 0 and np.median(change) == 1
    wrong = np.diff(steps) != 1 if counts else np.diff(steps) == 0
    for place in np.flatnonzero(wrong & (episodes[1:] == episodes[:-1])).tolist():
        after, before = order[place + 1], order[place]
        words = f"step {steps[place + 1]:g} follows step {steps[place]:g} in {table.place(before)}"
        raise table.refuse(int(after), column, words)


def _is_number(text: str) -> bool:
    """Return whether a cell is a number; Python's own notations, such as 1_000, are not."""
    return NUMBER.fullmatch(text.strip()) is not None


def _numbers_or_names(table: ReadTable, column: str) -> np.ndarray:
    """Return the numbers of episodes; names are numbered if most cells are not numbers."""
    rows = np.arange(table.rows)
    cells = table.columns[column]
    if isinstance(cells, np.ndarray) or 2 * sum(map(_is_number, cells)) > len(cells):
        numbers = _numbers(table, column, rows, Space("box", "int64"))
        for row in np.flatnonzero(numbers < 0).tolist():
            raise table.refuse(row, column, f"{numbers[row]} is not a valid episode number")
        return numbers
    for row, cell in enumerate(cells):
        if not cell.strip():
            raise table.refuse(row, column, "the cell is empty")
    _, first, place = np.unique(np.array(cells), return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(first))
    names: np.ndarray = ranks[place.reshape(-1)]
    return names


def _observations(
    table: ReadTable,
    chosen: Chosen,
    shape: TransitionShape,
    placed: tuple[np.ndarray, np.ndarray, np.ndarray],
    observer: Observer,
) -> tuple[np.ndarray, Columns]:
    """Return the usable rows and their columns of observations.

    Without columns for the next observation, it is taken from the next row of the episode.
    """
    order, episodes, marks = placed
    columns: Columns = {}
    if chosen.has_next:
        for leaf in leaves_of(shape):
            if not leaf.name.startswith("action"):
                role, dot, part = leaf.name.partition(".")
                columns[f"{role}s{dot}{part}"] = _leaf(table, chosen, leaf, order)
        return order, columns
    continues = np.append(episodes[1:] == episodes[:-1], False)
    continues_twice = np.append(continues[1:], False) & continues
    if count := int((marks & continues_twice).sum()):
        observer.note(
            f"{count} rows end an episode, but more rows of the same episode follow: the next row "
            "is taken as their next observation; give each episode its own number to avoid this"
        )
    for leaf in shape.observations.leaves("observation"):
        seen = _leaf(table, chosen, leaf, order)
        name = f"observations{leaf.name.removeprefix('observation')}"
        columns |= {name: seen[continues], f"next_{name}": seen[1:][continues[:-1]]}
    return order[continues], columns


def _read_ends(
    table: ReadTable,
    chosen: Chosen,
    kept: np.ndarray,
    episodes: np.ndarray,
    limit: int | None,
    observer: Observer,
) -> Ends:
    """Return how episodes ended, by two columns or by one that includes time limits."""
    found = {
        role: _marks(table, chosen.roles[role], kept)
        for role in ("terminated", "truncated", "done")
        if role in chosen.roles
    }
    none = np.zeros(len(kept), np.bool_)
    if "terminated" in found:
        dones = found.get("done")
        return Ends(found["terminated"], found.get("truncated", none), dones)
    if "truncated" in found:
        return Ends(found["done"] & ~found["truncated"], found["truncated"])
    ends = ends_of(found["done"], episodes, limit)
    if ends.dones is not None:
        observer.note(
            f"{int(ends.truncated.sum())} rows end an episode exactly at the time limit: read as "
            "truncated, not terminated"
        )
    return ends


def _splits(table: ReadTable, column: str, kept: np.ndarray) -> np.ndarray:
    """Return which rows are held out, given as words or as 0 and 1."""
    cells = table.columns[column]
    found = np.empty(len(kept), np.int8)
    for place, row in enumerate(kept.tolist()):
        word = str(cells[row]).strip().lower()
        if word not in SPLITS and word not in ("0", "1"):
            reason = f"{word!r:.40} is neither train nor test" if word else "the cell is empty"
            raise table.refuse(row, column, reason)
        found[place] = SPLITS[word] if word in SPLITS else int(word)
    return found


def _leaf(table: ReadTable, chosen: Chosen, leaf: Leaf, kept: np.ndarray) -> np.ndarray:
    """Return the column of a leaf, with its components in order."""
    names = chosen.components[leaf.name]
    if leaf.space.kind == "text":
        cells = table.columns[names[0]]
        texts = [cells[row] for row in kept.tolist()]
        try:
            return fitted(leaf.space, texts)
        except UnfitError as error:
            raise table.refuse(int(kept[error.row]), names[0], error.reason) from error
    bounds = zip(leaf.space.low, leaf.space.high, strict=True)
    kind: Kind = "box" if leaf.space.kind == "box" else "multidiscrete"
    parts = [
        _numbers(table, name, kept, Space(kind, leaf.space.dtype, (), (low,), (high,)))
        for name, (low, high) in zip(names, bounds, strict=True)
    ]
    column = np.stack(parts, axis=1) if leaf.space.shape else parts[0]
    return column.reshape(len(kept), *leaf.space.shape)


def _numbers(table: ReadTable, column: str, kept: np.ndarray, space: Space) -> np.ndarray:
    """Return cells as numbers of a space; an error names the first cell without a number."""
    cells = table.columns[column]
    typed = isinstance(cells, np.ndarray)
    values = cells[kept] if isinstance(cells, np.ndarray) else _parsed(table, column, kept, space)
    try:
        found = fitted(space, values)
    except UnfitError as error:
        raise table.refuse(int(kept[error.row]), column, error.reason) from error
    except ValueError as error:
        raise table.refuse(int(kept[0]), column, str(error)) from error
    return found if typed else _narrowed(found, np.dtype(space.dtype))


def _parsed(table: ReadTable, column: str, kept: np.ndarray, space: Space) -> np.ndarray:
    """Parse texts as integers if the space has integers, else as floats."""
    cells = table.columns[column]
    texts = [str(cells[row]).strip() for row in kept.tolist()]
    if table.comma:
        texts = [text.replace(",", ".") for text in texts]
    for row, text in zip(kept.tolist(), texts, strict=True):
        if not _is_number(text):
            reason = f"{text!r:.40} is not a number" if text else "the cell is empty"
            raise table.refuse(row, column, reason)
    if np.dtype(space.dtype).kind in "iu":
        try:
            return np.array([int(text) for text in texts], np.dtype(space.dtype))
        except (ValueError, OverflowError):
            pass  # such as 1.0
    return np.array(texts, np.float64)


def _narrowed(column: np.ndarray, wanted: np.dtype[Any]) -> np.ndarray:
    """Return numbers in the dtype of their space if the text has no more digits than it."""
    if column.dtype == wanted or wanted.kind != "f":
        return column
    with np.errstate(over="ignore"):
        narrow = column.astype(wanted)
    exact = narrow.astype(np.float64) == column
    written = narrow[~exact].astype(np.str_).astype(np.float64) == column[~exact]
    return narrow if written.all() else column


def _marks(table: ReadTable, column: str, kept: np.ndarray) -> np.ndarray:
    """Return cells as booleans."""
    cells = table.columns[column]
    if isinstance(cells, np.ndarray):
        numbers = _numbers(table, column, kept, Space("discrete", low=(0,), high=(1,)))
        return numbers.astype(np.bool_)
    found = np.zeros(len(kept), np.bool_)
    for place, row in enumerate(kept.tolist()):
        word = str(cells[row]).strip().lower()
        if word not in TRUE and word not in FALSE:
            reason = f"{word!r:.40} is neither true nor false" if word else "the cell is empty"
            raise table.refuse(row, column, reason)
        found[place] = word in TRUE
    return found


def written_columns(dataset: Dataset) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of a table with their names, one for each component."""
    spaces = {
        "observation": dataset.observation_space,
        "action": dataset.action_space,
        "next_observation": dataset.observation_space,
    }
    leaves = [
        (leaf, dataset.columns[f"{role}s{leaf.name.removeprefix(role)}"])
        for role, space in spaces.items()
        for leaf in space.leaves(role)
    ]
    width = sum(leaf.space.size for leaf, _ in leaves)
    max_columns = 10_000  # Maximum number of columns of a table. Pictures need other formats.
    if width > max_columns or any(leaf.space.is_picture for leaf, _ in leaves):
        raise CwmError("observations are pictures, which do not fit into a table: use --to minari")
    for leaf, column in leaves:
        parts = column.reshape(len(dataset), -1)
        for number, name in enumerate(component_names(leaf)):
            yield name, parts[:, number]
    columns = dataset.columns
    yield "reward", columns["rewards"]
    yield "terminated", columns["terminations"]
    yield "truncated", columns["truncations"]
    if DONE in columns:
        yield "done", columns[DONE]
    if VALID in columns:
        for number in range(dataset.action_space.count):
            yield f"valid_action_{number}", columns[VALID][:, number]
    episodes = columns["episodes"]
    yield "episode", episodes
    yield "step", _steps(episodes)
    words = {number: word for word, number in SPLITS.items()}
    yield "split", np.array([words.get(int(n), str(n)) for n in columns["split"]])


def _steps(episodes: np.ndarray) -> np.ndarray:
    """Return the position of each row in its episode, from 0."""
    order = np.argsort(episodes, kind="stable")
    firsts = np.flatnonzero(np.append(True, np.diff(episodes[order]) != 0))
    start_rows = np.repeat(firsts, np.diff(np.append(firsts, len(order))))
    steps = np.empty(len(order), np.int64)
    steps[order] = np.arange(len(order)) - start_rows
    return steps
