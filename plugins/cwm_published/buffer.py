"""The columns of a published replay buffer, before their conversion for an environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from cwm_cli.data.reading import UnreadableError, read_bytes
from cwm_cli.errors import CwmError
from cwm_formats.pickles import Inert, load, plain

MAX_BYTES = 1 << 30
"""Maximum size of a file in bytes."""

Column = Sequence[Any] | np.ndarray

LISTS = ("obs", "next_obs", "actions")
NEEDED = (*LISTS, "rewards", "dones", "traj_starts", "idx")


@dataclass(frozen=True)
class Buffer:
    """Published transitions; observations and actions are still as in the pickle.

    `starts` contains the index of the first row of each row's trajectory, `extras` the infos of the
    environment, if the file contains them.
    """

    file: Path
    sha256: str
    observations: Column
    next_observations: Column
    actions: Column
    rewards: np.ndarray
    dones: np.ndarray
    starts: np.ndarray
    extras: Sequence[Any]

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def steps(self) -> np.ndarray:
        """The position of each row in its trajectory, from 1."""
        steps: np.ndarray = np.arange(len(self)) - self.starts + 1
        return steps

    @property
    def lasts(self) -> np.ndarray:
        """Mask of the last row of each trajectory."""
        return np.append(self.starts[1:] != self.starts[:-1], True)


def read_buffer(file: Path) -> Buffer:
    """Read a replay buffer. No name in its pickle is imported or run."""
    data = _content(file)
    try:
        return _buffer(_fields(load(data)), file, sha256(data).hexdigest())
    except ValueError as error:
        raise _refused(file, " ".join(str(error).split())[:120]) from error
    except Exception as error:  # a third-party pickle may be invalid in any way
        raise _refused(file, "it is not a pickle file, or it is damaged") from error


def _content(file: Path) -> bytes:
    """Return the bytes of a file that may be a pickle."""
    try:
        data = read_bytes(file, MAX_BYTES)
    except UnreadableError as error:
        if error.is_missing:
            raise CwmError(f"there is no file {file}: give a published replay buffer") from error
        raise _refused(file, error.reason) from error
    if data.startswith(b"PK"):
        raise _refused(file, "it is a zip archive, not a pickle file")
    return data


def _fields(root: Any) -> dict[str, Any]:
    """Return the columns; the pickle is a dict of columns, or an object with such a state."""
    fields = root.state if isinstance(root, Inert) else root
    if not isinstance(fields, dict):
        raise ValueError("it contains no dict")
    missing = [name for name in NEEDED if name not in fields]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return fields


def _buffer(fields: dict[str, Any], file: Path, digest: str) -> Buffer:
    """Cut all columns to the filled rows."""
    rows = plain(fields["idx"])
    rows = rows.item() if isinstance(rows, np.ndarray | np.generic) and rows.size == 1 else rows
    if type(rows) is not int or rows < 1:
        raise ValueError("it contains no transitions")
    observations, following, actions = (_listed(fields[name], name, rows) for name in LISTS)
    rewards = _vector(fields["rewards"], "rewards", rows, "biuf").astype(np.float64)
    dones = _vector(fields["dones"], "dones", rows, "biuf")
    for name, wrong, words in (
        ("rewards", ~np.isfinite(rewards), "a value that is not finite"),
        ("dones", (dones != 0) & (dones != 1), "a value other than 0 and 1"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(f"{name} has in row {row} (counted from 0) {words}")
    extras = fields.get("extra_info")
    return Buffer(
        file,
        digest,
        observations,
        following,
        actions,
        rewards=rewards,
        dones=dones.astype(np.bool_),
        starts=_starts(_vector(fields["traj_starts"], "traj_starts", rows, "iuf")),
        extras=extras[:rows] if isinstance(extras, list) and len(extras) >= rows else (),
    )


def _listed(value: Any, name: str, rows: int) -> Column:
    """Return a column with any values, which may also be one array."""
    values = plain(value)
    if not isinstance(values, list | tuple | np.ndarray):
        raise ValueError(f"{name} is not a list")
    if len(values) < rows:
        raise ValueError(f"{name} has {len(values)} of {rows} rows")
    return values[:rows]


def _vector(value: Any, name: str, rows: int, kinds: str) -> np.ndarray:
    values = _listed(value, name, rows)
    column = values if isinstance(values, np.ndarray) else _column(values, name)
    if column.dtype.kind not in kinds or column.size != rows:
        raise ValueError(f"{name} must be one number for each row")
    return column.reshape(rows)


def _column(values: Sequence[Any], name: str) -> np.ndarray:
    """Return an array of single numbers."""
    try:
        return np.array([_number(value) for value in values])
    except ValueError as error:
        raise ValueError(f"{name} must be one number for each row") from error


def _number(value: Any) -> bool | int | float:
    """Return one number, which may be in an array of size one. Other values may be endless."""
    value = plain(value)
    value = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if not isinstance(value, bool | int | float):
        raise ValueError("a value is not a number")
    return value


def _starts(starts: np.ndarray) -> np.ndarray:
    """Check that the rows of each trajectory are together, from its start."""
    whole = starts.astype(np.int64)
    if (whole != starts).any():
        row = int(np.flatnonzero(whole != starts)[0])
        raise ValueError(f"traj_starts has no whole number in row {row} (counted from 0)")
    starts = whole
    rows = np.arange(len(starts))
    begins = np.append(True, starts[1:] != starts[:-1])
    wrong = np.flatnonzero(begins & (starts != rows))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"traj_starts has {starts[row]} for row {row}, where a trajectory begins")
    return starts


def _refused(file: Path, reason: str) -> CwmError:
    return CwmError(f"{file} is not a replay buffer ({reason}): choose a published one")
