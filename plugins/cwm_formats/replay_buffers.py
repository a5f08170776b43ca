"""Replay buffers of Stable-Baselines3 (`model.save_replay_buffer`), read as data only.

A buffer is a ring of rows, each with one step of every parallel environment. Neither
Stable-Baselines3 nor torch is needed, and no code in the pickle runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.data import Importer, TransitionShape
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import UnreadableError, open_for_reading, read_bytes
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import Observer
from cwm_formats.columns import (
    Ends,
    RecordedRows,
    ends_of,
    fitted,
    flattened,
    note_out_of_bounds,
    split_of,
    too_many,
)
from cwm_formats.pickles import Inert, load, plain

LIBRARY = b"stable_baselines3"
"""The name of the library near the start of the pickle of a buffer."""


class ReplayBuffer(NamedTuple):
    """The arrays of a buffer, of shape (rows, environments, ...).

    Dict observations have an array per key. `following` is None in memory-optimised buffers, where
    the next observation is in the next row. `timeouts` is None if the end flags include time
    limits.
    """

    observations: Any
    following: Any
    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    timeouts: np.ndarray | None
    position: int
    full: bool

    def order(self) -> np.ndarray:
        """Return the filled rows, the oldest first."""
        size = len(self.rewards)
        if not self.full:
            return np.arange(self.position)
        rows: np.ndarray = (self.position + np.arange(size)) % size
        return rows if self.following is not None else rows[1:]  # the oldest is overwritten


@dataclass
class StableBaselines3Buffer(Importer):
    """Reads a replay buffer of Stable-Baselines3 without running code in it."""

    scaled_actions: bool | None = None
    """Whether the recorded actions are scaled to [-1, 1], as Stable-Baselines3 stores them, and
    must be scaled back to the action bounds. none: yes if all actions are between -1 and 1."""

    def reads(self, file: Path) -> bool:
        """Return whether the file is a pickle that starts like a buffer."""
        if file.suffix not in (".pkl", ".pickle"):
            return False
        try:
            with open_for_reading(file) as stream:
                head = 1000  # number of bytes to search for the name of the library
                return LIBRARY in stream.read(head)
        except UnreadableError:
            return False

    def read(
        self, file: Path, spec: EnvironmentSpec, env_args: Mapping[str, Any], observer: Observer
    ) -> Dataset:
        """Read the rows of each environment in turn, the oldest first."""
        data = _content(file)
        try:
            buffer = _buffer(load(data))
        except ValueError as error:
            raise _refused(file, " ".join(str(error).split())[:120]) from error
        except Exception as error:  # a third-party pickle may be invalid in any way
            raise _refused(file, "it is not a pickle file, or it is damaged") from error
        shape = TransitionShape.of(spec, env_args)
        if shape.valid:
            raise CwmError(
                f"{file} lacks the valid actions of {spec.id}: record transitions with `cwm "
                "collect`"
            )
        count = buffer.rewards.shape[1]
        if too_many(len(buffer.order()) * count, shape):
            raise CwmError(f"{file} has too many rows: import a part of it")
        try:
            rows = self._rows(buffer, shape, observer)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            hint = "correct it, or give the environment of the recording (--env, --env-arg)"
            raise CwmError(f"{file} does not fit {spec.id} ({reason}): {hint}") from error
        about = {"env": spec.id, "env_args": dict(env_args), "source": file.name}
        dataset = rows.dataset(shape, about | {"sha256": sha256(data).hexdigest()})
        note_out_of_bounds(dataset, observer)
        return dataset

    def _rows(
        self, buffer: ReplayBuffer, shape: TransitionShape, observer: Observer
    ) -> RecordedRows:
        """Combine the rows of all environments; raise a `ValueError` if they do not fit."""
        order, count = buffer.order(), buffer.rewards.shape[1]
        if not len(order):
            raise ValueError("it contains no transitions")
        rows, players = np.tile(order, count), np.repeat(np.arange(count), len(order))
        size = len(buffer.rewards)
        after = buffer.observations if buffer.following is None else buffer.following
        shift = 1 if buffer.following is None else 0
        seen = _observations(shape.observations, buffer.observations, rows, players)
        following = _observations(shape.observations, after, (rows + shift) % size, players)
        columns: Columns = flattened(shape.observations, "observations", seen)
        columns |= flattened(shape.observations, "next_observations", following)
        columns |= self._actions(buffer.actions[rows, players], shape.actions, observer)
        dones = fitted(MARK, buffer.dones[rows, players]) != 0
        last = np.tile(order == order[-1], count)
        episodes = _episodes(columns, dones, last)
        ends = _ends(buffer, dones, (rows, players), episodes, shape.limit)
        rewards = fitted(REAL, buffer.rewards[rows, players])
        kept = np.ones(len(rows), np.bool_)
        if buffer.following is None:
            kept = ~dones | last  # after an end, the next row is of the next episode
            _note_left_out(int((~kept).sum()), observer)
        if ends.dones is not None:
            observer.note(
                f"{int(ends.truncated.sum())} rows end an episode exactly at the time limit: "
                "read as "
                "truncated, not terminated"
            )
        return RecordedRows(
            {name: column[kept] for name, column in columns.items()},
            rewards[kept],
            Ends(*(None if mark is None else mark[kept] for mark in ends)),  # type: ignore[arg-type]
            episodes[kept],
            split_of(episodes[kept], observer),
        )

    def _actions(self, values: np.ndarray, space: Space, observer: Observer) -> Columns:
        """Return the columns of actions in the scale of the environment.

        Algorithms store Box actions scaled to [-1, 1]. The same formula as theirs restores them.
        """
        if values.ndim == 2 and values.shape[1] == space.size:
            values = values.reshape(len(values), *space.shape)
        bounded = space.kind == "box" and bool(np.isfinite([*space.low, *space.high]).all())
        scaled = self.scaled_actions
        if scaled is None:
            scaled = bounded and values.dtype.kind == "f" and bool((abs(values) <= 1).all())
        if not scaled or not bounded or values.shape[1:] != space.shape:
            return flattened(space, "actions", values)
        low, high = (
            np.reshape(np.array(bound, values.dtype), space.shape)
            for bound in (space.low, space.high)
        )
        if not ((low == -1) & (high == 1)).all():
            values = low + (0.5 * (values + 1.0) * (high - low))
            observer.note(
                "actions are stored between -1 and 1 and are scaled to the bounds of their "
                "space: -o scaled_actions=false disables this"
            )
        return flattened(space, "actions", values)


REAL, MARK = Space("box", "float64"), Space("discrete", low=(0,), high=(1,))


def _content(file: Path) -> bytes:
    try:
        return read_bytes(file)
    except UnreadableError as error:
        if error.is_missing:
            raise CwmError(f"there is no file {file}: give a replay buffer") from error
        raise _refused(file, error.reason) from error


def _refused(file: Path, reason: str) -> CwmError:
    hint = "give a file of model.save_replay_buffer"
    return CwmError(f"{file} is not a replay buffer of Stable-Baselines3 ({reason}): {hint}")


def _buffer(root: Any) -> ReplayBuffer:
    """Read the arrays of the object in a pickle."""
    fields = root.state if isinstance(root, Inert) else None
    if not isinstance(fields, dict):
        raise ValueError("it contains no object with a state")
    if "returns" in fields and "next_observations" not in fields:
        raise ValueError("a rollout buffer lacks the next observations")
    needed = ("observations", "actions", "rewards", "dones", "pos", "full")
    if missing := [name for name in needed if name not in fields]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    position, full = plain(fields["pos"]), plain(fields["full"])
    position = position.item() if isinstance(position, np.generic) else position
    rewards = _array(fields["rewards"], "rewards")
    if rewards.ndim != 2 or type(position) is not int or not 0 <= position <= len(rewards):
        raise ValueError("it lacks the number of its rows")
    has_timeouts = bool(plain(fields.get("handle_timeout_termination"))) and "timeouts" in fields
    following = fields.get("next_observations")
    buffer = ReplayBuffer(
        _arrays(fields["observations"], "observations"),
        None if following is None else _arrays(following, "next_observations"),
        _array(fields["actions"], "actions"),
        rewards,
        _array(fields["dones"], "dones"),
        _array(fields["timeouts"], "timeouts") if has_timeouts else None,
        position,
        bool(full),
    )
    parts = [buffer.actions, buffer.dones, *_parts(buffer.observations), *_parts(buffer.following)]
    parts += [] if buffer.timeouts is None else [buffer.timeouts]
    if any(part.shape[:2] != rewards.shape for part in parts):
        raise ValueError("its arrays have different lengths")
    return buffer


def _array(value: Any, name: str) -> np.ndarray:
    """Return an array of numbers."""
    array = plain(value)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} are not numbers")
    return array


def _arrays(value: Any, name: str) -> Any:
    """Return an array, or a dict of arrays."""
    if isinstance(value, Inert) and value.arguments is not None and value.items:
        value = value.items  # an OrderedDict
    if isinstance(value, dict):
        return {key: _array(part, f"{name} {key}") for key, part in value.items()}
    return _array(value, name)


def _parts(value: Any) -> list[np.ndarray]:
    """Return the arrays of observations."""
    if value is None:
        return []
    return list(value.values()) if isinstance(value, dict) else [value]


def _observations(space: Space, value: Any, rows: np.ndarray, players: np.ndarray) -> Any:
    """Return the observations of some rows; channel-first pictures become channel-last."""
    if isinstance(value, dict):
        spaces = dict(zip(space.keys, space.children, strict=False))
        return {
            key: _observations(spaces.get(key, space), part, rows, players)
            for key, part in value.items()
        }
    found = value[rows, players]
    height_width = space.shape[:2]
    if space.is_picture and found.ndim == 4 and found.shape[1:] == (space.shape[2], *height_width):
        return np.moveaxis(found, 1, -1)
    return found


def _episodes(columns: Columns, dones: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return episode numbers. An episode ends at a flag or before a row that does not continue."""
    over = dones | last
    for name, after in columns.items():
        if name.startswith("next_"):
            differs = after[:-1] != columns[name.removeprefix("next_")][1:]
            over[:-1] |= differs.any(axis=tuple(range(1, differs.ndim)))
    return np.append(0, np.cumsum(over[:-1]))


def _ends(
    buffer: ReplayBuffer,
    dones: np.ndarray,
    places: tuple[np.ndarray, np.ndarray],
    episodes: np.ndarray,
    limit: int | None,
) -> Ends:
    """Return how episodes ended, from time-limit flags if the buffer has them."""
    if buffer.timeouts is None:
        return ends_of(dones, episodes, limit)
    timed = fitted(MARK, buffer.timeouts[places]) != 0
    return Ends(dones & ~timed, dones & timed)


def _note_left_out(count: int, observer: Observer) -> None:
    """Note the number of episode ends that a memory-optimised buffer lacks."""
    if count:
        rows = "row ends" if count == 1 else "rows end"
        observer.note(
            f"{count} {rows} an episode and are left out: to save memory, their next observation "
            "was not stored (optimize_memory_usage)"
        )
